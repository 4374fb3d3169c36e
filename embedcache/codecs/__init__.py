"""Codecs: encodings of the vectors in a shard, and their loss."""

from embedcache.codecs import pq
from embedcache.codecs.base import Codec, Stored, Vectors, measure
from embedcache.codecs.fixed import CODEC_NAMES, DEFAULT_CODEC, FLOAT_CODECS, check_codec_name, get_codec

__all__ = [
    "CODEC_NAMES",
    "DEFAULT_CODEC",
    "FLOAT_CODECS",
    "Codec",
    "Stored",
    "Vectors",
    "check_codec_name",
    "get_codec",
    "measure",
    "pq",
]
