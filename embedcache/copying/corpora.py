"""Corpora of a copy: which are copied, with which views and rows, and their files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.copying.options import CopyOptions
from embedcache.corpus.corpus import Corpus, View, check_name
from embedcache.corpus.description import DESCRIPTION, RECIPE, VIEWS, is_recorded, read_record, write_record
from embedcache.corpus.subset import copy_rows, subset_name
from embedcache.errors import CorruptCacheError, InputError
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

    def is_in(self, cache: Cache | None) -> bool:
        """Return whether a cache has this corpus with these rows and views."""
        there = _corpus_in(cache, self.name)
        if there is None or not {view.name for view in self.views} <= set(there.view_names()):
            return False
        if self.rows is None:
            return there.info.digest == self.corpus.info.digest
        return np.array_equal(there.keys(), self.corpus.keys_of(self.rows))

    def write(self, cache: Cache, *, overwrite: bool, progress: Progress) -> None:
        """Write the corpus and its views."""
        corpora = cache.corpora_folder
        if self.rows is not None:
            copy_rows(
                self.corpus, self.rows, corpora, self.name, self.views, overwrite=overwrite, progress=progress
            )
            return
        folder, there = corpora / self.name, _corpus_in(cache, self.name)
        parts = sum(len(one.parts) for one in (self.corpus, *self.views))
        progress.phase(f"copy corpus {self.name}", parts, "files")
        if there is None or there.info.digest != self.corpus.info.digest:
            _copy_parts(self.corpus, folder, progress)
            fsio.write_sealed_json(folder / DESCRIPTION, replace(self.corpus.info, name=self.name).to_json())
        for view in self.views:
            place = folder / VIEWS / view.name
            if not is_recorded(place) or read_record(place) != view.record:
                # Rows by one recipe must never be seen under another.
                fsio.remove_file(place / RECIPE)
                _copy_parts(view, place, progress)
                fsio.write_sealed_json(place / DESCRIPTION, view.info.to_json())
                write_record(place, view.record)


def _copy_parts(corpus: Corpus, folder: Path, progress: Progress) -> None:
    for part in corpus.parts:
        copy_checked(corpus.folder / part.file_name, folder / part.file_name, part.sha256)
        progress.advance()


def _corpus_in(cache: Cache | None, name: str) -> Corpus | None:
    return cache.corpus(name) if cache is not None and name in cache.corpus_names() else None


def choose_corpora(caches: Sequence[Cache], here: Cache | None, options: CopyOptions) -> list[CorpusCopy]:
    """Return the corpora to copy.

    Raises:
        InputError: if one is missing, two of one name have other rows or views, or no row is left.
    """
    found: dict[str, tuple[Cache, list[Corpus]]] = {}
    unused = dict.fromkeys(options.corpora)
    for cache in caches:
        for corpus in cache.corpora():
            for spec in options.corpora or (corpus.name,):
                selected, _, new = spec.partition("=")
                name, _, digest = selected.partition("@")
                if name == corpus.name and corpus.info.digest.startswith(digest):
                    unused.pop(spec, None)
                    found.setdefault(check_name(new or name, "--corpus"), (cache, []))[1].append(corpus)
    refuse_unused("--corpus", unused, [name for cache in caches for name in cache.corpus_names()])
    chosen = []
    for name, (source, corpora) in found.items():
        corpus, rows = corpora[0], None
        there = None if options.overwrite or options.where is not None else _corpus_in(here, name)
        views = _common_views(name, corpora if there is None else [there, *corpora])
        if options.where is not None:
            from embedcache.querying import select_rows

            teacher = options.teachers[0].partition("=")[0] if len(options.teachers) == 1 else None
            rows = select_rows(source, corpus.name, options.where, teacher=teacher)
            if name == corpus.name:
                name = subset_name(name, len(corpus), where=options.where)
        if rows is None or len(rows):
            chosen.append(CorpusCopy(name, corpus, views, rows))
    if options.where is not None and not chosen:
        raise InputError(f"--where {options.where!r} holds for no row of any corpus")
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
            sides = " and ".join(
                f"{len(one):,} rows in {one.folder} (digest {one.info.digest[:12]})"
                for one in (first, corpus)
            )
            raise InputError(
                f"corpus {name!r} has {sides}. Choose or rename one with --corpus {name}@DIGEST[=NEW], or "
                "replace that of the target with --overwrite."
            )
        for view in corpus.views():
            other = views.setdefault(view.name, view)
            if other.record != view.record:
                raise InputError(
                    f"view {view.name!r} of corpus {name!r} differs: {other.recipe.describe()} in "
                    f"{other.folder}, {view.recipe.describe()} in {view.folder}. Remove one with "
                    "'embedcache rm', or replace that of the target with --overwrite."
                )
    return tuple(view for _, view in sorted(views.items()))


def refuse_unused(option: str, unused: Mapping[str, None], names: Iterable[str]) -> None:
    """Raise :class:`InputError` where a value of an option selected nothing among ``names``."""
    if unused:
        known = ", ".join(sorted(set(names))) or "none"
        raise InputError(f"{option} {next(iter(unused))}: not in the sources (found: {known})")


def copy_checked(source: Path, target: Path, sha256: str) -> None:
    """Copy a file of a known digest unless it is there.

    Raises:
        CorruptCacheError: if it is missing, no regular file, or has another digest.
        StorageError: if it cannot be written.
    """
    try:
        fsio.regular_size(source)
        if fsio.sha256_file(source) != sha256:
            raise ValueError(f"expected sha256 {sha256}")
    except (OSError, ValueError) as error:
        raise CorruptCacheError(f"{source} is damaged ({error}). Run 'embedcache repair'.") from error
    if not target.exists():
        fsio.copy_file(source, target)
