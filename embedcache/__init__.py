"""Run a sentence encoder once over a corpus and keep its vectors in a store a team can share.

>>> import embedcache
>>> cache = embedcache.build("corpus.txt", teacher="minilm-l6", cache="./cache")  # doctest: +SKIP
>>> cache.lookup(["A sentence."])                                                 # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embedcache.errors import EmbedCacheError
from embedcache.lazy import lazy_attributes

if TYPE_CHECKING:
    from embedcache.building.build import build
    from embedcache.cache import Cache
    from embedcache.cache import Cache as open  # noqa: A004, N813 - embedcache.open("./cache") is the interface
    from embedcache.copying.copy import copy
    from embedcache.copying.options import CopyOptions
    from embedcache.corpus.readers import ReadOptions
    from embedcache.exporting import export
    from embedcache.querying import query
    from embedcache.share.pull import pull
    from embedcache.share.push import push
    from embedcache.share.read_through import RemoteOptions
    from embedcache.teacher.options import EncodeOptions, TeacherOptions
    from embedcache.views.plan import ViewOptions

__version__ = "0.1.0"

_PLACES = {
    "build": "embedcache.building.build:build",
    "Cache": "embedcache.cache:Cache",
    "CopyOptions": "embedcache.copying.options:CopyOptions",
    "EncodeOptions": "embedcache.teacher.options:EncodeOptions",
    "ReadOptions": "embedcache.corpus.readers:ReadOptions",
    "RemoteOptions": "embedcache.share.read_through:RemoteOptions",
    "TeacherOptions": "embedcache.teacher.options:TeacherOptions",
    "ViewOptions": "embedcache.views.plan:ViewOptions",
    "copy": "embedcache.copying.copy:copy",
    "export": "embedcache.exporting:export",
    "open": "embedcache.cache:Cache",
    "pull": "embedcache.share.pull:pull",
    "push": "embedcache.share.push:push",
    "query": "embedcache.querying:query",
}
__all__ = [
    "Cache",
    "CopyOptions",
    "EmbedCacheError",
    "EncodeOptions",
    "ReadOptions",
    "RemoteOptions",
    "TeacherOptions",
    "ViewOptions",
    "__version__",
    "build",
    "copy",
    "export",
    "open",
    "pull",
    "push",
    "query",
]

__getattr__ = lazy_attributes(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted(__all__)
