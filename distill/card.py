"""Model card of a student: its architecture, training and scores."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from distill.config.tree import flat
from distill.errors import DistillError
from distill.layout import BEST
from distill.record import RunRecord
from distill.report import rows, writers
from distill.report.page import duration
from distill.report.tables import Table
from distill.students.spec import is_from_teacher
from embedcache.errors import EmbedCacheError
from embedcache.fsio import write_bytes
from embedcache.teacher.aliases import ALIASES

CARD = "README.md"
"""Name of a card in the model's folder, on hubs too."""

BEGIN, END = "<!-- evaluation: begin -->", "<!-- evaluation: end -->"
"""Comments around the part of a card that evaluations write; the rest is the user's to edit."""

# From a begin to the next end without another begin between: half a pair encloses nothing.
_EVALUATION = re.compile(f"{BEGIN}(?:(?!{BEGIN}).)*?{END}", flags=re.DOTALL)
# "organisation/name" on the Hugging Face hub.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

_USAGE = """```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("path/to/this/folder")
vectors = model.encode(["A man is playing a guitar.", "Someone plays an instrument."])
print(model.similarity(vectors, vectors))
```"""


def write_card(best: Path, record: RunRecord, settings: Mapping[str, object], dimension: int) -> None:
    """Write the card of a run's student as ``best/README.md``.

    Args:
        best: folder of the student.
        record: record of the run, with its result.
        settings: configuration of the run, nested.
        dimension: width of the student's vectors.

    Raises:
        StorageError: if ``best`` cannot be written.
    """
    write_bytes(best / CARD, render_card(record, settings, dimension).encode())


def render_card(record: RunRecord, settings: Mapping[str, object], dimension: int) -> str:
    """Return the card: YAML front matter, usage, scores, and a table for each group of facts."""
    student = _short(record.student)
    teachers = [one.spec if _is_hub_id(one.spec) else one.name for one in record.teachers]
    title = "distilled from " + " and ".join(teachers) if teachers else "fine-tuned from " + student
    model = {"made from": student, "parameters": f"{record.parameters:,}", "dimension": dimension}
    if record.labels:
        model["labels"] = ", ".join(record.labels)
    corpus = {"name": record.corpus.name, "rows": record.corpus.rows, "trained on": record.rows}
    corpus |= {"selected by": record.where, "selected": record.selected} if record.where else {}
    corpus |= {} if record.in_dev is None else {"rows with a text of the development set": record.in_dev}
    scores = {name: f"{100 * value:.4f}" for name, value in record.scores.items()}
    parts = [
        _front_matter(record),
        f"# Sentence encoder {writers.inline(title)}",
        _introduction(record, dimension),
        _table("property", model),
        "\n".join(f"- {writers.inline(note)}" for note in record.notes),
        f"## Usage\n\n{_USAGE}",
        "## Scores",
        _table("measure", scores) if scores else "No scores were taken.",
        _between_marks("## Evaluation\n\n`distill eval` writes its figures here."),
        *(f"## Teacher {one.name}\n\n{_table('contract', one.contract)}" for one in record.teachers),
        "## Corpus",
        _table("field", {**corpus, "digest": record.corpus.digest}),
        "## Training",
        _table("setting", _training(record, settings)),
    ]
    if (before := record.stage1) is not None:
        facts = {"student": _short(before.student), "loss": before.loss, "corpus": before.corpus.name}
        parts += ["## Distillation before it", _table("field", {**facts, "trained on": before.rows})]
    return "\n\n".join(part for part in parts if part) + "\n"


def with_evaluation(card: str, evaluation: str) -> str:
    """Return ``card`` with ``evaluation``, Markdown, between its marks; at its end where it has no marks."""
    section = _between_marks(evaluation)
    changed, count = _EVALUATION.subn(lambda _: section, card)
    return changed if count else card + ("\n" if card.endswith("\n") else "\n\n") + section + "\n"


