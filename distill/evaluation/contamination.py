"""Contamination: test sentences that a model was trained on, and test pairs its checkpoint was chosen on.

Texts are compared without case, blanks and punctuation, so that tokenised and plain spellings are equal. A
text that differs by a word is another one: a count of zero does not show that nothing alike was trained on.
Training texts are streamed; memory grows with the test sets alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distill.errors import DataError
from distill.evaluation.own_pairs import read_pair_set
from distill.evaluation.task import Items
from distill.layout import CONFIG
from distill.record import RunRecord, read_record
from embedcache.corpus.folding import fold
from embedcache.fsio import sha256_file
from embedcache.progress import NO_PROGRESS, Progress

CONTAMINATION = "contamination"
"""Key of a result's marks: set -> ``Seen`` as a dict."""

MUCH = 0.1
"""Share of a set's pairs above which choosing a checkpoint by them invalidates its figure."""

_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True)
class Seen:
    """Part of a test set that a model has seen.

    Attributes:
        sentences: distinct texts of the set.
        sentences_seen: those among the training texts.
        pairs: items of two texts or more.
        pairs_seen: those of which all texts are among the training texts.
        selected_on: pairs in the development set that the checkpoint was chosen on.
    """

    sentences: int
    sentences_seen: int
    pairs: int
    pairs_seen: int
    selected_on: int

    @property
    def is_selected(self) -> bool:
        """True where the checkpoint was chosen on a tenth of the set's pairs or more."""
        return bool(self.selected_on) and self.selected_on >= MUCH * self.pairs


def contamination(items: Items, run: Path, progress: Progress = NO_PROGRESS) -> dict[str, Seen]:
    """Count the test sentences of each set that a run, and the run it was fine-tuned from, was trained on.

    Args:
        items: set -> its test items.
        run: folder of the run.
        progress: progress over the training texts.

    Raises:
        DataError: if what the run was trained or chosen on is no longer there, or has changed.
        EmbedCacheError: if texts cannot be read.
    """
    folded = {name: [tuple(map(fold, item)) for item in of_set] for name, of_set in items.items()}
    wanted = {text for of_set in folded.values() for item in of_set for text in item}
    met: set[str] = set()
    chosen: set[tuple[str, ...]] = set()
    stages = list(_stages(run))
    progress.phase("training texts", unit="texts")
    for texts in _training_texts(stages):
        met |= wanted.intersection(map(fold, texts))
        progress.advance(len(texts))
    for stage in stages:
        chosen |= {tuple(sorted(map(fold, pair))) for pair in _selection_pairs(*stage)}
    return {name: _count(of_set, met, chosen) for name, of_set in folded.items()}


def describe(seen: Mapping[str, Seen]) -> list[str]:
    """Return a note for each set of which something was seen, and one for all others."""
    notes = []
    for name, one in seen.items():
        if one.sentences_seen:
            share = (
                f"{one.sentences_seen} of {one.sentences} sentences, {one.pairs_seen} of {one.pairs} pairs"
            )
            notes.append(f"seen in training: {share} of {name}")
        if one.selected_on:
            mark = "SELECTED ON TEST PAIRS: " if one.is_selected else ""
            notes.append(f"{mark}checkpoint chosen on {one.selected_on} of {one.pairs} pairs of {name}")
    clean = [name for name, one in seen.items() if not one.sentences_seen]
    return [*notes, f"seen in training: nothing of {', '.join(clean)}"] if clean else notes


def _count(items: Sequence[tuple[str, ...]], met: set[str], chosen: set[tuple[str, ...]]) -> Seen:
    distinct = {text for item in items for text in item}
    pairs = [item for item in items if len(item) > 1]
    seen = sum(met.issuperset(item) for item in pairs)
    selected = sum(tuple(sorted(item)) in chosen for item in pairs)
    return Seen(len(distinct), len(distinct & met), len(pairs), seen, selected)


_Stage = tuple[Path, RunRecord, dict[str, Any]]


