"""Runs in the head pod: make a detached placement group by hand.  group_by_hand.py NAME BUNDLES STRATEGY."""

import logging
import sys

import ray
from ray.util.placement_group import placement_group

name, bundles, strategy = sys.argv[1:]
ray.init(address="auto", namespace="bench", log_to_driver=False, logging_level=logging.ERROR)
group = placement_group([{"GPU": 1}] * int(bundles), strategy=strategy, name=name, lifetime="detached")
sys.exit(0 if group.wait(60) else 1)
