"""Mending corpora: out of the damaged files themselves where that can be proven, else out of the source.

Parts are named by their digests and the description carries its own, so whatever is made anew is known to be
what it was.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from embedcache.check.repair.mending import IDENTICAL, NOT_REPAIRED, RIGHT, Mending
from embedcache.check.repair.salvage_corpus import describe_by_parts, part_out_of_itself
from embedcache.check.verify.corpora import CORPUS, VIEW
from embedcache.corpus.corpus import DESCRIPTION, Corpus, CorpusInfo, read_info
from embedcache.corpus.origin import read_note
from embedcache.corpus.readers import ReadOptions, ReadReport, expand_sources, read_batches
from embedcache.corpus.sources import FileSource
from embedcache.corpus.store import store_corpus
from embedcache.corpus.view_record import VIEWS
from embedcache.errors import CacheFormatError, CorruptCacheError, EmbedCacheError
from embedcache.fsio import TEMPORARY_PREFIX, commit, write_bytes, write_sealed_json


def mend_corpus(mending: Mending, name: str, damaged: Collection[str]) -> None:
    """Bring back the files of the corpus called ``name``.

    Args:
        mending: the repair.
        name: the corpus.
        damaged: its damaged or missing files, relative to the cache.
    """
    folder = mending.folder / "corpora" / name
    left = {mending.folder / path for path in damaged}
    info = described(folder)
    if info is not None:
        left -= mend_parts(mending, folder, info, left)
    only_described_wrong = left == {folder / DESCRIPTION}
    if not left or (only_described_wrong and _mend_description(mending, folder, proven=True)):
        return
    refused = []
    for sources, options in sources_of(mending, name):
        problem = _mend_from_source(mending, folder, info, sources, options, left)
        if not problem:
            return
        refused.append(problem)
    if only_described_wrong and _mend_description(mending, folder, proven=False):
        return
    problem = "; ".join(refused) or "where it was read from is not known"
    for path in sorted(left):
        needed = f"{problem}: give the file it was built from with --source"
        mending.done(mending.inside(path), kind_of(path), NOT_REPAIRED, needed)


def kind_of(path: Path) -> str:
    """Return what a description or a part is: a corpus's, or that of a view of one."""
    kinds = VIEW if path.parent.parent.name == VIEWS else CORPUS
    return (kinds.description if path.name == DESCRIPTION else kinds.part).value


def described(folder: Path) -> CorpusInfo | None:
    """Return the description of a corpus or a view, None where it is damaged."""
    try:
        return read_info(folder)
    except (CorruptCacheError, CacheFormatError):
        return None


def mend_parts(mending: Mending, folder: Path, info: CorpusInfo, paths: Collection[Path]) -> set[Path]:
    """Write the parts anew whose texts, ids and labels are intact; return which those are."""
    mended, first_row = set(), 0
    for part in info.parts:
        path = folder / part.file_name
        data = part_out_of_itself(path, first_row, info.types) if path in paths else None
        if data is not None:
            if not mending.dry_run:
                write_bytes(path, memoryview(data))
            mending.done(mending.inside(path), kind_of(path), IDENTICAL, "made anew of its own texts")
            mended.add(path)
        first_row += part.rows
    return mended


def _mend_description(mending: Mending, folder: Path, *, proven: bool) -> bool:
    """Describe a corpus by its parts; return whether that could be done.

    Args:
        mending: the repair.
        folder: the corpus's folder.
        proven: only where the damaged description proves that nothing is different.
    """
    described = describe_by_parts(folder)
    if described is None or (proven and not described.is_proven):
        return False
    path = folder / DESCRIPTION
    if not mending.dry_run:
        write_sealed_json(path, described.info.to_json())
    mending.done(
        mending.inside(path),
        kind_of(path),
        IDENTICAL if described.is_proven else RIGHT,
        "made anew of its parts"
        + ("" if described.is_proven else "; how many rows of the source were skipped is not known any more"),
    )
    return True


def sources_of(mending: Mending, name: str) -> Iterator[tuple[list[FileSource], ReadOptions]]:
    """Yield what the corpus may be read from: the files given, and those noted when it was built."""
    note = read_note(mending.folder / "derived", name)
    if mending.sources:
        use_noted = note is not None and mending.options == ReadOptions()
        yield list(mending.sources), note.options if note and use_noted else mending.options
    if note is not None:
        yield list(note.paths), note.options


def _mend_from_source(
    mending: Mending,
    folder: Path,
    info: CorpusInfo | None,
    sources: list[FileSource],
    options: ReadOptions,
    paths: Collection[Path],
) -> str:
    """Read the source again and take from it what is damaged; return why not, empty where it was done."""
    shown = ", ".join(map(str, sources))
    with staging_beside(mending, folder.parent) as staging:
        report = ReadReport()
        try:
            batches = read_batches(expand_sources(sources), options, report)
            fresh, _ = store_corpus(staging, folder.name, batches, report)
        except EmbedCacheError as error:
            return f"{shown} cannot be read: {error}"
        if not _is_the_same(fresh, folder, info, mending):
            return f"{shown} gives other rows than those of the corpus"
        wanted = {fresh.folder / path.name: path for path in paths}
        if not all(path.exists() for path in wanted):
            return f"{shown} gives other rows than those of the corpus"
        # The description last: a corpus is there as a whole or not at all.
        for path, target in sorted(wanted.items(), key=lambda pair: pair[0].name == DESCRIPTION):
            if not mending.dry_run:
                commit(path, target)
            mending.done(mending.inside(target), kind_of(target), IDENTICAL, f"read again from {shown}")
    return ""


def _is_the_same(fresh: Corpus, folder: Path, info: CorpusInfo | None, mending: Mending) -> bool:
    """Return whether a corpus read again is the damaged one, as far as that one can still be told."""
    if info is not None:
        return fresh.info == info
    note = read_note(mending.folder / "derived", folder.name)
    if note is not None:
        return fresh.info.digest == note.digest
    # Damaged parts keep their names, which are digests of what they were.
    there = {path.name for path in folder.glob("*.arrow")}
    return bool(there) and there == {part.file_name for part in fresh.parts}


@contextmanager
def staging_beside(mending: Mending, corpora: Path) -> Iterator[Path]:
    """Yield a place to make a corpus in, from where its files can be moved into ``corpora``."""
    if mending.dry_run:
        with TemporaryDirectory(prefix="embedcache-repair-") as elsewhere:
            yield Path(elsewhere)
        return
    staging = corpora / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
