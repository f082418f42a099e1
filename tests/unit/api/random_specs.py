"""Specs and nodes as nobody would write them, the same for the same seed: valid but odd, and almost valid.

Fields come out of the CRD's own schema, so that a new field is tried without a line here.  Only where a schema says
little (a pattern, a free form) there are words of ours.  Everything is JSON data.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.unit.planning import models

from vllm_operator.api.crd import custom_resource_definition

Object = dict[str, Any]
Chance = random.Random

SCHEMA: Object = custom_resource_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]

SPOILED = 0.3
"""Share of the specs of which something is changed that the schema may not allow."""

OFTEN = {"facts": 0.75, "config": 0.6, "parameters": 0.5, "parallelism": 0.4, "placement": 0.6, "vllmConfig": 0.5}
SELDOM = 0.2

PRODUCTS = ("NVIDIA-A100-SXM4-80GB", "NVIDIA-L40S", "NVIDIA-GeForce-RTX-3090", "NVIDIA-H100-80GB-HBM3", "Ünknown-GPU")

WORDS = (
    *("", "a", "x-1", "auto", "bfloat16", "float16", "float32", "fp8", "awq", "fp8_e5m2", "main", "*A100*", "L40S"),
    *("datacenter", "inference", "16Gi", "500m", "4", "1e3", "0.5", "-1", "1.5Gi", "hf://org/name", "pvc://claim/x"),
    *("36B", "0.6B", "1T", "134515008", "0", "000", "9" * 60 + "T", "int4", "NAME_1", "registry.example/image:1"),
    *(
        "kubernetes.io/hostname",
        "ü",
        "日本語",
        "🤖" * 9,
        "a b",
        "a\nb",
        "{{.}}",
        "$(HOME)",
        "'\"",
        "\u0000",
        "..",
        "%s",
    ),
    *("a" * 63, "a" * 253, "a" * 256, "x" * 1024, "ß" * 256),
)

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 1.0, 1.5, 0.0, 1e-9, 2**31 - 1, 2**31, 2**53, 2**63, 10**30, 1e300, -1e300),
    *("", "1", "x" * 300, "x" * 9000, "ü" * 257, "null", "[]", [], {}, [[]], [None], [1, "a"], {"": None}),
    *({"a": {"b": [{"c": 1}]}}, ["a"] * 200, {f"k{index}": "v" for index in range(100)}, [{"name": "a"}] * 2),
)

ARGUMENTS = (
    *("--enforce-eager", "--seed=1", "--max-num-batched-tokens", "2048", "-cc.mode=2", "--", "-", "", "-q", "host"),
    *("--tensor-parallel-size=2", "--ten=2", "-tp", "-n2", "--port", "--data-par", "--TENSOR-PARALLEL-SIZE=2", "-n²"),
)


def random_spec(chance: Chance) -> Any:
    """Give ``spec`` of a deployment; most are valid."""
    spec = _consistent(_object(SCHEMA["spec"], "spec", chance), chance)
    if chance.random() < SPOILED:
        for _ in range(chance.randint(1, 3)):
            spec = _spoil(spec, chance)
    return spec


def random_nodes(chance: Chance) -> list[Object]:
    """Give Node objects as an API server has them, some with labels and taints that nobody expects, and their pods."""
    products = chance.sample(PRODUCTS, chance.randint(1, 3))
    nodes = [_node(f"node-{index}", chance.choice(products), chance) for index in range(chance.randint(0, 12))]
    return [*nodes, *(_pod(node["metadata"]["name"], chance) for node in nodes if chance.random() < 0.4)]


def _pod(node: str, chance: Chance) -> Object:
    limits = {"nvidia.com/gpu": chance.choice(("1", "2", "4", "8")), "cpu": "500m"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{node}", "namespace": "others"},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": chance.choice(("Running", "Running", "Pending", "Succeeded"))},
    }


def _node(name: str, product: str, chance: Chance) -> Object:
    labels = {"pool": chance.choice("ab"), "topology.kubernetes.io/zone": chance.choice(("z1", "z2"))}
    if chance.random() < 0.9:
        labels["nvidia.com/gpu.product"] = product
    if chance.random() < 0.9:
        labels["nvidia.com/gpu.memory"] = chance.choice(("81559", "24576", "49140", "1", "", "x", "9" * 20, "80Gi"))
    taints = [
        {"key": chance.choice(("spot", "nvidia.com/gpu", "node.kubernetes.io/not-ready")), "effect": effect}
        for effect in ("NoSchedule", "PreferNoSchedule")
        if chance.random() < 0.1
    ]
    gpus = chance.choice(("8", "4", "2", "1", "0", "16", "1k", "1000"))
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": taints, **({"unschedulable": True} if chance.random() < 0.1 else {})},
        "status": {"allocatable": {"nvidia.com/gpu": gpus, "cpu": "64", "memory": "512Gi", "pods": "110"}},
    }


# ---- valid, by the schema ------------------------------------------------------------------------------------------


def _value(schema: Object, name: str, chance: Chance) -> Any:
    if name in _FORMS:
        return _FORMS[name](chance)
    if "enum" in schema:
        return chance.choice(schema["enum"])
    return _TYPES[schema.get("type", "string")](schema, name, chance)


def _text(schema: Object, _: str, chance: Chance) -> str:
    text = chance.choice(_matching(schema.get("pattern", "")))
    return text[: schema.get("maxLength", 64)] if chance.random() < 0.95 else text * 5


def _list(schema: Object, name: str, chance: Chance) -> list[Any]:
    count = min(schema.get("maxItems", 8), chance.choice((0, 1, 1, 2, 3, 8)))
    return [_value(schema["items"], f"{name}[]", chance) for _ in range(count)]


def _object(schema: Object, name: str, chance: Chance) -> Object:
    if "additionalProperties" in schema:
        values = schema["additionalProperties"]
        return {chance.choice(WORDS): _value(values, f"{name}{{}}", chance) for _ in range(chance.randint(0, 3))}
    required = schema.get("required", ())
    return {
        key: _value(child, key, chance)
        for key, child in schema.get("properties", {}).items()
        if key in required or chance.random() < OFTEN.get(key, SELDOM)
    }


def _integer(schema: Object, _: str, chance: Chance) -> int:
    low, high = schema["minimum"], schema["maximum"]
    return min(high, max(low, chance.choice((low, 1, 1, 2, 2, 3, 4, 6, 8, 16, 100, 4096, 131072, high))))


_TYPES: dict[str, Callable[[Object, str, Chance], Any]] = {
    "object": _object,
    "array": _list,
    "integer": _integer,
    "number": lambda schema, _, chance: chance.choice((schema.get("maximum", 1), 0.9, 0.5, 0.05, 1e-6)),
    "boolean": lambda _, __, chance: chance.random() < 0.5,
    "string": _text,
}

_KNOWN: dict[str, tuple[str, ...]] = {}


def _matching(pattern: str) -> tuple[str, ...]:
    if pattern not in _KNOWN:
        _KNOWN[pattern] = tuple(word for word in WORDS if re.search(pattern, word)) or ("a",)
    return _KNOWN[pattern]


def _consistent(spec: Object, chance: Chance) -> Object:
    """Take most contradictions out again: a spec of random fields has one almost always."""
    if chance.random() < 0.1:
        return spec
    _consistent_model(spec["model"])
    placement = spec.get("placement", {})
    if placement.get("strategy") in ("STRICT_PACK", "STRICT_SPREAD"):
        placement.pop("gpusPerPod", None)
    for wish in spec.get("accelerators", []):
        wish.update({} if any(wish.values()) else {"memoryGiB": 24})
    variables = {variable["name"]: variable for variable in spec.get("env", [])}
    for variable in variables.values():
        variable.pop("valueFrom" if "value" in variable else "", None)
        if "valueFrom" in variable:
            variable["valueFrom"] = _one_of(variable["valueFrom"], {"secretKeyRef": {"name": "keys", "key": "k"}})
    spec["env"] = list(variables.values())
    spec["envFrom"] = [_one_of(source, {"secretRef": {"name": "keys"}}) for source in spec.get("envFrom", [])]
    _consistent_lora(spec.get("lora", {}))
    spec["distributedExecutorBackend"] = chance.choice(("auto", "ray"))
    return spec


def _consistent_lora(lora: Object) -> None:
    adapters = {item["name"]: {**item, "uri": "file:///opt/adapters/a"} for item in lora.get("adapters", [])}
    if adapters:
        lora["adapters"] = list(adapters.values())
    lora.pop("maxCpuLoras", None)
    lora["persistentVolumeClaims"] = sorted(set(lora.get("persistentVolumeClaims", [])))


def _consistent_model(model: Object) -> None:
    if not str(model["uri"]).startswith("hf://"):
        model.pop("revision", None)
        model.pop("cache", None)
    if "facts" in model and not {"parameters", "config"} & model["facts"].keys():
        model["facts"]["parameters"] = "8B"


def _one_of(source: Object, default: Object) -> Object:
    """Leave one reference to a Secret or ConfigMap."""
    references = [key for key in source if key.endswith("Ref")]
    kept = {key: value for key, value in source.items() if key not in references[1:]}
    return kept if references else {**kept, **default}


# ---- words for what the schema leaves open -------------------------------------------------------------------------


def _uri(chance: Chance) -> str:
    return chance.choice(
        ("file:///opt/models/m", "hf://org/name", "hf://gpt2", "pvc://claim/a/b", "file:///ü", "pvc://c")
    )


def _config(chance: Chance) -> Object:
    """Give a public model's ``config.json``, often with some keys dropped, renamed or of another type."""
    config = copy.deepcopy(chance.choice(list(models.PARAMETERS.values()))[0])
    for _ in range(chance.choice((0, 0, 1, 2, 4))):
        part = chance.choice([config, *(value for value in config.values() if isinstance(value, dict))])
        if not part:
            continue
        key = chance.choice(sorted(part))
        match chance.randrange(5):
            case 0:
                del part[key]
            case 1:
                part[key + chance.choice(("s", "_", " "))] = part.pop(key)
            case 2:
                part[key] = chance.choice(ODD)
            case 3 if isinstance(part[key], int):
                part[key] = round(part[key] * chance.choice((0, 0.3, 3, 7, 1000, 10**6, 10**12)))
            case _:
                config[chance.choice(("text_config", "vision_config", "quantization_config"))] = chance.choice(
                    (config.copy(), {"depth": 32, "hidden_size": 10**9}, {"bits": 4}, chance.choice(ODD))
                )
    return config


