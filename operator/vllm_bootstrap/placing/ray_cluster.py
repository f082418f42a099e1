"""Ray, asked and told: every call into it from the bootstrap job is here, and none of them decides anything."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
import ray.util
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group

from vllm_bootstrap import contract
from vllm_bootstrap.placing.groups import GroupRequest
from vllm_bootstrap.placing.placement import REMOVED, Group, RayNode
from vllm_bootstrap.supervising.actor_table import rows
from vllm_bootstrap.supervising.events import DEAD
from vllm_bootstrap.vllm_adapter.facts import CORE_CLASSES

LOG = logging.getLogger(__name__)

NODE_LABEL = "ray.io/node-id"
"""Label that Ray gives to each node."""


@dataclass(frozen=True)
class NamedActor:
    """A living actor that has a name; its namespace is needed to find it again."""

    name: str
    namespace: str


def connect() -> str:
    """Join the cluster and give the GCS address."""
    ray.init(address="auto", namespace=contract.RAY_NAMESPACE, log_to_driver=False)
    return str(ray.get_runtime_context().gcs_address)


def alive_nodes() -> list[RayNode]:
    """List the nodes that the GCS counts alive."""
    return [_node(entry) for entry in ray.nodes() if entry["Alive"]]


def free_gpus() -> dict[str, float]:
    """Give the free GPUs of each node, for messages only."""
    with contextlib.suppress(Exception):  # there is no public call for it
        from ray._private.state import available_resources_per_node  # noqa: PLC0415

        return {node: float(free.get("GPU", 0)) for node, free in available_resources_per_node().items()}
    return {}


def engine_actors(prefixes: Iterable[str]) -> list[NamedActor]:
    """List living actors, of any namespace, whose name begins with one of ``prefixes``.

    vLLM's rank actors live in an anonymous namespace: its engine process calls ``ray.init`` without one.
    """
    wanted = tuple(prefixes)
    found = ray.util.list_named_actors(all_namespaces=True)
    return [NamedActor(entry["name"], entry["namespace"]) for entry in found if entry["name"].startswith(wanted)]


def engine_cores(groups: Iterable[str], address: str) -> list[NamedActor]:
    """List vLLM's engine core actors in these placement groups that are not dead; they have no names of their own.

    Parameters
    ----------
    groups
        Ids.
    address
        Of the GCS.
    """
    wanted = frozenset(groups)
    return [
        NamedActor(f"{kind} {row.actor_id}", "")
        for kind in CORE_CLASSES
        for row in rows(kind, address)
        if row.state != DEAD and row.placement_group_id in wanted
    ]


def kill_actor(actor: NamedActor) -> None:
    """Kill an actor for good; one that is gone already is as good."""
    try:
        ray.kill(ray.get_actor(actor.name, namespace=actor.namespace), no_restart=True)
    except ValueError:
        LOG.debug("actor %s is gone", actor.name)


def find_group(name: str) -> Group | None:
    """Find a placement group of our namespace."""
    try:
        group = ray.util.get_placement_group(name)
    except ValueError:
        return None
    found = _group(group)
    return None if found.state == REMOVED else found


def find_groups(is_wanted: Callable[[str], bool]) -> list[Group]:
    """Give the placement groups that are there and not removed, by name; of those that go meanwhile, none."""
    names = sorted({name for name in group_names() if is_wanted(name)})
    return [group for name in names if (group := find_group(name))]


def read_group(group_id: str) -> Group:
    """Read a placement group's table again."""
    return _group(handle(group_id))


def group_names() -> list[str]:
    """List the names of the placement groups of all namespaces that are not removed."""
    return [str(entry["name"]) for entry in placement_group_table().values() if entry["state"] != REMOVED]


def make_group(request: GroupRequest) -> Group:
    """Ask for a detached placement group; it outlives the job and every attempt."""
    pins = [{NODE_LABEL: node} for node in request.nodes]
    bundles = [dict(bundle) for bundle in request.bundles]
    return _group(
        placement_group(
            bundles,
            strategy=request.strategy,
            name=request.name,
            lifetime="detached",
            bundle_label_selector=pins or None,
        )
    )


def wait_group(group_id: str, seconds: float) -> bool:
    """Wait until all bundles have a node."""
    return bool(handle(group_id).wait(seconds))


def remove_group(group_id: str) -> None:
    """Ask for the group's removal; it ends a moment later."""
    remove_placement_group(handle(group_id))


def handle(group_id: str) -> PlacementGroup:
    """Make a handle of a placement group from its id."""
    return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group_id)))


def last_line(error: BaseException) -> str:
    """Give the last line of a Ray error: the ones before are the remote traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _node(entry: Mapping[str, Any]) -> RayNode:
    resources = entry["Resources"]
    return RayNode(
        id=entry["NodeID"],
        address=entry["NodeManagerAddress"],
        gpus=float(resources.get("GPU", 0)),
        cpus=float(resources.get("CPU", 0)),
        lead=contract.LEAD_RESOURCE in resources,
        group=str(entry.get("Labels", {}).get("ray.io/node-group", "")),
    )


def _group(group: PlacementGroup) -> Group:
    table = placement_group_table(group)
    bundles = table.get("bundles", {})
    return Group(
        name=str(table.get("name", "")),
        id=group.id.hex(),
        state=str(table.get("state", REMOVED)),
        strategy=str(table.get("strategy", "")),
        bundles=tuple(dict(bundles[index]) for index in sorted(bundles)),
        node_of={int(index): str(node) for index, node in table.get("bundles_to_node_id", {}).items() if node},
    )
