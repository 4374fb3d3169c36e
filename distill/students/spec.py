"""What a student is to be: ``NAME:key=value,...`` taken apart, or ``layers:...``, or a model by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from distill.errors import StudentError

Kind = Literal["layers", "compact", "narrow", "static", "model"]

LAYERS = "layers:"
LAYER_FORMS = "layers:K, layers:first:K, layers:every:K, layers:0,2,5"


@dataclass(frozen=True)
class _Form:
    """The keys of a kind of student, and how it is written."""

    kind: Kind
    needed: tuple[str, ...]
    optional: tuple[str, ...]
    example: str


_FORMS = {
    form.kind: form
    for form in (
        _Form("compact", ("e",), ("layers", "copy", "ff", "vocab"), "compact:e=128,layers=3"),
        _Form("narrow", ("h",), ("layers",), "narrow:h=192,layers=6"),
        _Form("static", ("dim",), ("vocab",), "static:dim=256"),
    )
}


def _listed(form: _Form) -> str:
    """Return how a kind is written, and the keys it takes besides."""
    others = [key for key in form.optional if f"{key}=" not in form.example]
    return form.example + (f" (also {', '.join(others)})" if others else "")


FORMS = f"{LAYER_FORMS}; {', '.join(map(_listed, _FORMS.values()))}"
"""The forms of students that are made from their teacher, as help texts list them."""

# A hub id or a folder could look like this, too, but nobody's does.
_WITH_KEYS = re.compile(r"[\w-]+:[\w-]+=.*", flags=re.DOTALL)


@dataclass(frozen=True)
class StudentSpec:
    """A student's spec, taken apart.

    Attributes:
        text: the spec as it was written.
        kind: ``layers``, ``compact``, ``narrow`` and ``static`` are made from the teacher; ``model`` is a
            folder, an alias or a hub id.
        values: of a kind with keys, the value of each key that was given.
    """

    text: str
    kind: Kind
    values: Mapping[str, str] = field(default_factory=dict)

    @property
    def from_teacher(self) -> bool:
        """Whether the student is made from its teacher: it pools and cuts texts as that one does."""
        return self.kind != "model"

    def integer(self, key: str) -> int:
        """Return the value of a key that has to be there: a whole number of at least 1.

        Raises:
            StudentError: if the value is none.
        """
        value = self.values[key]
        if not re.fullmatch(r"[0-9]+", value) or not int(value):
            raise StudentError(
                f"student {self.text!r}: {key}={value}, expected a whole number of at least 1, "
                f"as in {_FORMS[self.kind].example}"
            )
        return int(value)

    def yes(self, key: str) -> bool:
        """Return whether the value of a key is yes, as it is where the key was left out.

        Raises:
            StudentError: if it is neither yes nor no.
        """
        value = self.values.get(key, "yes")
        if value not in ("yes", "no"):
            raise StudentError(f"student {self.text!r}: {key}={value}, expected yes or no")
        return value == "yes"

    def optional_integer(self, key: str) -> int | None:
        """Return the value of a key, a whole number of at least 1; None where it was left out.

        Raises:
            StudentError: if the value is none.
        """
        return self.integer(key) if key in self.values else None


def parse_spec(spec: str) -> StudentSpec:
    """Take a student's spec apart.

    Raises:
        StudentError: if a key is unknown, missing, given twice or has no value; or if keys are given to a
            kind of student that is not known.
    """
    if spec.startswith(LAYERS):
        return StudentSpec(spec, "layers")
    name, colon, rest = spec.partition(":")
    form = next((one for one in _FORMS.values() if colon and one.kind == name), None)
    if form is None:
        if _WITH_KEYS.fullmatch(spec):
            raise StudentError(
                f"student {spec!r}: there is no kind {name!r} of students; write one of {FORMS}"
            )
        return StudentSpec(spec, "model")
    values: dict[str, str] = {}
    for part in rest.split(","):
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in form.needed + form.optional or not value:
            raise StudentError(
                f"student {spec!r}: found {part!r}, expected KEY=VALUE with keys "
                f"{', '.join(form.needed + form.optional)}, as in {form.example}"
            )
        if key in values:
            raise StudentError(f"student {spec!r}: {key} is given twice; give it once, as in {form.example}")
        values[key] = value
    if missing := [key for key in form.needed if key not in values]:
        raise StudentError(
            f"student {spec!r}: {', '.join(missing)} is missing; expected it as in {form.example}"
        )
    parsed = StudentSpec(spec, form.kind, values)
    for key in values.keys() - {"layers", "copy"}:
        parsed.integer(key)
    parsed.yes("copy")
    return parsed


def is_from_teacher(spec: str) -> bool:
    """Return whether ``spec`` is of a student that is made from its teacher, however well it is written."""
    return spec.partition(":")[0] in {"layers", *_FORMS} and ":" in spec
