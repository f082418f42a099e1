"""The command line of ``kubectl vllm``."""

from __future__ import annotations

import datetime
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click
import yaml

from vllm_operator.cli import cluster
from vllm_operator.cli.cluster import Target
from vllm_operator.cli.documents import Document, InputError, read_deployments, read_nodes, read_quotas
from vllm_operator.cli.explain import Explanation, plan_live, read_live
from vllm_operator.cli.explain import explain as explained
from vllm_operator.cli.hub import hub_answers
from vllm_operator.cli.options import FORMATS, of_cluster, of_namespace
from vllm_operator.cli.plain import plain
from vllm_operator.cli.plans import EXIT_CODES, Answer, answer
from vllm_operator.cli.tables import table
from vllm_operator.cli.why import diagnose
from vllm_operator.cli.why_text import why_text
from vllm_operator.planning.catalogue import BUILT_IN
from vllm_operator.planning.facts import FactsError
from vllm_operator.planning.known import ModelUnknownError
from vllm_operator.planning.quota import NamespaceRules

BAD_INPUT = 1
HUB_ENDPOINT = "https://huggingface.co"
PIPE_WIDTH, MIN_WIDTH = 120, 80
CORE_COLUMNS = ("dp", "kind", "pod", "state", "actorId")
RANK_COLUMNS = ("rank", "dp", "pp", "tp", "bundle", "pod", "node", "gpuIndex", "actor", "state", "driver", "output")
WIDE_COLUMNS = (*RANK_COLUMNS, "gpuUUID", "rayNode")


class _BadUse(click.UsageError):
    """A wrong option or argument; click's own exit status for it, 2, means something else of ``why``."""

    exit_code = BAD_INPUT


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _BadUse(error.format_message(), error.ctx) from error


