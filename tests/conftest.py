"""Fixtures that every test may ask for, and how hypothesis runs."""

import hypothesis
from tests.testbed.fixtures import bed, kubectl, kwok, namespace, runtime

__all__ = ["bed", "kubectl", "kwok", "namespace", "runtime"]

# How long an example takes depends on the machine and on what else runs there: it is no reason to fail.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
