"""Which events ask for which deployments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kopf
import pytest

from vllm_operator.reconcile.reconciler import Key
from vllm_operator.runtime.handlers import operator_settings, register


class Watches:
    """The registered handlers, and what they asked for."""

    def __init__(self) -> None:
        self.registry = kopf.OperatorRegistry()
        self.keys: list[Key] = []
        self.all = 0
        self.waiting = 0
        register(
            self.registry,
            enqueue=self.keys.append,
            enqueue_all=self._enqueue_all,
            enqueue_waiting=self._enqueue_waiting,
        )

    def _enqueue_all(self) -> None:
        self.all += 1

    def _enqueue_waiting(self) -> None:
        self.waiting += 1

    def handlers(self) -> Iterator[Any]:
        yield from self.registry._watching.get_all_handlers()  # kopf has no public way to list them

    async def tell(self, id_: str, body: dict[str, Any], kind: str = "MODIFIED") -> None:
        handler = next(item for item in self.handlers() if item.id == id_)
        meta = body.get("metadata", {})
        await handler.fn(
            name=meta.get("name"), namespace=meta.get("namespace"), labels=meta.get("labels", {}), body=body, type=kind
        )


def node(name: str = "n", **changes: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": changes.get("labels", {"a": "1"}),
            "resourceVersion": changes.get("rv", "1"),
        },
        "spec": ({"unschedulable": True} if changes.get("cordoned") else {})
        | ({"taints": changes["taints"]} if "taints" in changes else {}),
        "status": {
            "allocatable": {"nvidia.com/gpu": changes.get("gpus", "4")},
            "conditions": [{"type": "Ready", "lastHeartbeatTime": changes.get("beat", "")}],
        },
    }


async def test_heartbeats_of_a_node_ask_for_nothing() -> None:
    watches = Watches()
    await watches.tell("node", node(), "ADDED")
    assert watches.all == 1
    for beat in range(10):
        await watches.tell("node", node(beat=str(beat), rv=str(beat)))
    assert watches.all == 1


@pytest.mark.parametrize(
    "change",
    [{"gpus": "8"}, {"cordoned": True}, {"labels": {"a": "2"}}, {"taints": [{"key": "k", "effect": "NoSchedule"}]}],
    ids=["GPUs", "cordon", "labels", "taints"],
)
async def test_what_plans_depend_on_asks_for_all(change: dict[str, Any]) -> None:
    watches = Watches()
    await watches.tell("node", node())
    await watches.tell("node", node("other"))
    before = watches.all
    await watches.tell("node", node(**change))
    assert watches.all == before + 1
    await watches.tell("node", node(**change))
    assert watches.all == before + 1


async def test_a_node_that_goes_and_comes_asks_for_all() -> None:
    watches = Watches()
    await watches.tell("node", node())
    await watches.tell("node", node(), "DELETED")
    await watches.tell("node", node(), "ADDED")
    assert watches.all == 3


async def test_a_deployment_asks_for_itself() -> None:
    watches = Watches()
    await watches.tell("deployment", {"metadata": {"name": "d", "namespace": "n"}}, "DELETED")
    assert watches.keys == [Key("n", "d")]


@pytest.mark.parametrize("plural", ["pods", "rayclusters", "services", "configmaps"])
async def test_a_child_asks_for_its_deployment(plural: str) -> None:
    watches = Watches()
    meta = {"name": "c", "namespace": "n", "labels": {"vllm-operator.io/deployment": "d"}}
    await watches.tell(f"child-{plural}", {"metadata": meta})
    assert watches.keys == [Key("n", "d")]
    await watches.tell(f"child-{plural}", {"metadata": {**meta, "labels": {}}})
    assert len(watches.keys) == 1


async def test_a_pod_that_goes_asks_for_those_that_wait_for_gpus() -> None:
    watches = Watches()
    meta = {"name": "p", "namespace": "n", "labels": {"vllm-operator.io/deployment": "d"}}
    await watches.tell("child-pods", {"metadata": meta}, "MODIFIED")
    assert watches.waiting == 0
    await watches.tell("child-pods", {"metadata": meta}, "DELETED")
    assert watches.waiting == 1


async def test_kuberays_crd_asks_for_all_and_no_other_crd_does() -> None:
    watches = Watches()
    await watches.tell("installed", {"metadata": {"name": "rayservices.ray.io"}})
    assert watches.all == 0
    await watches.tell("installed", {"metadata": {"name": "rayclusters.ray.io"}}, "ADDED")
    assert watches.all == 1


def test_handlers_write_nothing() -> None:
    """Only ``on.event``: kopf's other handlers annotate every object and add a finalizer."""
    watches = Watches()
    assert not list(watches.registry._changing.get_all_handlers())
    assert not list(watches.registry._spawning.get_all_handlers())
    assert not list(watches.registry._indexing.get_all_handlers())
    assert not any(
        handler.requires_finalizer for handler in watches.handlers() if hasattr(handler, "requires_finalizer")
    )


@pytest.mark.parametrize(
    ("group", "plural", "ours"),
    [
        ("", "pods", True),
        ("", "services", True),
        ("", "configmaps", True),
        ("ray.io", "rayclusters", True),
        ("", "nodes", False),
        ("vllm-operator.io", "vllmdeployments", False),
    ],
)
def test_children_are_watched_by_our_label_alone(group: str, plural: str, ours: bool) -> None:
    """A selector that kopf does not take for the resource matches nothing, silently: ask it."""
    resource = kopf.Resource(group=group, version="v1", plural=plural, namespaced=True, preferred=True)
    found = [
        value for selector, value in operator_settings().watching.label_selectors.items() if selector.check(resource)
    ]
    assert found == (["app.kubernetes.io/managed-by=vllm-operator"] if ours else [])


def test_kopf_posts_no_events_of_its_own() -> None:
    assert not operator_settings().posting.enabled
