"""From the launch to the end of an attempt, on the lead pod: watch, report, and do what the operator asks.

All that happens arrives as an event in one queue (``events``), whoever saw it, and one thread reads it
(``supervisor``).  Only ``actor``, ``actor_table`` and ``rank_watch`` know Ray: an engine of one pod is kept by the same
code without it.
"""
