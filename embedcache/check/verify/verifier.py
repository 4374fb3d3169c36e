"""Verify: read every byte of a cache and say what is not as it was written.

Every file of a cache vouches for itself: by its name, by a digest inside or beside it, or because all its
bytes are known. Locks are the exception: nothing in them outlives the processes that share them. Nothing is
written, whatever is found, and what is damaged is never opened further than is safe.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from embedcache.cache import refuse_remote
from embedcache.check.bench import Bench
from embedcache.check.findings import UPGRADE, Finding, Findings, Kind, damage, is_of, reason
from embedcache.check.inventory import Entry, entry_of, take_inventory
from embedcache.check.progress import Meter, OnCheck
from embedcache.check.verify import corpora, derived, documents, shards, views
from embedcache.check.verify.stores import (
    TeacherFiles,
    check_coverage,
    check_emptied,
    check_missing_shards,
    check_names,
    check_teacher,
)
from embedcache.corpus.corpus import DESCRIPTION, Corpus, View, read_info
from embedcache.corpus.view_record import VIEWS
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.fsio import require_directory

Check = Callable[[Bench, Entry], Findings]

_CHECKS: Mapping[Kind, Check] = {
    Kind.MARKER: documents.check_marker,
    Kind.CORPUS: documents.check_description,
    Kind.PART: corpora.check_part,
    Kind.VIEW: documents.check_description,
    Kind.VIEW_PART: corpora.check_part,
    Kind.RECIPE: views.check_recipe,
    Kind.CONTRACT: documents.check_contract,
    Kind.NAME: documents.check_name,
    Kind.SHARD: shards.check_shard_file,
    Kind.STORE: shards.check_lmdb_store,
    Kind.SEAL: documents.check_sealed,
    Kind.LOCK: documents.check_lock,
    Kind.CODEBOOK: documents.check_codebook,
    Kind.TABLE: documents.check_token_table,
    Kind.PROJECTION: documents.check_projection,
    Kind.INDEX: derived.check_index,
    Kind.TOKENS: derived.check_tokens,
    Kind.DERIVED: documents.check_derived_note,
    Kind.LEFTOVER: documents.check_leftover,
    Kind.QUARANTINED: documents.check_quarantined,
    Kind.FOREIGN: documents.check_foreign,
    Kind.SPECIAL: documents.check_special,
}
_OF_THE_CACHE_ITSELF = (Kind.MARKER, Kind.SPECIAL)


@dataclass(frozen=True)
class Verification:
    """What verifying a cache found.

    Attributes:
        cache: its folder.
        findings: damage first.
        files: files checked.
        bytes: bytes read.
        corpus_rows: rows of the corpora checked, as they are described.
        vectors: rows of the shards found sound.
        seconds: how long it took.
    """

    cache: str
    findings: tuple[Finding, ...]
    files: int
    bytes: int
    corpus_rows: int
    vectors: int
    seconds: float

    @property
    def damage(self) -> list[Finding]:
        """The findings that are damage."""
        return [finding for finding in self.findings if finding.is_damage]

    @property
    def notes(self) -> list[Finding]:
        """The findings that are none."""
        return [finding for finding in self.findings if not finding.is_damage]

    def to_json(self) -> dict[str, object]:
        """Return the verification as a JSON object."""
        return {
            "cache": self.cache,
            "sound": not self.damage,
            "files": self.files,
            "bytes": self.bytes,
            "corpus_rows": self.corpus_rows,
            "vectors": self.vectors,
            "seconds": self.seconds,
            "findings": [finding.to_json() for finding in self.findings],
        }


def verify(
    cache: str | Path,
    *,
    corpus: str | None = None,
    teacher: str | None = None,
    on_progress: OnCheck | None = None,
) -> Verification:
    """Read every byte of a cache and return what is wrong with it, and what else is worth knowing.

    Args:
        cache: its folder.
        corpus: check only the corpus of this name (and, where ``teacher`` is given, that teacher).
        teacher: check only the teacher of this name, or whose contract id begins so.
        on_progress: called as the work goes on.

    Raises:
        MissingInputError: if there is no such folder.
        CacheFormatError: if it holds nothing of a cache, or is a remote.
        InputError: if there is no such corpus or teacher.
    """
    return Verifier(cache, corpus=corpus, teacher=teacher, on_progress=on_progress).run()


class Verifier:
    """A verification, file by file or as a whole; arguments and errors are those of :func:`verify`."""

    def __init__(
        self,
        cache: str | Path,
        *,
        corpus: str | None = None,
        teacher: str | None = None,
        on_progress: OnCheck | None = None,
    ) -> None:
        folder = require_directory(Path(cache).expanduser(), "cache")
        if not (folder / "cache.json").exists():
            refuse_remote(folder)
        self.bench = Bench(folder, Meter(on_progress))
        entries = take_inventory(folder)
        if not any(entry.kind is Kind.MARKER or entry.corpus or entry.teacher for entry in entries):
            raise CacheFormatError(f"{folder} is no cache: it has no cache.json, no corpora and no teachers")
        self.corpus_rows = 0
        self.is_whole_cache = corpus is None and teacher is None
        chosen_corpora = _choose_corpora(entries, corpus) if corpus is not None else set()
        chosen_teachers = _choose_teachers(entries, teacher) if teacher is not None else set()
        self.entries = [
            entry
            for entry in entries
            if self.is_whole_cache
            or entry.kind in _OF_THE_CACHE_ITSELF
            or entry.corpus in chosen_corpora
            or entry.teacher in chosen_teachers
        ]

    def check_file(self, path: str) -> list[Finding]:
        """Check the file at ``path``, relative to the cache, on its own."""
        return self._check(entry_of(self.bench.folder, path))

    def run(self) -> Verification:
        """Check every file, and what belongs together."""
        started = time.perf_counter()
        meter = self.bench.meter
        meter.begin(
            "read files",
            total_files=len(self.entries),
            total_bytes=sum(entry.size for entry in self.entries),
        )
        # The largest first, or the last one read would leave the other threads idle.
        by_size = sorted(self.entries, key=lambda entry: -entry.size)
        with ThreadPoolExecutor() as pool:
            findings = [finding for found in pool.map(self._check, by_size) for finding in found]
        findings += self._check_what_belongs_together(findings)
        findings = _upgrade_first(findings)
        return Verification(
            cache=str(self.bench.folder),
            findings=tuple(sorted(findings, key=lambda one: (not one.is_damage, one))),
            files=len(self.entries),
            bytes=meter.bytes,
            corpus_rows=self.corpus_rows,
            vectors=sum(len(shard) for shards in self.bench.shards.values() for shard in shards),
            seconds=time.perf_counter() - started,
        )

    def _check(self, entry: Entry) -> list[Finding]:
        try:
            return list(_CHECKS[entry.kind](self.bench, entry))
        except FileNotFoundError:
            # Gone since the inventory was taken: a file that was being replaced, or garbage collected.
            return []
        except OSError as error:
            return [damage(entry.path, entry.kind, f"it cannot be read: {reason(error)}")]
        finally:
            self.bench.meter.add(files=1)

    def _check_what_belongs_together(self, found: list[Finding]) -> Iterator[Finding]:
        damaged = frozenset(finding.path for finding in found if finding.is_damage)
        if self.is_whole_cache and not any(entry.kind is Kind.MARKER for entry in self.entries):
            yield damage("cache.json", Kind.MARKER, "it is missing")
        sound: dict[str, Corpus] = {}
        infos = self._descriptions(damaged)
        self.corpus_rows = sum(corpus.info.rows for corpus in infos.values())
        self.bench.meter.begin("read rows", total_rows=self.corpus_rows + self._rows_of_views(infos))
        for name, corpus in infos.items():
            wrong = list(self._check_corpus(corpus, damaged))
            yield from wrong
            if not any(finding.is_damage for finding in wrong) and not corpus.missing_parts():
                sound[name] = corpus
        yield from self._unfinished_corpora()
        sound = {name: corpus for name, corpus in sound.items() if not _has_damage(name, damaged)}
        wrong = list(self._check_views(infos, damaged))
        yield from wrong
        sound_views = self._sound_views(sound, {*damaged, *(finding.path for finding in wrong)})
        teachers = self._teachers(damaged)
        newer = {finding.unit for finding in found if finding.is_newer}
        rows = sum(map(len, (*sound.values(), *sound_views.values())))
        self.bench.meter.begin("look up texts", total_rows=len(teachers) * rows)
        known_corpora = {entry.corpus for entry in self.entries if entry.path.startswith("corpora/")} - {""}
        damaged_views = any("/views/" in path for path in damaged) or any(one.is_damage for one in wrong)
        are_all = sound.keys() == known_corpora and not damaged_views
        in_files = {entry.stem for entry in self.entries if entry.kind is Kind.SHARD}
        for teacher in teachers:
            wrong = list(check_teacher(self.bench, teacher))
            if teacher.path in newer:
                # Nobody here knows which texts its shards hold.
                yield from wrong
                continue
            texts = {**sound, **sound_views}
            wrong += check_missing_shards(self.bench, teacher, texts, are_all=are_all, in_files=in_files)
            yield from wrong
            of_the_store = (f"{teacher.path}/shards/", f"{teacher.path}/vectors.mdb")
            bad = {*damaged, *(finding.path for finding in wrong if finding.is_damage)}
            is_whole = not any(path.startswith(of_the_store) for path in bad)
            if teacher.has_vectors:
                yield from check_coverage(self.bench, teacher, sound, sound_views, is_whole=is_whole)
            elif is_whole and teacher.names and infos:
                yield from check_emptied(self.bench, teacher, {**sound, **sound_views})
        yield from check_names(teachers)

    def _descriptions(self, damaged: Collection[str]) -> dict[str, Corpus]:
        """Return the corpora whose descriptions are sound."""
        found = {}
        for entry in self.entries:
            if entry.kind is Kind.CORPUS and entry.path not in damaged:
                folder = self.bench.folder / entry.folder
                try:
                    found[entry.corpus] = Corpus(folder, read_info(folder))
                except (CorruptCacheError, CacheFormatError):  # replaced just now
                    continue
        return found

    def _check_corpus(self, corpus: Corpus, damaged: Collection[str]) -> Findings:
        path = f"corpora/{corpus.name}"
        there = [
            entry.path.rpartition("/")[2]
            for entry in self.entries
            if entry.kind is Kind.PART and entry.corpus == corpus.name
        ]
        yield from corpora.check_listing(path, corpus.info, there)
        bad = {part.file_name for part in corpus.parts if part.file_name not in there}
        bad |= {name for name in there if f"{path}/{name}" in damaged}
        yield from corpora.check_rows(self.bench, path, corpus.info, bad)

    def _unfinished_corpora(self) -> Findings:
        described = {entry.corpus for entry in self.entries if entry.kind is Kind.CORPUS}
        noted = {
            entry.corpus
            for entry in self.entries
            if entry.kind is Kind.DERIVED and entry.path.startswith("derived/sources/")
        }
        for name in sorted({entry.corpus for entry in self.entries if entry.kind is Kind.PART} - described):
            yield from corpora.check_undescribed(f"corpora/{name}/{DESCRIPTION}", was_built=name in noted)

    def _check_views(self, described: Mapping[str, Corpus], damaged: Collection[str]) -> Findings:
        """Check the files of each view together, given the corpora whose descriptions are sound."""
        there = {entry.corpus for entry in self.entries if entry.kind in (Kind.CORPUS, Kind.PART)}
        for corpus, folders in sorted(self._views().items()):
            if corpus not in there:
                yield from views.check_orphaned(f"corpora/{corpus}/{VIEWS}")
                continue
            for path, entries in sorted(folders.items()):
                yield from views.check_view(self.bench, path, entries, damaged, described.get(corpus))

    def _views(self) -> dict[str, dict[str, list[Entry]]]:
        """Return the files of all views: corpus -> folder of the view -> its files."""
        found: dict[str, dict[str, list[Entry]]] = {}
        for entry in self.entries:
            if entry.view:
                found.setdefault(entry.corpus, {}).setdefault(entry.folder, []).append(entry)
        return found

    def _rows_of_views(self, described: Mapping[str, Corpus]) -> int:
        """Return about how many rows of views are to be read."""
        found = self._views()
        return sum(len(corpus) * len(found.get(name, ())) for name, corpus in described.items())

    def _sound_views(self, sound: Mapping[str, Corpus], bad: Collection[str]) -> dict[str, View]:
        """Return the views of sound corpora that are sound and made of their rows, by corpus and name."""
        found = {}
        for name, corpus in sound.items():
            for path in self._views().get(name, ()):
                view = path.rpartition("/")[2]
                if not any(one.startswith(f"{path}/") for one in bad):
                    with suppress(CorruptCacheError, CacheFormatError, InputError):
                        found[f"{name}/{VIEWS}/{view}"] = corpus.view(view)
        return found

    def _teachers(self, damaged: frozenset[str]) -> list[TeacherFiles]:
        ids = sorted({entry.teacher for entry in self.entries if entry.path.startswith("teachers/")} - {""})
        return [
            TeacherFiles(one, [entry for entry in self.entries if entry.teacher == one], damaged)
            for one in ids
        ]


def _upgrade_first(findings: Collection[Finding]) -> list[Finding]:
    """Give one advice for all that a newer embedcache wrote to: what it may mean is not known here."""
    newer = {finding.unit for finding in findings if finding.is_newer}
    return [
        replace(finding, way_out=UPGRADE) if is_of(finding.path, newer) else finding for finding in findings
    ]


def _has_damage(corpus: str, damaged: Collection[str]) -> bool:
    folder = f"corpora/{corpus}/"
    return any(path.startswith(folder) and not path.startswith(f"{folder}{VIEWS}/") for path in damaged)


def _choose_corpora(entries: Collection[Entry], name: str) -> set[str]:
    names = {entry.corpus for entry in entries} - {""}
    if name not in names:
        raise InputError(f"no corpus {name!r} in the cache: it holds {', '.join(sorted(names)) or 'none'}")
    return {name}


def _choose_teachers(entries: Collection[Entry], name: str) -> set[str]:
    ids = {entry.teacher for entry in entries} - {""}
    names = {entry.stem: entry.teacher for entry in entries if entry.kind is Kind.NAME}
    found = {entry.teacher for entry in entries if entry.kind is Kind.NAME and entry.stem == name}
    found = found or {one for one in ids if len(name) >= 6 and one.startswith(name)}
    if not found:
        raise InputError(f"no teacher {name!r} in the cache: it holds {', '.join(sorted(names)) or 'none'}")
    return found
