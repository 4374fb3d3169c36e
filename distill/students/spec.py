"""Student specs, as ``--student`` takes them, and the kinds of students; imports no torch.

``--student KIND:ARGUMENT`` builds a student from its teacher; any other text is a folder, a hub id or an
alias. A kind is one of ``KINDS``, or a function outside the package: ``MODULE:FUNCTION`` or
``FILE.py:FUNCTION``, with the argument after another colon.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from distill.config.base import PositiveInt
from distill.errors import StudentError
from distill.plugins import is_plugin, load_object

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from embedcache.teacher.load import Teacher
    from embedcache.teacher.tokenize import FastTokenizer

ALIASES = {
    "bert-tiny": "nreimers/BERT-Tiny_L-2_H-128_A-2",
    "bert-mini": "nreimers/BERT-Mini_L-4_H-256_A-4",
    "bert-small": "nreimers/BERT-Small-L-4_H-512_A-8",
    "bert-base": "google-bert/bert-base-uncased",
    "tinybert-l4": "nreimers/TinyBERT_L-4_H-312_v2",
    "tinybert-l6": "nreimers/TinyBERT_L-6_H-768_v2",
    "minilm-l3": "nreimers/MiniLM-L3-H384-uncased",
    "minilm-l12": "microsoft/MiniLM-L12-H384-uncased",
}
"""Short names of models that papers take as students; those of teachers are accepted as well."""


@dataclass(frozen=True)
class StudentKind:
    """A way to build a student from its teacher.

    Attributes:
        function: name of a function ``build(spec, teacher, options, *, KEY=VALUE ...)`` in the module of
            ``distill.students`` that has the kind's name. It takes ``StudentSpec``,
            ``embedcache.teacher.load.Teacher`` and ``StudentOptions``, and returns a
            sentence-transformers model with gradients on, whose vectors are not scaled; the teacher stays as
            it is. Its keyword-only parameters (``int``, at least 1, ``float``, ``bool`` or ``str``) are the
            keys of ``KIND:KEY=VALUE,...``; a function without any reads ``spec.argument``.
        form: form of a spec.
        summary: one line for lists.
    """

    function: str
    form: str
    summary: str


KINDS = {
    "layers": StudentKind(
        "build_layers",
        "layers:K | layers:first:K | layers:every:K | layers:0,2,5",
        "some layers of the teacher, everything else as it is",
    ),
    "compact": StudentKind(
        "build_compact",
        "compact:e=128,layers=3 (also copy, ff, vocab)",
        "narrow token embeddings before layers of the teacher (SimTDE)",
    ),
    "narrow": StudentKind(
        "build_narrow",
        "narrow:h=192,layers=6",
        "a narrow BERT as deep as the teacher, with random weights (LMX-KD)",
    ),
    "static": StudentKind(
        "build_static",
        "static:dim=256 (also vocab)",
        "one vector a token, a text is their weighted mean; no attention",
    ),
}

DEFAULT_LOSS, DEFAULT_LOSS_OF_OTHERS = "mse", "seed"
"""Loss where none is given, of students made from the teacher and of other models: see ``docs/losses.md``."""

_TYPES: dict[str, TypeAdapter[Any]] = {
    "int": TypeAdapter(PositiveInt),
    "float": TypeAdapter(float),
    "bool": TypeAdapter(bool),
    "str": TypeAdapter(str),
}


@dataclass(frozen=True)
class StudentOptions:
    """Everything beside spec and teacher that a student kind may use.

    Attributes:
        seed: seed of new weights.
        count_tokens: counts the tokens of the training texts: a tokenizer -> int64 (V,), the occurrences of
            each id; None where there are no texts.
        on_note: called with a note on the student, which is printed and kept on its card.
        on_trial: build only to check the settings: weights may stay zero, and the teacher is not run.
    """

    seed: int = 0
    count_tokens: Callable[[FastTokenizer], NDArray[np.int64]] | None = None
    on_note: Callable[[str], None] = lambda note: None
    on_trial: bool = False


@dataclass(frozen=True)
class StudentSpec:
    """A parsed spec of a student that is built from its teacher.

    Attributes:
        kind: the kind of student.
        argument: the text after the kind.
        values: value of each key that was given.
        function: the function that builds it; see ``StudentKind``.
    """

    kind: str
    argument: str
    values: dict[str, Any]
    function: Callable[..., Any]

    def build(self, teacher: Teacher, options: StudentOptions) -> SentenceTransformer:
        """Build the student from its teacher."""
        built: SentenceTransformer = self.function(self, teacher, options, **self.values)
        return built


def is_from_teacher(text: str) -> bool:
    """Return whether a spec names a student that is built from its teacher, valid or not."""
    return ":" in text and not Path(text).expanduser().exists()


def default_loss(text: str) -> str:
    """Return the loss that a student of a spec is trained with where none is given."""
    return DEFAULT_LOSS if is_from_teacher(text) else DEFAULT_LOSS_OF_OTHERS


def parse_spec(text: str) -> StudentSpec:
    """Parse the spec of a student that is built from its teacher.

    Raises:
        StudentError: if the kind is unknown, or a key is unknown, missing, repeated or has no valid value.
    """
    kind, _, argument = text.partition(":")
    if kind in KINDS:
        function = load_object(f"distill.students.{kind}", KINDS[kind].function, StudentError)
        form = KINDS[kind].form
    else:
        name, _, rest = argument.partition(":")
        if not is_plugin(f"{kind}:{name}"):
            near = difflib.get_close_matches(kind, KINDS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"write one of {', '.join(KINDS)}"
            raise StudentError(f"no kind {kind!r}; {hint}")
        function, form = load_object(kind, name, StudentError), f"{kind}:{name}:KEY=VALUE"
        kind, argument = f"{kind}:{name}", rest
    return StudentSpec(kind, argument, _parse_values(argument, function, form), function)


def _parse_values(argument: str, function: Callable[..., Any], form: str) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    keys = {one.name: one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
    values = dict[str, Any]()
    for part in argument.split(",") if argument and keys else ():
        key, _, value = (word.strip() for word in part.partition("="))
        if key not in keys or key in values:
            raise StudentError(f"found {part!r}, expected {', '.join(keys)}, each once, as in {form}")
        annotation = keys[key].annotation
        name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        try:
            values[key] = _TYPES.get(name.removesuffix(" | None"), _TYPES["str"]).validate_python(value)
        except ValidationError as error:
            raise StudentError(f"{key}={value}: {error.errors()[0]['msg']}") from None
    needed = [key for key, one in keys.items() if one.default is inspect.Parameter.empty]
    if missing := [key for key in needed if key not in values]:
        raise StudentError(f"{', '.join(missing)} is missing; write it as in {form}")
    return values
