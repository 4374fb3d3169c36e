"""Imports of the fork server: all that builds and opens caches, so that no fork has to import it."""

import importlib
from pathlib import Path

import embedcache

# Models and the network.
_APART = {"__main__", "teacher", "share", "doctor", "views"}
_FOLDER = Path(embedcache.__file__).parent

for _path in sorted(_FOLDER.rglob("*.py")):
    _parts = _path.relative_to(_FOLDER.parent).with_suffix("").parts
    if not _APART.intersection(_parts) and _parts[-1] != "__init__":
        importlib.import_module(".".join(_parts))
