"""Stand-in for mirrors: the cache in FOLDER is the remote ``fake://FOLDER``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from distill.layout import BEST
from embedcache.cache import Cache
from embedcache.check.live import Computing
from embedcache.contract import Contract
from embedcache.store import VectorStore

PREFIX = "fake://"


class FakeStream:
    """A store that has all shards and records what it is asked for.

    Args:
        store: the cache's store.
        on_admit: called with the positions and how to compute.
    """

    def __init__(self, store: VectorStore, on_admit: Callable[[NDArray[np.int64], Computing], None]) -> None:
        self._store, self.admit = store, on_admit
        self._starts = np.cumsum([0, *map(len, store.shards)])
        self.shard_names = [shard.name for shard in store.shards]
        self.shard_sizes = [shard.bytes for shard in store.shards]
        self.wanted: list[Sequence[Sequence[int]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def shards_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._starts, positions, side="right") - 1

    def want(self, windows: Sequence[Sequence[int]]) -> None:
        self.wanted.append(windows)

    def interrupt(self) -> None:
        pass


class FakeMirror:
    """Opens the folder behind ``fake://FOLDER``; ``on_admit`` is called wherever a store admits rows."""

    on_admit: Callable[[NDArray[np.int64], Computing], None] = staticmethod(lambda positions, computing: None)
    last: FakeMirror
    settings: dict[str, Any]
    cache: Cache
    corpus: str
    streams: list[FakeStream]
    fetched_bytes = 0

    @classmethod
    def open(cls, remote: str, folder: str | None = None, **settings: Any) -> FakeMirror:
        mirror = cls()
        mirror.cache = Cache(Path(remote.removeprefix(PREFIX)))
        mirror.corpus = mirror.cache.corpus().name
        mirror.streams = []
        FakeMirror.last, FakeMirror.settings = mirror, settings
        return mirror

    def __enter__(self) -> FakeMirror:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def store(self, contract: Contract) -> FakeStream:
        self.streams.append(FakeStream(self.cache.store(contract), FakeMirror.on_admit))
        return self.streams[-1]


def fake_remotes() -> AbstractContextManager[Any]:
    """Put the stand-in in the place of :mod:`embedcache.share`."""
    names, mirror = ModuleType("embedcache.share.names"), ModuleType("embedcache.share.mirror")
    names.is_remote = lambda place: place.startswith(PREFIX)
    mirror.Mirror = FakeMirror
    return mock.patch.dict(sys.modules, {module.__name__: module for module in (names, mirror)})


def shard_size(source: Path, teacher: str) -> int:
    """Return the size of the largest shard of a teacher."""
    cache = Cache(source)
    return max(shard.bytes for shard in cache.store(cache.teacher(teacher).contract).shards)


def same(one: Path, other: Path) -> bool:
    """Return whether two runs gave the same student."""
    a, b = (load_file(next((run / BEST).rglob("model.safetensors"))) for run in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
