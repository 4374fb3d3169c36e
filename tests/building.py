"""The one place where shared tests call ``embedcache.build``, and the content of a cache byte for byte."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import flat_build
import lmdb

from embedcache.cache import Cache
from embedcache.fsio import TEMPORARY_PREFIX
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder
from embedcache.views.plan import ViewOptions

_LEFTOVER = re.compile(rf"(^|/){re.escape(TEMPORARY_PREFIX)}[0-9a-f]{{32}}")


def build(
    source: Path,
    cache: Path,
    teacher: Teacher | Path,
    *,
    encoder: Any = None,
    views: ViewOptions | Sequence[str] = (),
    embed: Sequence[str] = (),
    overwrite: bool = False,
    **settings: Any,
) -> Cache:
    """Build ``source`` into ``cache`` and return the cache.

    Args:
        source: file to read.
        cache: folder of the cache.
        teacher: a fake teacher, or the folder of a model.
        encoder: an encoder of the teacher; default: a fake one for a fake teacher.
        views: views to make.
        embed: views to encode.
        overwrite: replace a corpus of the same name.
        settings: ``name``, ``text_column``, ``id_column``, ``label_column``, ``text2_column``, ``codec``,
            ``store``, ``shard_rows``, ``output``, ``token_embeddings``, ``compute_dtype``, ``threads``, and
            the settings of a teacher.
    """
    if encoder is None and isinstance(teacher, Teacher):
        encoder = FakeEncoder(teacher)
    return flat_build.build(
        source,
        teacher=teacher,
        cache=cache,
        encoder=encoder,
        views=views if isinstance(views, ViewOptions) else ViewOptions(list(views), embed=list(embed)),
        overwrite=overwrite,
        **settings,
    )


def rows_encoded(cache: Cache) -> int:
    """Return how many rows the build that returned ``cache`` encoded."""
    result = cache.result
    assert result is not None
    return int(result.encoded)


def write_lines(path: Path, texts: Sequence[str]) -> Path:
    """Write a text file of one text a line, old enough for a build to note it; return its path."""
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    # How a file looks that was written a moment ago is not noted.
    os.utime(path, (1e9, 1e9))
    return path


def content(cache: Path) -> dict[str, str]:
    """Return path -> sha256 of the files of a cache that are neither derived nor half-written.

    The shards in an LMDB file count as files: the pages of two such files may differ though the same shards
    are in them, and so may their seals.
    """
    found = {}
    for path in sorted(cache.rglob("*")):
        name = path.relative_to(cache).as_posix()
        if name.startswith("derived/") or not path.is_file() or _LEFTOVER.search(name):
            continue
        if path.suffix == ".mdb":
            found |= {f"{name}#{key}": hashlib.sha256(value).hexdigest() for key, value in shards_in(path)}
        elif not name.endswith(("-lock", ".seal.json")):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def shards_in(file: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of the shards in an LMDB file, which the process may have open."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(file, folder)
        with lmdb.open(copy, subdir=False, readonly=True, lock=False) as opened, opened.begin() as reading:
            yield from ((key.decode(), value) for key, value in reading.cursor())


def leftovers(cache: Path) -> list[str]:
    """Return the half-written files in a cache; their names say that they are."""
    inside = (path.relative_to(cache).as_posix() for path in cache.rglob("*"))
    return [path for path in inside if _LEFTOVER.search(path)]