def _affinity(chance: Chance) -> Object:
    expression = {
        "key": chance.choice(("pool", "kubernetes.io/hostname", "metadata.name", 7)),
        "operator": chance.choice(("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Like", None)),
        "values": chance.choice((["a"], ["a", "b"], ["7"], [], None, "a", [1])),
    }
    term = {chance.choice(("matchExpressions", "matchFields")): [expression]}
    required = chance.choice(({"nodeSelectorTerms": [term]}, {"nodeSelectorTerms": [{}]}, chance.choice(ODD)))
    return chance.choice(
        (
            {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            {"nodeAffinity": chance.choice(ODD), "podAffinity": chance.choice(ODD)},
            {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": chance.choice(ODD)}},
        )
    )


def _template(chance: Chance) -> Object:
    container = {
        "name": chance.choice(("vllm", "side", chance.choice(ODD))),
        "env": chance.choice(([{"name": "A"}], 1)),
    }
    return chance.choice(
        (
            {"spec": {"containers": [container]}},
            {"spec": {"containers": [container, chance.choice(ODD)], "volumes": [{"name": "dshm", "hostPath": None}]}},
            {"metadata": {"labels": chance.choice(({"a": "b"}, chance.choice(ODD)))}},
            {"metadata": chance.choice(ODD), "spec": chance.choice(ODD)},
            {"spec": {chance.choice(("containers", "volumes", "nodeSelector", "affinity")): chance.choice(ODD)}},
            {
                "spec": {
                    "containers": [{"name": "vllm", "env": [{"name": chance.choice(("VLLM_HOST_IP", "A", [], {}))}]}]
                }
            },
            {"spec": {"deep": deep(chance.choice((10, 100, 300)))}},
        )
    )


def deep(depth: int) -> Object:
    """Give an object in an object in an object."""
    nested: Object = {}
    for _ in range(depth):
        nested = {"a": nested}
    return nested


def _amounts(chance: Chance) -> Object:
    names = ("cpu", "memory", "ephemeral-storage", "nvidia.com/gpu", "", "ü")
    amounts = ("1", "500m", "1Gi", "1.5", "0", "1e3", "100Ti", "-1", ".5", "1E9999", "999999999999999999999Ei")
    chosen = chance.sample(names if chance.random() < 0.2 else names[:2], 1)
    return {name: chance.choice(amounts if chance.random() < 0.2 else amounts[:3]) for name in chosen}


def _toleration(chance: Chance) -> Object:
    return chance.choice(
        (
            {"operator": "Exists"},
            {"key": "spot", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "spot", "value": chance.choice(ODD)},
            {"key": chance.choice(ODD), "operator": chance.choice(ODD)},
        )
    )


_FORMS: dict[str, Callable[[Chance], Any]] = {
    "uri": _uri,
    "config": _config,
    "affinity": _affinity,
    "template": _template,
    "tolerations[]": _toleration,
    "requests": _amounts,
    "limits": _amounts,
    "extraArgs[]": lambda chance: chance.choice(ARGUMENTS[:10] if chance.random() < 0.9 else ARGUMENTS),
    "product": lambda chance: chance.choice((*PRODUCTS, "*", "*A100*", "[", "nvidia-*", "?")),
    "class": lambda chance: chance.choice(("datacenter", "inference", "ada", "none")),
    "nodeSelector": lambda chance: chance.choice(({}, {"pool": "a"}, {"pool": "c"}, {"": ""})),
}


# ---- almost valid --------------------------------------------------------------------------------------------------


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Give every container with each of its keys or indices."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        pairs = (
            list(item.items()) if isinstance(item, dict) else list(enumerate(item)) if isinstance(item, list) else []
        )
        for key, value in pairs:
            yield item, key
            waiting.append(value)


def _spoil(spec: Any, chance: Chance) -> Any:
    """Change one thing somewhere."""
    spec = copy.deepcopy(spec)
    places = list(_places(spec))
    if not places or chance.random() < 0.02:
        return chance.choice(ODD)
    where, key = chance.choice(places)
    value = where[key]
    match chance.randrange(6):
        case 0:
            del where[key]
        case 1 if isinstance(where, dict):
            where[str(key) + chance.choice(("s", "S", " "))] = where.pop(key)
        case 2:
            where[key] = [value]
        case 3:
            where[key] = {"value": value}
        case 4 if isinstance(value, int | float | str):
            where[key] = str(value) if not isinstance(value, str) else len(value)
        case _:
            where[key] = copy.deepcopy(chance.choice(ODD))
    return spec
