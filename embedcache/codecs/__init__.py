"""Codecs: how a vector is laid out in a shard, and what that loses."""

from embedcache.codecs import pq
from embedcache.codecs.base import Codec, Stored, Vectors
from embedcache.codecs.quality import CodecError, measure
from embedcache.codecs.registry import CODEC_NAMES, DEFAULT_CODEC, FLOAT_CODECS, check_codec_name, get_codec

__all__ = [
    "CODEC_NAMES",
    "DEFAULT_CODEC",
    "FLOAT_CODECS",
    "Codec",
    "CodecError",
    "Stored",
    "Vectors",
    "check_codec_name",
    "get_codec",
    "measure",
    "pq",
]
