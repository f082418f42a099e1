"""The only modules of the operator that do I/O: the Kubernetes API and the Ray head."""
