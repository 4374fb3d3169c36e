"""Repair: bring back what ``verify`` finds damaged, identical to what it was wherever that can be done.

Names are digests, so a file made anew is known to be the old one. What is derived is removed, for it is made
anew when it is needed. Nothing sound is written to, unknown files are left where they are or moved aside, and
what cannot be repaired stays as it is and is listed with what is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.cache import Cache, CachedTeacher, read_contract, read_origin
from embedcache.check.findings import PROJECTION_WAY_OUT, UPGRADE, Finding, Kind, is_of, reason
from embedcache.check.progress import OnCheck
from embedcache.check.repair.mend_codebooks import mend_codebook
from embedcache.check.repair.mend_corpora import mend_corpus
from embedcache.check.repair.mend_files import mend_marker, move_aside, move_misplaced_shard, remove_derived
from embedcache.check.repair.mend_shards import (
    add_salvaged,
    drop_seal,
    holds_newer_shard,
    lost_in_folder,
    lost_with_the_store,
    mend_folder,
    mend_lmdb,
)
from embedcache.check.repair.mend_teachers import NEEDS_MODEL, give_name, mend_contract, mend_name
from embedcache.check.repair.mend_token_table import mend_token_table
from embedcache.check.repair.mend_views import mend_view
from embedcache.check.repair.mending import IDENTICAL, NOT_REPAIRED, Mend, Mending
from embedcache.check.repair.reencode import ShardMaker
from embedcache.check.repair.salvage_lmdb import seal
from embedcache.check.verify.shards import detached, open_without_codebook
from embedcache.check.verify.verifier import Verifier
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.readers import ReadOptions, expand_sources
from embedcache.corpus.sources import FileSource
from embedcache.errors import (
    CacheFormatError,
    CorruptCacheError,
    EmbedCacheError,
    InputError,
    TeacherError,
)
from embedcache.fsio import sha256_file
from embedcache.live import Computing
from embedcache.store import FolderShards, Shard
from embedcache.store.containers.lmdb import SEAL

if TYPE_CHECKING:
    from embedcache.teacher.encode import Encoder

_OF_VIEWS = (Kind.VIEW, Kind.VIEW_PART, Kind.RECIPE)
_OF_TEACHERS = (Kind.SHARD, Kind.STORE, Kind.CODEBOOK, Kind.SEAL, Kind.TABLE, Kind.PROJECTION)
_DERIVED = (Kind.INDEX, Kind.TOKENS, Kind.DERIVED)


@dataclass(frozen=True)
class Repair:
    """What a repair did.

    Attributes:
        cache: the cache's folder.
        dry_run: whether it only says what it would do.
        mends: what became of each thing that was damaged.
        rows_encoded: rows that were encoded; in a dry run, how many would be at most.
        seconds: how long it took.
    """

    cache: str
    dry_run: bool
    mends: tuple[Mend, ...]
    rows_encoded: int
    seconds: float

    @property
    def left(self) -> list[Mend]:
        """What could not be repaired."""
        return [mend for mend in self.mends if mend.outcome == NOT_REPAIRED]

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return {
            "cache": self.cache,
            "dry_run": self.dry_run,
            "whole": not self.left,
            "rows_encoded": self.rows_encoded,
            "seconds": self.seconds,
            "mends": [mend.to_json() for mend in self.mends],
        }


def repair(
    cache: str | Path,
    *,
    sources: Sequence[FileSource] = (),
    options: ReadOptions | None = None,
    computing: Computing | None = None,
    encoder: Encoder | None = None,
    dry_run: bool = False,
    quarantine: bool = False,
    on_progress: OnCheck | None = None,
) -> Repair:
    """Bring back what is damaged in a cache.

    Args:
        cache: its folder.
        sources: files that damaged corpora were built from; default: those noted when they were built.
        options: how to read them; default: as they were read.
        computing: how to run teachers; default: as when their vectors were made.
        encoder: an encoder of a damaged teacher, made before.
        dry_run: write nothing, load no teacher, and say what would be done.
        quarantine: move files that embedcache does not know to ``quarantine/``.
        on_progress: called as the work goes on.

    Raises:
        MissingInputError, CacheFormatError: if the folder is no cache.
        InputError: if a source is not there, needed or not.
        StorageError: if the cache cannot be written; what was repaired before stays.
    """
    started = time.perf_counter()
    if sources:
        expand_sources(sources)
    verifier = Verifier(cache, on_progress=on_progress)
    mending = Mending(
        bench=verifier.bench,
        computing=computing or Computing(),
        dry_run=dry_run,
        quarantine=quarantine,
        sources=sources,
        options=options or ReadOptions(),
    )
    _Repairer(mending, verifier, encoder).run()
    return Repair(
        cache=str(mending.folder),
        dry_run=dry_run,
        mends=tuple(mending.mends),
        rows_encoded=sum(mend.rows for mend in mending.mends) if dry_run else mending.rows_encoded,
        seconds=time.perf_counter() - started,
    )


class _Repairer:
    """Mends kind after kind, each with what was mended before it."""

    def __init__(self, mending: Mending, verifier: Verifier, encoder: Encoder | None) -> None:
        self.mending = mending
        self.entries = verifier.entries
        self.findings = verifier.run().findings
        # LMDB files are opened for writing later on, which is not allowed twice in a process.
        for contract_id, shards in self.mending.bench.shards.items():
            if (mending.folder / "teachers" / contract_id / "vectors.mdb").exists():
                shards[:] = [detached(shard) for shard in shards]
        self.newer = {finding.unit for finding in self.findings if finding.is_newer}
        self.given_encoder = encoder
        self.mended_contracts: dict[str, Contract] = {}

    def damage(self, *kinds: Kind) -> list[Finding]:
        """Return the damage to files of some kinds, but for what a newer embedcache wrote to."""
        values = [kind.value for kind in kinds]
        return [
            finding
            for finding in self.findings
            if finding.is_damage and finding.kind in values and not finding.is_newer
        ]

    def run(self) -> None:
        """Mend everything."""
        if "cache.json" not in self.newer and not self._has_specials():
            self._mend()
        self._account_for_the_rest()

    def _mend(self) -> None:
        if self.damage(Kind.MARKER):
            mend_marker(self.mending)
        for finding in self.damage(*_DERIVED):
            remove_derived(self.mending, finding.path, finding.kind)
        if self.mending.quarantine:
            for entry in self.entries:
                if entry.kind is Kind.FOREIGN and not is_of(entry.path, self.newer):
                    move_aside(self.mending, entry)
        for name in sorted({finding.path.split("/")[1] for finding in self.damage(Kind.PART, Kind.CORPUS)}):
            paths = {
                one.path for one in self.damage(Kind.PART, Kind.CORPUS) if one.path.split("/")[1] == name
            }
            mend_corpus(self.mending, name, paths)
        for view in sorted({finding.path.rpartition("/")[0] for finding in self.damage(*_OF_VIEWS)}):
            paths = {one.path for one in self.damage(*_OF_VIEWS) if one.path.rpartition("/")[0] == view}
            mend_view(self.mending, self.mending.folder / view, paths)
        owned = {entry.teacher for entry in self.entries if entry.path.startswith("teachers/")}
        contract_ids = sorted(one for one in owned - {""} if f"teachers/{one}" not in self.newer)
        for contract_id in contract_ids:
            self._mend_documents(contract_id)
        try:
            opened = Cache(self.mending.folder)
        except EmbedCacheError as error:
            # Only in a dry run, or where the marker could not be mended.
            for finding in self.damage(*_OF_TEACHERS):
                detail = f"not looked at before cache.json is mended: {reason(error)}"
                self.mending.done(finding.path, finding.kind, NOT_REPAIRED, detail)
            return
        misplaced = self._move_misplaced()
        for contract_id in contract_ids:
            self._mend_vectors(opened, contract_id, misplaced)

    def _has_specials(self) -> bool:
        specials = [one for one in self.findings if one.is_damage and one.kind == Kind.SPECIAL.value]
        if specials:
            for finding in self.findings:
                if finding.is_damage and finding not in specials and not finding.is_newer:
                    detail = "not looked at before links and devices are deleted"
                    self.mending.done(finding.path, finding.kind, NOT_REPAIRED, detail)
        return bool(specials)

    def _mend_documents(self, contract_id: str) -> None:
        folder = f"teachers/{contract_id}/"
        if any(one.path.startswith(folder) for one in self.damage(Kind.CONTRACT)):
            contract = mend_contract(self.mending, contract_id)
            if contract is not None:
                self.mended_contracts[contract_id] = contract
        for finding in self.damage(Kind.NAME):
            if finding.path == f"{folder}names":
                give_name(self.mending, contract_id, self._contract(contract_id))
            elif finding.path.startswith(folder):
                mend_name(self.mending, contract_id, self.mending.folder / finding.path)

    def _mend_vectors(self, opened: Cache, contract_id: str, misplaced: Collection[str]) -> None:
        folder = f"teachers/{contract_id}/"
        mine = [
            one
            for one in self.damage(*_OF_TEACHERS)
            if one.path.startswith(folder) and one.path not in misplaced
        ]
        contract = self._contract(contract_id)
        if contract is None:
            for finding in mine:
                what = "the teacher's contract.json could not be repaired"
                self.mending.done(finding.path, finding.kind, NOT_REPAIRED, what)
            return
        sound = sorted(self.mending.bench.shards[contract_id], key=lambda shard: shard.name)
        maker = ShardMaker(
            opened,
            contract,
            _readable_corpora(opened),
            sound,
            self._encoder_of(opened, contract),
            self.mending.bench.meter,
        )
        file = self.mending.folder / folder / "vectors.mdb"
        in_lmdb = any(one.path.startswith(f"{folder}vectors.mdb") for one in mine)
        shards_there = bool(FolderShards(file.with_name("shards")).names())
        # A teacher has one kind of store: shards in files are not joined by a new LMDB file.
        joins_folder = in_lmdb and not file.exists() and shards_there
        if in_lmdb and holds_newer_shard(file):
            # Found only now where the file is so damaged that its shards were not looked at.
            for finding in mine:
                self.mending.done(finding.path, finding.kind, NOT_REPAIRED, UPGRADE)
            return
        if in_lmdb:
            add_salvaged(maker, file)
        damaged = [one.path for one in mine if one.path.startswith(f"{folder}shards/")]
        lost = lost_in_folder(self.mending, maker, damaged)
        for finding in mine:
            if finding.kind == Kind.TABLE.value:
                mend_token_table(self.mending, maker, self.mending.folder / finding.path)
            if finding.kind == Kind.PROJECTION.value:
                self.mending.done(finding.path, finding.kind, NOT_REPAIRED, PROJECTION_WAY_OUT)
            if finding.kind == Kind.CODEBOOK.value:
                mend_codebook(self.mending, maker, self.mending.folder / finding.path, lost)
        if joins_folder:
            lost += lost_with_the_store(self.mending, file)
        elif in_lmdb:
            mend_lmdb(self.mending, maker, file)
        elif file.is_file() and file.stat().st_size and self._needs_seal(folder):
            self._seal(file)
        mend_folder(self.mending, maker, lost)
        if joins_folder:
            drop_seal(self.mending, file, lost)
        self.mending.rows_encoded += maker.encoded

    def _contract(self, contract_id: str) -> Contract | None:
        """Return a teacher's contract as it is now, or would be after a dry run; None where it is lost."""
        with suppress(CorruptCacheError):
            path = self.mending.folder / "teachers" / contract_id / "contract.json"
            return self.mended_contracts.get(contract_id) or read_contract(path)
        return None

    def _move_misplaced(self) -> set[str]:
        """Deal with shards whose digest is right: another teacher's, or none; return which these are."""
        damaged = {finding.path: finding for finding in self.damage(Kind.SHARD)}
        whole = [
            entry
            for entry in self.entries
            if entry.path in damaged and _has_its_digest(self.mending.folder / entry.path)
        ]
        for entry in whole:
            shard = _sound_shard(self.mending.folder / entry.path)
            if shard is not None and shard.header.contract.id != entry.teacher:
                move_misplaced_shard(self.mending, entry.path, shard)
            elif self.mending.quarantine:
                move_aside(self.mending, entry)
            else:
                detail = f"it never was a shard ({damaged[entry.path].found}): move it away with --quarantine"
                self.mending.done(entry.path, entry.kind.value, NOT_REPAIRED, detail)
        return {entry.path for entry in whole}

    def _needs_seal(self, folder: str) -> bool:
        places = (f"{folder}vectors.mdb", f"{folder}vectors.seal.json")
        return any(finding.path in places for finding in self.findings)

    def _seal(self, file: Path) -> None:
        if not self.mending.dry_run:
            seal(file)
        path = self.mending.inside(file.with_name(SEAL))
        self.mending.done(path, Kind.SEAL.value, IDENTICAL, "sealed anew; its shards are sound")

    def _encoder_of(self, opened: Cache, contract: Contract) -> Callable[[Sequence[Shard]], Encoder]:
        """Return a function that loads a teacher's encoder, or says each time why that cannot be done."""
        failed: list[EmbedCacheError] = []

        def load(shards: Sequence[Shard]) -> Encoder:
            if self.given_encoder is not None and self.given_encoder.teacher.contract == contract:
                return self.given_encoder
            if failed:
                raise failed[0]
            try:
                return self._load(opened, contract, shards)
            except EmbedCacheError as error:
                failed.append(TeacherError(f"{reason(error)}; {NEEDS_MODEL}"))
                raise failed[0] from error

        return load

    def _load(self, opened: Cache, contract: Contract, shards: Sequence[Shard]) -> Encoder:
        known = _known_as(opened, contract)
        if known is None and self.mending.computing.teacher_model is None:
            raise TeacherError("no sound file says which model the teacher is")
        name = known.name if known is not None else contract.id[:12]
        with self.mending.bench.meter.aside(f"load teacher {name}"):
            return self.mending.computing.encoder(
                contract,
                spec=opened.model_source(known) if known is not None else "",
                name=name,
                shards=shards,
            )

    def _account_for_the_rest(self) -> None:
        """List every damage that nothing has been done about."""
        done = {mend.path for mend in self.mending.mends}
        mended = {mend.path for mend in self.mending.mends if mend.outcome != NOT_REPAIRED}
        for finding in self.findings:
            # A new LMDB store takes care of its shards and of its seal.
            store = finding.path.partition("#")[0].replace(SEAL, "vectors.mdb")
            if finding.is_damage and finding.path not in done and store not in mended:
                self.mending.done(finding.path, finding.kind, NOT_REPAIRED, finding.way_out)


def _readable_corpora(cache: Cache) -> list[Corpus]:
    """Return the corpora and their views, but for those that cannot be opened."""
    corpora: list[Corpus] = []
    for name in cache.corpus_names():
        with suppress(CorruptCacheError, CacheFormatError):
            corpus = Corpus(cache.corpora_folder / name)
            corpora.append(corpus)
            for view in corpus.view_names():
                with suppress(CorruptCacheError, CacheFormatError, InputError):
                    corpora.append(corpus.view(view))
    return corpora


def _known_as(cache: Cache, contract: Contract) -> CachedTeacher | None:
    for path in sorted((cache.teacher_folder(contract) / "names").glob("[!.]*.json")):
        with suppress(CorruptCacheError):
            return CachedTeacher(path.stem, contract, read_origin(path))
    return None


def _has_its_digest(path: Path) -> bool:
    return path.is_file() and sha256_file(path) == path.stem


def _sound_shard(path: Path) -> Shard | None:
    """Return the shard in a file of its own, None where there is none in it."""
    with suppress(CorruptCacheError, CacheFormatError):
        return open_without_codebook(FolderShards(path.parent).open(path.stem), path.stem, str(path))
    return None