@click.group(cls=_Commands, name="kubectl-vllm", context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Plan and look at VLLMDeployments."""


@main.command()
@click.option("-f", "--filename", type=click.Path(path_type=Path), required=True, help="File with VLLMDeployments.")
@click.option("--nodes", default="live", show_default=True, help="File with nodes, or 'live' for those of the cluster.")
@click.option("--hub/--no-hub", default=False, show_default=True, help="Ask the hub about models; token in HF_TOKEN.")
@click.option("--hub-endpoint", default=HUB_ENDPOINT, show_default=True, help="Address of the hub.")
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True, help="Form of the answer.")
@of_cluster
def plan(filename: Path, *, nodes: str, hub: bool, hub_endpoint: str, output: str, target: Target) -> NoReturn:
    """Say where a model would go, and why.

    Nothing is made.  The exit status is 0 when everything fits, 3 when something does not fit now, 4 when something
    can never fit on these nodes, 1 when the input cannot be used.
    """
    try:
        documents = read_deployments(filename)
        remedy = "; give an inventory with --nodes FILE"
        there = cluster.live_nodes(target, remedy=remedy) if nodes == "live" else read_nodes(Path(nodes))
        told = hub_answers(documents, hub_endpoint) if hub else [None] * len(documents)
        answers = [
            answer(item, there, BUILT_IN, told=what, rules=_rules(nodes, item, target))
            for item, what in zip(documents, told, strict=True)
        ]
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
@of_namespace
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True, help="Form of the answer.")
def ranks(name: str, output: str, target: Target) -> None:
    """Show which rank sits on which bundle, pod, node and GPU."""
    try:
        body = cluster.deployment(target, name)
    except InputError as error:
        _refuse(str(error))
    engines = (body.get("status") or {}).get("engineReplicas") or []
    if output in ("json", "yaml"):
        keys = ("ranks", "engineCores")
        _data([{"engine": item["name"], **{key: item.get(key, []) for key in keys}} for item in engines], output)
        return
    columns = WIDE_COLUMNS if output == "wide" else RANK_COLUMNS
    rows = [
        [item["name"], *(rank.get(key, _ABSENT[key]) for key in columns)]
        for item in engines
        for rank in item.get("ranks", [])
    ]
    if rows:
        click.echo(table(["engine", *columns], rows) + _engine_cores(engines))
    else:
        told = ", ".join(f"{item['name']} {item['state']} (report {item.get('report', '')})" for item in engines)
        where = f"{body['metadata'].get('namespace')}/{name}"
        click.echo(f"no ranks stand in the status of {where}: {told or 'there is no engine'}")


@main.command()
@click.argument("name")
@of_namespace
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True, help="Form of the answer.")
@click.option("--live", is_flag=True, help="Plan anew against the nodes as they are, and show the difference.")
@click.option("--hub/--no-hub", default=False, show_default=True, help="With --live: ask the hub; token in HF_TOKEN.")
@click.option("--hub-endpoint", default=HUB_ENDPOINT, show_default=True, help="Address of the hub.")
def explain(name: str, *, output: str, live: bool, hub: bool, hub_endpoint: str, target: Target) -> NoReturn:
    """Say how the operator came to the plan of a VLLMDeployment, and where its pods are.

    The exit status is 0 when it is planned, 2 when the operator has not planned it yet, 3 when it waits for GPUs that
    others hold, 4 when no nodes would do, 5 when something else keeps it back, 1 when the input cannot be used.
    """
    try:
        found = cluster.belongings(target, name)
    except InputError as error:
        _refuse(str(error))
    told = explained(found.deployment, found.pods, unread=found.unread)
    if live:
        told = _with_live(told, found, target, hub_endpoint if hub else "")
    if output in ("json", "yaml"):
        _data(told.data(), output)
    else:
        click.echo(told.text(wide=output == "wide", width=0 if output == "wide" else _width()))
    sys.exit(told.exit_code)


@main.command()
@click.argument("name")
@of_namespace
@click.option("-o", "--output", type=FORMATS, default="table", show_default=True, help="Form of the answer.")
def why(name: str, output: str, target: Target) -> NoReturn:
    """Say why a VLLMDeployment is not Ready, and what to do.

    From the outside in: its conditions, its engines, what Ray says of them, their pods, nodes and events; at the end
    the cause in one sentence.  The exit status is 0 when it is Ready, 2 when it is on its way, 5 when it is stalled, 1
    when the input cannot be used.
    """
    try:
        told = diagnose(cluster.scene(target, name))
    except InputError as error:
        _refuse(str(error))
    if output in ("json", "yaml"):
        _data(plain(told), output)
    else:
        click.echo(why_text(told, datetime.datetime.now(datetime.UTC), width=0 if output == "wide" else _width()))
    sys.exit(told.exit_code)


def _with_live(told: Explanation, found: cluster.Belongings, target: Target, hub: str) -> Explanation:
    try:
        nodes = cluster.live_nodes(target, but=found.pods)
        document = read_live(found.deployment)
        facts = hub_answers([document], hub)[0] if hub else None
        rules = cluster.live_rules(target, ours=found.pods)
        return replace(told, live=plan_live(document, told.plan, nodes, BUILT_IN, facts, rules=rules))
    except InputError as error:
        return replace(told, unread=(*told.unread, f"live: {error}"))


def _width() -> int:
    return max(MIN_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else PIPE_WIDTH


_ABSENT: dict[str, object] = dict.fromkeys(WIDE_COLUMNS, "") | {"driver": False, "output": False}


def _engine_cores(engines: Sequence[Mapping[str, Any]]) -> str:
    """Give the table of the actors that data parallel ranks have beside their ranks; empty when there are none."""
    rows = [
        [item["name"], *(core.get(key, "") for key in CORE_COLUMNS)]
        for item in engines
        for core in item.get("engineCores", [])
    ]
    return "\n\n" + table(["engine", "dp", "engine core", "pod", "state", "actor id"], rows) if rows else ""


def _rules(nodes: str, document: Document, target: Target) -> NamespaceRules | None:
    if nodes == "live":
        return cluster.live_rules(target, document.namespace)
    return read_quotas(Path(nodes), document.namespace or "default")


def _worst(answers: Sequence[Answer]) -> int:
    return max(EXIT_CODES[item.verdict] for item in answers)


def _data(value: Any, output: str) -> None:
    click.echo(json.dumps(value, indent=2) if output == "json" else yaml.safe_dump(value, sort_keys=False).rstrip())


def _refuse(message: str) -> NoReturn:
    click.echo(f"kubectl-vllm: {message}", err=True)
    sys.exit(BAD_INPUT)


if __name__ == "__main__":
    main()
