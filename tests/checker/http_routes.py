"""Runs inside an engine's pod: print every route that this vLLM can serve, as JSON, the ones for developers too."""

import json
import sys
import typing

from vllm import tasks
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser


def words(hint: object) -> list[str]:
    """Give the words of a Literal, or of a union of such."""
    parts = typing.get_args(hint)
    return [word for part in parts for word in ([part] if isinstance(part, str) else words(part))]


arguments = make_arg_parser(FlexibleArgumentParser()).parse_args([])
application = build_app(arguments, tuple(words(tasks.SupportedTask)))
routes = [
    {
        "kind": type(route).__name__,
        "path": route.path,
        "methods": sorted(getattr(route, "methods", None) or []),
    }
    for route in application.routes
]
sys.stdout.write("\n" + json.dumps(routes))
