"""Runs inside the Ray head pod: print Ray's actors, placement groups and nodes as one JSON object."""

import json
import logging
import sys

import ray
from ray.util.placement_group import placement_group_table
from ray.util.state import list_actors, list_placement_groups

ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
actors = [
    {
        "actor_id": actor.actor_id,
        "name": actor.name,
        "class_name": actor.class_name,
        "state": actor.state,
        "node_id": actor.node_id,
        "pid": actor.pid,
        "placement_group_id": actor.placement_group_id,
    }
    for actor in list_actors(detail=True, limit=10000)
]
groups = [
    {"name": group.name, "state": group.state, "placement_group_id": group.placement_group_id}
    for group in list_placement_groups(detail=True, limit=10000)
]
nodes = [
    {
        "node_id": node["NodeID"],
        "alive": node["Alive"],
        "ip": node["NodeManagerAddress"],
        "resources": node["Resources"],
    }
    for node in ray.nodes()
]
sys.stdout.write(json.dumps({"actors": actors, "groups": groups, "nodes": nodes, "tables": placement_group_table()}))
