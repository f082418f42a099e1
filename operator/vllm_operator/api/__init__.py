"""What users type and read: the ``VLLMDeployment`` as pydantic models, its rules, and the CRD made from them."""
