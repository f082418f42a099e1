"""The operator: it turns a ``VLLMDeployment`` into a running engine and says where every rank sits."""
