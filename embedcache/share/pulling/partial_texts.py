"""The texts that a part of a corpus is cut out of: as many of the remote's as that takes.

They are kept for the next time in a cache of their own under ``derived/remotes/``, which lacks the files that
were not needed yet.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.catalog.choose import choose_rows
from embedcache.catalog.query import mentioned_views
from embedcache.catalog.select import check_condition, not_known_yet
from embedcache.check.findings import Kind
from embedcache.check.progress import Meter
from embedcache.corpus.corpus import DESCRIPTION, Corpus
from embedcache.corpus.description import CorpusInfo
from embedcache.corpus.part import checked_column, key_view, open_part, remember_sound
from embedcache.corpus.view_record import RECIPE, VIEWS
from embedcache.errors import CorruptCacheError, InputError, RemoteError
from embedcache.fsio import copy_file, file_state, make_directory, remove_file, sha256_file, write_bytes
from embedcache.key_index import KeyIndex
from embedcache.keys import KeyArray
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.fetching import refuse_wrong_rows
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.remote import Remote
from embedcache.share.transfer import PULL_PATIENCE_SECONDS, run_all

_OF_VECTORS = {"tokens", "truncated"}


@dataclass(frozen=True)
class _TextFiles:
    """The files of a corpus, or of a view of it, on the remote.

    Attributes:
        folder: where it lies in a cache.
        info: its description.
        parts: its files, in order.
    """

    folder: str
    info: CorpusInfo
    parts: tuple[Wanted, ...]

    def of_first(self, count: int) -> list[Wanted]:
        """Return the files that hold the first ``count`` rows."""
        return list(self.parts[: int(np.searchsorted(self._ends, count, side="left")) + 1])

    def of_rows(self, rows: NDArray[np.int64]) -> list[Wanted]:
        """Return the files that hold ``rows``."""
        numbers = np.unique(np.searchsorted(self._ends, rows, side="right"))
        return [self.parts[number] for number in numbers.tolist()]

    @property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum([part.rows for part in self.info.parts], dtype=np.int64)


class PartTexts:
    """The texts of one corpus on a remote and of its views.

    Args:
        source: the remote.
        wanted: all files of the corpus, as a pull of the whole would want them.
        cache: what is pulled into; None where there is no cache yet.
        jobs: transfers at once.
        meter: counts what arrives.

    Raises:
        RemoteError: if ``wanted`` describes another number of corpora than one.
    """

    def __init__(
        self, source: Remote, wanted: Sequence[Wanted], cache: Cache | None, jobs: int, meter: Meter
    ) -> None:
        self._source, self._jobs, self._meter = source, jobs, meter
        self._documents = [file for file in wanted if file.data is not None]
        described = [(file, file.info) for file in self._documents if file.info is not None]
        corpora = [_texts(file, info, wanted) for file, info in described if file.entry.kind is Kind.CORPUS]
        if len(corpora) != 1:
            names = ", ".join(texts.info.name for texts in corpora) or "none"
            raise RemoteError(
                f"{source.where} has {len(corpora)} corpora to take a part of ({names}), expected one: "
                "name it with --corpus NAME"
            )
        self._of_corpus = corpora[0]
        self._of_views = [
            _texts(file, info, wanted) for file, info in described if file.entry.kind is Kind.VIEW
        ]
        self._cache = cache
        self._checked: set[str] = set()
        self.info = self._of_corpus.info
        """The description of the whole corpus."""

    @property
    def view_names(self) -> list[str]:
        """The names of its views, sorted."""
        return sorted(texts.info.name for texts in self._of_views)

    def refuse_wrong_condition(self, where: str) -> None:
        """Refuse a condition that cannot be used, before anything is fetched to try it on.

        Raises:
            InputError: if it cannot.
        """
        check_condition(where, has_ids=self.info.has_ids, has_labels=self.info.has_labels)

    def needed(self, rows: int | None, where: str | None) -> list[Wanted]:
        """Return the files that have to be read to choose rows; without a condition, all files of the rows.

        Args:
            rows: so many rows.
            where: a condition on rows.
        """
        if where is None:
            count = min(rows or self.info.rows, self.info.rows)
            return [part for texts in self._all for part in texts.of_first(count)]
        # A subquery of the condition may read views.
        to_read = self._all if mentioned_views(where) else [self._of_corpus]
        return [part for texts in to_read for part in texts.parts]

    def certain(self, rows: int | None, where: str | None) -> list[Wanted]:
        """Return the files that are fetched in any case, if rows are chosen so.

        Args:
            rows, where: as for :meth:`needed`.
        """
        certain = self.needed(rows, where)
        # Of each view at least one part is needed, for the rows that a condition takes.
        certain += [texts.parts[0] for texts in self._of_views if len(texts.parts) == 1]
        return list({file.path: file for file in certain}.values())

    def possible(self, rows: int | None, where: str | None) -> list[Wanted]:
        """Return the files that may be fetched, if rows are chosen so.

        Args:
            rows, where: as for :meth:`needed`.
        """
        if where is None:
            return self.needed(rows, where)
        return [part for texts in self._all for part in texts.parts]

    def keys_here(self, rows: int | None) -> KeyArray | None:
        """Return the distinct keys of the first rows, and of their views, if the cache has their files.

        Nothing is written, and the files are read where they lie.

        Args:
            rows: so many rows; None: all.

        Returns:
            The keys, dtype ``V16``; None if a file is missing or damaged.
        """
        count = min(rows or self.info.rows, self.info.rows)
        linkable = self._linkable()
        keys: list[KeyArray] = []
        for texts in self._all:
            of_texts: list[KeyArray] = []
            for part, file in zip(texts.info.parts, texts.of_first(count), strict=False):
                staged = self._place(file)
                place = staged if staged is not None and _is_file(staged, file) else linkable.get(part.sha256)
                if place is None:
                    return None
                try:
                    batch = open_part(place.parent, part, texts.info.types)
                    of_texts.append(key_view(checked_column(place.parent, part, batch, "key")))
                except CorruptCacheError:
                    return None
            keys.append(np.concatenate(of_texts)[:count])
        several = np.concatenate(keys)
        return several[KeyIndex(several).first_places()]

    def needed_for(self, rows: NDArray[np.int64]) -> list[Wanted]:
        """Return the parts that hold ``rows``."""
        return [part for texts in self._all for part in texts.of_rows(rows)]

    def missing(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Return the files of ``wanted`` that are nowhere in the cache, judged by their size."""
        linkable = self._linkable()
        return [
            file
            for file in wanted
            if not _is_file(self._place(file), file) and file.entry.stem not in linkable
        ]

    def fetch(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Bring files here, check that their keys are those of their texts, and return what was fetched.

        Raises:
            RemoteError: if one cannot be had or is refused.
            StorageError: if one cannot be written.
        """
        staged, linkable = self._staged(), self._linkable()
        arrivals = Arrivals(self._source, staged, meter=self._meter)
        to_fetch: list[Wanted] = []
        damaged: set[str] = set()
        for file in wanted:
            place = staged.folder / file.path
            if not _is_file(place, file) and file.entry.stem in linkable:
                _link(linkable[file.entry.stem], place)
            if not _is_file(place, file):
                to_fetch.append(file)
            elif not _is_sound(place):
                # Derived files are checked less often than a cache's own: a damaged one is fetched again.
                to_fetch.append(file)
                damaged.add(file.path)
        run_all(
            lambda file: arrivals.fetch(file, anew=file.path in damaged),
            sorted(to_fetch, key=lambda file: -file.file.bytes),
            jobs=self._jobs,
            stop=self._source.stop,
            patience=PULL_PATIENCE_SECONDS,
        )
        fresh = {file.path for file in wanted} - self._checked
        for texts in self._all:
            if any(part.path in fresh for part in texts.parts):
                self._check(staged, texts, fresh | self._checked)
        self._checked |= fresh
        return to_fetch

    def _check(self, staged: Cache, texts: _TextFiles, paths: Collection[str]) -> None:
        """Check the rows of the files with these paths; others were perhaps left by an earlier pull."""
        absent = [part.path.rpartition("/")[2] for part in texts.parts if part.path not in paths]
        said = f"{texts.folder}/{DESCRIPTION}"
        refuse_wrong_rows(self._source, staged, texts.folder, texts.info, said=said, absent=absent)

    def choose(self, rows: int | None, where: str | None) -> NDArray[np.int64]:
        """Return which rows of the whole are meant; the files that :meth:`needed` returns have to be here.

        Raises:
            InputError: if the condition cannot be used, or holds for no row.
        """
        staged = self._staged()
        try:
            return choose_rows(staged, self.info.name, first=rows, where=where)
        except InputError as error:
            reason = str(error).replace(str(staged.folder), self._source.where)
            # An error about the condition itself begins with it. Another one says that no teacher was found.
            asks_vectors = where is not None and _OF_VECTORS & set(re.findall(r"\w+", where.lower()))
            if where is not None and asks_vectors and not reason.startswith(repr(where)):
                raise not_known_yet(where) from error
            raise InputError(reason) from error

    def corpus(self) -> Corpus:
        """Return the whole corpus; only rows whose files were fetched can be read."""
        return Corpus(self._staged().corpora_folder / self.info.name, self.info)

    def drop(self, kept: Corpus) -> None:
        """Delete the files that ``kept`` has as well: the next pull can link to those."""
        kept_names = {part.file_name for corpus in (kept, *kept.views()) for part in corpus.parts}
        for file in (part for texts in self._all for part in texts.parts):
            place = self._place(file)
            if place is not None and place.name in kept_names:
                remove_file(place)

    @property
    def _all(self) -> list[_TextFiles]:
        return [self._of_corpus, *self._of_views]

    @property
    def _folder(self) -> Path | None:
        if self._cache is None:
            return None
        return self._cache.derived_folder / "remotes" / self._source.id / "parts" / self.info.digest

    def _place(self, wanted: Wanted) -> Path | None:
        return None if self._folder is None else self._folder / wanted.path

    def _staged(self) -> Cache:
        """Return the cache that the texts lie in, with its documents as the remote has them now."""
        if self._folder is None:
            raise RuntimeError("texts are fetched into a cache")
        staged = Cache.create(self._folder)
        views = staged.corpora_folder / self.info.name / VIEWS
        view_names = {texts.info.name for texts in self._of_views}
        for recipe in views.glob(f"*/{RECIPE}"):
            if recipe.parent.name not in view_names:
                remove_file(recipe)
        for document in self._documents:
            place = staged.folder / document.path
            if document.data is not None and not (place.is_file() and place.read_bytes() == document.data):
                write_bytes(place, document.data)
        return staged

    def _linkable(self) -> dict[str, Path]:
        """Return the wanted files that corpora of the cache have already, by digest."""
        if self._cache is None:
            return {}
        wanted = {part.entry.stem: part.file.bytes for texts in self._all for part in texts.parts}
        return {
            path.stem: path
            for path in _parts_in(self._cache)
            if path.stem in wanted and not path.is_symlink() and path.stat().st_size == wanted[path.stem]
        }


def _texts(described: Wanted, info: CorpusInfo, wanted: Sequence[Wanted]) -> _TextFiles:
    folder = described.path.rpartition("/")[0]
    files = {one.path: one for one in wanted}
    return _TextFiles(folder, info, tuple(files[f"{folder}/{part.file_name}"] for part in info.parts))


def _parts_in(cache: Cache) -> Iterator[Path]:
    yield from cache.corpora_folder.glob("*/*.arrow")
    yield from cache.corpora_folder.glob(f"*/{VIEWS}/*/*.arrow")


def _is_file(place: Path | None, wanted: Wanted) -> bool:
    return (
        place is not None
        and not place.is_symlink()
        and place.is_file()
        and place.stat().st_size == wanted.file.bytes
    )


def _is_sound(place: Path) -> bool:
    state = file_state(place)
    if sha256_file(place) != place.stem:
        return False
    remember_sound(place, state)
    return True


def _link(source: Path, place: Path) -> None:
    """Make a file of the cache appear at ``place`` as well; its digest is checked when it is read."""
    make_directory(place.parent)
    try:
        os.link(source, place, follow_symlinks=False)
    except FileExistsError:
        return
    except OSError:
        # No hard links here.
        copy_file(source, place)
