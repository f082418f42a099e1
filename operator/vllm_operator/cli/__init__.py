"""``kubectl vllm``: the operator's own planning, for people, offline or against a cluster."""
