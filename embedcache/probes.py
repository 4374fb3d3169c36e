"""Probes: stored rows that are encoded again before more vectors are stored beside them.

A new version of a library may change tokens or vectors, and digests of a model's files do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.cache_documents import IMPORTED
from embedcache.codecs import Vectors
from embedcache.corpus.corpus import Corpus
from embedcache.errors import (
    ContractMismatchError,
    CorruptCacheError,
    NonFiniteVectorError,
    UnreadableError,
)
from embedcache.keys import KeyArray, key_array
from embedcache.live import MARGIN, run_noise
from embedcache.store import Shard, ShardStore
from embedcache.store.noise import compare_rows, noise_angle

if TYPE_CHECKING:
    from embedcache.store.waiting import WaitingRows
    from embedcache.teacher.lazy import LazyTeacher
    from embedcache.teacher.text_encoder import TextEncoder

COUNT = 16
_CANDIDATES = 64
_DEVICE_ANGLE = 0.02
"""Angle beyond the noise, in radians, that another device may cause in the same dtype; else ``MARGIN``."""
_NAMED = ("compute_dtype", "transformers", "sentence_transformers", "torch", "openvino")


@dataclass(frozen=True)
class Probes:
    """Stored rows and their texts, n of them.

    Attributes:
        texts: the texts.
        tokens: int32, shape (n,); tokens of each text; 0 if unknown.
        vectors: float32, shape (n, d).
        angles: float64, shape (n,); angle that the codec and noise explain, in radians.
        provenance: provenance of each row's shard.
    """

    texts: tuple[str, ...]
    tokens: NDArray[np.int32]
    vectors: Vectors
    angles: NDArray[np.float64]
    provenance: tuple[Mapping[str, object], ...]

    @classmethod
    def draw(
        cls,
        store: ShardStore,
        corpora: Iterable[Corpus],
        waiting: WaitingRows | None = None,
        texts: Sequence[str] = (),
    ) -> Probes:
        """Take at most ``COUNT`` stored rows, from the shortest text to the longest.

        Args:
            store: the vectors; those of a served teacher have a canary instead.
            corpora: corpora that may hold their texts; those that cannot be read are left out.
            waiting: rows that wait to be stored.
            texts: texts to take first, if they have vectors.
        """
        found: list[str] = []
        if not store.contract.is_served:
            found += _with_vectors(texts[:: len(texts) // _CANDIDATES or 1], store, waiting)
            for corpus in corpora if len(store) else ():
                # Shards are cut in the order of a corpus, so a stopped build has stored its first rows.
                with suppress(CorruptCacheError, UnreadableError):
                    last = len(corpus) - 1
                    spread = np.linspace(0, last, _CANDIDATES), np.geomspace(1, last + 1, _CANDIDATES) - 1
                    rows = np.unique(np.concatenate(spread).astype(np.int64))
                    found += _with_vectors(corpus.texts(rows), store, waiting)
        ordered = sorted(dict.fromkeys(found), key=len)
        picked = np.unique(np.linspace(0, len(ordered) - 1, min(COUNT, len(ordered))).astype(np.int64))
        chosen = [ordered[place] for place in picked.tolist()]
        stored = [_find_row(key, store, waiting) for key in key_array(chosen)]
        vectors = [shard.codec.decode(shard.stored.take(slice(row, row + 1)))[0] for shard, row in stored]
        return cls(
            tuple(chosen),
            np.array([shard.tokens[row] for shard, row in stored], np.int32),
            np.array(vectors, np.float32).reshape(len(chosen), store.contract.dimension),
            np.array([noise_angle(shard.header) for shard, _ in stored]),
            tuple(shard.header.provenance for shard, _ in stored),
        )

    def check(self, encoder: TextEncoder) -> None:
        """Encode the texts again, and compare tokens and vectors.

        Raises:
            ContractMismatchError: if a text has other tokens, or its vector moved beyond the noise.
            NonFiniteVectorError: if the teacher returns NaN or infinity for one.
        """
        if not self.texts:
            return
        now = encoder.encode(self.texts)
        if len(bad := np.flatnonzero(~np.isfinite(now.vectors).all(axis=1))):
            raise NonFiniteVectorError(
                f"the teacher returned NaN or infinity for {self.texts[bad[0]][:80]!r}, which has a vector "
                "already. Compute in float32"
            )
        other_tokens = (self.tokens > 0) & (now.tokens > 0) & (self.tokens != now.tokens)
        present, noise = encoder.provenance, run_noise(encoder, self.texts, now.vectors)
        is_unlike = [
            IMPORTED in one or one.get("compute_dtype") != present.get("compute_dtype")
            for one in self.provenance
        ]
        margins = np.where(is_unlike, MARGIN, _DEVICE_ANGLE)
        cosines, beyond = compare_rows(self.vectors, now.vectors, self.angles + noise + margins)
        if not (other_tokens | beyond).any():
            return
        worst = int(np.argmax(other_tokens) if other_tokens.any() else np.argmin(cosines))
        what = f"cosine {cosines[worst]:.4f}"
        if other_tokens.any():
            what = f"{self.tokens[worst]} tokens stored, {now.tokens[worst]} now, {what}"
        before = self.provenance[worst]
        changes = [
            f"{name.replace('_', '-')} {before.get(name, 'unknown')} then, {present.get(name, 'none')} now"
            for name in _NAMED
            if before.get(name) != present.get(name)
        ]
        count = int((other_tokens | beyond).sum())
        raise ContractMismatchError(
            f"teacher {encoder.teacher.name!r} computes other vectors than the stored ones: {count} of "
            f"{len(self.texts)} stored texts differ, such as {self.texts[worst][:60]!r} ({what}; "
            f"{', '.join(changes) or 'with the same libraries'}). Nothing was added. Use the earlier "
            "ones, or build into another cache",
            {"tokens": (int(self.tokens[worst]), int(now.tokens[worst]))} if other_tokens.any() else {},
        )


def _with_vectors(texts: Sequence[str], store: ShardStore, waiting: WaitingRows | None) -> list[str]:
    """Return the texts that have a vector."""
    keys = key_array(texts)
    there = store.locate(keys) >= 0
    if waiting is not None:
        there |= waiting.locate(keys) >= 0
    return list(compress(texts, there.tolist()))


def _find_row(key: KeyArray, store: ShardStore, waiting: WaitingRows | None) -> tuple[Shard, int]:
    """Return the shard, or the piece of waiting rows, that holds a key, and the row's number in it."""
    position = store.locate(key[None])
    if position[0] < 0 and waiting is not None:
        (piece,) = waiting.pieces_at(waiting.locate(key[None]))
        return piece
    shard = store.shards[store.shards_at(position)[0]]
    return shard, int(np.flatnonzero(shard.keys == key)[0])


def refuse_changed_teacher(
    teacher: LazyTeacher,
    store: ShardStore,
    corpora: Callable[[], Iterable[Corpus]],
    waiting: WaitingRows | None = None,
    texts: Sequence[str] = (),
) -> None:
    """Refuse to add vectors if the teacher's have changed since they were stored; checked once a teacher.

    Args:
        teacher, store, waiting, texts: as ``Probes.draw``.
        corpora: returns the corpora.

    Raises:
        ContractMismatchError: as ``Probes.check``.
    """
    if not teacher.has_passed_probes:
        probes = Probes.draw(store, corpora(), waiting, texts)
        probes.check(teacher.encoder)
        teacher.has_passed_probes = bool(probes.texts)
