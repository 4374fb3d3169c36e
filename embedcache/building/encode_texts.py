"""Vectors of texts, encoded where the cache lacks them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from embedcache.building.build import build
from embedcache.cache import Cache, refuse_one_string
from embedcache.codecs import Vectors
from embedcache.keys import key_array
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher, load_by_contract
from embedcache.teacher.options import TeacherOptions


def encode_texts(
    cache: Cache, texts: Sequence[str], teacher: str | Path | TeacherOptions | Teacher | Encoder | None = None
) -> Vectors:
    """Return vectors of ``texts``, float32 of shape (n, d), in order; see :meth:`Cache.encode`."""
    refuse_one_string(texts)
    missing, name = list(dict.fromkeys(texts)), None
    if teacher is None or teacher in [one.name for one in cache.teachers()]:
        held = cache.teacher(None if teacher is None else str(teacher))
        name = held.name
        found = cache.store(held.contract).locate(key_array(missing))
        missing = [missing[place] for place in np.flatnonzero(found < 0)]
        if missing:
            remedy = "encode with that model under another name"
            source = cache.model_source(held)
            teacher = load_by_contract(source, held.contract, name=name, remedy=remedy, device="auto")
    if missing and teacher is not None:
        digest = hashlib.sha256(key_array(missing).tobytes()).hexdigest()
        # As dictionaries: a text may look like a path.
        rows = [{"text": text} for text in missing]
        built = build(rows, teacher=teacher, cache=cache.folder, name=f"encoded-{digest[:12]}")
        name = name or (built.result.contract_id if built.result else None)
    return cache.lookup(texts, name)
