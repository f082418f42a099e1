"""What runs inside the Ray cluster: it places, starts, watches and reports; it decides nothing.

The folder is zipped and shipped through Ray's Jobs API, so stock images need none of our code.  Where to look:
``entrypoints`` (the programs), ``placing`` (before the launch), ``supervising`` (after it), ``vllm_adapter`` (vLLM's
inside), ``download`` (the model's files), ``launching`` (around the launcher).  A room imports those behind it in this
list, never those before it; what all share is beside them, and ``contract`` is all that the operator knows of it.
"""
