"""A student that is ready to be trained: with what it is scored, saved, fed and chosen by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from distill.errors import ConfigError, StudentError
from distill.students.build import without_head
from distill.students.static import is_static, static_tokenizer
from embedcache.teacher.tokenize import FastTokenizer, fast_tokenizer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from distill.config.models import SelectionConfig
    from distill.reaugkd.head import LabelHead
    from distill.training.selection import Selector


@dataclass(frozen=True)
class StudentParts:
    """A student, and what it is chosen and fed by.

    Attributes:
        model: the student, with its head.
        kept: what is scored and saved of it: the student itself, or the student without its head.
        tokenizer: its tokenizer.
        selector: what the best checkpoint is chosen by; None where there is nothing to choose by.
        classifier: the classifier that reads its vectors and is saved with it; None for an encoder alone.
    """

    model: SentenceTransformer
    kept: SentenceTransformer
    tokenizer: FastTokenizer
    selector: Selector | None
    classifier: LabelHead | None = None


def student_parts(
    model: SentenceTransformer,
    spec: str,
    select: Callable[[FastTokenizer], Selector | None],
    evaluation: SelectionConfig,
    *,
    drop_head: bool,
    held_out: int,
    classifier: LabelHead | None = None,
) -> StudentParts:
    """Return a student with what it is chosen and fed by.

    Args:
        model: the student, with its head.
        spec: what messages call it.
        select: makes what it is chosen by, given its tokenizer.
        evaluation: the settings of evaluations.
        drop_head: whether it is scored and saved without its head.
        held_out: rows kept out of training.
        classifier: the classifier that reads its vectors.

    Raises:
        ConfigError: if patience is asked for and there is nothing to choose by; else as ``select``.
        StudentError: if it has no tokenizer that is fast enough.
    """
    kept = without_head(model) if drop_head else model
    tokenizer = tokenizer_of(model, spec)
    selector = select(tokenizer)
    refuse_patience_without_scores(evaluation, selector, held_out)
    return StudentParts(model, kept, tokenizer, selector, classifier)


def tokenizer_of(model: SentenceTransformer, spec: str, max_length: int | None = None) -> FastTokenizer:
    """Return a tokenizer of a student.

    Args:
        model: the student.
        spec: what messages call it.
        max_length: tokens after which it cuts a text; default, and at most: as the student does.

    Raises:
        StudentError: if it has none that is fast enough, or the student cuts texts earlier or never.
    """
    model.prompts, model.default_prompt_name = {}, None
    if is_static(model):
        if max_length is not None:
            raise StudentError(
                f"student.max_length {max_length}: {spec!r} is a static student, which reads whole texts at "
                "next to no cost; leave it out"
            )
        return static_tokenizer(model)
    own = int(model.max_seq_length or 0)
    if max_length is not None and own and max_length > own:
        raise StudentError(
            f"student.max_length {max_length}: {spec!r} takes at most {own} tokens; give that or less"
        )
    try:
        # What it gives is compared with what the model itself makes of a text.
        model.max_seq_length = max_length or own
        tokenizer = fast_tokenizer(model, max_length or own, "")
    finally:
        model.max_seq_length = own
    if tokenizer is None:
        raise StudentError(
            f"student {spec!r} has no tokenizer with a fast (Rust) backend, which training needs; "
            "choose a text encoder such as BERT, MiniLM or MPNet"
        )
    return tokenizer


def refuse_patience_without_scores(
    evaluation: SelectionConfig, selector: Selector | None, held_out: int
) -> None:
    """Raise :class:`ConfigError` where patience is asked for and there is nothing to select by."""
    for key, value in (("patience", evaluation.patience), ("patience_epochs", evaluation.patience_epochs)):
        if selector is None and value is not None:
            raise ConfigError(
                f"evaluation.{key}: {value} without a new best can only be counted where there are "
                f"evaluations, and {held_out} rows are held out; hold out at least 10, "
                "give --dev, or leave it out"
            )
