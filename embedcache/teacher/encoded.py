"""Old place of the results in :mod:`embedcache.teacher.batching`."""

from embedcache.teacher.batching import EncodedTexts, EncodeTimes

__all__ = ["EncodeTimes", "EncodedTexts"]
