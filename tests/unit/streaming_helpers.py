"""Remotes in folders, for the tests of mirrors."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load_file

from distill.layout import BEST
from embedcache.cache import Cache
from embedcache.share.push import push


def pushed(cache: Path, remote: Path, by: str = "Ann") -> str:
    """Push a cache to a folder and return its URL."""
    push(cache, str(remote), by=by)
    return str(remote)


def shard_size(source: Path, teacher: str) -> int:
    """Return the size of the largest shard of a teacher."""
    cache = Cache(source)
    return max(shard.bytes for shard in cache.store(cache.teacher(teacher).contract).shards)


def shard_bytes(mirror: Path) -> int:
    """Return the bytes of the shards in a mirror with a limit, arrived or only reserved."""
    sizes: dict[str, int] = {}
    with suppress(FileNotFoundError):
        for path in mirror.glob("**/teachers/*/shards/*"):
            if path.suffix == ".arrow" or "reserved" in path.name:
                with suppress(FileNotFoundError):
                    sizes[path.name.removesuffix(".arrow")[-64:]] = path.stat().st_size
    return sum(sizes.values())


def same(one: Path, other: Path) -> bool:
    """Return whether two runs gave the same student."""
    a, b = (load_file(next((run / BEST).rglob("model.safetensors"))) for run in (one, other))
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
