"""The hub, from the pods: what is done with ``huggingface_hub`` is done here.

It runs in the process of ``vllm_bootstrap.download.process`` only, which sets the environment that the library reads
when it is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.file_download import repo_folder_name

from vllm_bootstrap.contract import FailureReason, HubSource
from vllm_bootstrap.download import snapshot as snapshots
from vllm_bootstrap.download.adapter_files import ADAPTER_FORMAT, missing_file, needed_files
from vllm_bootstrap.download.hub_failure import HubWords
from vllm_bootstrap.download.model_files import INDEX, choose, has_weights, missing_weights
from vllm_bootstrap.download.snapshot import Cached, Snapshot
from vllm_bootstrap.failure import EngineFailure

ANSWER_SECONDS = 15.0
THREADS = 8

T = TypeVar("T")


class Repository:
    """A model, or an adapter, on the hub.

    Parameters
    ----------
    token
        Empty when there is none; it goes to the source's endpoint, and is never shown.
    """

    def __init__(self, source: HubSource, token: str) -> None:
        self._source = source
        self._token = token
        self._folder = Path(source.folder)
        self._words = HubWords(source, token)

    def cached(self, snapshot: Snapshot) -> Cached:
        """Give a snapshot of it in the cache."""
        return Cached(self._in_cache(), snapshot)

    def resolve(self, form: str, *, keep: bool) -> Snapshot:
        """Find out which commit the revision is now, and which of its files are needed.

        Parameters
        ----------
        form
            vLLM's ``--load-format``, or ``ADAPTER_FORMAT``.
        keep
            Rather take what was downloaded before: an engine that is started again stays what it was.

        Raises
        ------
        EngineFailure
            The hub does not tell, and the cache does not have it.
        """
        before = snapshots.recall(self._folder, self._key(form, self._source.revision))
        if before and self.cached(before).missing():
            before = None
        if before and keep:
            return before
        try:
            return self._told(lambda: self._look_up(form))
        except EngineFailure as failure:
            there = before or self._found(form)
            if there and failure.reason is FailureReason.HUB_UNAVAILABLE:
                return there
            raise

    def remember(self, form: str, snapshot: Snapshot) -> None:
        """Note what was downloaded, for its revision and for its commit: who asks for that one needs no hub either."""
        for revision in {self._source.revision, snapshot.commit}:
            snapshots.remember(self._folder, self._key(form, revision), snapshot)

    def check_room(self, cached: Cached) -> None:
        """See that what is missing fits.

        Raises
        ------
        EngineFailure
            It does not.
        """
        needed = cached.snapshot.size - cached.done()
        if needed > snapshots.free_bytes(self._folder, self._source.room):
            raise self._words.full(cached.snapshot, needed)

    def download(self, cached: Cached) -> None:
        """Bring all files of a snapshot into the cache; those that are there already cost nothing.

        Raises
        ------
        EngineFailure
            One of them cannot be had.
        """

        def one(name: str) -> None:
            hf_hub_download(
                self._source.repository,
                name,
                revision=cached.snapshot.commit,
                cache_dir=self._folder,
                endpoint=self._source.endpoint,
                token=self._token or None,
                etag_timeout=ANSWER_SECONDS,
            )

        def all_of_them() -> None:
            # Not with a `with`: its end would wait for the others after the first that fails.
            pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="download")
            try:
                for _ in pool.map(one, sorted(cached.missing())):
                    pass
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

        try:
            self._told(all_of_them)
        except EngineFailure as failure:
            if failure.reason is FailureReason.DISK_FULL:
                raise self._words.full(cached.snapshot, cached.snapshot.size - cached.done()) from failure
            raise
        if missing := cached.missing():
            raise EngineFailure(
                FailureReason.MODEL_INCOMPLETE,
                f"{self._source.endpoint} gave other sizes than it lists for {_listing(missing)} of {self._words.name}",
            )

    def _found(self, form: str) -> Snapshot | None:
        """Give what somebody else has brought into the cache, if it is whole."""
        cached = Cached.found(self._in_cache(), self._source.revision)
        if cached is None:
            return None
        sizes = cached.snapshot.files
        try:
            names = self._needed(sizes, form, lambda: _weights_of(cached.path / INDEX))
        except EngineFailure:
            return None
        return Snapshot(commit=cached.snapshot.commit, files={name: sizes[name] for name in names})

    def _in_cache(self) -> Path:
        return self._folder / repo_folder_name(repo_id=self._source.repository, repo_type="model")

    def _told(self, act: Callable[[], T]) -> T:
        """Act; what goes wrong becomes a reason and a sentence."""
        try:
            return act()
        except EngineFailure:
            raise
        except Exception as error:
            # Not "from": what a server or a library puts into its words may hold the token.
            raise self._words.failure(error) from None

    def _key(self, form: str, revision: str) -> str:
        return "\n".join((self._source.endpoint, self._source.repository, revision, form))

    def _look_up(self, form: str) -> Snapshot:
        source = self._source
        api = HfApi(endpoint=source.endpoint, token=self._token or None, library_name="vllm-operator")
        info = api.model_info(
            source.repository, revision=source.revision or None, files_metadata=True, timeout=ANSWER_SECONDS
        )
        sizes = {item.rfilename: item.size or 0 for item in info.siblings or ()}
        if not info.sha or not sizes:
            raise EngineFailure(
                FailureReason.HUB_UNAVAILABLE,
                f"{source.endpoint} answers with something that describes no model; is it the address of a hub?",
            )
        commit = info.sha
        names = self._needed(sizes, form, lambda: self._indexed(commit))
        return Snapshot(commit=commit, files={name: sizes[name] for name in names})

    def _needed(self, names: Collection[str], form: str, read_index: Callable[[], frozenset[str]]) -> tuple[str, ...]:
        """Choose the files that are needed; see that the others that belong to them are there."""
        if form == ADAPTER_FORMAT:
            self._check_adapter(names)
            return needed_files(names)
        indexed = read_index() if INDEX in names else frozenset()
        chosen = choose(names, form=form, indexed=indexed)
        self._check_weights(chosen, form, indexed)
        return chosen

    def _check_adapter(self, names: Collection[str]) -> None:
        if lacks := missing_file(names):
            raise EngineFailure(
                FailureReason.MODEL_INCOMPLETE,
                f"{self._source.named_by}: {self._words.name} has no {lacks}: a repository must hold one adapter in "
                "PEFT's form, in no folder of it",
            )

    def _indexed(self, commit: str) -> frozenset[str]:
        """Give the files of weights that the index names."""
        path = hf_hub_download(
            self._source.repository,
            INDEX,
            revision=commit,
            cache_dir=self._folder,
            endpoint=self._source.endpoint,
            token=self._token or None,
            etag_timeout=ANSWER_SECONDS,
        )
        return _weights_of(Path(path))

    def _check_weights(self, names: tuple[str, ...], form: str, indexed: Collection[str]) -> None:
        missing = missing_weights(names, form=form, indexed=indexed)
        if missing:
            raise EngineFailure(
                FailureReason.MODEL_INCOMPLETE,
                f"{self._source.named_by}: {self._words.name} lacks {_listing(missing)}: its upload is not complete, "
                "or another revision is",
            )
        if form != "dummy" and not has_weights(names):
            raise EngineFailure(
                FailureReason.MODEL_INCOMPLETE,
                f"{self._source.named_by}: {self._words.name} has no weights that vLLM loads (safetensors, bin, pt)",
            )


def _weights_of(index: Path) -> frozenset[str]:
    """Give the files of weights that an index names."""
    try:
        return frozenset(json.loads(index.read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineFailure(FailureReason.MODEL_INCOMPLETE, f"{index} is no index of weights") from error


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
