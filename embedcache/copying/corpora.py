"""Corpora of a copy: which are copied, with which views and rows, and their files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.copying.options import CopyOptions
from embedcache.corpus.corpus import Corpus, View, check_name
from embedcache.corpus.description import DESCRIPTION, VIEWS, is_recorded, write_record
from embedcache.corpus.subset import copy_rows, subset_name
from embedcache.errors import CorruptCacheError, InputError, UnreadableError
from embedcache.progress import Progress


@dataclass(frozen=True)
class CorpusCopy:
    """A corpus that is copied.

    Attributes:
        name: its name in the target.
        corpus: the corpus in the first source that has it.
        views: its views in all sources.
        rows: rows that are copied; None: all.
    """

    name: str
    corpus: Corpus
    views: tuple[View, ...]
    rows: NDArray[np.int64] | None

    def __len__(self) -> int:
        """Return the number of rows that are copied."""
        return len(self.corpus if self.rows is None else self.rows)

    def write(self, cache: Cache, progress: Progress) -> None:
        """Write the corpus and its views; what the cache has stays."""
        if self.rows is not None:
            copy_rows(self.corpus, self.rows, cache.corpora_folder, self.name, self.views, progress=progress)
            return
        folder = cache.corpora_folder / self.name
        progress.phase(f"copy corpus {self.name}", len(self.corpus.parts), "files")
        if self.name not in cache.corpus_names():
            _copy_parts(self.corpus, folder, progress)
            fsio.write_sealed_json(folder / DESCRIPTION, replace(self.corpus.info, name=self.name).to_json())
        for view in self.views:
            place = folder / VIEWS / view.name
            if not is_recorded(place):
                _copy_parts(view, place, progress)
                fsio.write_sealed_json(place / DESCRIPTION, view.info.to_json())
                write_record(place, view.record)


def _copy_parts(corpus: Corpus, folder: Path, progress: Progress) -> None:
    for part in corpus.parts:
        copy_checked(corpus.folder / part.file_name, folder / part.file_name, part.sha256)
        progress.advance()


def choose_corpora(caches: Sequence[Cache], here: Cache | None, options: CopyOptions) -> list[CorpusCopy]:
    """Return the corpora to copy.

    Raises:
        InputError: if one is missing, two of one name have other rows or views, or no row is left.
    """
    found: dict[str, list[tuple[Cache, Corpus]]] = {}
    names = {name: None for cache in caches for name in cache.corpus_names()}
    for spec in options.corpora or names:
        selected, _, new = spec.partition("=")
        if selected not in names:
            raise InputError(f"corpus {spec}: not in the sources (found: {', '.join(names) or 'none'})")
        sources = [cache for cache in caches if selected in cache.corpus_names()]
        copies = found.setdefault(check_name(new or selected, "corpus"), [])
        copies += [(cache, cache.corpus(selected)) for cache in sources]
    chosen = []
    for name, copies in found.items():
        (source, corpus), rows = copies[0], None
        corpora = [corpus for _, corpus in copies]
        if options.where is not None:
            from embedcache.querying import select_rows

            teacher = options.teachers[0].partition("=")[0] if len(options.teachers) == 1 else None
            rows = select_rows(source, corpus.name, options.where, teacher=teacher)
            if name == corpus.name:
                name = subset_name(name, options.where)
        elif here is not None and name in here.corpus_names():
            corpora = [here.corpus(name), *corpora]
        if rows is None or len(rows):
            chosen.append(CorpusCopy(name, corpus, _common_views(name, corpora), rows))
    if options.where is not None and not chosen:
        raise InputError(f"where {options.where!r} holds for no row of any corpus")
    return chosen


def _common_views(name: str, corpora: Sequence[Corpus]) -> tuple[View, ...]:
    """Return the views that corpora of one name have, by name.

    Raises:
        InputError: if the corpora differ, or two views of one name.
    """
    views: dict[str, View] = {}
    first = corpora[0]
    for corpus in corpora:
        if corpus.info.digest != first.info.digest:
            raise InputError(
                f"corpus {name!r} has {len(first):,} rows in {first.folder} and other {len(corpus):,} rows "
                f"in {corpus.folder}. Copy one cache alone first, with corpus {name}=NEW."
            )
        for view in corpus.views():
            other = views.setdefault(view.name, view)
            if other.record != view.record:
                raise InputError(
                    f"view {view.name!r} of corpus {name!r} differs: {other.recipe.describe()} in "
                    f"{other.folder}, {view.recipe.describe()} in {view.folder}. Remove one with "
                    "'embedcache rm'."
                )
    return tuple(view for _, view in sorted(views.items()))


def copy_checked(source: Path, target: Path, sha256: str) -> None:
    """Copy a file of a known digest unless it exists.

    Raises:
        CorruptCacheError: if it is missing, no regular file, or has another digest.
        StorageError: if it cannot be written.
    """
    try:
        fsio.regular_size(source)
        if fsio.sha256_file(source) != sha256:
            raise ValueError(f"expected sha256 {sha256}")
    except UnreadableError:
        raise
    except (OSError, ValueError) as error:
        raise CorruptCacheError(f"{source} is damaged ({error}). Run 'embedcache repair'.") from error
    if not target.exists():
        fsio.copy_file(source, target)
