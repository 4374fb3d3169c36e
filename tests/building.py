"""The one place where tests of the gate, of crashes and of hostile caches call :func:`embedcache.build`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import embedcache
from embedcache.cache import Cache
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder
from embedcache.views.plan import ViewOptions


def build(
    source: Path,
    cache: Path,
    teacher: Teacher | Path,
    *,
    encoder: Any = None,
    views: Sequence[str] = (),
    embed: Sequence[str] = (),
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
        settings: ``name``, ``text_column``, ``id_column``, ``label_column``, ``text2_column``, ``codec``,
            ``store``, ``shard_rows``, ``output``, ``token_embeddings``, ``replace``, ``compute_dtype``,
            ``threads``.
    """
    if encoder is None and isinstance(teacher, Teacher):
        encoder = FakeEncoder(teacher)
    return embedcache.build(
        source,
        teacher=teacher,
        cache=cache,
        encoder=encoder,
        views=ViewOptions(list(views), embed=list(embed)),
        **settings,
    )


def rows_encoded(cache: Cache) -> int:
    """Return how many rows the build that returned ``cache`` encoded."""
    result = cache.last_build
    assert result is not None
    return int(result.encoded)
