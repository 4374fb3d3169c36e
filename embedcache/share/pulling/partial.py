"""Pulling a part: some rows of one corpus, the same rows of its views, and the vectors of their texts alone.

Texts come first, in whole files, because nothing smaller can be checked. Then the rows are chosen on this
machine. They make a corpus of their own, and only the vectors of its texts are fetched.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.check.progress import Meter
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.subset import part_name, store_subset, subset_keys
from embedcache.errors import CorruptCacheError, InputError
from embedcache.keys import KeyArray
from embedcache.share.limits import PULL_LESS
from embedcache.share.mirror_notes import keep_rows
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.choice import PullChoice
from embedcache.share.pulling.fetching import fetch_in_stages
from embedcache.share.pulling.outcome import (
    Fetched,
    PulledPart,
    PullEstimate,
    TakenVectors,
    bytes_of,
    text_rows_of,
    unread_bytes_of,
)
from embedcache.share.pulling.partial_texts import PartTexts
from embedcache.share.pulling.partial_vectors import PartVectors, estimate_vectors
from embedcache.share.pulling.plan import Preparation
from embedcache.share.pulling.take_rows import RowsPlan
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.rows.whole_fetches import less_without_ranges

# These come with the vectors that need them.
_WITH_VECTORS = (Kind.SHARD, Kind.CODEBOOK)


@dataclass(frozen=True)
class _ChosenRows:
    """The rows that a part consists of, with their texts fetched.

    Attributes:
        texts: the texts of the whole corpus, as far as they are here.
        rows: numbers of the chosen rows.
        needed: files of texts that were needed, to choose by and for the rows.
        fetched: those of them that the cache lacked.
        teachers: files of teachers that are still to be fetched, but for vectors.
    """

    texts: PartTexts
    rows: NDArray[np.int64]
    needed: list[Wanted]
    fetched: list[Wanted]
    teachers: list[Wanted]


class PartPull:
    """A pull of a part of one corpus.

    Args:
        prepared: what is known of the remote.
        choice: what is wanted.
        jobs: transfers at once.
        meter: counts what arrives.
    """

    def __init__(self, prepared: Preparation, choice: PullChoice, jobs: int, meter: Meter) -> None:
        self._prepared, self._choice, self._jobs, self._meter = prepared, choice, jobs, meter
        wanted = prepared.plan.wanted
        self._of_corpus = [file for file in wanted if file.entry.corpus]
        self._of_teachers = [
            file for file in wanted if file.entry.teacher and file.entry.kind not in _WITH_VECTORS
        ]
        texts = self._texts(prepared.cache)
        self._name = choice.alias or part_name(texts.info.name, texts.info.rows, choice.rows, choice.where)

    def targets(self) -> list[str]:
        """Return the paths in the cache that files are to lie at."""
        of_corpus = [PurePosixPath(file.path).parts for file in self._of_corpus]
        of_part = [str(PurePosixPath(parts[0], self._name, *parts[2:])) for parts in of_corpus]
        return [*of_part, *(file.path for file in self._of_teachers)]

    def estimate(self) -> PullEstimate:
        """Return what is about to be fetched; nothing is written.

        Raises:
            InputError: if the condition cannot be used, or the name is taken by a corpus of another number
                of rows.
        """
        texts, cache = self._texts(self._prepared.cache), self._prepared.cache
        if self._choice.where is not None:
            texts.refuse_wrong_condition(self._choice.where)
        self._refuse_other_size(texts.info.rows)
        rows, where = self._choice.rows, self._choice.where
        needed = [*texts.possible(rows, where), *self._of_teachers]
        missing = self._missing(texts, needed, cache)
        certain = self._missing(texts, [*texts.certain(rows, where), *self._of_teachers], cache)
        most_texts = min(rows or texts.info.rows, texts.info.rows) * (1 + len(texts.view_names))
        vectors = estimate_vectors(self._prepared, self._choice.codec, most_texts, self._keys_here(texts))
        told = [*self._prepared.plan.told, *vectors.told]
        allowance = self._prepared.allowance
        size, most = allowance.read + unread_bytes_of(missing) + vectors.most_bytes, allowance.most
        if most is not None and size > most:
            told.append(
                f"about {size:,} bytes may have to be fetched, more than the {most:,} of --max-bytes: the "
                "pull is refused as soon as texts or row indexes, which come first, show that it is so"
            )
        return PullEstimate(
            remote=self._prepared.source.where,
            manifests=len(self._prepared.stock.manifests),
            files=len(missing),
            bytes=bytes_of(missing),
            least_bytes=bytes_of(certain),
            counted_bytes=allowance.read + unread_bytes_of(certain) + vectors.least_bytes,
            text_rows=text_rows_of(missing),
            present=len(needed) - len(missing),
            present_bytes=bytes_of(needed) - bytes_of(missing),
            corpus=self._name,
            vectors=vectors.rows,
            vector_bytes=vectors.bytes,
            most_vector_bytes=vectors.most_bytes,
            least_vector_bytes=vectors.least_bytes,
            told=tuple(told),
        )

    def _keys_here(self, texts: PartTexts) -> KeyArray | None:
        """Return the distinct keys of the part, if the cache has the part or the files it is cut out of."""
        cache = self._prepared.cache
        if cache is None:
            return None
        if self._name in cache.corpus_names():
            part = cache.corpus(self._name)
            if part.view_names() == texts.view_names:
                with suppress(CorruptCacheError):
                    return np.concatenate(subset_keys(part, np.arange(len(part))))
        # The rows that a condition takes are not known before they are looked at.
        return texts.keys_here(self._choice.rows) if self._choice.where is None else None

    def run(self, cache: Cache) -> Fetched:
        """Fetch what ``cache`` lacks of the part.

        Raises:
            InputError, RemoteError, StorageError: as :func:`embedcache.share.pull.pull`.
        """
        contracts = self._prepared.plan.contracts
        chosen = self._choose_rows(cache)
        whole = chosen.texts.corpus()
        keys = np.concatenate(subset_keys(whole, chosen.rows))
        self._meter.begin("look up texts", total_rows=len(keys))
        # What a run has fetched into a mirror, and would delete again, is the pull's from now on.
        keep_rows(cache, contracts, keys)
        vectors = PartVectors(self._prepared, self._choice, cache, keys, self._jobs, self._meter)
        plans = self._plan_vectors(cache, vectors, chosen)
        part, was_there = self._store(cache, whole, chosen.rows)
        self._fetch_teachers(cache, chosen.teachers)

        # Documents were read as the pull was planned.
        put = bytes_of(chosen.teachers) - unread_bytes_of(chosen.teachers)

        def check_whole_shards(size: int) -> None:
            less = less_without_ranges(PULL_LESS, self._prepared.source.where)
            fetched = self._meter.bytes - put
            self._prepared.allowance.refuse_too_much(cache.folder, size, less, fetched=fetched)

        taken = vectors.take(plans, check_whole_shards)
        # A shard that a run was just fetching was not here before.
        keep_rows(cache, contracts, keys)
        chosen.texts.drop(part)
        return self._result(
            chosen,
            vectors,
            taken,
            PulledPart(part.name, len(part), len(whole), was_there, len(keys), tuple(taken)),
        )

    def _choose_rows(self, cache: Cache) -> _ChosenRows:
        """Fetch the texts to choose rows by, choose them, and fetch the texts of the chosen rows."""
        texts = self._texts(cache)
        to_choose_by = texts.needed(self._choice.rows, self._choice.where)
        fetched = self._fetch_texts(texts, to_choose_by)
        rows = texts.choose(self._choice.rows, self._choice.where)
        of_rows = texts.needed_for(rows)
        teachers = self._missing(texts, self._of_teachers, cache)
        size = unread_bytes_of([*texts.missing(of_rows), *teachers])
        self._refuse_too_much(cache, size, unread_bytes_of(fetched))
        fetched = [*fetched, *self._fetch_texts(texts, of_rows)]
        return _ChosenRows(texts, rows, [*to_choose_by, *of_rows], fetched, teachers)

    def _plan_vectors(self, cache: Cache, vectors: PartVectors, chosen: _ChosenRows) -> list[RowsPlan]:
        """Plan which vectors are fetched; the row indexes that this takes are fetched first."""
        fetched, size = unread_bytes_of(chosen.fetched), unread_bytes_of(chosen.teachers)
        self._refuse_too_much(cache, size + vectors.index_bytes, fetched)
        plans = vectors.plan()
        size += sum(plan.bytes for plan in plans)
        self._refuse_too_much(cache, size, fetched + vectors.index_bytes)
        return plans

    def _fetch_teachers(self, cache: Cache, teachers: list[Wanted]) -> None:
        """Fetch the files of teachers that are neither shards nor codebooks."""
        arrivals = self._arrivals(cache)
        self._meter.begin("fetch", total_files=len(teachers), total_bytes=bytes_of(teachers))
        fetch_in_stages(self._prepared.source, cache, arrivals, teachers, self._jobs)

    def _result(
        self, chosen: _ChosenRows, vectors: PartVectors, taken: list[TakenVectors], part: PulledPart
    ) -> Fetched:
        # A file may be needed twice: to choose rows by, and for the rows.
        files = {file.path: file for file in [*chosen.fetched, *chosen.teachers]}
        needed = {file.path: file for file in [*chosen.needed, *self._of_teachers]}
        fetched = list(files.values())
        row_bytes = vectors.index_bytes + sum(each.bytes for each in taken)
        return Fetched(
            fetched=len(fetched),
            fetched_bytes=bytes_of(fetched) + row_bytes,
            fetched_row_bytes=row_bytes,
            fetched_text_rows=text_rows_of(fetched),
            fetched_vectors=sum(each.taken for each in taken),
            present=len(needed) - len(fetched),
            present_bytes=bytes_of(list(needed.values())) - bytes_of(fetched),
            converted=0,
            converted_bytes=0,
            part=part,
            told=tuple(vectors.told),
        )

    def _refuse_too_much(self, cache: Cache, size: int, fetched: int) -> None:
        self._prepared.allowance.refuse_too_much(cache.folder, size, fetched=fetched)

    def _arrivals(self, cache: Cache) -> Arrivals:
        contracts = self._prepared.plan.contracts
        return Arrivals(self._prepared.source, cache, contracts=contracts, meter=self._meter)

    def _texts(self, cache: Cache | None) -> PartTexts:
        return PartTexts(self._prepared.source, self._of_corpus, cache, self._jobs, self._meter)

    def _missing(self, texts: PartTexts, wanted: list[Wanted], cache: Cache | None) -> list[Wanted]:
        of_corpus = [file for file in wanted if file.entry.corpus]
        of_teachers = [file for file in wanted if file.entry.teacher]
        if cache is not None:
            arrivals = self._arrivals(cache)
            of_teachers = [file for file in of_teachers if not arrivals.has(file)]
        return [*texts.missing(of_corpus), *of_teachers]

    def _fetch_texts(self, texts: PartTexts, needed: list[Wanted]) -> list[Wanted]:
        missing = texts.missing(needed)
        self._meter.begin("fetch texts", total_files=len(missing), total_bytes=bytes_of(missing))
        return texts.fetch(needed)

    def _store(self, cache: Cache, whole: Corpus, rows: NDArray[np.int64]) -> tuple[Corpus, bool]:
        self._meter.begin("cut the part out", total_rows=len(rows) * (1 + len(whole.views())))
        stored = 0

        def count(title: str, done: int) -> None:
            nonlocal stored
            # Of each view the count begins at 0 again.
            self._meter.add(rows=max(done - stored, 0))
            stored = done

        try:
            return store_subset(whole, rows, cache.corpora_folder, self._name, on_rows=count)
        except InputError as error:
            if self._name not in cache.corpus_names():
                raise
            raise self._name_taken(cache.corpus(self._name)) from error

    def _refuse_other_size(self, total: int) -> None:
        cache = self._prepared.cache
        if self._choice.where is not None or cache is None or self._name not in cache.corpus_names():
            return
        namesake = cache.corpus(self._name)
        if len(namesake) != min(self._choice.rows or total, total):
            raise self._name_taken(namesake)

    def _name_taken(self, namesake: Corpus) -> InputError:
        return InputError(
            f"the cache holds another corpus called {namesake.name!r} (digest {namesake.info.digest[:12]}, "
            f"{len(namesake):,} rows): call the part otherwise, with --as NAME, or take that one away with "
            "'embedcache rm corpus'; vectors are kept"
        )
