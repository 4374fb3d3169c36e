"""What ``derived/index/<contract id>/checked.bin`` says of files that were once found sound."""

from __future__ import annotations

from pathlib import Path

from embedcache.store.containers.base import is_shard_name
from embedcache.store.digests import CHECKED, read_noted


def noted_files(folder: Path) -> dict[str, int]:
    """Return the names of files that were once found sound, and how many bytes each had.

    Args:
        folder: ``derived/index/<contract id>``.
    """
    try:
        noted = read_noted(folder / CHECKED)
    except (OSError, ValueError):
        return {}
    sizes = zip(noted.names.tolist(), noted.states[:, 0].tolist(), strict=True)
    return {name.decode(errors="replace"): size for name, size in sizes if is_size(size)}


def is_size(value: object) -> bool:
    """Return whether a value out of somebody's note can be the size of a file that is not empty."""
    return type(value) is int and 0 < value < 1 << 63


def noted_sizes(folder: Path) -> dict[str, int]:
    """Return, by name, the sizes of the shards that were once found sound in files of their own."""
    shards = {name.removesuffix(".arrow"): size for name, size in noted_files(folder).items()}
    return {name: size for name, size in shards.items() if is_shard_name(name)}
