"""The process: settings, kopf's watches, the Lease, probes and metrics."""
