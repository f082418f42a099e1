"""What one engine may do and whom it trusts: its ServiceAccount, Role, tokens and report ConfigMap."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from vllm_bootstrap import contract
from vllm_operator.resources.names import EngineNames, Owner, engine_labels, metadata

CONTROL_TOKEN_KEY = "control_token"  # noqa: S105
"""Key of an engine's token Secret: the supervisor's token."""

RBAC = "rbac.authorization.k8s.io"


def token_secret(owner: Owner, names: EngineNames, *, auth_token: str = "", control_token: str) -> dict[str, Any]:
    """Build the Secret of Ray's authentication token and the supervisor's control token."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(owner, names.secret, engine_labels(owner, names.index)),
        "type": "Opaque",
        "data": token_data(auth_token=auth_token, control_token=control_token),
    }


def token_data(*, auth_token: str = "", control_token: str) -> dict[str, str]:
    """Give the data of an engine's token Secret; without Ray's token where the cluster is not the engine's own."""
    given = ({"auth_token": auth_token} if auth_token else {}) | {CONTROL_TOKEN_KEY: control_token}
    return {key: base64.b64encode(value.encode()).decode() for key, value in given.items()}


def report_config_map(owner: Owner, names: EngineNames, report: contract.EngineReport | None = None) -> dict[str, Any]:
    """Build the ConfigMap that the engine reports into; made beforehand, because the engine may only patch it.

    Parameters
    ----------
    report
        What the engine says already, when the ConfigMap is made anew.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(owner, names.report, engine_labels(owner, names.index)),
        **({"data": {contract.REPORT_KEY: contract.dumps(report)}} if report else {}),
    }


def service_account(owner: Owner, names: EngineNames) -> dict[str, Any]:
    """Build the ServiceAccount of head and lead pod."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(owner, names.service_account, engine_labels(owner, names.index)),
        # The pods that need the token ask for it; the others must not get it by default.
        "automountServiceAccountToken": False,
    }


def report_role(
    owner: Owner, names: EngineNames, *, secrets: Sequence[str] = (), config_maps: Sequence[str] = ()
) -> dict[str, Any]:
    """Build the engine's rights: to patch its own report, and on a shared RayCluster to read what it is given.

    Parameters
    ----------
    secrets, config_maps
        Names of those that the engine reads itself, because its pods have them not mounted.
    """
    reads = [("secrets", secrets), ("configmaps", config_maps)]
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": metadata(owner, names.report, engine_labels(owner, names.index)),
        "rules": [
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [names.report], "verbs": ["patch"]},
            *(
                {"apiGroups": [""], "resources": [resource], "resourceNames": sorted(set(found)), "verbs": ["get"]}
                for resource, found in reads
                if found
            ),
        ],
    }


def report_role_binding(owner: Owner, names: EngineNames, *, accounts: Sequence[str]) -> dict[str, Any]:
    """Bind the report role to the ServiceAccounts of head and lead pod, the user's or ours."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": metadata(owner, names.report, engine_labels(owner, names.index)),
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": names.report},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": owner.namespace} for account in accounts],
    }
