"""Verification of a whole cache: its files one by one, then what belongs together.

Nothing is written. Files in ``derived/`` are not checked: their readers check them and make them again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from embedcache.cache_documents import read_contract, refuse_remote
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.description import DESCRIPTION, RECIPE
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError, UnreadableError
from embedcache.fsio import list_folder, require_directory
from embedcache.inventory import Entry, Kind, list_files
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import PROJECTION, is_derived
from embedcache.store import ShardStore
from embedcache.verify.files import (
    MISSING,
    NO_NAME,
    RULES,
    FileChecks,
    Finding,
    SoundShards,
    damage,
    first_line,
    note,
    peek_shard,
    refusal,
    unread,
)  # fmt: skip
from embedcache.verify.rows import check_rows, rows_without_vector


@dataclass(frozen=True)
class Verification:
    """Result of verifying a cache.

    Attributes:
        cache: its folder.
        findings: damage first.
        files: number of files outside ``derived/``.
        bytes: their size.
        seconds: time taken.
    """

    cache: str
    findings: tuple[Finding, ...]
    files: int
    bytes: int
    seconds: float

    @property
    def damage(self) -> list[Finding]:
        """Findings that are damage."""
        return [finding for finding in self.findings if finding.is_damage]

    @property
    def unread(self) -> list[Finding]:
        """Files that could not be read."""
        return [finding for finding in self.findings if finding.is_unread]

    def to_json(self) -> dict[str, object]:
        """Return the verification as a JSON object."""
        return {**asdict(self), "sound": not self.damage and not self.unread}


def verify(cache: str | Path, *, progress: Progress = NO_PROGRESS) -> Verification:
    """Read every byte of a cache outside ``derived/`` and return its damage.

    A file that cannot be read is no damage: it is listed as not read.

    Raises:
        MissingInputError: if there is no such folder.
        UnreadableError: if the folder cannot be listed.
        CacheFormatError: if it holds nothing of a cache, or is a remote.
    """
    return Verifier(cache, progress).run()


class Verifier:
    """Verification of a cache; arguments and errors are those of ``verify``.

    Args:
        repairs: True if vectors are written afterwards.

    Attributes:
        folder: the cache's folder.
        entries: its files.
        checks: checks of single files, and the sound shards.
        texts: sound corpora, and sound views of their rows.
        damaged: paths of the files found damaged or missing so far.
        unread: paths of the files and folders that could not be read.
    """

    def __init__(self, cache: str | Path, progress: Progress = NO_PROGRESS, *, repairs: bool = False) -> None:
        self.folder = require_directory(Path(cache).expanduser(), "cache")
        if "cache.json" not in list_folder(self.folder):
            refuse_remote(self.folder)
        self.entries = list_files(self.folder)
        if not any(entry.kind is Kind.MARKER or entry.corpus or entry.teacher for entry in self.entries):
            raise CacheFormatError(
                f"{self.folder} is not a cache: it has no cache.json, no corpora and no teachers"
            )
        self.progress = progress
        self.checks = FileChecks(self.folder, progress, repairs)
        for contract_id in self.teacher_ids():
            self.checks.shards[contract_id], self.checks.lost[contract_id] = SoundShards(), {}
        self.texts: list[Corpus] = []
        self.damaged: set[str] = set()
        self.unread: set[str] = set()
        self._findings: set[Finding] = set()
        self._paths = {entry.path for entry in self.entries}

    def run(self) -> Verification:
        """Check every file, and what belongs together."""
        started = time.perf_counter()
        # The largest first, or the last one read would leave the other threads idle.
        checked = [one for one in self.entries if one.kind in RULES or one.kind is Kind.FOLDER]
        checked.sort(key=lambda one: -one.size)
        size = sum(entry.size for entry in checked)
        self.progress.phase("verify", size, "bytes")
        with ThreadPoolExecutor() as pool:
            for found in pool.map(self.checks.check, checked):
                self._add(found)
        if "cache.json" not in self._paths:
            self._add([damage("cache.json", MISSING)])
        self.progress.phase("verify rows")
        for name in sorted({one.corpus for one in self.entries if one.path.startswith("corpora/")} - {""}):
            with self._noting_unread(f"corpora/{name}/"):
                self._check_corpus(name)
        for contract_id in self.teacher_ids():
            with self._noting_unread(f"teachers/{contract_id}/"):
                self._add(self._check_teacher(contract_id))
        order = ("damaged", "not read", "note")
        findings = tuple(sorted(self._findings, key=lambda one: (order.index(one.state), one)))
        seconds = time.perf_counter() - started
        return Verification(str(self.folder), findings, len(checked), size, seconds)

    def _add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._findings.add(finding)
            if finding.is_damage:
                self.damaged.add(finding.path.partition("#")[0])
            if finding.is_unread:
                self.unread.add(finding.path)

    @contextmanager
    def _noting_unread(self, folder: str) -> Iterator[None]:
        """Note a file that could be read before, and cannot be read now."""
        try:
            yield
        except UnreadableError as error:
            self._add([unread(folder, first_line(error), Kind.FOLDER)])

    def has_unread(self, folder: str) -> bool:
        """Return whether something in a folder of the cache, or the folder itself, could not be read."""
        inside = f"{folder}/"
        return any(
            path.startswith(inside) or (path.endswith("/") and inside.startswith(path))
            for path in self.unread
        )

    def teacher_ids(self) -> list[str]:
        """Return the contract ids of all teachers that have a file."""
        return sorted({entry.teacher for entry in self.entries} - {""})

    def files(self, contract_id: str, *kinds: Kind) -> list[Entry]:
        """Return the files of some kinds that belong to a teacher."""
        return [one for one in self.entries if one.kind in kinds and one.teacher == contract_id]

    def contract(self, contract_id: str) -> Contract | None:
        """Return a teacher's contract, by its file or else by the header of one of its shards."""
        with suppress(CorruptCacheError, UnreadableError):
            return read_contract(self.folder / "teachers" / contract_id / "contract.json")
        sound = self.checks.shards[contract_id]
        whole = (peek_shard(sound.open(name), name, "") for name in sound.names())
        shards = (*self.checks.lost[contract_id].values(), *whole)
        return next((shard.header.contract for shard in shards if shard is not None), None)

    def sound_store(self, contract: Contract) -> ShardStore:
        """Return a store of a teacher's sound shards."""
        codebooks = self.folder / "teachers" / contract.id / "codebooks"
        return ShardStore(self.checks.shards[contract.id], contract, codebooks=codebooks)

    def _check_corpus(self, name: str) -> None:
        folder = f"corpora/{name}"
        if self.has_unread(folder):
            return
        description = self.folder / folder / DESCRIPTION
        if not os.path.lexists(description):
            what = "it is missing: a build or a pull did not end, or it was deleted"
            fix = "run that again; 'embedcache gc' deletes the parts"
            self._add([note(f"{folder}/{DESCRIPTION}", what, fix)])
            return
        try:
            corpus = Corpus(self.folder / folder)
        except (CorruptCacheError, CacheFormatError) as error:
            self._add([refusal(f"{folder}/{DESCRIPTION}", error, description)])
            return
        self._check_texts(corpus, folder)
        if not self._is_sound(folder):
            return
        gc = "make the view again, or 'embedcache gc' deletes it"
        for view in sorted({one.view for one in self.entries if one.corpus == name} - {""}):
            place = f"{folder}/views/{view}"
            if f"{place}/{RECIPE}" not in self._paths:
                self._add([note(f"{place}/{RECIPE}", "it is missing: the view was never finished", gc)])
                continue
            try:
                self._check_texts(View(corpus, view), place)
            except InputError as error:
                self._add([note(f"{place}/{RECIPE}", first_line(error), gc)])
            except (CorruptCacheError, CacheFormatError) as error:
                # One of its files is damaged, or they are not of the same view.
                if not any(path.startswith(f"{place}/") for path in self.damaged):
                    self._add([damage(f"{place}/{DESCRIPTION}", first_line(error))])

    def _check_texts(self, corpus: Corpus, folder: str) -> None:
        """Check the files of a corpus or of a view against each other, and note it if they are sound."""
        files = [f"{folder}/{part.file_name}" for part in corpus.parts]
        self._add(damage(path, MISSING) for path in files if path not in self._paths)
        if self._is_sound(folder):
            self._add(damage(f"{folder}/{name}", what) for name, what in check_rows(corpus))
        self.texts += [corpus] if self._is_sound(folder) else []

    def _is_sound(self, folder: str) -> bool:
        return not any(path.rpartition("/")[0] == folder for path in self.damaged)

    def _check_teacher(self, contract_id: str) -> Iterator[Finding]:
        folder = f"teachers/{contract_id}"
        if self.has_unread(folder):
            return
        contract = self.contract(contract_id)
        lmdb = f"{folder}/vectors.mdb"
        # An empty LMDB file was made by a build that was killed at once.
        kinds = {
            one.kind
            for one in self.entries
            if one.teacher == contract_id and (one.size or one.kind is not Kind.STORE)
        }
        is_named = Kind.NAME in kinds or not kinds & {Kind.SHARD, Kind.STORE}
        # Without a name and vectors: a copy or a pull did not end.
        has_begun = bool(kinds & {Kind.NAME, Kind.SHARD, Kind.STORE})
        has_contract = Kind.CONTRACT in kinds or not has_begun
        needs_map = has_begun and contract is not None and is_derived(contract)
        has_map = Kind.PROJECTION in kinds or not needs_map
        for is_right, path, what in (
            (has_contract, f"{folder}/contract.json", MISSING),
            (is_named, f"{folder}/{NO_NAME}", "the teacher has no name to be found by"),
            (not kinds >= {Kind.SHARD, Kind.STORE}, lmdb, "there are shards in shards/ as well"),
            (Kind.SEAL not in kinds or lmdb in self._paths, lmdb, "it is missing, and its seal is there"),
            (has_map, f"{folder}/{PROJECTION}", MISSING),
        ):
            if not is_right:
                yield damage(path, what, Kind.NAME if path.endswith(NO_NAME) else None)
        if contract is None or any(path.startswith(f"{folder}/") for path in self.damaged):
            return
        names = " or ".join(entry.stem for entry in self.files(contract_id, Kind.NAME))
        build = "distill kb project --apply" if is_derived(contract) else "embedcache build"
        store = self.sound_store(contract)
        lacking = rows_without_vector(self.texts, store)
        # A teacher need not have encoded every corpus and view of a cache.
        begun = [(number, missing) for number, missing in lacking if len(missing) < missing.distinct]
        fix = f"'{build}' makes them, if they are wanted"
        if begun or not store.shards:
            fix = f"'embedcache repair' or '{build}' makes them"
        for number, missing in begun or lacking:
            what = f"{len(missing):,} of {missing.distinct:,} texts have no vector of teacher {names}"
            path = (self.texts[number].folder / DESCRIPTION).relative_to(self.folder).as_posix()
            yield note(path, what, fix)
