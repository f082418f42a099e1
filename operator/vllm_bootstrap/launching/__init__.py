"""Around the launcher: the order that it gets, its environment, the guard over it and the gate in front of it.

Standard library only: it runs beside vLLM and inside of its server, and must be there before either.
"""