def _stages(start: Path) -> Iterator[_Stage]:
    """Yield folder, record and configuration of a run and of those it was fine-tuned from."""
    import yaml

    run: Path | None = start
    while run is not None:
        record = read_record(run)
        if record is None or not (run / CONFIG).is_file():
            raise DataError(f"{run}: no record of its training data; leave out --contamination")
        yield run, record, yaml.safe_load((run / CONFIG).read_text(encoding="utf-8"))
        run = Path(record.start.run) if record.start is not None and record.start.run else None


def _training_texts(stages: Sequence[_Stage]) -> Iterator[Sequence[str]]:
    for _, record, config in stages:
        yield from _corpus_texts(record, config) if record.kind == "run" else [_file_texts(record, config)]


def _corpus_texts(record: RunRecord, config: dict[str, Any]) -> Iterator[Sequence[str]]:
    """Yield the distinct rows of the corpus that the run's settings select, held-out ones included."""
    from distill.data.dataset import open_rows
    from embedcache.cache import Cache
    from embedcache.corpus.part import ORIGINAL

    if record.cache is None or record.teacher is None or not Path(record.cache).is_dir():
        raise DataError(f"training texts are missing: no cache {record.cache}; leave out --contamination")
    cache = Cache(record.cache)
    corpus = cache.corpus(record.corpus.name)
    if corpus.info.digest != record.corpus.digest:
        raise DataError(f"corpus {corpus.name!r} of {record.cache} has changed; leave out --contamination")
    training = config["training"]
    names = training.get("views") or [ORIGINAL]
    views = [corpus if name == ORIGINAL else corpus.view(name) for name in names]
    rows = open_rows(
        cache,
        corpus=corpus.name,
        teacher=record.teacher.name,
        view=names[0],
        where=record.where,
        limit=training.get("limit"),
    ).rows
    for view in views:
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            yield view.texts(rows[first : first + _ROWS_AT_ONCE])


def _file_texts(record: RunRecord, config: dict[str, Any]) -> list[str]:
    """Return the texts of the file that a run was fine-tuned on."""
    from distill.config.finetune import FinetuneConfig
    from distill.data.labelled import Columns, read_labelled
    from distill.data.triples import read_sentences, read_triples
    from embedcache.pairs import SEPARATOR

    given = FinetuneConfig.model_validate(config)
    limit = given.training.limit
    rows: Sequence[Sequence[str]]
    if given.labels is not None:
        columns = Columns(given.text, given.text2, given.label, given.format)
        labelled = read_labelled(given.labels, columns, given.rows or (), limit=limit)
        rows = [text.split(SEPARATOR) for text in labelled.texts]
    elif given.sentences is not None:
        column = given.columns[0] if given.columns else None
        found = read_sentences(given.sentences, column=column, format=given.format, limit=limit)
        rows = list(zip(*found.columns, strict=True))
    else:
        found = read_triples(given.file, columns=given.columns, format=given.format, limit=limit)
        rows = list(zip(*found.columns, strict=True))
    if len(rows) != record.corpus.rows:
        raise DataError(
            f"{given.file} has {len(rows)} rows, had {record.corpus.rows} in training; leave out "
            "--contamination"
        )
    return [text for row in rows for text in row]


def _selection_pairs(run: Path, record: RunRecord, config: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the pairs that the run's checkpoint was chosen on; classifiers are chosen on labelled texts."""
    path = (config.get("evaluation") or {}).get("data")
    if path is None or record.labels is not None:
        return []
    if not Path(path).is_file() or (record.dev is not None and sha256_file(Path(path)) != record.dev.sha256):
        raise DataError(f"{run}: development set {path} is missing or has changed; leave out --contamination")
    evaluation = config["evaluation"]
    columns = [column for key in ("text", "text2", "label") if (column := evaluation.get(key)) is not None]
    return read_pair_set(Path(path), columns or None, evaluation.get("rows") or ()).items
