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
    from embedcache.building.build import build as build
    from embedcache.cache import Cache as Cache
    from embedcache.copying.copy import copy as copy
    from embedcache.copying.options import CopyOptions as CopyOptions
    from embedcache.corpus.readers import ReadOptions as ReadOptions
    from embedcache.exporting.export import export as export
    from embedcache.importing import import_vectors as import_vectors
    from embedcache.querying import query as query
    from embedcache.share.pull import pull as pull
    from embedcache.share.push import push as push
    from embedcache.share.read_through import RemoteOptions as RemoteOptions
    from embedcache.teacher.options import EncodeOptions as EncodeOptions
    from embedcache.teacher.options import TeacherOptions as TeacherOptions
    from embedcache.views.plan import ViewOptions as ViewOptions

    open = Cache  # noqa: A001 - embedcache.open("./cache") is the interface

__version__ = "0.2.0"

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
    "export": "embedcache.exporting.export:export",
    "import_vectors": "embedcache.importing:import_vectors",
    "open": "embedcache.cache:Cache",
    "pull": "embedcache.share.pull:pull",
    "push": "embedcache.share.push:push",
    "query": "embedcache.querying:query",
}
__all__ = ["EmbedCacheError", "__version__", *_PLACES]

__getattr__ = lazy_attributes(__name__, _PLACES)


def __dir__() -> list[str]:
    return sorted(__all__)
