"""Fixtures that every test may ask for."""

from tests.testbed.fixtures import bed, kubectl, namespace, runtime

__all__ = ["bed", "kubectl", "namespace", "runtime"]
