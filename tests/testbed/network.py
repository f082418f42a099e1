"""The bridge of a bed and what Kubernetes leaves in the host's packet filter."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from .errors import BedError
from .process import run
from .render import BRIDGE, GATEWAY, PREFIX, NodeNetwork

_BRIDGE_FILTER = "net.bridge.bridge-nf-call-iptables"
# Ours, and those that kubelets, kube-proxy and the CNI plugins set.
_SETTINGS = (
    "net.ipv4.ip_forward",
    "net.ipv4.conf.all.route_localnet",
    _BRIDGE_FILTER,
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
)
_CHAIN = re.compile(r"^:((?:KUBE|CNI)-\S+) ")
PORTS = (2379, 2380, 6443, 10249, 10256, 10257, 10259, 18080, 18082, 18083, 18181)
"""Ports on loopback that the daemons of a bed listen on, kubelets' aside."""


def up(nodes: int) -> None:
    """Bring up the bridge with the addresses of gateway and nodes.

    This comes before anything dials these addresses: until then they would leave by the default route.
    """
    if BRIDGE not in _interfaces():
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    for address in (GATEWAY, *(NodeNetwork(index).address for index in range(nodes))):
        run(["ip", "address", "replace", f"{address}/{PREFIX}", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])
    write_settings({"net.ipv4.ip_forward": "1"})
    if bridge_filter_available():
        write_settings({_BRIDGE_FILTER: "1"})


def down() -> None:
    """Remove the bridge, what hangs on it, and the chains of kube-proxy, kubelets and CNI plugins."""
    for name in leftover_interfaces():
        with suppress(BedError):  # the other end may have gone with its namespace meanwhile
            run(["ip", "link", "delete", name])
    for program in ("iptables", "ip6tables"):
        _remove_chains(program)


def leftover_interfaces() -> list[str]:
    """Give the bridge and the interfaces on it."""
    if BRIDGE not in _interfaces():
        return []
    on_bridge = json.loads(run(["ip", "-json", "link", "show", "master", BRIDGE]) or "[]")
    return [*(str(link["ifname"]) for link in on_bridge), BRIDGE]


def leftover_chains() -> list[str]:
    """Give Kubernetes' chains in the packet filter."""
    return [
        f"{program} {table} {chain}"
        for program in ("iptables", "ip6tables")
        for table, lines in tables(_save(program)).items()
        for chain in chains(lines)
    ]


def tables(saved: str) -> dict[str, list[str]]:
    """Split the output of ``iptables-save`` by table."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in saved.splitlines():
        if line.startswith("*"):
            current = found.setdefault(line[1:], [])
        elif line and not line.startswith("#"):
            current.append(line)
    return found


def chains(lines: Iterable[str]) -> list[str]:
    """Give Kubernetes' chains among the lines of a table."""
    return [match.group(1) for match in map(_CHAIN.match, lines) if match]


def removal(saved: str) -> str:
    """Write the input of ``iptables-restore --noflush`` that removes Kubernetes' chains and the jumps to them."""
    output: list[str] = []
    for table, lines in tables(saved).items():
        doomed = chains(lines)
        if not doomed:
            continue
        jumps = [
            line
            for line in lines
            if line.startswith("-A ") and line.split()[1] not in doomed and set(line.split()) & set(doomed)
        ]
        output.append(f"*{table}")
        output += [f":{chain} - [0:0]" for chain in doomed]  # empties them, so that no chain refers to another
        output += [f"-D {line[3:]}" for line in jumps]
        output += [f"-X {chain}" for chain in doomed]
        output.append("COMMIT")
    return "".join(f"{line}\n" for line in output)


def _save(program: str) -> str:
    try:
        return run([f"{program}-save"])
    except BedError:
        return ""  # a kernel without that family has nothing to be left


def _remove_chains(program: str) -> None:
    script = removal(_save(program))
    if script:
        run([f"{program}-restore", "--noflush"], stdin=script)


def _interfaces() -> set[str]:
    return {path.name for path in Path("/sys/class/net").iterdir()}


def bridge_filter_available() -> bool:
    """Tell whether the packet filter can see what passes over a bridge."""
    return _setting(_BRIDGE_FILTER).exists()


def _setting(name: str) -> Path:
    return Path("/proc/sys", *name.split("."))


def read_settings() -> dict[str, str]:
    """Read the kernel settings that a bed changes."""
    return {name: _setting(name).read_text(encoding="ascii").strip() for name in _SETTINGS if _setting(name).exists()}


def write_settings(values: Mapping[str, str]) -> None:
    """Write kernel settings; one that cannot be written is left as it is."""
    for name, value in values.items():
        with suppress(OSError):
            _setting(name).write_text(value, encoding="ascii")


def busy_ports() -> list[int]:
    """Give the ports of a bed that something else on this machine listens on."""
    busy = []
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                busy.append(port)
    return busy
