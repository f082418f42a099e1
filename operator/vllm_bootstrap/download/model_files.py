"""Which files of a repository an engine needs: those that vLLM would take, and no second copy of the weights.

Repositories hold their weights several times over (``original/``, ``*.bin`` beside ``*.safetensors``, other
frameworks' forms).  A node that downloads all of it waits, and pays, two or three times.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import PurePosixPath

INDEX = "model.safetensors.index.json"
DEFAULT_FORMAT = "auto"
DUMMY_FORMAT = "dummy"

COPIES = frozenset({"coreml", "metal", "onnx", "openvino", "original"})
"""Folders that hold the same weights for other programs."""

WEIGHTS = frozenset({".bin", ".ckpt", ".gguf", ".pt", ".pth", ".safetensors"})
OTHER_FRAMEWORKS = frozenset({".h5", ".keras", ".mlmodel", ".msgpack", ".onnx", ".onnx_data", ".ot", ".tflite"})
FOR_PEOPLE = frozenset({".gif", ".ipynb", ".jpeg", ".jpg", ".md", ".mov", ".mp4", ".pdf", ".png", ".svg", ".webp"})
NOT_FOR_INFERENCE = frozenset({"optimizer.bin", "optimizer.pt", "scaler.pt", "scheduler.pt", "training_args.bin"})

_MISTRAL = ("consolidated*.safetensors",)
_SAFETENSORS = ("*.safetensors",)
_PREFERENCES: Mapping[str, tuple[str, ...]] = {
    "auto": (*_MISTRAL, "*.safetensors", "*.bin", "*.pt"),
    "bitsandbytes": ("*.safetensors", "*.bin", "*.pt"),
    "hf": ("*.safetensors", "*.bin", "*.pt"),
    "mistral": _MISTRAL,
    "npcache": ("*.bin",),
    "pt": ("*.pt",),
    "safetensors": _SAFETENSORS,
    "fastsafetensors": _SAFETENSORS,
    "instanttensor": _SAFETENSORS,
    "runai_streamer": _SAFETENSORS,
    DUMMY_FORMAT: (),
}
"""By vLLM's ``--load-format``: the first pattern that matches counts; of formats that are not here all weights do."""

_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})(\.\w+)")


def load_format(arguments: Sequence[str]) -> str:
    """Give vLLM's ``--load-format`` of an engine's arguments."""
    for position in range(len(arguments) - 1, -1, -1):
        name, equals, value = arguments[position].partition("=")
        if name.replace("_", "-") == "--load-format":
            return value if equals else next(iter(arguments[position + 1 :]), DEFAULT_FORMAT)
    return DEFAULT_FORMAT


def choose(names: Collection[str], *, form: str = DEFAULT_FORMAT, indexed: Collection[str] = ()) -> tuple[str, ...]:
    """Choose the files of a repository that an engine needs.

    Parameters
    ----------
    names
        All of its files.
    form
        vLLM's ``--load-format``.
    indexed
        Files that the index of the safetensors names; where there is one, the other weights beside it are left out.
    """
    useful = [name for name in names if _is_useful(name)]
    others = [name for name in useful if PurePosixPath(name).suffix not in WEIGHTS]
    weights = [name for name in useful if PurePosixPath(name).suffix in WEIGHTS]
    folders = sorted({_folder(name) for name in weights})
    by_index = frozenset(indexed) if _heeds_index(weights, form) else frozenset()
    chosen: list[str] = []
    for folder in folders:
        here = [name for name in weights if _folder(name) == folder]
        taken = _preferred(here, form)
        if not folder and by_index and any(fnmatch(name, "*.safetensors") for name in taken):
            taken = [name for name in taken if name in by_index]
        chosen += taken
    return tuple(sorted([*others, *chosen]))


def missing_weights(names: Collection[str], *, form: str = DEFAULT_FORMAT, indexed: Collection[str] = ()) -> list[str]:
    """Give the files of weights that should be beside those that are there: the index's, or the rest of a numbered row.

    Parameters
    ----------
    names
        The files that were chosen, or that lie on a volume.
    """
    if not _PREFERENCES.get(form):
        return []
    here = set(names)
    if indexed and _heeds_index(here, form):
        return sorted(set(indexed) - here)
    return sorted(_rest_of_rows(_preferred(sorted(here), form)) - here)


def has_weights(names: Iterable[str]) -> bool:
    """Say whether there are any weights that vLLM can load."""
    return any(PurePosixPath(name).suffix in WEIGHTS for name in names)


def _is_useful(name: str) -> bool:
    path = PurePosixPath(name)
    folders = path.parts[:-1]
    hidden = any(part.startswith(".") for part in path.parts)
    copied = any(part.lower() in COPIES or part.startswith("checkpoint-") for part in folders)
    useless = path.suffix.lower() in OTHER_FRAMEWORKS | FOR_PEOPLE or path.name in NOT_FOR_INFERENCE
    return not (hidden or copied or useless)


def _preferred(names: Sequence[str], form: str) -> list[str]:
    if form not in _PREFERENCES:
        return list(names)
    for pattern in _PREFERENCES[form]:
        if found := [name for name in names if fnmatch(PurePosixPath(name).name, pattern)]:
            return found
    return []


def _heeds_index(names: Iterable[str], form: str) -> bool:
    """Say whether vLLM reads the index of safetensors: not where it takes Mistral's own form, which it prefers."""
    patterns = _PREFERENCES.get(form, ())
    own_form = _MISTRAL[0] in patterns and any(fnmatch(name, _MISTRAL[0]) for name in names)
    return "*.safetensors" in patterns and not own_form


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


def _rest_of_rows(names: Iterable[str]) -> set[str]:
    """Give all names of the rows of which at least one is there: ``x-00002-of-00003.safetensors`` and its like."""
    rows = {(found[1], found[3], found[4]) for name in names if (found := _SHARD.fullmatch(name))}
    return {
        f"{stem}-{number:05d}-of-{count}{suffix}" for stem, count, suffix in rows for number in range(1, int(count) + 1)
    }
