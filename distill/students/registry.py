"""Registry of student kinds; imports no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from sentence_transformers import SentenceTransformer

    from embedcache.teacher.load import Teacher
    from embedcache.teacher.tokenize import FastTokenizer

BuildStudent = Callable[..., Any]
"""``build(spec, teacher, options, *, KEY=VALUE ...)``; see :func:`register_student`."""


@dataclass(frozen=True)
class StudentKind:
    """A way to build a student from its teacher.

    Attributes:
        name: what a spec begins with.
        build: the callable.
        summary: one line for lists.
        form: how a spec is written.
    """

    name: str
    build: BuildStudent
    summary: str
    form: str

    @property
    def settings(self) -> dict[str, inspect.Parameter]:
        """The keys of a spec: keyword-only parameters of the callable."""
        parameters = inspect.signature(self.build).parameters.values()
        return {one.name: one for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}


@dataclass(frozen=True)
class StudentSpec:
    """A parsed ``--student``.

    Attributes:
        text: the spec as it was written.
        kind: the kind of student; None for a folder, a hub id or an alias.
        argument: what follows the name of the kind.
        values: of a kind with settings, the value of each key that was given.
    """

    text: str
    kind: StudentKind | None = None
    argument: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    def build(self, teacher: Teacher, options: StudentOptions) -> SentenceTransformer:
        """Build the student from its teacher."""
        if self.kind is None:
            raise ValueError(f"{self.text!r} is not built from a teacher")
        built: SentenceTransformer = self.kind.build(self, teacher, options, **self.values)
        return built


@dataclass(frozen=True)
class StudentOptions:
    """Everything beside spec and teacher that a student kind may use.

    Attributes:
        seed: seed of new weights.
        count_tokens: counts the tokens of the training texts: a tokenizer -> int64 (V,), the occurrences of
            each id; None where there are no texts.
        sample_texts: returns some of the training texts.
        on_note: called with a sentence worth knowing about the student; printed, and kept on its card.
        on_trial: build only to check the settings: weights may stay zero, and the teacher is not run.
    """

    seed: int = 0
    count_tokens: Callable[[FastTokenizer], NDArray[np.int64]] | None = None
    sample_texts: Callable[[], Sequence[str]] | None = None
    on_note: Callable[[str], None] = lambda note: None
    on_trial: bool = False


KINDS: dict[str, StudentKind] = {}


def register_student(name: str, *, summary: str, form: str) -> Callable[[BuildStudent], BuildStudent]:
    """Register a callable as the student kind ``name``.

    The callable takes (spec: :class:`StudentSpec`, teacher: ``embedcache.teacher.load.Teacher``, options:
    :class:`StudentOptions`) and returns a sentence-transformers model with gradients
    on, which is not scaled to length one; the teacher stays as it is. Its keyword-only parameters (``int``,
    at least 1, ``float``, ``bool``, written yes or no, or ``str``) are the keys of ``NAME:KEY=VALUE,...``.
    A callable without any reads ``spec.argument`` itself.
    """

    def register(build: BuildStudent) -> BuildStudent:
        KINDS[name] = StudentKind(name, build, summary, form)
        return build

    return register
