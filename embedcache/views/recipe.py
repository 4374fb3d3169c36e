"""Recipes: what determines the texts of a view, read from what a user types after ``--view``.

A recipe is written ``[NAME=]KIND[:ARGUMENTS][*COUNT]``: ``crop``, ``crop:0.2``, ``crop*4``,
``column:french``, ``paraphrase=back-translation:de``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from embedcache.errors import InputError
from embedcache.fsio import canonical_json

Parameter: TypeAlias = str | int | float

RESERVED = ("original",)
"""What no view can be called: the text of the corpus itself goes by that name."""

_MOST_SAMPLES = 1000
_LARGEST_SEED = (1 << 63) - 1
_NAME = r"\w[\w.-]{0,99}"
_SPEC = re.compile(rf"(?:(?P<name>{_NAME})=)?(?P<kind>[a-z-]+)(?::(?P<rest>.*))?", re.DOTALL)
_COUNT = re.compile(r"(?P<rest>.*)\*(?P<count>\d{1,4})", re.DOTALL)
_LANGUAGE = r"[A-Za-z][\w-]{0,19}"
_PLAIN_WORD = re.compile(r"[\w-]{1,64}", re.ASCII)


@dataclass(frozen=True)
class Kind:
    """A way of making a view.

    Attributes:
        summary: what it does, in one line.
        example: how it is asked for.
        arguments: name -> default of each argument; a default of None means that it must be given.
        random: whether it draws from a seed, so that several samples of it differ.
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
        "put WordNet synonyms in the place of a share of the words",
        "synonym:0.1",
        {"share": 0.1, "lexicon": "oewn:2024"},
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
        "translate with a model, or take a column of the source",
        "translation:de",
        {"language": None, "beams": 1},
        models=("{source}-{language}",),
    ),
    "column": Kind("take a column of the source", "column:french", {"column": None}),
}
"""Every kind of view, by name."""


@dataclass(frozen=True)
class Recipe:
    """What determines the texts of a view, given the texts of its corpus.

    Attributes:
        name: the view's name; it names a folder, and has no part in the texts.
        kind: one of :data:`KINDS`.
        parameters: argument -> value.
        seed: what random choices start from; None where there are none.
        sample: which of several samples of the same recipe and seed; 0 where there is one.
        models: role -> digest of the model that plays it.
    """

    name: str
    kind: str
    parameters: Mapping[str, Parameter]
    seed: int | None = None
    sample: int = 0
    models: Mapping[str, str] = field(default_factory=dict)

    @property
    def reads_source(self) -> bool:
        """Whether its texts come from the source of the corpus, not from the corpus."""
        return self.kind == "column"

    @property
    def salt(self) -> bytes:
        """What a random stream of this recipe is keyed with; the same for any name."""
        value = {name: item for name, item in self.to_json().items() if name not in ("name", "models")}
        return canonical_json(value)

    def describe(self) -> str:
        """Return the recipe in words: kind, parameters, seed and sample."""
        if self.reads_source:
            return f"column {_shown(self.parameters['column'])}"
        words = [self.kind, *(f"{name} {_shown(value)}" for name, value in self.parameters.items())]
        if self.seed is not None:
            words.append(f"seed {self.seed}")
        if self.sample:
            words.append(f"sample {self.sample}")
        words += [f"model {role} {digest[:12]}" for role, digest in self.models.items()]
        return ", ".join(words)

    def differences(self, other: Recipe) -> str:
        """Say in what ``other`` differs; empty where both make the same texts."""
        mine, theirs = _flat(self), _flat(other)
        names = [name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name)]
        return ", ".join(f"{name} {mine.get(name)}, not {theirs.get(name)}" for name in names)

    def to_json(self) -> dict[str, object]:
        """Return the recipe as a JSON object."""
        return {
            "name": self.name,
            "kind": self.kind,
            "parameters": dict(self.parameters),
            "seed": self.seed,
            "sample": self.sample,
            "models": dict(self.models),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Recipe:
        """Return the recipe that ``value`` holds, trusting nothing in it.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: if it is none.
        """
        parameters, models = dict(value["parameters"]), dict(value["models"])
        seed, sample = value["seed"], value["sample"]
        if not isinstance(value["kind"], str) or not isinstance(value["name"], str):
            raise ValueError("its kind and name are no texts")
        named = (value["kind"], *parameters, *models)
        if not all(_PLAIN_WORD.fullmatch(one) for one in named):
            raise ValueError("its kind, parameters or models have names that no recipe has")
        if not is_view_name(value["name"]):
            raise ValueError(f"{value['name'][:80]!r} names no view")
        if value["kind"] in KINDS and parameters.keys() != KINDS[value["kind"]].arguments.keys():
            raise ValueError(f"its parameters are not those of {value['kind']}")
        if any(type(one) not in (str, int, float) for one in parameters.values()):
            raise ValueError("its parameters are neither texts nor numbers")
        if any(type(one) is not str for one in models.values()):
            raise ValueError("its models are no digests")
        if (seed is not None and type(seed) is not int) or type(sample) is not int:
            raise ValueError("its seed and sample are no whole numbers")
        return cls(value["name"], value["kind"], parameters, seed, sample, models)


def _flat(recipe: Recipe) -> dict[str, object]:
    return {
        "kind": recipe.kind,
        **{name: _shown(value) for name, value in recipe.parameters.items()},
        "seed": recipe.seed,
        "sample": recipe.sample,
        **{f"model {role}": digest[:12] for role, digest in recipe.models.items()},
    }


def _shown(value: Parameter) -> str:
    """Return a parameter as it can be shown: the name of a column may have anything in it."""
    text = str(value)
    return text if text.isprintable() else text.encode("unicode_escape", "replace").decode()


def is_view_name(name: str) -> bool:
    """Return whether a view can be called ``name``."""
    return re.fullmatch(_NAME, name) is not None and name not in RESERVED


def parse_views(specs: Sequence[str], *, seed: int = 0, via: str | None = None) -> list[Recipe]:
    """Return the recipes that ``specs`` ask for, in order; ``crop*4`` gives four.

    Args:
        specs: as typed after ``--view``.
        seed: what random choices start from, at least 0.
        via: the language of ``back-translation`` and ``translation`` where the spec names none.

    Raises:
        InputError: if a spec cannot be understood, or two views would have one name.
    """
    if not 0 <= seed <= _LARGEST_SEED:
        raise InputError(f"--view-seed {seed}: expected a whole number from 0 to {_LARGEST_SEED}")
    recipes = [recipe for spec in specs for recipe in _parse(spec, seed, via)]
    names = [recipe.name for recipe in recipes]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"two views would be called {repeated[0]!r}: ask for several samples with '*2', or name one: "
            f"--view other={specs[0].split('=')[-1]}"
        )
    return recipes


