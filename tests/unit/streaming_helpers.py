"""Remotes in folders, for the tests of mirrors."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from distill.layout import BEST
from embedcache.cache import Cache
from embedcache.share.push import push
from embedcache.share.remote import Remote


def pushed(cache: Path, remote: Path, by: str = "Ann") -> str:
    """Push a cache to a folder and return its URL."""
    push(cache, str(remote), by=by)
    return str(remote)


def shard_size(source: Path, teacher: str | None = None) -> int:
    """Return the size of the largest shard of a teacher."""
    cache = Cache(source)
    return max(shard.bytes for shard in cache.store(cache.teacher(teacher).contract).shards)


def shard_bytes(mirror: Path) -> int:
    """Return the bytes of the shards in a mirror with a limit."""
    size = 0
    with suppress(FileNotFoundError):  # evicted meanwhile
        for path in mirror.glob("derived/mirror/teachers/*/shards/[!.]*.arrow"):
            size += path.stat().st_size
    return size


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float, shards: list[str] | None = None) -> None:
    """Let every download take longer, and note those of shards."""
    fetch = Remote.fetch

    def slowly(remote: Remote, sha256: str, size: int, target: Path, *more: Any) -> None:
        time.sleep(seconds)
        if shards is not None and target.suffix == ".arrow" and "shards" in target.parts:
            shards.append(sha256)
        fetch(remote, sha256, size, target, *more)

    monkeypatch.setattr(Remote, "fetch", slowly)


def same(one: Path, other: Path) -> bool:
    """Return whether two runs gave the same student."""
    a, b = (load_file(next((run / BEST).rglob("model.safetensors"))) for run in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
