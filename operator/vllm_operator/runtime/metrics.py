"""Metrics of the process, in Prometheus' form."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    """What the operator measures of itself."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.depth = Gauge(
            "vllm_operator_queue_depth", "Deployments that wait to be looked at.", registry=self.registry
        )
        self.leader = Gauge("vllm_operator_leader", "1 while this replica holds the Lease.", registry=self.registry)
        self.rounds = Counter(
            "vllm_operator_reconcile_total", "Rounds by outcome.", ["outcome"], registry=self.registry
        )
        self.seconds = Histogram("vllm_operator_reconcile_seconds", "Duration of a round.", registry=self.registry)
