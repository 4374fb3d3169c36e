"""Training from a remote through a mirror: a cache on this machine with copies of its files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.errors import InputError, RemoteError
from embedcache.fsio import make_directory, read_sealed_json, write_sealed_json
from embedcache.gc import find_removal
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.files import Selection
from embedcache.share.plan import Plan
from embedcache.share.pull import pull_listed, select_manifests
from embedcache.share.remote import Remote
from embedcache.share.sample import SampleCheck
from embedcache.share.streamed_store import MIRROR, ShardCache, StreamedStore
from embedcache.store import VectorStore


class Mirror:
    """A cache with copies of a remote's files; a context manager that stops all downloads when it exits.

    Attributes:
        cache: the mirror.
        corpus: name of the corpus to train on.
    """

    def __init__(self, cache: Cache, corpus: str, pulled: int, shards: ShardCache | None) -> None:
        self.cache, self.corpus = cache, corpus
        self._pulled, self._shards = pulled, shards

    @classmethod
    def open(
        cls,
        remote: str,
        folder: str | Path | None = None,
        *,
        teachers: Sequence[str] = (),
        corpus: str | None = None,
        require_signature: str | Path | None = None,
        limit: int | None = None,
        with_logits: bool = False,
        progress: Progress = NO_PROGRESS,
        on_sample: Callable[[SampleCheck], None] = lambda sample: None,
    ) -> Mirror:
        """Fill a mirror: with everything, or with everything but shards if there is a ``limit``.

        Args:
            remote: name or URL of the remote.
            folder: the mirror's folder; default: one of the remote in the user's cache folder.
            teachers: names or beginnings of contract ids; default: all.
            corpus: ``NAME`` or ``NAME@DIGEST``; default: the only one on the remote.
            require_signature: file of public ed25519 keys; only manifests that one of them signed count.
            limit: bytes of shards that are kept at a time.
            with_logits: fetch the logits of the named teachers as well.
            progress: receives what is done.
            on_sample: called with the result of each comparison of vectors with the live teacher.

        Raises:
            InputError: if the folder holds an ordinary cache or another remote's mirror, or something asked
                for is not on the remote.
            RemoteError: as :func:`pull`, and if a teacher's vectors are not the teacher's.
            StorageError: if the disk has no room.
        """
        source = Remote(remote).open()
        user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        place = Path(folder or f"{user}/embedcache/mirrors/{source.id}").expanduser()
        cache = _open_cache(place, source)
        # Several processes may start together: one fetches, the others wait.
        with FileLock(cache.derived_folder / MIRROR / "opening.lock"):
            listed = select_manifests(source, cache, require_signature)
            known = {name for called in listed.teacher_names().values() for name in called}
            logits = {f"{name}.logits" for name in teachers} & known if with_logits else set()
            names = [*teachers, *sorted(logits)]
            corpora = Plan.make(source, listed, None, Selection(names, [corpus] if corpus else [])).corpora
            if len(corpora) != 1:
                raise InputError(
                    f"{source.url}: {len(corpora)} corpora ({', '.join(sorted(corpora)) or 'none'}), "
                    "expected one to train on. Choose it with --corpus."
                )
            ((name, digest),) = corpora.items()
            if name in cache.corpus_names() and cache.corpus(name).info.digest != digest:
                find_removal(cache, "corpus", name).delete()
            selection = Selection(names, [f"{name}@{digest}"], vectors=limit is None)
            done = pull_listed(source, listed, cache, selection, progress=progress)
            if done.is_bad:
                raise RemoteError("; ".join(one.message for one in done.samples if one.is_bad))
            for sample in done.samples:
                on_sample(sample)
            shards = None
            if limit is not None:
                shards = ShardCache(cache, source, listed, name, limit, progress, on_sample)
        return cls(cache, name, done.bytes, shards)

    def __enter__(self) -> Mirror:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop all downloads."""
        if self._shards is not None:
            self._shards.close()

    @property
    def fetched_bytes(self) -> int:
        """Bytes that were downloaded so far."""
        return self._pulled + (0 if self._shards is None else sum(self._shards.incoming.fetched))

    def store(self, contract: Contract) -> VectorStore:
        """Return the store of a teacher's vectors."""
        return self.cache.store(contract) if self._shards is None else StreamedStore(self._shards, contract)


def _open_cache(place: Path, source: Remote) -> Cache:
    source.refuse_nested(place)
    cache = Cache.create(place)
    note = cache.derived_folder / MIRROR / "remote.json"
    with suppress(OSError, ValueError, KeyError):
        if read_sealed_json(note)["remote"] == source.url:
            return cache
    if note.exists() or any((place / name).exists() for name in ("corpora", "teachers")):
        raise InputError(
            f"{place}: no mirror of {source.url}. Give a new folder with --mirror. A mirror without its "
            "derived/ folder can be deleted: it holds only copies."
        )
    make_directory(note.parent)
    write_sealed_json(note, {"remote": source.url})
    return cache
