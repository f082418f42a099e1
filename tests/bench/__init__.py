"""Benchmarks: ratios within one run, written to ``docs/benchmarks.json``; never pass or fail."""
