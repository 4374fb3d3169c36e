"""Settings of a configuration as keyword arguments of a function, seen by ``help`` and by editors."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel

from distill.config.base import Key, keys

F = TypeVar("F", bound=Callable[..., Any])


def with_settings(model: type[BaseModel]) -> Callable[[F], F]:
    """Return a decorator that puts every setting of ``model`` into a function's signature and docstring.

    The function takes them as ``**settings``. Arguments that it names itself keep their place.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        names = {one.name for one in own}
        more = [key for key in keywords(model) if word_of(key) not in names]
        added = [
            inspect.Parameter(
                word_of(key), inspect.Parameter.KEYWORD_ONLY, default=key.default, annotation=type_name(key)
            )
            for key in more
        ]
        function.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        lines = [f"    {word_of(key)} ({type_name(key)}): {key.text}." for key in more]
        doc = inspect.cleandoc(function.__doc__ or "")
        function.__doc__ = "\n".join([doc, "", "Settings:", *lines])
        return function

    return decorate


def with_options_of(other: Callable[..., Any]) -> Callable[[F], F]:
    """Return a decorator that puts the keyword arguments of ``other`` in the place of ``**options``."""

    def decorate(function: F) -> F:
        signature, every = inspect.signature(function), inspect.signature(other).parameters.values()
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        options = [one for one in every if one.kind is one.KEYWORD_ONLY]
        function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
        return function

    return decorate


def keywords(model: type[BaseModel]) -> Iterator[Key]:
    """Yield the settings that have a name of their own as a keyword, in the order of the configuration."""
    seen: set[str] = set()
    for key in keys(model):
        if word_of(key) not in seen and key.path != "loss.settings":
            seen.add(word_of(key))
            yield key


def word_of(key: Key) -> str:
    """Return the keyword of a setting: its option's name, or its own."""
    return key.word or key.path.rpartition(".")[2]


def type_name(key: Key) -> str:
    """Return the type of a setting as Python writes it, ``None`` included where that is the default."""
    name = _name(key.annotation)
    if key.metavar in ("FILE", "DIR", "KEYFILE", "SPEC"):
        name = f"{name} | Path"
    elif key.metavar == "SIZE" or name.startswith("list[str"):
        name = f"str | {name}"
    return f"{name} | None" if key.default is None else name


def _name(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return f"Literal[{', '.join(map(json.dumps, arguments))}]"
    if hasattr(kind, "__metadata__"):
        return _name(arguments[0])
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_name, arguments))}]"
    return "Any" if kind is Any else str(kind.__name__)
