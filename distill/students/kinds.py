"""The student kinds of distill; each imports torch only when it builds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distill.students.registry import StudentOptions, StudentSpec, register_student

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from embedcache.teacher.load import Teacher


@register_student(
    "layers",
    summary="some layers of the teacher, everything else as it is",
    form="layers:K | layers:first:K | layers:every:K | layers:0,2,5",
)
def layers(spec: StudentSpec, teacher: Teacher, options: StudentOptions) -> SentenceTransformer:
    """Build a student that keeps the layers named after the colon."""
    from distill.students.layers import keep_layers

    return keep_layers(teacher.model, spec.argument)


@register_student(
    "compact",
    summary="narrow token embeddings before layers of the teacher (SimTDE)",
    form="compact:e=128,layers=3 (also copy, ff, vocab)",
)
def compact(
    spec: StudentSpec,
    teacher: Teacher,
    options: StudentOptions,
    *,
    e: int,
    layers: str | None = None,
    copy: bool = True,
    ff: int | None = None,
    vocab: int | None = None,
) -> SentenceTransformer:
    """Build a compact student; see :func:`distill.students.compact.build_compact`."""
    from distill.students.compact import build_compact

    return build_compact(spec.text, teacher.model, options, e=e, layers=layers, copy=copy, ff=ff, vocab=vocab)


@register_student(
    "narrow",
    summary="a narrow BERT as deep as the teacher, with random weights (LMX-KD)",
    form="narrow:h=192,layers=6",
)
def narrow(
    spec: StudentSpec, teacher: Teacher, options: StudentOptions, *, h: int, layers: int | None = None
) -> SentenceTransformer:
    """Build a narrow student; see :func:`distill.students.narrow.build_narrow`."""
    from distill.students.narrow import build_narrow

    return build_narrow(spec.text, teacher.model, options.seed, h=h, layers=layers)


@register_student(
    "static",
    summary="one vector a token, a text is their weighted mean; no attention",
    form="static:dim=256 (also vocab)",
)
def static(
    spec: StudentSpec, teacher: Teacher, options: StudentOptions, *, dim: int, vocab: int | None = None
) -> SentenceTransformer:
    """Build a static student; see :func:`distill.students.static.build_static`."""
    from distill.students.static import build_static

    return build_static(spec.text, teacher, options, dim=dim, vocab=vocab)
