"""The texts that a run was trained on, from its own record: streamed, never held as a whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distill.errors import DataError
from distill.layout import CONFIG, RECORD
from embedcache.pairs import SEPARATOR

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from distill.classification.rows import LabelledRows
    from distill.data.triples import Triples
    from embedcache.corpus.corpus import Corpus

_ROWS_AT_ONCE = 16_384


@dataclass(frozen=True)
class TrainingTexts:
    """Texts of one training.

    Attributes:
        name: what reports call them.
        key: tells them from others: two of one key hold the same texts.
        stream: yields them in blocks, of ``count()`` texts together.
        count: how many there are.
    """

    name: str
    key: str
    count: int
    stream: Callable[[], Iterator[Sequence[str]]]


def training_texts(run: Path) -> list[TrainingTexts]:
    """Return what ``run`` was trained on, and before it the run that it was fine-tuned from.

    Of a corpus these are the distinct rows that the run's settings select, with those that it held out.

    Raises:
        DataError: if its record or configuration cannot be read, or its corpus is another one now.
        EmbedCacheError: if its texts cannot be read any more.
    """
    record, config = _read(run)
    if record.get("kind", "run") == "run":
        return [_of_corpus(run, record, config)]
    start = (record.get("start") or {}).get("run")
    before = training_texts(Path(start)) if start else []
    return [*before, _of_file(run, record, config)]


def file_texts(path: Path) -> TrainingTexts:
    """Return the texts of a file, or of the files of a folder or pattern, as ``embedcache build`` reads them.

    Raises:
        EmbedCacheError: if there is no such file, or it cannot be read.
    """
    from embedcache.corpus.readers import ReadOptions, ReadReport, read_batches
    from embedcache.corpus.sources import expand_sources

    def stream() -> Iterator[Sequence[str]]:
        for batch in read_batches(expand_sources([path]), ReadOptions(), ReadReport()):
            yield batch.texts

    return TrainingTexts(path.name, f"file {path.resolve()}", sum(map(len, stream())), stream)


def selection_data(run: Path) -> list[tuple[Path, str | None]]:
    """Return the files of pairs that the checkpoints of ``run`` and of those before it were chosen on.

    Each with the sha256 that it had then, where the record says so. Classifiers are chosen on labelled texts.

    Raises:
        DataError: if a record or configuration cannot be read.
    """
    record, config = _read(run)
    start = (record.get("start") or {}).get("run")
    before = selection_data(Path(start)) if start else []
    data = None if record.get("labels") else (config.get("evaluation") or {}).get("data")
    return [*before, (Path(data), (record.get("dev") or {}).get("sha256"))] if data else before


def _read(run: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    import yaml

    try:
        record = json.loads((run / RECORD).read_text(encoding="utf-8"))
        config = yaml.safe_load((run / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"what {run} was trained on is not known: {error}") from error
    if not isinstance(record, dict) or not isinstance(config, dict):
        raise DataError(f"what {run} was trained on is not known: {RECORD} or {CONFIG} is damaged")
    return record, config


def _of_corpus(run: Path, record: Mapping[str, Any], config: Mapping[str, Any]) -> TrainingTexts:
    from distill.data.dataset import seen_rows
    from embedcache.cache import Cache
    from embedcache.corpus.part import ORIGINAL

    named, training = record.get("corpus") or {}, config.get("training") or {}
    folder = record.get("cache")
    if not isinstance(folder, str) or not Path(folder).is_dir():
        raise DataError(f"what {run.name} was trained on is not there: its cache {folder}")
    cache = Cache(folder)
    corpus = cache.corpus(named.get("name"))
    if corpus.info.digest != named.get("digest"):
        raise DataError(
            f"what {run.name} was trained on is not there: the corpus {corpus.name!r} of {folder} has changed"
        )
    names = training.get("views") or [ORIGINAL]
    views = [corpus if name == ORIGINAL else corpus.view(name) for name in names]
    where, limit = record.get("where"), training.get("limit")
    teacher = str((record.get("teacher") or {}).get("contract_id"))
    rows = seen_rows(cache, corpus, views[0], where, teacher, limit)
    return TrainingTexts(
        f"corpus {corpus.name}",
        f"corpus {corpus.info.digest} {names} {where} {limit}",
        len(rows) * len(views),
        lambda: _blocks(views, rows),
    )


def _blocks(views: Sequence[Corpus], rows: NDArray[np.uint32]) -> Iterator[Sequence[str]]:
    for view in views:
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            yield view.texts(rows[first : first + _ROWS_AT_ONCE])


def _of_file(run: Path, record: Mapping[str, Any], config: Mapping[str, Any]) -> TrainingTexts:
    rows: LabelledRows | Triples
    if record.get("labels"):
        rows = _labelled(config)
        # A sentence of a test set may stand in either half of a pair.
        texts = list(dict.fromkeys(part for text in rows.texts for part in text.split(SEPARATOR)))
    else:
        rows = _unlabelled(config)
        texts = rows.texts()
    named = record.get("corpus") or {}
    if len(rows) != named.get("rows"):
        raise DataError(
            f"what {run.name} was trained on is not there: {rows.name} has {len(rows)} rows, "
            f"and had {named.get('rows')}"
        )
    return TrainingTexts(rows.name, f"rows {rows.digest}", len(texts), lambda: iter([texts]))


def _labelled(config: Mapping[str, Any]) -> LabelledRows:
    from distill.classification.rows import Columns, read_labelled

    data, limit = config["data"], (config.get("training") or {}).get("limit")
    columns = Columns(data["text"], data["text2"], data["label"], data["format"])
    return read_labelled(data["train"], columns, data["rows"] or (), limit=limit)


def _unlabelled(config: Mapping[str, Any]) -> Triples:
    from distill.data.triples import read_sentences, read_triples

    columns, limit = config.get("columns"), (config.get("training") or {}).get("limit")
    options = {"format": config.get("format"), "limit": limit}
    if config.get("sentences"):
        return read_sentences(config["sentences"], column=columns[0] if columns else None, **options)
    return read_triples(str(config.get("triples")), columns=columns, **options)
