"""Run a sentence encoder once over a corpus and keep its vectors in a store a team can share.

>>> import embedcache
>>> cache = embedcache.build("corpus.txt", teacher="minilm-l6", cache="./cache")  # doctest: +SKIP
>>> cache.lookup(["A sentence."])                                                 # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embedcache.errors import EmbedCacheError

if TYPE_CHECKING:
    from embedcache.builder import build
    from embedcache.cache import Cache
    from embedcache.cache import Cache as open  # noqa: A004, N813 - embedcache.open("./cache") is the interface

__version__ = "0.1.0"
__all__ = ["Cache", "EmbedCacheError", "__version__", "build", "open"]

_LAZY = {
    "build": ("embedcache.builder", "build"),
    "Cache": ("embedcache.cache", "Cache"),
    "open": ("embedcache.cache", "Cache"),
}


def __getattr__(name: str) -> Any:
    # Numpy and Arrow are loaded when first used, so that importing the package costs next to nothing.
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _LAZY[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value
