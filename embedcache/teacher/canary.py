"""Canary of a served teacher: fixed texts whose vectors show that the server still runs the same model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.errors import ContractMismatchError
from embedcache.keys import KeyArray, key_array

VERSION = 1
"""Part of a served teacher's contract; other texts are another version."""

TEXTS = (
    "A grey heron waits in the shallow water.",
    "The committee rejected the proposal because it would have doubled the cost of the bridge.",
    "WHERE DID THE LAST TRAIN GO?",
    "salt",
    "How do I cancel my subscription and get a refund for the last month?",
    "Der Zug nach Nürnberg fällt heute leider aus.",
    "Elle a planté trois pommiers derrière l'école.",
    "Los precios del trigo subieron un 4,5 % en marzo de 2019.",
    "Завтра обещают сильный ветер и дождь.",
    "明日の会議は午後三時に始まります。",
    "这家餐厅的面条又便宜又好吃。",
    "الكتاب على الطاولة بجانب النافذة.",
    "def area(width, height): return width * height",
    "x² + y² = 25; x > 0, y < 0",
    "I did not enjoy the film, although the music was wonderful 🎻",
    "Aspirin inhibits an enzyme that makes prostaglandins, and so lowers fever, pain and inflammation.",
)

LEAST_COSINE = 0.999
"""Cosine that two runs of the same served model reach; batching and 16-bit arithmetic stay above it."""


def refuse_other_model(
    spec: str,
    texts: Sequence[str],
    before: Vectors,
    now: Vectors,
    wrong: NDArray[np.bool_],
    where: str,
) -> None:
    """Refuse a server whose vectors of known texts have changed.

    Args:
        spec: the served teacher.
        texts: the n texts.
        before, now: their vectors as known and as served, float32, shape (n, d).
        wrong: bool, shape (n,); texts whose vectors are too far apart.
        where: place of the known vectors.

    Raises:
        ContractMismatchError: if any text is wrong; the message shows both vectors of the worst one.
    """
    if not wrong.any():
        return
    similar = cosines(before, now)
    worst = int(np.argmin(np.where(wrong, similar, np.inf)))
    sides = [f"[{', '.join(f'{x:.4f}' for x in vectors[worst, :3])}, …]" for vectors in (before, now)]
    raise ContractMismatchError(
        f"{spec} is another model than before: {int(wrong.sum())} of {len(texts)} known texts have other "
        f"vectors; {texts[worst][:60]!r} has {sides[0]} {where} and {sides[1]} now, cosine "
        f"{similar[worst]:.4f}. Nothing of this shard was stored. Serve the old model again, or the new one "
        "under another model name",
        {"canary": (sides[0], sides[1])},
    )


def vouches(keys: KeyArray, vectors: Vectors, now: Vectors) -> bool:
    """Return whether rows begin with the canary, with the vectors that the server gives now."""
    rows = len(TEXTS)
    if keys[:rows].tobytes() != key_array(TEXTS).tobytes():
        return False
    return bool((cosines(vectors[:rows], now) >= LEAST_COSINE).all())


def cosines(x: Vectors, y: Vectors) -> NDArray[np.float64]:
    """Cosine of each pair of rows, float64 of shape (n,); -1 where one is not finite."""
    wide, other = x.astype(np.float64), y.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=1) * np.linalg.norm(other, axis=1)
    found = np.einsum("nd,nd->n", wide, other) / np.maximum(lengths, np.finfo(np.float64).tiny)
    return np.where(np.isfinite(found), found, -1.0)
