"""The command line of ``kubectl vllm``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
import yaml

from vllm_operator.cli import cluster
from vllm_operator.cli.documents import InputError, read_deployments, read_nodes
from vllm_operator.cli.hub import hub_answers
from vllm_operator.cli.plans import EXIT_CODES, Answer, answer
from vllm_operator.cli.tables import table
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.facts import FactsError
from vllm_operator.planning.known import ModelUnknownError

BAD_INPUT = 1
FORMATS = click.Choice(["table", "wide", "json", "yaml"])
RANK_COLUMNS = ("rank", "dp", "pp", "tp", "bundle", "pod", "node", "gpuIndex", "actor", "state", "driver", "output")
WIDE_COLUMNS = (*RANK_COLUMNS, "gpuUUID", "rayNode")


@click.group(name="kubectl-vllm", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Plan and look at VLLMDeployments."""


@main.command()
@click.option("-f", "--filename", type=click.Path(path_type=Path), required=True, help="File with VLLMDeployments.")
@click.option("--nodes", default="live", show_default=True, help="File with nodes, or 'live' for those of the cluster.")
@click.option("--hub/--no-hub", default=False, show_default=True, help="Ask the hub about models; token in HF_TOKEN.")
@click.option("--hub-endpoint", default="https://huggingface.co", show_default=True, help="Address of the hub.")
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True, help="Form of the answer.")
def plan(filename: Path, nodes: str, hub: bool, hub_endpoint: str, output: str) -> NoReturn:
    """Say where a model would go, and why.

    Nothing is made.  The exit status is 0 when everything fits, 3 when something does not fit now, 4 when something
    can never fit on these nodes, 1 when the input cannot be used.
    """
    try:
        documents = read_deployments(filename)
        there = cluster.live_nodes() if nodes == "live" else read_nodes(Path(nodes))
        told = hub_answers(documents, hub_endpoint) if hub else [None] * len(documents)
        answers = [answer(item, there, BUILT_IN, what) for item, what in zip(documents, told, strict=True)]
    except FactsError as error:
        _refuse(f"{filename}: spec.model.facts: {error}")
    except (InputError, ModelUnknownError) as error:
        _refuse(str(error))
    if output in ("json", "yaml"):
        _data([item.data() for item in answers], output)
    else:
        click.echo("\n\n".join(item.text(wide=output == "wide") for item in answers))
    sys.exit(_worst(answers))


@main.command()
@click.argument("name")
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the VLLMDeployment.")
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True, help="Form of the answer.")
def ranks(name: str, namespace: str, output: str) -> None:
    """Show which rank sits on which bundle, pod, node and GPU."""
    try:
        body = cluster.deployment(namespace, name)
    except InputError as error:
        _refuse(str(error))
    engines = (body.get("status") or {}).get("engineReplicas") or []
    if output in ("json", "yaml"):
        _data([{"engine": item["name"], "ranks": item.get("ranks", [])} for item in engines], output)
        return
    columns = WIDE_COLUMNS if output == "wide" else RANK_COLUMNS
    rows = [
        [item["name"], *(rank.get(key, _ABSENT[key]) for key in columns)]
        for item in engines
        for rank in item.get("ranks", [])
    ]
    if rows:
        click.echo(table(["engine", *columns], rows))
    else:
        told = ", ".join(f"{item['name']} {item['state']} (report {item.get('report', '')})" for item in engines)
        click.echo(f"no ranks stand in the status of {namespace}/{name}: {told or 'there is no engine'}")


_ABSENT: dict[str, object] = dict.fromkeys(WIDE_COLUMNS, "") | {"driver": False, "output": False}


def _worst(answers: Sequence[Answer]) -> int:
    return max(EXIT_CODES[item.verdict] for item in answers)


def _data(value: Any, output: str) -> None:
    click.echo(json.dumps(value, indent=2) if output == "json" else yaml.safe_dump(value, sort_keys=False).rstrip())


def _refuse(message: str) -> NoReturn:
    click.echo(f"kubectl-vllm: {message}", err=True)
    sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main()
