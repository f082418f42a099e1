"""A real Kubernetes with real KubeRay on one machine, built from source, for tests and the demo.

The product's promises are about what kubelets, schedulers, KubeRay, Ray and vLLM really do, so the tests run against
all of them.  No container registry is needed: programs come as Go modules, Debian and Python packages, and images are
written here.  Only GPUs are faked, as node capacity.

``python -m tests.testbed --help`` lists what can be done by hand; :class:`tests.testbed.bed.Bed` is the API for tests.
"""
