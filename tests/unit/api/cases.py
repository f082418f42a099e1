"""Good and bad input, once: the models and the API server must give the same verdict on each.

``tests/unit/api`` asks the models, ``tests/contract`` a real API server that has the generated CRD.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]

MODEL = {"uri": "file:///opt/models/demo"}


@dataclass(frozen=True)
class Case:
    """One input.

    Attributes
    ----------
    name
        What the test is called.
    spec
        Laid over a spec that holds only a model.
    refused
        Words of the API server's refusal; none when it must accept.
    model_refuses
        Words of the model's refusal where they differ from the API server's.
    only_models
        The API server accepts it (its rule would cost too much), the operator's condition says it.
    """

    name: str
    spec: Object
    refused: str = ""
    model_refuses: str = ""
    only_models: bool = False

    def whole_spec(self) -> Object:
        return {"model": MODEL} | copy.deepcopy(self.spec)


def _args(*arguments: str) -> Object:
    return {"vllmConfig": {"extraArgs": list(arguments)}}


def _adapter(name: str, uri: str) -> Object:
    return {"name": name, "uri": uri}


def _lora(*adapters: Object, **more: Any) -> Object:
    return {"lora": {"adapters": list(adapters), **more}}


_STRICT_PACK = "STRICT_PACK puts every rank in one pod"
_STRICT_PACK_MODEL = "STRICT_PACK puts all 4 ranks in one pod, gpusPerPod is 2"
_SPREAD = "STRICT_SPREAD puts every rank on a node of its own"
_ARGUMENTS = "extraArgs must not hold what the operator sets"
_OVERRIDE = "would override"
_ONE_SOURCE = "exactly one of secretKeyRef and configMapKeyRef"
_ONE_REF = "exactly one of secretRef and configMapRef"
_SECRET_KEY = {"secretKeyRef": {"name": "s", "key": "k"}}
_CONFIG_MAP_KEY = {"configMapKeyRef": {"name": "c", "key": "k"}}
_POOL = {"name": "pool"}
_SHARED_PODS = "rayClusterRef uses pods that are there"
_DEEP: Object = {}
for _ in range(100):
    _DEEP = {"a": _DEEP}
_URI = "spec.model.uri in body should match"
_PATTERN = "should match pattern"

ACCEPTED = (
    Case("shared cluster", {"rayClusterRef": _POOL, "distributedExecutorBackend": "ray"}),
    Case("shared cluster with a token", {"rayClusterRef": {**_POOL, "authSecret": {"name": "t", "key": "k"}}}),
    Case("only a model", {}),
    Case("hub model", {"model": {"uri": "hf://org/name", "revision": "v1", "cache": {"persistentVolumeClaim": "c"}}}),
    Case("hub model without an organisation", {"model": {"uri": "hf://gpt2"}}),
    Case("claim", {"model": {"uri": "pvc://claim/some/path"}}),
    Case("claim itself", {"model": {"uri": "pvc://claim"}}),
    Case("nothing behind a field", {"env": None, "pod": None, "parallelism": {"tensor": None}, "replicas": None}),
    Case("ray", {"distributedExecutorBackend": "ray"}),
    Case("mp", {"distributedExecutorBackend": "mp"}),
    Case("mp of four", {"distributedExecutorBackend": "mp", "parallelism": {"tensor": 2, "pipeline": 2}}),
    Case(
        "mp with room",
        {"distributedExecutorBackend": "mp", "parallelism": {"tensor": 2}, "placement": {"gpusPerPod": 2}},
    ),
    Case("data parallel", {"parallelism": {"data": 2}}),
    Case("data parallel of experts", {"parallelism": {"tensor": 2, "data": 16, "expert": True}}),
    Case("one data parallel rank without Ray", {"distributedExecutorBackend": "mp", "parallelism": {"data": 1}}),
    Case(
        "two data parallel ranks in a pod",
        {
            "placement": {"strategy": "STRICT_PACK", "gpusPerPod": 4},
            "parallelism": {"tensor": 2, "data": 4},
            "distributedExecutorBackend": "ray",
        },
    ),
    Case("uni", {"distributedExecutorBackend": "uni", "parallelism": {"tensor": 1}}),
    Case("scaled to zero", {"replicas": 0}),
    Case("tensor alone", {"parallelism": {"tensor": 8}}),
    Case("strict pack", {"placement": {"strategy": "STRICT_PACK"}, "parallelism": {"tensor": 4}}),
    Case(
        "strict pack with room",
        {"placement": {"strategy": "STRICT_PACK", "gpusPerPod": 4}, "parallelism": {"tensor": 2, "pipeline": 2}},
    ),
    Case("strict pack of nothing said", {"placement": {"strategy": "STRICT_PACK", "gpusPerPod": 1}}),
    Case("strict spread of one", {"placement": {"strategy": "STRICT_SPREAD", "gpusPerPod": 1}}),
    Case("spread of two", {"placement": {"strategy": "SPREAD", "gpusPerPod": 2}}),
    Case("arguments", _args("-cc.mode=2", "-cc.backend=eager", "--max-num-batched-tokens", "2048")),
    Case("arguments that begin as ours", _args("--model-impl=vllm", "--config-format=hf", "--ray-workers-use-nsight")),
    Case("a value that is called as one of ours", _args("--tool-server", "host")),
    Case("share of memory", {"vllmConfig": {"gpuMemoryUtilization": 0.9}}),
    Case("quantities", {"pod": {"shmSize": "512Mi", "resources": {"requests": {"cpu": 4, "memory": "1.5Gi"}}}}),
    Case("environment", {"env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": _SECRET_KEY}]}),
    Case(
        "API key",
        {"apiKeySecret": {"name": "s", "key": "k"}, "env": [{"name": "VLLM_LOGGING_LEVEL", "value": "DEBUG"}]},
    ),
    Case("vLLM's own API key", {"env": [{"name": "VLLM_API_KEY", "valueFrom": _SECRET_KEY}]}),
    Case("an engine that can take adapters", {"lora": {}}),
    Case(
        "adapters",
        {
            "model": {"uri": "pvc://claim/base"},
            "lora": {
                "adapters": [
                    _adapter("sql", "file:///a"),
                    _adapter("org/x:1", "pvc://claim/a"),
                    _adapter("z", "pvc://b/z"),
                ],
                "persistentVolumeClaims": ["b"],
                "maxLoraRank": 64,
                "maxLoras": 2,
                "maxCpuLoras": 3,
            },
        },
    ),
    Case(
        "an adapter in the cache of the model",
        {
            "model": {"uri": "hf://org/name", "cache": {"persistentVolumeClaim": "claim"}},
            "lora": {"adapters": [_adapter("sql", "pvc://claim/sql")]},
        },
    ),
    Case(
        "adapters of the hub beside a model that is not of it",
        _lora(_adapter("a", "hf://org/name"), _adapter("b", "hf://org/name") | {"revision": "v1"}),
    ),
    Case("own arguments for adapters", _args("--enable-lora", "--max-loras=2")),
    Case("no drain", {"drain": {"timeoutSeconds": 0}}),
    Case("empty value", {"env": [{"name": "A", "value": ""}]}),
    Case(
        "environment from", {"envFrom": [{"secretRef": {"name": "s"}}, {"prefix": "P_", "configMapRef": {"name": "c"}}]}
    ),
    Case("model size", {"model": MODEL | {"facts": {"parameters": "36B", "precision": "fp8", "contextLength": 8192}}}),
    Case("model config", {"model": MODEL | {"facts": {"config": {"hidden_size": 64, "layer_types": ["a"]}}}}),
    Case("accelerators", {"accelerators": [{"product": "*A100*"}, {"class": "ada", "memoryGiB": 48}]}),
    Case("a name that is no text", {"pod": {"template": {"spec": {"containers": [{"env": [{"name": ["A"]}]}]}}}}),
    Case("free form", {"pod": {"template": {"spec": {"hostNetwork": False}}, "tolerations": [{"operator": "Exists"}]}}),
)

REFUSED = (
    Case("facts of nothing", {"model": MODEL | {"facts": {"precision": "fp8"}}}, "facts needs parameters or config"),
    Case(
        "facts of a size in words",
        {"model": MODEL | {"facts": {"parameters": "large"}}},
        "spec.model.facts.parameters in body should match",
        _PATTERN,
    ),
    Case(
        "facts of an unknown precision",
        {"model": MODEL | {"facts": {"parameters": "1B", "precision": "tiny"}}},
        "spec.model.facts.precision in body should match",
        _PATTERN,
    ),
    Case("accelerator of nothing", {"accelerators": [{}]}, "an accelerator needs a product, a class or memoryGiB"),
    Case(
        "accelerator without memory",
        {"accelerators": [{"memoryGiB": 0}]},
        "should be greater than or equal to 1",
        "greater than or equal to 1",
    ),
    Case("no model", {"model": None}, "spec.model", "model"),
    Case("empty model", {"model": {}}, "spec.model.uri: Required value", "model.uri"),
    Case("uri of no kind", {"model": {"uri": "s3://bucket/model"}}, _URI, _PATTERN),
    Case("uri without a scheme", {"model": {"uri": "meta-llama/Llama-3.1-8B"}}, _URI, _PATTERN),
    Case("relative file", {"model": {"uri": "file://opt/model"}}, _URI, _PATTERN),
    Case("cache of a file", {"model": MODEL | {"cache": {"persistentVolumeClaim": "c"}}}, "cache is for hf:// models"),
    Case("revision of a file", {"model": MODEL | {"revision": "main"}}, "revision is for hf:// models"),
    Case(
        "mp spread",
        {"distributedExecutorBackend": "mp", "placement": {"strategy": "SPREAD"}},
        "mp and uni run in one pod: placement.strategy must be PACK or STRICT_PACK",
        "run in one pod",
    ),
    Case(
        "mp over pods",
        {"distributedExecutorBackend": "mp", "parallelism": {"tensor": 4}, "placement": {"gpusPerPod": 2}},
        "mp and uni run in one pod: gpusPerPod must be at least tensor x pipeline",
        "gpusPerPod must be at least",
    ),
    Case(
        "uni of two",
        {"distributedExecutorBackend": "uni", "parallelism": {"pipeline": 2}},
        "uni has one rank",
        "uni has one rank",
    ),
    *(
        Case(f"shared cluster and {name}", {"rayClusterRef": _POOL, **more}, _SHARED_PODS, _SHARED_PODS)
        for name, more in {
            "pod": {"pod": {"shmSize": "1Gi"}},
            "empty pod": {"pod": {}},
            "image": {"image": "vllm:1"},
            "rayHead": {"rayHead": {}},
            "gpusPerPod": {"placement": {"gpusPerPod": 2}},
            "topologyKey": {"placement": {"topologyKey": "zone"}},
        }.items()
    ),
    *(
        Case(
            f"shared cluster and {executor}",
            {"rayClusterRef": _POOL, "distributedExecutorBackend": executor},
            "must be auto or ray",
            "must be auto or ray",
        )
        for executor in ("mp", "uni")
    ),
    *(
        Case(
            f"shared cluster and {name}", {"rayClusterRef": _POOL, "model": model}, "must be file://", "must be file://"
        )
        for name, model in {
            "claim": {"uri": "pvc://claim/model"},
            "hub": {"uri": "hf://org/name"},
        }.items()
    ),
    Case(
        "shared cluster and an adapter of the hub",
        {"rayClusterRef": _POOL, **_lora(_adapter("a", "file:///a"), _adapter("b", "hf://org/name"))},
        "no adapter may be hf://",
        "no adapter may be hf://",
    ),
    Case(
        "shared cluster without a name",
        {"rayClusterRef": {"name": ""}},
        "should be at least 1 chars long",
        "at least 1 character",
    ),
    Case(
        "executor of no kind",
        {"distributedExecutorBackend": "dask"},
        'supported values: "auto", "ray", "mp", "uni"',
        "'auto', 'ray', 'mp' or 'uni'",
    ),
    Case(
        "tensor 0", {"parallelism": {"tensor": 0}}, "should be greater than or equal to 1", "greater than or equal to 1"
    ),
    Case(
        "pipeline 0",
        {"parallelism": {"pipeline": 0}},
        "should be greater than or equal to 1",
        "greater than or equal to",
    ),
    Case("data 0", {"parallelism": {"data": 0}}, "should be greater than or equal to 1", "greater than or equal to 1"),
    Case(
        "data parallel over a country",
        {"parallelism": {"tensor": 8, "pipeline": 8, "data": 65}},
        "tensor x pipeline x data is at most 4096",
    ),
    Case(
        "data parallel without Ray",
        {"distributedExecutorBackend": "mp", "parallelism": {"data": 2}},
        "mp and uni run one data parallel rank: distributedExecutorBackend must be ray or auto; or use replicas",
    ),
    Case(
        "half a data parallel rank in a pod",
        {"placement": {"strategy": "STRICT_PACK", "gpusPerPod": 3}, "parallelism": {"tensor": 2, "data": 3}},
        "gpusPerPod must be a multiple of tensor x pipeline",
    ),
    Case(
        "data parallel as an argument",
        _args("--data-parallel-size=2"),
        _ARGUMENTS,
        "would override --data-parallel-size, which the operator sets; use parallelism.data",
    ),
    Case("half a GPU", {"parallelism": {"tensor": 1.5}}, "must be of type integer", "valid integer"),
    Case("replicas below 0", {"replicas": -1}, "should be greater than or equal to 0", "greater than or equal to 0"),
    Case("replicas above 100", {"replicas": 101}, "should be less than or equal to 100", "less than or equal to 100"),
    Case(
        "strict pack in small pods",
        {"placement": {"strategy": "STRICT_PACK", "gpusPerPod": 2}, "parallelism": {"tensor": 4}},
        _STRICT_PACK,
        _STRICT_PACK_MODEL,
    ),
    Case(
        "strict pack of a product in small pods",
        {"placement": {"strategy": "STRICT_PACK", "gpusPerPod": 2}, "parallelism": {"tensor": 2, "pipeline": 2}},
        _STRICT_PACK,
        _STRICT_PACK_MODEL,
    ),
    Case("strict spread of two", {"placement": {"strategy": "STRICT_SPREAD", "gpusPerPod": 2}}, _SPREAD),
    Case("strategy of no kind", {"placement": {"strategy": "pack"}}, "Unsupported value", "'PACK'"),
    Case("tensor as an argument", _args("--tensor-parallel-size=2"), _ARGUMENTS, _OVERRIDE),
    Case("tensor as two arguments", _args("--seed", "1", "--tensor-parallel-size", "2"), _ARGUMENTS, _OVERRIDE),
    Case(
        "tensor in short", _args("-tp", "2"), _ARGUMENTS, "'-tp' would override --tp, which the operator sets; use para"
    ),
    Case("tensor with underscores", _args("--tensor_parallel_size", "2"), _ARGUMENTS, _OVERRIDE),
    Case("pipeline in short", _args("-pp=2"), _ARGUMENTS, _OVERRIDE),
    Case("data parallel", _args("--data-parallel-size-local=1"), _ARGUMENTS, _OVERRIDE),
    Case("data parallel in short", _args("-dpn", "1"), _ARGUMENTS, _OVERRIDE),
    Case("nodes in short", _args("-n2"), _ARGUMENTS, _OVERRIDE),
    Case("port", _args("--port", "9000"), _ARGUMENTS, _OVERRIDE),
    Case("part of an option", _args("--config.x=1"), _ARGUMENTS, _OVERRIDE),
    Case("beginning of an option", _args("--ten=2"), "", _OVERRIDE, only_models=True),
    Case("beginning of a family", _args("--data-par", "2"), "", _OVERRIDE, only_models=True),
    Case("no memory", {"vllmConfig": {"gpuMemoryUtilization": 0}}, "should be greater than 0", "greater than 0"),
    Case(
        "more than all memory", {"vllmConfig": {"gpuMemoryUtilization": 1.1}}, "less than or equal to 1", "less than or"
    ),
    Case(
        "host address",
        {"env": [{"name": "VLLM_HOST_IP", "value": "1.2.3.4"}]},
        "the operator sets this variable itself",
        "the operator sets VLLM_HOST_IP itself",
    ),
    Case(
        "port variable",
        {"env": [{"name": "VLLM_PORT", "value": "1"}]},
        "the operator sets this variable itself",
        "the operator sets VLLM_PORT itself",
    ),
    Case(
        "two API keys",
        {"apiKeySecret": {"name": "s", "key": "k"}, "env": [{"name": "VLLM_API_KEY", "valueFrom": _SECRET_KEY}]},
        "apiKeySecret and VLLM_API_KEY in env exclude each other",
    ),
    Case(
        "API key of no key in the Secret",
        {"apiKeySecret": {"name": "s"}},
        "spec.apiKeySecret.key: Required value",
        "apiKeySecret.key",
    ),
    Case(
        "one name for two adapters",
        _lora(_adapter("a", "file:///a"), _adapter("a", "file:///b")),
        "Duplicate value",
        "every name may stand once",
    ),
    Case("adapter of a bad name", _lora(_adapter("a b", "file:///a")), "should match", _PATTERN),
    Case("adapter of a hub's address", _lora(_adapter("a", "https://x/y")), "should match", _PATTERN),
    Case(
        "adapter called as the model",
        {"model": MODEL | {"name": "base"}} | _lora(_adapter("base", "file:///a")),
        "no adapter may have the name under which the model is served",
    ),
    Case(
        "adapter on a claim that is not mounted",
        _lora(_adapter("a", "pvc://claim/a"), persistentVolumeClaims=["other"]),
        "a pvc:// adapter needs its claim in the pods",
    ),
    Case(
        "adapter on a claim, and no word of claims",
        {"model": {"uri": "pvc://claim/base"}} | _lora(_adapter("a", "pvc://claim2/a")),
        "a pvc:// adapter needs its claim in the pods",
    ),
    Case(
        "revision of an adapter in a folder",
        _lora(_adapter("a", "file:///a") | {"revision": "v1"}),
        "revision is for hf:// adapters",
    ),
    Case("rank that vLLM does not know", _lora(maxLoraRank=17), "Unsupported value", "maxLoraRank must be one of"),
    Case("less in memory than in a batch", _lora(maxLoras=2, maxCpuLoras=1), "maxCpuLoras must be at least maxLoras"),
    Case(
        "more adapters than are kept in memory",
        _lora(_adapter("a", "file:///a"), _adapter("b", "file:///b"), maxCpuLoras=1),
        "there are more adapters than maxCpuLoras",
    ),
    Case(
        "arguments of lora beside lora",
        {"lora": {}} | _args("--max_lora-rank=8"),
        "extraArgs must not hold --enable-lora",
    ),
    Case(
        "claim twice",
        _lora(persistentVolumeClaims=["a", "a"]),
        "Duplicate value",
        "every claim may stand once",
    ),
    Case(
        "drain of less than nothing",
        {"drain": {"timeoutSeconds": -1}},
        "should be greater than or equal to 0",
        "greater than or equal to 0",
    ),
    Case(
        "two values",
        {"env": [{"name": "A", "value": "1", "valueFrom": _SECRET_KEY}]},
        "value and valueFrom exclude each",
    ),
    Case("variable of no name", {"env": [{"name": "1A", "value": "1"}]}, "should match", _PATTERN),
    Case("variable twice", {"env": [{"name": "A"}, {"name": "A"}]}, "Duplicate value", "every name may stand once"),
    Case("no source", {"env": [{"name": "A", "valueFrom": {}}]}, _ONE_SOURCE),
    Case("two sources", {"env": [{"name": "A", "valueFrom": _SECRET_KEY | _CONFIG_MAP_KEY}]}, _ONE_SOURCE),
    Case("environment from nothing", {"envFrom": [{"prefix": "A"}]}, _ONE_REF),
    Case("environment from both", {"envFrom": [{"secretRef": {"name": "s"}, "configMapRef": {"name": "c"}}]}, _ONE_REF),
    Case("bottomless", {"pod": {"affinity": _DEEP}}, "", "nested more than 64 deep", only_models=True),
    Case("no quantity", {"pod": {"shmSize": "much"}}, "should match", _PATTERN),
    Case(
        "claim of a bad name",
        {"model": {"uri": "hf://a/b", "cache": {"persistentVolumeClaim": "A_b"}}},
        "should match",
        _PATTERN,
    ),
)

CASES = ACCEPTED + REFUSED

NAME_REFUSAL = "metadata.name must be a DNS-1035 label"
GOOD_NAMES = ("a", "smollm2", "a-1", "a" * 40)
BAD_NAMES = ("1a", "a.b", "a" * 41)
"""What Kubernetes' own rule for names (DNS-1123 subdomain) lets pass, and ours must not."""
