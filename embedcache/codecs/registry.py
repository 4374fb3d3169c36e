"""The codecs by name."""

from __future__ import annotations

from embedcache.codecs.base import Codec
from embedcache.codecs.floats import FLOAT16, FLOAT32
from embedcache.codecs.int8 import INT8
from embedcache.codecs.pq import NAME as PQ
from embedcache.errors import InputError

_FIXED: dict[str, Codec] = {codec.name: codec for codec in (FLOAT32, FLOAT16, INT8)}
CODEC_NAMES = (*_FIXED, PQ)
FLOAT_CODECS = ("float32", "float16")
"""Those that keep every component by itself, whatever stands beside it."""
DEFAULT_CODEC = "float16"


def check_codec_name(name: str) -> str:
    """Return ``name`` if there is a codec called so.

    Raises:
        InputError: if there is none; the message lists those there are.
    """
    if name not in CODEC_NAMES:
        raise InputError(f"unknown codec {name!r}: choose one of {', '.join(CODEC_NAMES)}")
    return name


def get_codec(name: str) -> Codec:
    """Return the codec called ``name``.

    Raises:
        InputError: if there is none, or if it is ``pq``, which is nothing without its codebook.
    """
    try:
        return _FIXED[check_codec_name(name)]
    except KeyError:
        raise InputError(
            "the codec pq needs a codebook: make it with embedcache.codecs.pq.train, or read it with pq.load"
        ) from None
