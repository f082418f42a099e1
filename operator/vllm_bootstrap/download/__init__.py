"""What an engine loads, as files in its pods: which are needed, brought from the hub, and whether they are whole.

The hub's library is used in ``hub`` and ``hub_failure``, which run in a process of their own (``process``).  Nothing
here knows of placement or of vLLM; ``actor`` alone knows Ray.
"""
