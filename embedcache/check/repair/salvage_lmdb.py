"""Shards out of a damaged LMDB file, and a new file of them.

liblmdb is not given a damaged file. A shard's bytes stand in it in one piece and its name
is their digest, so shards are found by where they begin and end, and proven by their names.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.check.noted import is_size
from embedcache.fsio import commit, read_sealed_json, remove_file, temporary_sibling
from embedcache.store.containers import LmdbShards
from embedcache.store.containers.base import is_shard_name
from embedcache.store.containers.lmdb import SEAL

if TYPE_CHECKING:
    import pyarrow as pa

_BEGIN, _END = b"ARROW1\0\0", b"ARROW1"
# In a page of keys a name follows its length.
_NAME = re.compile(rb"\x40\0([0-9a-f]{64})")
# The end mark may by chance stand among the vectors.
_ENDS_TRIED = 8


def sealed_sizes(file: Path) -> dict[str, int] | None:
    """Return the size of each shard that was in ``file`` when it was sealed, None without a sound seal."""
    with suppress(OSError, ValueError, KeyError, AttributeError):
        sizes = read_sealed_json(file.with_name(SEAL))["shards"].items()
        return {name: size for name, size in sizes if is_shard_name(name) and is_size(size)}
    return None


def salvage(file: Path) -> tuple[dict[str, pa.Buffer], set[str]]:
    """Return the shards in ``file`` whose digest is right, and the names of all that are or were in it."""
    import pyarrow as pa

    expected = sealed_sizes(file)
    if not file.is_file() or not file.stat().st_size:
        return {}, set(expected or ())
    whole = pa.memory_map(str(file), "r").read_buffer()
    text = memoryview(whole)
    names = {match[1].decode() for match in _NAME.finditer(text)} if expected is None else set(expected)
    found = {}
    for start, end in _places(text):
        name = hashlib.sha256(text[start:end]).hexdigest()
        if name in names:
            found[name] = whole[start:end]
    return found, names


def _places(text: memoryview) -> Iterator[tuple[int, int]]:
    """Yield where Arrow files may begin and end."""
    begins = [match.start() for match in re.finditer(re.escape(_BEGIN), text)]
    ends = [match.end() for match in re.finditer(_END, text)]
    for begin in begins:
        first = bisect_right(ends, begin + len(_BEGIN))
        yield from ((begin, end) for end in ends[first : first + _ENDS_TRIED])


def write_store(file: Path, shards: Mapping[str, pa.Buffer]) -> None:
    """Put a new LMDB file of ``shards`` in the place of ``file``, and seal it.

    Raises:
        StorageError: if it cannot be written; the old file is then still there.
    """
    with temporary_sibling(file) as temporary:
        container = LmdbShards(temporary)
        try:
            for name in sorted(shards):
                container.add(name, shards[name])
        finally:
            container.close()
            temporary.with_name(f"{temporary.name}-lock").unlink(missing_ok=True)
        # First the seal of the old file: it does not tell of the new one.
        remove_file(file.with_name(SEAL))
        commit(temporary, file)
    seal(file)


def seal(file: Path) -> None:
    """Seal a sound LMDB file anew.

    Raises:
        StorageError: if it cannot be written.
    """
    remove_file(file.with_name(SEAL))
    container = LmdbShards(file)
    container.finish()
    container.close()
