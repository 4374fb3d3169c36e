"""Keys: the 16-byte name of a text inside a cache.

A key is BLAKE2b over the text's UTF-8 bytes. Two texts share a vector exactly when their bytes are the same:
nothing is stripped, lower-cased or normalised on the way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

KEY_BYTES = 16

KeyArray = NDArray[np.void]
"""Keys as an array of dtype ``V16``, shape (n,)."""

KEY_DTYPE = np.dtype((np.void, KEY_BYTES))


def key(text: str) -> bytes:
    """Return the 16-byte key of ``text``.

    Raises:
        UnicodeEncodeError: if the text holds lone surrogates, which have no UTF-8 form.
    """
    return hashlib.blake2b(text.encode("utf-8"), digest_size=KEY_BYTES).digest()


def key_array(texts: Iterable[str]) -> KeyArray:
    """Return the keys of ``texts`` as an array of dtype ``V16``, shape (n,)."""
    return np.frombuffer(b"".join(map(key, texts)), dtype=KEY_DTYPE)
