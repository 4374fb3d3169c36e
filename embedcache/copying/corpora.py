"""Corpora of a copy: which are copied, with which views and rows, and their files."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.copying.options import CopyOptions
from embedcache.corpus.corpus import Corpus, View, check_name
from embedcache.corpus.description import DESCRIPTION, RECIPE, VIEWS, is_recorded, read_record, write_record
from embedcache.corpus.subset import copy_rows, subset_name
from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import (
    commit,
    regular_size,
    remove_file,
    sha256_file,
    temporary_sibling,
    write_sealed_json,
)
from embedcache.progress import Progress


@dataclass(frozen=True)
class CopiedCorpus:
    """Corpus of a copy: its name, rows, views, and whether the target lacked any of it."""

    name: str
    rows: int
    views: tuple[str, ...]
    is_missing: bool


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

    def result(self, here: Cache | None) -> CopiedCorpus:
        """Return what a copy into a cache adds."""
        names = tuple(view.name for view in self.views)
        there = _corpus_in(here, self.name)
        if self.rows is None:
            is_same = there is not None and there.info.digest == self.corpus.info.digest
        else:
            is_same = there is not None and np.array_equal(there.keys(), self.corpus.keys_of(self.rows))
        is_missing = there is None or not is_same or not set(names) <= set(there.view_names())
        return CopiedCorpus(
            self.name, len(self.corpus if self.rows is None else self.rows), names, is_missing
        )

    def write(self, cache: Cache, *, overwrite: bool, progress: Progress) -> None:
        """Write the corpus and its views."""
        if self.rows is not None:
            folder, name = cache.corpora_folder, self.name
            copy_rows(
                self.corpus, self.rows, folder, name, self.views, overwrite=overwrite, progress=progress
            )
            return
        place, there = cache.corpora_folder / self.name, _corpus_in(cache, self.name)
        parts = sum(len(one.parts) for one in (self.corpus, *self.views))
        progress.phase(f"copy corpus {self.name}", parts, "files")
        if there is None or there.info.digest != self.corpus.info.digest:
            _copy_parts(self.corpus, place, progress)
            write_sealed_json(place / DESCRIPTION, replace(self.corpus.info, name=self.name).to_json())
        for view in self.views:
            folder = place / VIEWS / view.name
            if not is_recorded(folder) or read_record(folder) != view.record:
                # Rows by one recipe must never be seen under another.
                remove_file(folder / RECIPE)
                _copy_parts(view, folder, progress)
                write_sealed_json(folder / DESCRIPTION, view.info.to_json())
                write_record(folder, view.record)


def _copy_parts(corpus: Corpus, folder: Path, progress: Progress) -> None:
    for part in corpus.parts:
        copy_file(corpus.folder / part.file_name, folder / part.file_name, part.sha256)
        progress.advance()


def _corpus_in(cache: Cache | None, name: str) -> Corpus | None:
    return cache.corpus(name) if cache is not None and name in cache.corpus_names() else None


def choose_corpora(caches: Sequence[Cache], here: Cache | None, options: CopyOptions) -> list[CorpusCopy]:
    """Return the corpora to copy.

    Raises:
        InputError: if one is missing, two of one name have other rows or views, or no row is left.
    """
    found: dict[str, list[tuple[Cache, Corpus]]] = {}
    unused = dict.fromkeys(options.corpora)
    for cache in caches:
        for corpus in cache.corpora():
            for spec in options.corpora or (corpus.name,):
                selected, _, new = spec.partition("=")
                name, _, digest = selected.partition("@")
                if name == corpus.name and corpus.info.digest.startswith(digest):
                    unused.pop(spec, None)
                    found.setdefault(check_name(new or name, "--corpus"), []).append((cache, corpus))
    refuse_unused("--corpus", unused, [name for cache in caches for name in cache.corpus_names()])
    chosen = []
    for name, holders in found.items():
        source, corpus = holders[0]
        rows = None
        there = None if options.overwrite or options.where is not None else _corpus_in(here, name)
        views = _common_views(name, [*([(here, there)] if here and there else []), *holders])
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


def _common_views(name: str, holders: Sequence[tuple[Cache, Corpus]]) -> tuple[View, ...]:
    """Return the views that several holders of one corpus have, by name.

    Raises:
        InputError: if they hold different corpora, or different views of one name.
    """
    views: dict[str, tuple[Cache, View]] = {}
    first, known = holders[0]
    for cache, corpus in holders:
        if corpus.info.digest != known.info.digest:
            sides = " and ".join(
                f"{len(one):,} rows in {at.folder} (digest {one.info.digest[:12]})"
                for at, one in ((first, known), (cache, corpus))
            )
            raise InputError(
                f"corpus {name!r} has {sides}. Choose one with --corpus {name}@DIGEST, rename one with "
                f"--corpus {name}@DIGEST=NEW, or replace that of the target with --overwrite."
            )
        for view in corpus.views():
            owner, other = views.setdefault(view.name, (cache, view))
            if other.record != view.record:
                raise InputError(
                    f"view {view.name!r} of corpus {name!r} differs: {other.recipe.describe()} in "
                    f"{owner.folder}, {view.recipe.describe()} in {cache.folder}. Remove one with "
                    "'embedcache rm', or replace that of the target with --overwrite."
                )
    return tuple(view for _, (_, view) in sorted(views.items()))


def refuse_unused(option: str, unused: Mapping[str, None], names: Iterable[str]) -> None:
    """Raise :class:`InputError` where a value of an option selected nothing among ``names``."""
    if unused:
        known = ", ".join(sorted(set(names))) or "none"
        raise InputError(f"{option} {next(iter(unused))}: not in the sources (found: {known})")


def copy_file(source: Path, target: Path, sha256: str) -> None:
    """Copy a file of a known digest unless it is there.

    Raises:
        CorruptCacheError: if it is missing, no regular file, or has another digest.
        StorageError: if it cannot be written.
    """
    try:
        regular_size(source)
    except (OSError, ValueError) as error:
        raise CorruptCacheError(f"{source} is damaged ({error}). Run 'embedcache repair'.") from error
    if not target.exists():
        with temporary_sibling(target) as temporary:
            shutil.copyfile(source, temporary)
            if sha256_file(temporary) != sha256:
                raise CorruptCacheError(
                    f"{source} is damaged (expected sha256 {sha256}): 'embedcache repair'"
                )
            commit(temporary, target)
