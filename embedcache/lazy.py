"""Names that are loaded when first used, so that importing a package costs next to nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from embedcache.errors import MissingExtraError


def load(place: str) -> Any:
    """Return the object at ``place``, given as ``module:attribute``."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def load_extra(module: str, extra: str) -> Any:
    """Return an optional library.

    Args:
        module: its name.
        extra: extra of this package that installs it.

    Raises:
        MissingExtraError: if it is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"this needs {module}: pip install 'embedcache-distill[{extra}]'.") from error


def lazy_attributes(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module-level ``__getattr__`` for ``package``.

    Args:
        package: the package's ``__name__``.
        places: public name -> ``module:attribute`` it stands for.

    Raises:
        AttributeError: when called with any other name.
    """

    def loaded(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = load(places[name])
        setattr(sys.modules[package], name, value)
        return value

    return loaded
