"""Recipes of views, read from what a user types after ``--view``.

A recipe is written ``[NAME=]KIND[:ARGUMENTS][*COUNT]``: ``crop``, ``crop:0.2``, ``crop*4``,
``column:french``, ``paraphrase=back-translation:de``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Annotated, TypeAlias

import pydantic
from pydantic import ConfigDict, Field, TypeAdapter, model_validator

from embedcache.errors import InputError
from embedcache.fsio import canonical_json

Parameter: TypeAlias = str | int | float

RESERVED = ("original",)
"""Names that no view can have: the text of the corpus itself goes by this one."""

_LARGEST_SEED = (1 << 63) - 1
_NAME = r"\w[\w.-]{0,99}"
_SPEC = re.compile(
    rf"(?:(?P<name>{_NAME})=)?(?P<kind>[a-z-]+)(?::(?P<rest>.*?))?(?:\*(?P<count>[1-9]\d{{0,2}}))?", re.DOTALL
)

_ARGUMENTS: Mapping[str, TypeAdapter[Parameter]] = {
    "share": TypeAdapter(Annotated[float, Field(gt=0, lt=1)]),
    "beams": TypeAdapter(Annotated[int, Field(ge=1, le=99)]),
    "language": TypeAdapter(Annotated[str, Field(pattern=r"^[A-Za-z][\w-]{0,19}$")]),
    "column": TypeAdapter(Annotated[str, Field(min_length=1)]),
    "senses": TypeAdapter(Annotated[int, Field(ge=1, le=99)]),
    # Another version has other synonyms.
    "lexicon": TypeAdapter(Annotated[str, Field(pattern=r"^[\w.-]+:[\w.-]+$")]),
}
"""Argument of a kind -> the values it takes."""

_Word = Annotated[str, Field(pattern=r"^[0-9A-Za-z_-]{1,64}$")]


class Kept(Enum):
    """Reason why a row keeps its text; the values are counted and reported."""

    ONE_WORD = "one word"
    NO_SYNONYM = "no synonym"
    NOTHING_TO_MASK = "nothing to mask"
    EMPTY_CELL = "empty cell"
    UNUSABLE_CELL = "unusable cell"
    TOO_LONG = "longer than the model reads"
    EMPTY_OUTPUT = "empty output"
    SAME_TEXT = "same text"
    """Of a part of a corpus: unchanged, or kept for one of the reasons that were counted of the whole."""


Made: TypeAlias = str | Kept
Maker: TypeAlias = Callable[[Sequence[str]], list[Made]]
"""Texts -> outcome for each, which depends on that text alone."""


@dataclass(frozen=True)
class Kind:
    """Kind of view.

    Attributes:
        summary: summary in one line.
        example: example of typing it.
        arguments: name -> default of each argument; None where it must be given.
        random: True if it draws from a seed, so that several samples of it differ.
        models: the roles of the models it runs, for ``{}`` its language.
    """

    summary: str
    example: str
    arguments: Mapping[str, Parameter | None] = field(default_factory=dict)
    random: bool = False
    models: tuple[str, ...] = ()


KINDS: Mapping[str, Kind] = {
    "crop": Kind("keep a stretch of words, without a share of them", "crop:0.1", {"share": 0.1}, random=True),
    "delete-words": Kind(
        "leave out a share of the words, here and there", "delete-words:0.1", {"share": 0.1}, random=True
    ),
    "delete-one-word": Kind("leave out one word", "delete-one-word*2", random=True),
    "synonym": Kind(
        "replace a share of the words by WordNet synonyms of their most frequent senses",
        "synonym:0.1",
        {"share": 0.1, "senses": 1, "lexicon": "omw-en:1.4"},
        random=True,
    ),
    "mask-fill": Kind(
        "mask a share of the words and let a masked language model fill them",
        "mask-fill:0.15",
        {"share": 0.15},
        random=True,
        models=("mask-fill",),
    ),
    "back-translation": Kind(
        "translate into a language and back",
        "back-translation:de",
        {"language": None, "beams": 1},
        models=("{source}-{language}", "{language}-{source}"),
    ),
    "translation": Kind(
        "translate with a model",
        "translation:de",
        {"language": None, "beams": 1},
        models=("{source}-{language}",),
    ),
    "column": Kind("take a column of the source", "column:french", {"column": None}),
}
"""Every kind of view, by name."""


@pydantic.dataclasses.dataclass(
    frozen=True, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
)
class Recipe:
    """Settings that determine the texts of a view, given the texts of its corpus.

    Attributes:
        name: the view's name; it names a folder, and has no part in the texts.
        kind: one of ``KINDS``.
        parameters: argument -> value.
        seed: seed of random draws; None without any.
        sample: number among several samples of the same recipe and seed; 0 where there is one.
        models: role -> digest of the model that plays it.
    """

    name: str
    kind: _Word
    parameters: dict[_Word, str | int | float]
    seed: int | None = None
    sample: int = 0
    models: dict[_Word, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        if not is_view_name(self.name):
            raise ValueError(f"{self.name[:80]!r} names no view")
        # Synonyms of all senses, by an earlier version, have no "senses".
        if self.kind in KINDS and not KINDS[self.kind].arguments.keys() - {
            "senses"
        } <= self.parameters.keys() <= (KINDS[self.kind].arguments.keys()):
            raise ValueError(f"its parameters are not those of {self.kind}")
        return self

    @property
    def reads_source(self) -> bool:
        """True if its texts come from the source of the corpus, not from the corpus."""
        return self.kind == "column"

    @property
    def salt(self) -> bytes:
        """Key of a random stream of this recipe; the same for any name."""
        value = self.to_json()
        return canonical_json({name: value[name] for name in ("kind", "parameters", "seed", "sample")})

    def to_json(self) -> dict[str, object]:
        """Return the recipe as a JSON object."""
        return asdict(self)

    def describe(self) -> str:
        """Return the recipe in words: kind, parameters, seed, sample and models."""
        models = {f"model {role}": digest[:12] for role, digest in self.models.items()}
        fields = {**self.parameters, "seed": self.seed, "sample": self.sample or None, **models}
        given = (f"{name} {_shown(value)}" for name, value in fields.items() if value is not None)
        return ", ".join([self.kind, *given])


def _shown(value: object) -> str:
    """Return a parameter as it can be shown: the name of a column may have anything in it."""
    text = str(value)
    return text if text.isprintable() else text.encode("unicode_escape", "replace").decode()


def is_view_name(name: str) -> bool:
    """Return whether a view can be called ``name``."""
    return re.fullmatch(_NAME, name) is not None and name not in RESERVED


def parse_views(specs: Sequence[str], *, seed: int = 0) -> list[Recipe]:
    """Return the recipes that ``specs`` ask for, in order; ``crop*4`` gives four.

    Args:
        specs: as typed after ``--view``.
        seed: seed of random draws, at least 0.

    Raises:
        InputError: if a spec cannot be understood, or two views would have one name.
    """
    if not 0 <= seed <= _LARGEST_SEED:
        raise InputError(f"seed of views {seed}: expected a whole number from 0 to {_LARGEST_SEED}")
    recipes = [recipe for spec in specs for recipe in _parse(spec, seed)]
    names = [recipe.name for recipe in recipes]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"two views are called {repeated[0]!r}: ask for several samples with '*2', or name one, "
            "as NAME=KIND"
        )
    return recipes


def _parse(spec: str, seed: int) -> list[Recipe]:
    found = _SPEC.fullmatch(spec)
    if found is None or found["kind"] not in KINDS:
        raise InputError(f"unknown view {spec!r}: expected one of {', '.join(KINDS)}; see 'embedcache views'")
    name, kind, rest, count = found.group("name", "kind", "rest", "count")
    if kind == "column" and count:
        # The name of a column may have any characters in it, and there is only one of it.
        rest, count = f"{rest}*{count}", None
    parameters = _parameters(spec, kind, rest)
    if name is None:
        # A name shows only arguments that differ from the default.
        unusual = [value for key, value in parameters.items() if value != KINDS[kind].arguments[key]]
        name = re.sub(r"[^\w.-]", "_", "-".join([kind, *map(str, unusual)]))
    names = [name] if count is None else [f"{name}-{number}" for number in range(1, int(count) + 1)]
    if not all(map(is_view_name, names)):
        raise InputError(
            f"{name[:120]!r} cannot name a view: use up to 100 letters, digits, '.', '_' and '-', and not "
            "'original'; choose one as NAME=KIND"
        )
    drawn = seed if KINDS[kind].random else None
    if count is None:
        return [Recipe(name, kind, parameters, drawn)]
    if drawn is None:
        raise InputError(f"view {spec!r}: all samples of {kind} are the same; leave '*{count}' out")
    return [Recipe(one, kind, parameters, drawn, number) for number, one in enumerate(names, 1)]


def _parameters(spec: str, kind: str, rest: str | None) -> dict[str, Parameter]:
    """Return the arguments of a kind, given or default, in the order of ``KINDS``.

    ``0.2,beams=4``: the first argument may go without its name.
    """
    defaults = KINDS[kind].arguments
    given: dict[str, str] = {}
    for piece in [] if rest is None else [rest] if kind == "column" else rest.split(","):
        name, equals, value = piece.partition("=")
        if kind == "column" or (not equals and not given):
            name, value = next(iter(defaults), ""), piece
        if name not in defaults or name in given:
            raise InputError(
                f"view {spec!r}: {piece!r} is not an argument; {kind} takes {', '.join(defaults) or 'none'}"
            )
        given[name] = value
    try:
        return {
            name: _ARGUMENTS[name].validate_python(given.get(name, default))
            for name, default in defaults.items()
        }
    except pydantic.ValidationError as error:
        wrong = error.errors()[0]
        raise InputError(
            f"view {spec!r}: {wrong['input']!r}: {wrong['msg']}, as in '{KINDS[kind].example}'"
        ) from error
