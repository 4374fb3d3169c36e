"""Checks of corpora: that their parts are whole, and that what stands in them fits together."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from embedcache.check.bench import Bench
from embedcache.check.findings import Findings, Kind, damage, note
from embedcache.check.inventory import Entry
from embedcache.check.verify.documents import told
from embedcache.corpus.columns import ColumnReader
from embedcache.corpus.corpus import DESCRIPTION, Corpus, CorpusInfo
from embedcache.corpus.part import ORIGINAL, key_view, remember_sound
from embedcache.corpus.readers import RowBatch
from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import file_state


class Kinds(NamedTuple):
    """What the description and the parts of a corpus, or of a view of one, are called."""

    description: Kind
    part: Kind


CORPUS = Kinds(Kind.CORPUS, Kind.PART)
VIEW = Kinds(Kind.VIEW, Kind.VIEW_PART)


def check_part(bench: Bench, entry: Entry) -> Findings:
    """Check a part by the digest in its name."""
    path = bench.folder / entry.path
    state = file_state(path)
    digest = bench.meter.digest(path)
    if digest == entry.stem:
        remember_sound(path, state)
    else:
        yield damage(entry.path, entry.kind, f"{entry.size:,} bytes with the digest {digest[:12]}…")


def check_listing(path: str, info: CorpusInfo, there: Collection[str], kinds: Kinds = CORPUS) -> Findings:
    """Compare the parts a description names with those that are there.

    Args:
        path: the folder of a corpus or of a view, relative to the cache.
        info: its description.
        there: file names of the parts in the folder.
        kinds: what its files are called.
    """
    named = {part.file_name for part in info.parts}
    for name in sorted(named - set(there)):
        yield damage(f"{path}/{name}", kinds.part, "it is missing")
    for name in sorted(set(there) - named):
        yield note(
            f"{path}/{name}",
            kinds.part,
            f"the {kinds.description.value} does not name it: a replacement was cut off",
            "'embedcache gc' takes it away",
        )


def check_rows(
    bench: Bench, path: str, info: CorpusInfo, bad: Collection[str], kinds: Kinds = CORPUS
) -> Findings:
    """Check the rows of a corpus: their numbers, the key of every text, the digest of every column.

    Args:
        bench: counts the rows.
        path: the folder of a corpus or of a view, relative to the cache.
        info: its description.
        bad: file names of parts that are missing or damaged, which are left out.
        kinds: what its files are called.
    """
    corpus = Corpus(bench.folder / path, info)
    columns, first_row, complete = ColumnReader(), 0, True
    for number, part in enumerate(info.parts):
        if part.file_name in bad:
            complete = False
        else:
            wrong = _wrong_in_part(corpus, number, first_row, columns)
            complete = complete and not wrong
            if wrong:
                yield damage(f"{path}/{part.file_name}", kinds.part, wrong)
            bench.meter.add(rows=part.rows)
        first_row += part.rows
    if complete and columns.described() != info.columns:
        yield damage(
            f"{path}/{DESCRIPTION}",
            kinds.description,
            "the digests of its columns are not those of the rows",
        )


def _wrong_in_part(corpus: Corpus, number: int, first_row: int, columns: ColumnReader) -> str:
    """Return what is wrong with the rows of a part, empty where nothing is."""
    part = corpus.parts[number]
    try:
        texts, ids, labels = (
            corpus.column(number, name).to_pylist() if name in corpus.info.columns else None
            for name in (ORIGINAL, "id", "label")
        )
        read = columns.read(RowBatch(texts or [], ids, labels))
        rows = corpus.column(number, "row").to_numpy()
        keys = key_view(corpus.column(number, "key"))
    except CorruptCacheError as error:
        return told(error, corpus.folder / part.file_name)
    except InputError as error:
        return str(error)
    if not np.array_equal(rows, np.arange(first_row, first_row + part.rows)):
        return f"its rows are not numbered from {first_row}"
    if wrong := np.flatnonzero(key_view(read["key"]) != keys).tolist():
        return f"{len(wrong)} of its keys are not those of their texts (first: row {first_row + wrong[0]})"
    return ""


def check_undescribed(path: str, *, was_built: bool) -> Findings:
    """Report parts without a description: a build or pull that did not end, or a description lost.

    Args:
        path: where the description would lie, relative to the cache.
        was_built: whether the corpus is known to have been there.
    """
    if was_built:
        yield damage(path, Kind.CORPUS, "it is missing, though the corpus had been built")
    else:
        yield note(
            path,
            Kind.CORPUS,
            "there are parts, but nothing that names them: a build or a pull that did not end",
            "run that again, or 'embedcache gc' takes the parts away",
        )
