"""Import of losses, student kinds and suites that lie outside the package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from distill.errors import DistillError


def is_plugin(name: str) -> bool:
    """Return True for ``package.module:Name`` and ``file.py:Name``."""
    module, colon, attribute = name.rpartition(":")
    is_module = module.endswith(".py") or all(part.isidentifier() for part in module.split("."))
    return bool(colon) and is_module and attribute.isidentifier()


def load_object(module: str, name: str, error: type[DistillError]) -> Any:
    """Return the object ``name`` of ``module``: a dotted module name, or the path of a ``.py`` file.

    Raises:
        error: if the module cannot be found, or has no such name.
    """
    if module.endswith(".py"):
        loaded = _load_file(Path(module).expanduser().resolve(), error)
    else:
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as missing:
            raise error(f"{module}: {missing}; give a module of the Python path, or a .py file") from missing
    if not hasattr(loaded, name):
        public = [one for one in vars(loaded) if not one.startswith("_")]
        raise error(f"{module} has no {name!r} (it has: {', '.join(public)})")
    return getattr(loaded, name)


def _load_file(path: Path, error: type[DistillError]) -> ModuleType:
    # A class that is loaded twice would be two classes; pickling and dataclasses look the module up by name.
    name = f"distill_plugin_{path}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise error(f"{path}: no such file; give the path of a Python file")
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None  # noqa: S101 - the name ends with .py
    assert found.loader is not None  # noqa: S101 - likewise
    sys.modules[name] = loaded = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(loaded)
    except BaseException:
        del sys.modules[name]
        raise
    return loaded
