"""Runs in the head pod: a placement group by hand, once the GPUs are there.  group_by_hand.py NAME STRATEGY GPUS.

What an experienced user would write; it shares nothing with the product.
"""

import logging
import sys
import time

import ray
from ray.util.placement_group import placement_group

name, strategy, gpus = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = {"address": "auto", "namespace": "bench", "log_to_driver": False, "logging_level": logging.ERROR}
deadline = time.monotonic() + 120
while not ray.is_initialized():
    try:
        ray.init(**options)
    except ConnectionError:  # the head is still starting
        if time.monotonic() > deadline:
            raise
        time.sleep(0.5)
while ray.cluster_resources().get("GPU", 0) < gpus and time.monotonic() < deadline:
    time.sleep(0.25)
group = placement_group([{"GPU": 1}] * gpus, strategy=strategy, name=name, lifetime="detached")
sys.exit(0 if group.wait(60) else "the placement group is not there after 60 s")
