"""Import of losses, student kinds and suites that lie outside the package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from distill.errors import DistillError


def load_object(module: str, name: str, error: type[DistillError]) -> Any:
    """Return the object ``name`` of ``module``: a dotted module name, or the path of a ``.py`` file.

    Raises:
        error: if the module cannot be found, or has no such name.
    """
    if module.endswith(".py"):
        path = Path(module).expanduser().resolve()
        if not path.is_file():
            raise error(f"{module}: no such file; give the path of a Python file")
        found = importlib.util.spec_from_file_location(path.stem, path)
        assert found is not None  # noqa: S101 - the name ends with .py
        assert found.loader is not None  # noqa: S101 - likewise
        loaded = importlib.util.module_from_spec(found)
        # Dataclasses and pickling look a class's module up by name.
        sys.modules.setdefault(path.stem, loaded)
        found.loader.exec_module(loaded)
    else:
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as missing:
            raise error(f"{module}: {missing}; give a module of the Python path, or a .py file") from missing
    if not hasattr(loaded, name):
        public = [one for one in vars(loaded) if not one.startswith("_")]
        raise error(f"{module} has no {name!r} (it has: {', '.join(public)})")
    return getattr(loaded, name)
