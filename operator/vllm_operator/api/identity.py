"""Names that the API is known by: group, kind, labels, annotations, and how objects are called."""

from __future__ import annotations

GROUP = "vllm-operator.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "VLLMDeployment"
PLURAL = "vllmdeployments"
SINGULAR = "vllmdeployment"
SHORT_NAME = "vllm"
CRD_NAME = f"{PLURAL}.{GROUP}"

MANAGER = "vllm-operator"
MAX_NAME_LENGTH = 40
"""RayCluster names take 53 characters, and an engine's adds an index and a hash to the CR's."""

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_DEPLOYMENT = f"{GROUP}/deployment"
LABEL_ENGINE = f"{GROUP}/engine"
LABEL_LEAD = f"{GROUP}/lead"
LABEL_WORKLOAD = f"{GROUP}/workload"
"""On the pods of an engine without Ray: the name of its Deployment, as ``ray.io/cluster`` is of a RayCluster."""

LABEL_RAY_CLUSTER = f"{GROUP}/ray-cluster"
"""On what an engine holds of a shared RayCluster: the name of that."""

LABEL_REVISION = f"{GROUP}/revision"
FINALIZER = f"{GROUP}/drain"
"""On a deployment that has something to end in order before it goes."""

ANNOTATION_RETRY = f"{GROUP}/retry"
"""An RFC 3339 instant later than a failure: the engine is tried again, also after one that is final."""


def lead_selector(deployment: str) -> dict[str, str]:
    """Labels that select the lead pods of a deployment: one per engine, the ones that serve."""
    return {LABEL_DEPLOYMENT: deployment, LABEL_LEAD: "true"}
