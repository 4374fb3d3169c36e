"""The model card of a student: what it is, what it learnt from and how good it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distill.errors import DistillError
from distill.layout import BEST
from distill.report import rows, writers
from distill.students.spec import is_from_teacher
from embedcache.errors import EmbedCacheError
from embedcache.fsio import write_bytes

CARD = "README.md"
"""What a card is called in the model's folder, by hubs too."""

EVALUATION_BEGIN, EVALUATION_END = "<!-- evaluation: begin -->", "<!-- evaluation: end -->"
"""What stands around the part of a card that evaluations write; all else is the user's to edit."""

# From a begin to the next end with no other begin between: half a pair encloses nothing.
_EVALUATION = re.compile(f"{EVALUATION_BEGIN}(?:(?!{EVALUATION_BEGIN}).)*?{EVALUATION_END}", flags=re.DOTALL)

# "organisation/name" as the Hugging Face hub spells it; anything else is a path of this machine.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True)
class CardFacts:
    """What a card reports.

    Attributes:
        student: what the student was made from: a hub id, a folder's name, ``layers:3`` ...
        notes: sentences on how it was made.
        teachers: of each teacher its short name or hub id, and its contract: field -> value; empty where it
            learnt from texts alone.
        corpus: name, rows, digest and the like of what it was trained on.
        loss: name of the loss.
        settings: the main settings of the run.
        scores: measure -> value, the development Spearman among them; in the order given.
        parameters: number of parameters of the student.
        dimension: width of its vectors.
        seconds: duration of the training; None where it is not known.
        in_target_space: whether its vectors are to be like its teacher's; not those before a head that was
            dropped.
        stage1: of a student that was distilled and then fine-tuned, what it was distilled with.
        labels: of a classifier, the names of the labels.
    """

    student: str
    teachers: Sequence[tuple[str, Mapping[str, object]]]
    corpus: Mapping[str, object]
    loss: str
    parameters: int
    dimension: int
    settings: Mapping[str, object] = field(default_factory=dict)
    scores: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None
    in_target_space: bool = True
    stage1: Mapping[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()
    labels: Sequence[str] = ()


def write_card(folder: Path, facts: CardFacts) -> None:
    """Write the card as ``folder/README.md``, atomically, in place of one that is there.

    Raises:
        StorageError: if ``folder`` cannot be written.
    """
    write_bytes(folder / CARD, render_card(facts).encode())


def render_card(facts: CardFacts) -> str:
    """Return the card: YAML front matter, usage, and a table for each group of facts."""
    model = {
        "made from": facts.student,
        "parameters": f"{facts.parameters:,}",
        "dimension": facts.dimension,
    }
    training = {"loss": facts.loss, **facts.settings}
    if facts.seconds is not None:
        training["training time"] = _duration(facts.seconds)
    scores = "No scores were taken."
    if facts.scores:
        scores = _table("measure", "value", ((name, f"{value:.4f}") for name, value in facts.scores.items()))
    what, who = "the one its teacher gives", "the teacher"
    if len(facts.teachers) > 1:
        what, who = "what its teachers give together", "the teachers"
    title = "distilled from " + _inline(" and ".join(name for name, _ in facts.teachers))
    closeness = f"close to {what}" if facts.in_target_space else _HEAD_DROPPED.format(what=what)
    introduction = _INTRODUCTION.format(dimension=facts.dimension, closeness=closeness, who=who)
    if not facts.teachers:
        title = "fine-tuned from " + _inline(facts.student)
        what = _BY_LABELS if facts.labels else _BY_CONTRAST
        introduction = _WITHOUT_TEACHER.format(dimension=facts.dimension, what=what)
    elif facts.stage1:
        introduction = f"{introduction} After that it was fine-tuned on texts alone."
    if facts.labels:
        introduction += "\n\n" + _CLASSIFIER.format(labels=_inline(", ".join(facts.labels)))
    parts = [
        _front_matter(facts),
        "# Sentence encoder " + title,
        introduction,
        _table("property", "value", model.items()),
        *(["\n".join(f"- {_inline(note)}" for note in facts.notes)] if facts.notes else []),
        "## Usage",
        _USAGE,
        "## Scores",
        scores,
        _between_marks(_NOT_EVALUATED),
        *_teachers(facts.teachers),
        "## Corpus",
        _table("field", "value", facts.corpus.items()),
        "## Training",
        _table("setting", "value", training.items()),
    ]
    if facts.stage1:
        parts += ["## Distillation before it", _table("setting", "value", facts.stage1.items())]
    return "\n\n".join(parts) + "\n"


def with_evaluation(card: str, evaluation: str) -> str:
    """Return ``card`` with ``evaluation`` between its marks, or after its end where it has no marks.

    Args:
        card: the card; nothing of it but what is between the marks is changed.
        evaluation: Markdown.
    """
    section = _between_marks(evaluation)
    changed, count = _EVALUATION.subn(lambda _: section, card)
    if count:
        return changed
    return card + ("\n" if card.endswith("\n") else "\n\n") + section + "\n"


def update_card(run: Path) -> str | None:
    """Write the kept evaluations of a run on its model card, where it has one.

    Returns:
        Why the card could not be updated; None if it was, or there is nothing to write.
    """
    card = run / BEST / CARD
    try:
        if not card.is_file():
            return None
        before = card.read_bytes().decode()  # bytes: line ends stay as they are
        (*_, student) = found = rows([run])
        if not student.suites:
            return None
        # Notes of the report stay out: the card is about the model, not about what is missing.
        after = with_evaluation(
            before, "## Evaluation\n\n" + writers.markdown(found, "###", details=False).strip()
        )
        if after != before:
            write_bytes(card, after.encode())
    except (DistillError, EmbedCacheError, OSError, ValueError) as error:
        return f"{card}: not updated: {error}"
    return None


def _between_marks(text: str) -> str:
    return f"{EVALUATION_BEGIN}\n\n{text}\n\n{EVALUATION_END}"


def _teachers(teachers: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    if not teachers:
        return []
    if len(teachers) == 1:
        told = "The vectors it learnt from are determined by this contract."
        return ["## Teacher", told, _table("field", "value", teachers[0][1].items())]
    parts = [
        "## Teachers",
        "The vectors it learnt from are made of those that these contracts determine.",
    ]
    for name, contract in teachers:
        parts += ["### " + _inline(name), _table("field", "value", contract.items())]
    return parts


_NOT_EVALUATED = """\
## Evaluation

`distill eval` writes here what it finds out."""

_INTRODUCTION = """\
This [sentence-transformers](https://www.sbert.net) model maps a text to a vector of {dimension} numbers,
{closeness}. It learnt from vectors that {who} computed once."""

_HEAD_DROPPED = """\
which a head that is not part of it brought close to {what} while it was trained"""

_WITHOUT_TEACHER = """\
This [sentence-transformers](https://www.sbert.net) model maps a text to a vector of {dimension} numbers.
It learnt from texts alone, {what}."""

_BY_CONTRAST = "by telling those of like meaning from others"
_BY_LABELS = "by what they are labelled"

_CLASSIFIER = """\
The classifier beside it (`classifier.json`) makes of such a vector one logit for each of these labels:
{labels}."""

_USAGE = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
vectors = model.encode(["A man is playing a guitar.", "Someone plays an instrument."])
print(model.similarity(vectors, vectors))
```"""


def _front_matter(facts: CardFacts) -> str:
    lines = [
        "---",
        "library_name: sentence-transformers",
        f"pipeline_tag: {'text-classification' if facts.labels else 'sentence-similarity'}",
        "tags:",
        "- sentence-transformers",
        "- sentence-similarity",
        *(["- distilled"] if facts.teachers else []),
        "- embedcache",
    ]
    if base := _base_model(facts):
        lines.append(f"base_model: {base}")
    return "\n".join([*lines, "---"])


def _base_model(facts: CardFacts) -> str | None:
    """Return the hub id of the model whose weights the student started from; None where it has none."""
    start = facts.teachers[0][0] if is_from_teacher(facts.student) else facts.student
    return start if _HUB_ID.fullmatch(start) and not Path(start).exists() else None


def _table(left: str, right: str, rows: Iterable[tuple[str, object]]) -> str:
    body = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows]
    return "\n".join([f"| {left} | {right} |", "|---|---|", *body])


def _cell(value: object) -> str:
    """Return a value as one table cell: a pipe or a line break inside it would end the cell."""
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (dict, list, tuple)) else str(value)
    return _inline(text).replace("|", "\\|")


def _inline(text: str) -> str:
    return " ".join(text.split())


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
