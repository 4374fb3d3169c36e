"""What runs that train from a remote leave: their students, and what lies in their mirrors."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from distill.layout import BEST
from embedcache.cache import Cache


def student(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of the student of a run."""
    return load_file(next((folder / BEST).rglob("model.safetensors")))


def same(one: Path, other: Path) -> bool:
    """Return whether two runs gave the same student."""
    a, b = student(one), student(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def shard_size(source: Path, teacher: str) -> int:
    """Return the size of the largest shard of a teacher."""
    cache = Cache(source)
    return max(shard.bytes for shard in cache.store(cache.teacher(teacher).contract).shards)


def on_disk(folder: Path) -> int:
    """Return how many bytes the shards in a mirror take, and what is on its way to be one."""
    return sum(map(_size_of, (folder / "teachers").glob("*/shards/*")))


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
