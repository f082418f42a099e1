"""Options that the commands share, named as kubectl names its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from vllm_operator.cli.cluster import Target

FORMATS = click.Choice(["table", "wide", "json", "yaml"])
F = TypeVar("F", bound=Callable[..., Any])


def of_cluster(command: F) -> F:
    """Add ``--context`` and ``--kubeconfig``; the command gets a ``target``."""

    @click.option(
        "--context", default="", metavar="NAME", help="Context of the kubeconfig, instead of its current one."
    )
    @click.option("--kubeconfig", default="", metavar="FILE", help="Kubeconfig, instead of $KUBECONFIG.")
    @functools.wraps(command)
    def called(*arguments: Any, context: str, kubeconfig: str, namespace: str = "", **options: Any) -> Any:
        target = Target(kubeconfig=kubeconfig, context=context, namespace=namespace)
        return command(*arguments, target=target, **options)

    return called  # type: ignore[return-value]


def of_namespace(command: F) -> F:
    """Add what ``of_cluster`` adds, and ``-n``."""
    option = click.option("-n", "--namespace", default="", help="Namespace, instead of the context's.")
    return option(of_cluster(command))
