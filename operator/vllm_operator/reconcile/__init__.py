"""The only orchestration: queue, observe, decide, act, write status."""
