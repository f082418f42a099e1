"""The test bed by hand: ``python -m tests.testbed <verb>``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import cluster, components, imagebuild, python_runtime
from .bed import Bed
from .errors import BedError
from .layout import REPOSITORY, Layout
from .process import Daemons
from .spec import BedSpec, parse_nodes

_Verb = Callable[[Layout, argparse.Namespace], int]


def _build(layout: Layout, _: argparse.Namespace) -> int:
    components.build(layout)
    return 0


def _runtime(layout: Layout, _: argparse.Namespace) -> int:
    runtime = python_runtime.ensure(layout)
    for name, folder in runtime.mounts.items():
        print(f"{name:14} {folder}")
    return 0


def _up(layout: Layout, args: argparse.Namespace) -> int:
    wanted = None
    if args.nodes or args.without_kuberay:
        wanted = BedSpec(nodes=parse_nodes(args.nodes), kuberay=not args.without_kuberay)
    cluster.up(layout, wanted)
    print('the test bed is up; for a shell: eval "$(python -m tests.testbed env)"', file=sys.stderr)
    return 0


def _down(layout: Layout, _: argparse.Namespace) -> int:
    cluster.down(layout)
    return 0


def _env(layout: Layout, _: argparse.Namespace) -> int:
    cluster.require_spec(layout)
    print(f"export KUBECONFIG={shlex.quote(str(layout.kubeconfig))} PATH={shlex.quote(str(layout.bin))}:$PATH")
    return 0


def _status(layout: Layout, _: argparse.Namespace) -> int:
    spec = cluster.running(layout)
    if spec is None:
        print("down")
        return 1
    daemons = Daemons(layout)
    for name in sorted({*cluster.expected_daemons(spec), *daemons.names()}):
        process = daemons.get(name)
        print(f"{name:28} {'running' if daemons.runs(name) else 'stopped':8} {process.pid if process else '-'}")
    wrong = cluster.ailments(layout, spec)
    print("\n".join(wrong) if wrong else "healthy")
    return 1 if wrong else 0


def _logs(layout: Layout, args: argparse.Namespace) -> int:
    if args.name is None:
        for path in sorted(layout.logs.glob("*.log")):
            print(path)
        return 0
    path = layout.log(args.name)
    if not path.exists():
        raise BedError(f"no log of {args.name!r} in {layout.logs}")
    with path.open(encoding="utf-8", errors="replace") as lines:
        sys.stdout.writelines(lines)
    return 0


def _bed(layout: Layout) -> Bed:
    return Bed(layout, cluster.require_spec(layout))


def _node(layout: Layout, args: argparse.Namespace) -> int:
    bed = _bed(layout)
    (bed.stop_node if args.action == "stop" else bed.start_node)(args.name)
    return 0


def _kubelet(layout: Layout, args: argparse.Namespace) -> int:
    bed = _bed(layout)
    (bed.stop_kubelet if args.action == "stop" else bed.start_kubelet)(args.name)
    return 0


def _kuberay(layout: Layout, args: argparse.Namespace) -> int:
    bed = _bed(layout)
    actions = {
        "install": bed.install_kuberay,
        "uninstall": bed.uninstall_kuberay,
        "start": bed.start_kuberay,
        "stop": bed.stop_kuberay,
    }
    actions[args.action]()
    return 0


def _kwok(layout: Layout, args: argparse.Namespace) -> int:
    bed = _bed(layout)
    (bed.stop_kwok if args.action == "stop" else bed.start_kwok)()
    return 0


def _image_import(layout: Layout, args: argparse.Namespace) -> int:
    _bed(layout).import_image(args.archive.resolve())
    return 0


def _image_build(layout: Layout, args: argparse.Namespace) -> int:
    values = dict(pair.partition("=")[::2] for pair in args.build_arg)
    context = args.context.resolve()
    print(imagebuild.build(layout, args.file.resolve(), args.tag, build_args=values, context=context))
    return 0


def parser() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    top = argparse.ArgumentParser(prog="python -m tests.testbed", description=__doc__)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="verb")

    def verb(name: str, action: _Verb, text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text)
        sub.set_defaults(action_of_verb=action)
        return sub

    verb("build", _build, "build or find every program")
    verb("runtime", _runtime, "build or find the CPU runtime and the demo model; print the folders that pods mount")
    up = verb("up", _up, "bring the test bed up, or find the one that is")
    up.add_argument("--nodes", nargs="+", default=[], metavar="name:gpus[:product[:memoryMiB]]")
    up.add_argument("--without-kuberay", action="store_true", help="no CRDs and no operator of KubeRay")
    verb("down", _down, "take the test bed down; logs stay")
    verb("env", _env, "print what a shell needs")
    verb("status", _status, "say what runs; exit 1 unless healthy")
    logs = verb("logs", _logs, "print a daemon's log, or the paths of all")
    logs.add_argument("name", nargs="?")
    for name, action, text in (
        ("node", _node, "switch a node's machine off or on"),
        ("kubelet", _kubelet, "stop or start a kubelet; containers go on"),
    ):
        sub = verb(name, action, text)
        sub.add_argument("action", choices=("stop", "start"))
        sub.add_argument("name")
    ray = verb("kuberay", _kuberay, "KubeRay's CRDs and operator")
    ray.add_argument("action", choices=("install", "uninstall", "start", "stop"))
    fake = verb("kwok", _kwok, "nodes without a machine")
    fake.add_argument("action", choices=("start", "stop"))
    image = verbs.add_parser("image", help="container images").add_subparsers(required=True, metavar="action")
    build = image.add_parser("build", help="build a Dockerfile, or find its image; print the path of the archive")
    build.set_defaults(action_of_verb=_image_build)
    build.add_argument("--file", type=Path, required=True, help="the Dockerfile")
    build.add_argument("--tag", required=True)
    build.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE")
    build.add_argument("--context", type=Path, default=REPOSITORY, help="what COPY copies from; default: the checkout")
    add = image.add_parser("import", help="make the images of an archive known on every node")
    add.set_defaults(action_of_verb=_image_import)
    add.add_argument("archive", type=Path)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; say what failed, without a traceback, when the bed could not do it."""
    args = parser().parse_args(argv)
    action: _Verb = args.action_of_verb
    try:
        return action(Layout.from_environment(), args)
    except BedError as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1
