"""The texts that a part of a corpus is cut out of: as many of the remote's as that takes.

They are kept for the next time, under ``derived/remotes/`` as a cache of their own, which misses the parts
that nobody needed yet.
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
from embedcache.corpus.part import remember_sound
from embedcache.corpus.view_record import RECIPE, VIEWS
from embedcache.errors import InputError, RemoteError
from embedcache.fsio import copy_file, file_state, make_directory, remove_file, sha256_file, write_bytes
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.fetching import refuse_wrong_rows
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.remote import Remote
from embedcache.share.transfer import PULL_PATIENCE_SECONDS, run_all

_OF_VECTORS = {"tokens", "truncated"}


@dataclass(frozen=True)
class _Texts:
    """A corpus or a view of it on the remote.

    Attributes:
        folder: where it lies in a cache.
        info: its description.
        parts: its files, in order.
    """

    folder: str
    info: CorpusInfo
    parts: tuple[Wanted, ...]

    def of_first(self, count: int) -> list[Wanted]:
        """Return the parts that the first ``count`` rows stand in."""
        return list(self.parts[: int(np.searchsorted(self._ends, count, side="left")) + 1])

    def of_rows(self, rows: NDArray[np.int64]) -> list[Wanted]:
        """Return the parts that ``rows`` stand in."""
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
        self._documents = [one for one in wanted if one.data is not None]
        described = [(one, one.info) for one in self._documents if one.info is not None]
        corpora = [_texts(one, info, wanted) for one, info in described if one.entry.kind is Kind.CORPUS]
        if len(corpora) != 1:
            names = ", ".join(texts.info.name for texts in corpora) or "none"
            raise RemoteError(
                f"{source.where} has {len(corpora)} corpora to take a part of ({names}), expected one: "
                "name it with --corpus NAME"
            )
        self._of_corpus = corpora[0]
        self._of_views = [_texts(one, info, wanted) for one, info in described if one.entry.kind is Kind.VIEW]
        self._cache = cache
        self._checked: set[str] = set()
        self.info = self._of_corpus.info
        """The description of the whole corpus."""

    @property
    def view_count(self) -> int:
        """How many views it has."""
        return len(self._of_views)

    def refuse_wrong_condition(self, where: str) -> None:
        """See that a condition can be used, before anything is fetched to try it on.

        Raises:
            InputError: if it cannot.
        """
        check_condition(where, has_ids=self.info.has_ids, has_labels=self.info.has_labels)

    def needed(self, rows: int | None, where: str | None) -> list[Wanted]:
        """Return the parts that have to be read to choose rows, and of the first rows those of views too.

        Args:
            rows: so many rows.
            where: a condition on rows.
        """
        if where is None:
            count = min(rows or self.info.rows, self.info.rows)
            return [part for texts in self._all for part in texts.of_first(count)]
        # The condition may look into views by a subquery.
        chosen = self._all if mentioned_views(where) else [self._of_corpus]
        return [part for texts in chosen for part in texts.parts]

    def needed_for(self, rows: NDArray[np.int64]) -> list[Wanted]:
        """Return the parts that hold ``rows``."""
        return [part for texts in self._all for part in texts.of_rows(rows)]

    def missing(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Return those of ``wanted`` that are nowhere in the cache, as far as their size tells."""
        lent = self._lent()
        return [one for one in wanted if not _is_file(self._place(one), one) and one.entry.stem not in lent]

    def fetch(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Bring parts here, see that the keys in them are those of their texts, and return what was fetched.

        Raises:
            RemoteError: if one cannot be had or is refused.
            StorageError: if one cannot be written.
        """
        staged, lent = self._described(), self._lent()
        arrivals = Arrivals(self._source, staged, {}, (), self._meter)
        left: list[Wanted] = []
        for one in wanted:
            place = staged.folder / one.path
            if not _is_file(place, one) and one.entry.stem in lent:
                _lend(lent[one.entry.stem], place)
            # Nobody checks what is derived as often as a cache itself; what is damaged comes again.
            if not _is_file(place, one) or not _is_sound(place):
                left.append(one)
        run_all(
            arrivals.fetch,
            sorted(left, key=lambda one: -one.file.bytes),
            jobs=self._jobs,
            stop=self._source.stop,
            patience=PULL_PATIENCE_SECONDS,
        )
        fresh = {one.path for one in wanted} - self._checked
        for texts in self._all:
            if any(part.path in fresh for part in texts.parts):
                self._check(staged, texts, fresh | self._checked)
        self._checked |= fresh
        return left

    def _check(self, staged: Cache, texts: _Texts, there: Collection[str]) -> None:
        """Look at the rows of the parts whose paths are ``there``; others may be of an earlier pull."""
        absent = [part.path.rpartition("/")[2] for part in texts.parts if part.path not in there]
        said = f"{texts.folder}/{DESCRIPTION}"
        refuse_wrong_rows(self._source, staged, texts.folder, texts.info, said=said, absent=absent)

    def choose(self, rows: int | None, where: str | None) -> NDArray[np.int64]:
        """Return which rows of the whole are meant, once what is :meth:`needed` is here.

        Raises:
            InputError: if the condition cannot be used, or holds for no row.
        """
        staged = self._described()
        try:
            return choose_rows(staged, self.info.name, first=rows, where=where)
        except InputError as error:
            reason = str(error).replace(str(staged.folder), self._source.where)
            # What is said of the condition itself begins with it; else a teacher was looked for.
            asks_vectors = where is not None and _OF_VECTORS & set(re.findall(r"\w+", where.lower()))
            if where is not None and asks_vectors and not reason.startswith(repr(where)):
                raise not_known_yet(where) from error
            raise InputError(reason) from error

    def corpus(self) -> Corpus:
        """Return the whole corpus; only parts that were fetched can be read."""
        return Corpus(self._described().corpora_folder / self.info.name, self.info)

    def drop(self, kept: Corpus) -> None:
        """Delete the files that ``kept`` has as well: they can be lent the next time."""
        named = {part.file_name for one in (kept, *kept.views()) for part in one.parts}
        for one in (part for texts in self._all for part in texts.parts):
            place = self._place(one)
            if place is not None and place.name in named:
                remove_file(place)

    @property
    def _all(self) -> list[_Texts]:
        return [self._of_corpus, *self._of_views]

    @property
    def _folder(self) -> Path | None:
        if self._cache is None:
            return None
        return self._cache.derived_folder / "remotes" / self._source.id / "parts" / self.info.digest

    def _place(self, wanted: Wanted) -> Path | None:
        return None if self._folder is None else self._folder / wanted.path

    def _described(self) -> Cache:
        """Return the cache that the texts lie in, with its documents as the remote has them now."""
        if self._folder is None:
            raise RuntimeError("texts are fetched into a cache")
        staged = Cache.create(self._folder)
        views = staged.corpora_folder / self.info.name / VIEWS
        named = {texts.info.name for texts in self._of_views}
        for recipe in views.glob(f"*/{RECIPE}"):
            if recipe.parent.name not in named:
                remove_file(recipe)
        for one in self._documents:
            place = staged.folder / one.path
            if one.data is not None and not (place.is_file() and place.read_bytes() == one.data):
                write_bytes(place, one.data)
        return staged

    def _lent(self) -> dict[str, Path]:
        """Return the parts that corpora of the cache have, by digest."""
        if self._cache is None:
            return {}
        wanted = {one.entry.stem: one.file.bytes for texts in self._all for one in texts.parts}
        return {
            path.stem: path
            for path in _parts_in(self._cache)
            if path.stem in wanted and not path.is_symlink() and path.stat().st_size == wanted[path.stem]
        }


def _texts(described: Wanted, info: CorpusInfo, wanted: Sequence[Wanted]) -> _Texts:
    folder = described.path.rpartition("/")[0]
    files = {one.path: one for one in wanted}
    return _Texts(folder, info, tuple(files[f"{folder}/{part.file_name}"] for part in info.parts))


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


def _lend(source: Path, place: Path) -> None:
    """Make a file of the cache appear among the texts as well; its digest is taken when it is read."""
    make_directory(place.parent)
    try:
        os.link(source, place, follow_symlinks=False)
    except FileExistsError:
        return
    except OSError:
        # No hard links here.
        copy_file(source, place)
