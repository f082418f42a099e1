"""The Service of a deployment: it selects lead pods only, the ones that serve."""

from __future__ import annotations

from typing import Any

from vllm_bootstrap import contract
from vllm_operator.api import identity
from vllm_operator.resources.names import Owner, labels, metadata


def service(owner: Owner, *, selects: bool = True) -> dict[str, Any]:
    """Build the Service named like the CR.

    Parameters
    ----------
    selects
        Whether it selects lead pods; otherwise the operator writes its EndpointSlices.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner, owner.name, labels(owner)),
        "spec": {
            "type": "ClusterIP",
            **({"selector": identity.lead_selector(owner.name)} if selects else {}),
            "ports": [
                {"name": "http", "port": contract.HTTP_PORT, "targetPort": contract.HTTP_PORT, "protocol": "TCP"}
            ],
        },
    }


def url(owner: Owner) -> str:
    """Address of the OpenAI API inside the cluster."""
    return f"http://{owner.name}.{owner.namespace}.svc:{contract.HTTP_PORT}"
