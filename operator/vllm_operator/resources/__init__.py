"""What we ask Kubernetes for: one builder a kind, plain dicts out, equal input gives equal output.  Pure."""
