"""The one room that knows vLLM's inside.

``facts`` and ``arguments`` import nothing of it and are read everywhere.  ``serve`` imports vLLM and torch, and is
imported by the launcher only.
Who moves to another vLLM version changes this folder and no other.
"""
