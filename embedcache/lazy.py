"""Names that are loaded when first used, so that importing a package costs next to nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def load(place: str) -> Any:
    """Return what stands at ``place``, as ``module:attribute``."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


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
