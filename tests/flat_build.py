"""``embedcache.build`` with flat settings, named as the options of the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import embedcache
from embedcache.building.build import grouped
from embedcache.cache import Cache


def build(sources: Any, *, teacher: Any, encoder: Any = None, **settings: Any) -> Cache:
    """Build; ``teacher`` may be loaded, and ``encoder`` stands in for it.

    Objects are passed on: a teacher, an encoder, ``ViewOptions``, ``RemoteOptions``.
    """
    kinds = {"views": "ViewOptions", "remote": "RemoteOptions"}
    given = [name for name, kind in kinds.items() if type(settings.get(name)).__name__ == kind]
    objects = {name: settings.pop(name) for name in given}
    arguments = grouped({"teacher": teacher, **settings}) | objects
    if encoder is not None or not isinstance(teacher, (str, Path)):
        arguments["teacher"] = encoder or teacher
    return embedcache.build(sources, **arguments)