def _parse(spec: str, seed: int, via: str | None) -> list[Recipe]:
    found = _SPEC.fullmatch(spec)
    name, kind, rest = found.group("name", "kind", "rest") if found else (None, spec, None)
    count = None
    # The name of a column may have any characters in it, and there is only one of it.
    if found is None or not (kind == "column" and rest):
        starred = _COUNT.fullmatch(spec)
        if starred:
            count = int(starred.group("count"))
            found = _SPEC.fullmatch(starred.group("rest"))
            name, kind, rest = found.group("name", "kind", "rest") if found else (None, spec, None)
    if found is None or kind not in KINDS:
        raise InputError(f"unknown view {spec!r}: choose one of {', '.join(KINDS)}; see 'embedcache views'")
    if kind == "translation" and rest and rest.startswith("column="):
        column = rest.removeprefix("column=")
        return _parse(f"{name or f'translation-{_plain(column)}'}=column:{column}", seed, via)
    recipe = _recipe(spec, name, kind, rest, seed, via)
    if count is None:
        return [recipe]
    if not KINDS[kind].random:
        raise InputError(f"view {spec!r}: all samples of {kind} are the same; leave '*{count}' out")
    if not 1 <= count <= _MOST_SAMPLES:
        raise InputError(f"view {spec!r}: {count} samples; expected 1 to {_MOST_SAMPLES}")
    return [
        replace(recipe, name=_checked_name(f"{recipe.name}-{number}", spec), sample=number)
        for number in range(1, count + 1)
    ]


def _recipe(spec: str, name: str | None, kind: str, rest: str | None, seed: int, via: str | None) -> Recipe:
    facts = KINDS[kind]
    parameters: dict[str, Parameter] = {k: v for k, v in facts.arguments.items() if v is not None}
    if kind == "column":
        parameters["column"] = rest or ""
    else:
        parameters |= _arguments(spec, kind, rest)
        if "language" in facts.arguments and via is not None:
            parameters.setdefault("language", via)
    if missing := [argument for argument in facts.arguments if not parameters.get(argument)]:
        raise InputError(f"view {spec!r} needs its {missing[0]}: write '{facts.example}'")
    # In the order of the kind's arguments, whatever order they were typed in.
    parameters = {key: parameters[key] for key in facts.arguments}
    # Only what is not as usual shows in a name.
    told = [value for key, value in parameters.items() if value != facts.arguments[key]]
    default = _plain("-".join([kind, *map(str, told)]))
    return Recipe(_checked_name(name or default, spec), kind, parameters, seed if facts.random else None)


def _arguments(spec: str, kind: str, rest: str | None) -> dict[str, Parameter]:
    """Read ``0.2,lexicon=oewn:2024``: the first argument may go without its name."""
    allowed = list(KINDS[kind].arguments)
    found: dict[str, Parameter] = {}
    for place, piece in enumerate(rest.split(",") if rest is not None else []):
        key, equals, value = piece.partition("=")
        if not equals and place == 0 and allowed:
            key, value = allowed[0], piece
        if key not in allowed or key in found or not value:
            takes = f"takes {', '.join(allowed)}" if allowed else "takes nothing"
            raise InputError(f"view {spec!r}: {piece!r} is no argument; {kind} {takes}")
        found[key] = _READ_ARGUMENT[key](value, spec)
    return found


def _share(value: str, spec: str) -> float:
    try:
        share = float(value)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise InputError(f"view {spec!r}: share {value!r}; expected a number above 0 and below 1")
    return share


def _beams(value: str, spec: str) -> int:
    if not re.fullmatch(r"[1-9]\d?", value):
        raise InputError(f"view {spec!r}: beams {value!r}; expected a whole number from 1 to 99")
    return int(value)


def _language(value: str, spec: str) -> str:
    if not re.fullmatch(_LANGUAGE, value):
        raise InputError(f"view {spec!r}: language {value!r}; expected a code such as de or zh-Hans")
    return value


_READ_ARGUMENT: Mapping[str, Callable[[str, str], Parameter]] = {
    "share": _share,
    "beams": _beams,
    "language": _language,
    "lexicon": lambda value, spec: value,
}


def _plain(text: str) -> str:
    """Return ``text`` with nothing in it that a file name cannot have."""
    return re.sub(r"[^\w.-]", "_", text)


def _checked_name(name: str, spec: str) -> str:
    if not is_view_name(name):
        raise InputError(
            f"{name[:120]!r} cannot name a view: use up to 100 letters, digits, '.', '_' and '-', and not "
            f"'original'; choose another, --view NAME={spec.split('=')[-1]}"
        )
    return name
