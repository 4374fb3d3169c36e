"""Vectors of texts in memory, encoded where the cache lacks them; the texts join no corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.building.outputs import BuildOutput, Encoded, encode_missing, register
from embedcache.cache import Cache
from embedcache.codecs import Vectors
from embedcache.keys import key_array
from embedcache.missing import MissingRows
from embedcache.teacher.encode import Encoder
from embedcache.teacher.lazy import LazyTeacher
from embedcache.teacher.load import Teacher, load_by_contract
from embedcache.teacher.options import EncodeOptions, TeacherOptions


class _TextList:
    title = "the texts"

    def __init__(self, texts: list[str]) -> None:
        self._texts = texts

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        return [self._texts[row] for row in rows]


def encode_texts(
    cache: Cache, texts: Sequence[str], teacher: str | Path | TeacherOptions | Teacher | Encoder | None
) -> Vectors:
    """Return vectors of ``texts``, float32 of shape (n, d), in order; see :meth:`Cache.encode`."""
    if teacher is None or teacher in [one.name for one in cache.teachers()]:
        held = cache.teacher(None if teacher is None else str(teacher))
        remedy = "encode with that model under another name"
        source = cache.model_source(held)
        teacher = load_by_contract(source, held.contract, name=held.name, remedy=remedy, device="auto")
    options = EncodeOptions()
    lazy = LazyTeacher(teacher, options, cache.derived_folder)
    ((name, contract),) = lazy.contracts.items()
    cache.refuse_other_contract(name, contract)
    output = BuildOutput.open(cache, name, contract, options)
    distinct = list(dict.fromkeys(texts))
    keys = key_array(distinct)
    missing = MissingRows(len(keys), output.store.locate(keys) < 0, [keys])
    if len(missing):
        register(cache, lazy)
        encode_missing(_TextList(distinct), [missing], [output], lazy.encoder, options.shard_rows, Encoded())
        output.store.finish()
        lazy.note(cache.derived_folder)
    return cache.lookup(texts, contract.id)
