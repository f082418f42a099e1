"""What runs inside the Ray cluster: it places, starts, watches and reports; it decides nothing.

The folder is zipped and shipped through Ray's Jobs API, so stock images need none of our code.
"""