def update_card(run: Path) -> str | None:
    """Write the kept evaluations of a run on its model card, where it has one.

    Returns:
        Why the card could not be updated; None if it was, or there is nothing to write.
    """
    card = run / BEST / CARD
    if not card.is_file():
        return None
    try:
        before = card.read_bytes().decode()  # bytes: line ends stay as they are
        found = rows(run)
        if found[-1].suites:
            evaluation = writers.markdown(found, "###", details=False).strip()
            write_bytes(card, with_evaluation(before, f"## Evaluation\n\n{evaluation}").encode())
    except (DistillError, EmbedCacheError, OSError, ValueError) as error:
        return f"{card}: not updated: {error}"
    return None


def _introduction(record: RunRecord, dimension: int) -> str:
    text = (
        "This [sentence-transformers](https://www.sbert.net) model maps a text to a vector of "
        f"{dimension} numbers."
    )
    if record.labels:
        text += " The classifier beside it (`classifier.json`) maps such a vector to a logit for each label."
    if not record.teachers:
        return f"{text} It was trained without a teacher."
    text += " It was trained on vectors that its teacher, named by the contract below, computed once"
    if record.stage1 is not None:
        return f"{text}; after that it was fine-tuned on texts."
    where = " Its vectors lie in the teacher's space." if record.in_target_space else ""
    return f"{text}.{where}{_closeness(record)}"


def _closeness(record: RunRecord) -> str:
    """Return what was measured of the likeness to the teacher, as a sentence; nothing where nothing was."""
    value = record.scores.get("held_out_near_pairs_spearman")
    if value is None:
        return ""
    return (
        f" On {record.held_out:,} held-out texts, its similarities agree with the teacher's at a Spearman "
        f"correlation of {value:.2f}."
    )


def _training(record: RunRecord, settings: Mapping[str, object]) -> dict[str, object]:
    """Return the settings that are about training, losses and students, and how the targets were made."""
    groups = {name: settings.get(name, {}) for name in ("training", "optimizer", "loss", "student")}
    found: dict[str, object] = {"seed": record.seed, "loss": record.loss}
    shown_above = ("student.spec", "loss.name", "training.where")
    found |= {
        key: value for key, value in flat(groups) if value not in (None, [], {}) and key not in shown_above
    }
    if len(record.teachers) > 1:
        found["shares"] = ", ".join(f"{one.name} {one.share:.4g}" for one in record.teachers)
    if (targets := record.targets) is not None and targets.projected_from:
        found["targets"] = f"reduced by PCA from {targets.projected_from} to {targets.dimension} dimensions"
        found["energy kept"] = None if targets.energy is None else f"{targets.energy:.2%}"
    if record.result is not None:
        found["training time"] = duration(record.result.seconds)
    return found


def _front_matter(record: RunRecord) -> str:
    tags = ["sentence-transformers", "sentence-similarity"]
    tags += [*["distilled"] * bool(record.teachers), "embedcache"]
    head = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "text-classification" if record.labels else "sentence-similarity",
        "tags": tags,
    }
    # The model whose weights the student started from.
    start = record.teachers[0].spec if record.teachers and is_from_teacher(record.student) else record.student
    base = ALIASES[start].model_id if start in ALIASES else start
    if _is_hub_id(base):
        head["base_model"] = base
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---"


def _is_hub_id(spec: str) -> bool:
    return _HUB_ID.fullmatch(spec) is not None and not Path(spec).exists()


def _short(spec: str) -> str:
    """Return a spec; of a folder its name, which says as much to others."""
    folder = Path(spec).expanduser()
    return folder.resolve().name if folder.is_dir() else spec


def _table(left: str, facts: Mapping[str, object]) -> str:
    words = {"None": "none", "": "none", "True": "yes", "False": "no"}
    cells = [(name, words.get(str(value), str(value))) for name, value in facts.items()]
    return writers.markdown_table(Table("", [left, "value"], cells))


def _between_marks(text: str) -> str:
    return f"{BEGIN}\n\n{text}\n\n{END}"
