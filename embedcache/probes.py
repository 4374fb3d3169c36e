"""Probes: stored rows that are encoded again before more vectors are stored beside them.

A new version of a library may change tokens or vectors, and digests of a model's files do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
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
from embedcache.keys import key_array
from embedcache.live import MARGIN, run_noise
from embedcache.store import ShardStore
from embedcache.store.noise import compare_rows, noise_angle

if TYPE_CHECKING:
    from embedcache.teacher.lazy import LazyTeacher
    from embedcache.teacher.text_encoder import TextEncoder

COUNT = 16
_CANDIDATES = 64
_DEVICE_ANGLE = 0.02
"""Angle beyond the noise, in radians, that another device may cause."""
_VERSIONS = ("transformers", "sentence_transformers", "torch", "openvino")


@dataclass(frozen=True)
class Probes:
    """Stored rows and their texts, n of them.

    Attributes:
        texts: the texts.
        tokens: int32, shape (n,); tokens of each text; 0 if unknown.
        vectors: float32, shape (n, d).
        angles: float64, shape (n,); angle that noise, codec and another device explain, in radians.
        provenance: provenance of each row's shard.
    """

    texts: tuple[str, ...]
    tokens: NDArray[np.int32]
    vectors: Vectors
    angles: NDArray[np.float64]
    provenance: tuple[Mapping[str, object], ...]

    @classmethod
    def draw(cls, store: ShardStore, corpora: Iterable[Corpus]) -> Probes:
        """Take at most ``COUNT`` stored rows, from the shortest text to the longest.

        Args:
            store: the vectors; those of a served teacher have a canary instead.
            corpora: corpora and views that may hold their texts; those that cannot be read are left out.
        """
        found: dict[str, int] = {}
        for corpus in corpora if len(store) and not store.contract.is_served else ():
            # Shards are cut in the order of a corpus, so a stopped build has stored its first rows.
            with suppress(CorruptCacheError, UnreadableError):
                last = len(corpus) - 1
                spread = np.linspace(0, last, _CANDIDATES), np.geomspace(1, last + 1, _CANDIDATES) - 1
                texts = corpus.texts(np.unique(np.concatenate(spread).astype(np.int64)))
                places = store.locate(key_array(texts)).tolist()
                found |= {text: place for text, place in zip(texts, places, strict=True) if place >= 0}
        ordered = sorted(found, key=len)
        picked = np.unique(np.linspace(0, len(ordered) - 1, min(COUNT, len(ordered))).astype(np.int64))
        texts = [ordered[place] for place in picked.tolist()]
        positions = store.locate(key_array(texts))
        headers = [store.shards[number].header for number in store.shards_at(positions).tolist()]
        margins = [MARGIN if IMPORTED in header.provenance else _DEVICE_ANGLE for header in headers]
        return cls(
            tuple(texts),
            store.seen(positions)[0],
            store.vectors(positions),
            np.array([noise_angle(one) for one in headers]) + np.array(margins),
            tuple(header.provenance for header in headers),
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
        noise = run_noise(encoder, self.texts, now.vectors)
        cosines, beyond = compare_rows(self.vectors, now.vectors, self.angles + noise)
        if not (other_tokens | beyond).any():
            return
        worst = int(np.argmax(other_tokens) if other_tokens.any() else np.argmin(cosines))
        what = f"cosine {cosines[worst]:.4f}"
        if other_tokens.any():
            what = f"{self.tokens[worst]} tokens stored, {now.tokens[worst]} now, {what}"
        before, present = self.provenance[worst], encoder.provenance
        versions = [
            f"{name.replace('_', '-')} {before.get(name, 'unknown')} then, {present.get(name, 'none')} now"
            for name in _VERSIONS
            if before.get(name) != present.get(name)
        ]
        count = int((other_tokens | beyond).sum())
        raise ContractMismatchError(
            f"teacher {encoder.teacher.name!r} computes other vectors than the stored ones: {count} of "
            f"{len(self.texts)} stored texts differ, such as {self.texts[worst][:60]!r} ({what}; "
            f"{', '.join(versions) or 'with the same libraries'}). Nothing was added. Install the earlier "
            "versions, or build into another cache",
            {"tokens": (int(self.tokens[worst]), int(now.tokens[worst]))} if other_tokens.any() else {},
        )


def refuse_changed_teacher(
    teacher: LazyTeacher, store: ShardStore, corpora: Callable[[], Iterable[Corpus]]
) -> None:
    """Refuse to add vectors if the teacher's have changed since they were stored; checked once a teacher.

    Raises:
        ContractMismatchError: as ``Probes.check``.
    """
    if not teacher.has_passed_probes:
        Probes.draw(store, corpora()).check(teacher.encoder)
        teacher.has_passed_probes = True
