"""Which files of a cache are shared: the paths a manifest may name, and the order in which files arrive."""

from __future__ import annotations

from embedcache.check.findings import Kind, printable
from embedcache.check.inventory import Entry, entry_at

MOST_DOCUMENT_BYTES = 4 << 20
"""Bytes a JSON document of a cache may have."""

MOST_BYTES_IN_MEMORY = {Kind.CODEBOOK: 100 << 20, Kind.PROJECTION: 512 << 20}
"""Bytes that files may have which are read as a whole."""

CONTENT_NAMED = frozenset({Kind.SHARD, Kind.PART, Kind.VIEW_PART, Kind.CODEBOOK})
"""Files that are named by the sha256 of their bytes, so that a path has one version."""

DOCUMENTS = frozenset({Kind.CONTRACT, Kind.NAME, Kind.CORPUS, Kind.VIEW, Kind.RECIPE})
"""The JSON files."""

STAGES: tuple[frozenset[Kind], ...] = (
    frozenset({Kind.PROJECTION}),
    frozenset({Kind.CONTRACT}),
    frozenset({Kind.NAME}),
    frozenset({Kind.CODEBOOK}),
    frozenset({Kind.SHARD, Kind.TABLE, Kind.PART, Kind.VIEW_PART}),
    frozenset({Kind.CORPUS, Kind.VIEW}),
    frozenset({Kind.RECIPE}),
)
"""The order in which files arrive: a pull that is stopped between two files leaves a valid cache.

A teacher is listed once it has a contract and a name, a shard is read with its codebook, a corpus is there
once it is described, and a view once its recipe is.
"""

_STAGE_OF = {kind: number for number, kinds in enumerate(STAGES) for kind in kinds}
_LONGEST_NAME = 180


def shared_entry(path: str, size: int, sha256: str) -> Entry:
    """Return what the file at ``path`` is, trusting nothing.

    Args:
        path: relative to a cache, as somebody's manifest says.
        size: bytes it is said to have.
        sha256: the digest it is said to have.

    Raises:
        ValueError: if no shared file of a cache can have that path, digest and size.
    """
    entry = entry_at(path, size)
    shown = printable(path[:120])
    if entry.kind not in _STAGE_OF:
        raise ValueError(f"{shown!r} is no path that files of a cache are shared under")
    # Room is left for what a temporary name puts before it.
    if any(len(part.encode("utf-8", "surrogatepass")) > _LONGEST_NAME for part in path.split("/")):
        raise ValueError(f"{shown!r} has a name too long for a file")
    if entry.kind in CONTENT_NAMED and entry.stem != sha256:
        raise ValueError(f"{shown!r} is said to have the digest {sha256[:12]}…, not that of its name")
    most = MOST_DOCUMENT_BYTES if entry.kind in DOCUMENTS else MOST_BYTES_IN_MEMORY.get(entry.kind, size)
    if size > most:
        raise ValueError(f"{shown!r} is said to have {size:,} bytes, more than such a file may have")
    return entry


def stage_of(entry: Entry) -> int:
    """Return after how many stages of :data:`STAGES` a file may be put in its place."""
    return _STAGE_OF[entry.kind]
