"""Repair of a cache: damaged files are moved aside, and regenerated where their content is known.

Documents come first, then vectors: lost shards are encoded again, with the same bytes where the same machine
does it. Nothing is guessed or deleted. What cannot be repaired stays and is listed with what to do.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, cast

import numpy as np

from embedcache.building.pending import PendingWork
from embedcache.cache import Cache, CachedTeacher
from embedcache.cache_documents import CACHE_MARKER, read_origin
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus, find_rows, find_texts
from embedcache.errors import (
    CorruptCacheError,
    EmbedCacheError,
    NonFiniteVectorError,
    TeacherError,
    UnreadableError,
)
from embedcache.fsio import (
    copy_file,
    fsync_directory,
    list_folder,
    make_directory,
    sealed,
    spelled_json,
    write_bytes,
)  # fmt: skip
from embedcache.inventory import QUARANTINE, Kind, entry_at
from embedcache.keys import KEY_DTYPE, KeyArray, KeyIndex
from embedcache.live import Computing, refuse_changed_server
from embedcache.os_errors import writing
from embedcache.probes import Probes
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import extend, is_derived, read_projection
from embedcache.store import FolderShards, Shard, ShardStore, VectorBatch
from embedcache.teacher.aliases import ALIASES
from embedcache.teacher.options import DEFAULT_SHARD_ROWS
from embedcache.teacher.resolve import origin_of, resolve
from embedcache.verify import Finding, Verifier
from embedcache.verify.files import NO_NAME, first_line
from embedcache.verify.rows import rows_without_vector

if TYPE_CHECKING:
    from embedcache.teacher.text_encoder import TextEncoder

MADE, ENCODED, MOVED = "made again", "encoded again", "moved aside"
LOST, LEFT = "texts missing", "not repaired"
"""Outcomes; the last two need the user."""

_UNKNOWN_ROWS = "its rows cannot be read; the next build encodes what is missing"
_VECTORS = (Kind.SHARD, Kind.STORE, Kind.CODEBOOK)
_NO_KEYS = np.empty(0, KEY_DTYPE)


@dataclass(frozen=True)
class Fix:
    """Outcome for a file that was damaged or missing.

    Attributes:
        path: the file, relative to the cache.
        kind: value of its ``embedcache.inventory.Kind``.
        outcome: one of the constants above.
        detail: more on it, or what to do.
    """

    path: str
    kind: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True)
class Repair:
    """Result of a repair, or with ``dry_run`` its plan.

    Attributes:
        cache: the cache's folder.
        dry_run: True if nothing was done.
        fixes: outcome for each damaged or missing file.
        rows_encoded: rows encoded, or to encode.
        seconds: time taken.
    """

    cache: str
    dry_run: bool
    fixes: tuple[Fix, ...]
    rows_encoded: int
    seconds: float

    @property
    def left(self) -> list[Fix]:
        """Fixes that need the user."""
        return [fix for fix in self.fixes if fix.outcome in (LOST, LEFT)]

    def to_json(self) -> dict[str, object]:
        """Return it as a JSON object."""
        return {**asdict(self), "whole": not self.left}


def repair(
    cache: str | Path,
    *,
    computing: Computing | None = None,
    encoder: TextEncoder | None = None,
    dry_run: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Repair:
    """Repair the damage in a cache. After a kill, run it again to continue.

    Args:
        cache: its folder.
        computing: settings of teachers; default: as when their vectors were made.
        encoder: an encoder of one of the teachers.
        dry_run: only plan; no teacher is loaded.
        progress: receives what is done.

    Raises:
        MissingInputError, CacheFormatError: if the folder is not a cache.
        StorageError: if the cache cannot be written; what was repaired before stays.
    """
    started = time.perf_counter()
    verifier = Verifier(cache, progress, repairs=not dry_run)
    work = _Repairer(verifier, computing or Computing(), encoder, dry_run=dry_run)
    work.run()
    seconds = time.perf_counter() - started
    return Repair(str(work.folder), dry_run, tuple(work.fixes), work.rows, seconds)


class _Repairer:
    def __init__(
        self, verifier: Verifier, computing: Computing, encoder: TextEncoder | None, *, dry_run: bool
    ) -> None:
        self._verifier, self._computing, self._encoder, self._dry_run = verifier, computing, encoder, dry_run
        self._progress, self._texts = verifier.progress, verifier.texts
        self.folder = verifier.folder
        self.fixes: list[Fix] = []
        self.rows = 0

    def run(self) -> None:
        done = self._verifier.run()
        self._findings = done.damage
        # A link may lead out of the cache, and files of a newer version are not understood.
        if not any(
            one.kind == Kind.SPECIAL.value or (one.kind == Kind.MARKER.value and one.is_newer)
            for one in self._findings
        ):
            for finding in self._damage(Kind.MARKER):
                self._write(finding, sealed(CACHE_MARKER))
            found = map(self._verifier.contract, self._verifier.teacher_ids())
            contracts = [contract for contract in found if contract is not None]
            for contract in contracts:
                self._write_documents(contract)
            # Projections are made of the vectors of other teachers.
            for contract in sorted(contracts, key=is_derived):
                self._restore(contract)
        handled = {fix.path for fix in self.fixes}
        for finding in (*self._findings, *done.unread):
            if finding.path not in handled:
                self._done(finding, LEFT, f"{finding.what}; {finding.fix}")

    def _damage(self, *kinds: Kind, teacher: str = "") -> list[Finding]:
        """Return damage to files of some kinds, except those of a newer version."""
        values, folder = [kind.value for kind in kinds], f"teachers/{teacher}/" if teacher else ""
        found = [one for one in self._findings if one.kind in values and one.path.startswith(folder)]
        return [one for one in found if not one.is_newer]

    def _done(self, finding: Finding, outcome: str, detail: str = "") -> None:
        self.fixes.append(Fix(finding.path, finding.kind, outcome, detail))

    def _move_aside(self, path: str) -> None:
        """Move a file to the quarantine, where it keeps its path; harmless if it is missing.

        Raises:
            StorageError: if it cannot be moved.
        """
        source = self.folder / path
        if self._dry_run or not os.path.lexists(source):
            return
        target = self._place_aside(path)
        make_directory(target.parent)
        with writing(target):
            source.rename(target)
            fsync_directory(target.parent)
            fsync_directory(source.parent)

    def _place_aside(self, path: str) -> Path:
        """Return a free path in the quarantine for a file."""
        target, number = self.folder / QUARANTINE / path, 0
        while os.path.lexists(target):
            number += 1
            target = self.folder / QUARANTINE / f"{path}.{number}"
        return target

    def _write(self, finding: Finding, value: dict[str, object], path: str = "", detail: str = "") -> None:
        """Write a document whose content is known in place of a damaged one.

        The damaged one is copied aside and stays until it is replaced: its path says which document it is.
        """
        damaged = self.folder / finding.path
        if not self._dry_run:
            if damaged.is_file():
                copy_file(damaged, self._place_aside(finding.path))
            write_bytes(self.folder / (path or finding.path), spelled_json(value))
        self._done(finding, MADE, detail)

    def _write_documents(self, contract: Contract) -> None:
        """Write a teacher's contract and names again; move a damaged seal aside."""
        for finding in self._damage(Kind.CONTRACT, teacher=contract.id):
            self._write(finding, contract.to_json(), detail="from the header of a shard")
        for finding in self._damage(Kind.NAME, teacher=contract.id):
            is_nameless = finding.path.endswith(NO_NAME)
            name = contract.id[:12] if is_nameless else entry_at(finding.path).stem
            origin = self._known_as(contract).origin
            spec = self._computing.teacher_model or (name if name in ALIASES else None)
            with suppress(TeacherError):
                origin = origin or (origin_of(resolve(spec)) if spec else {})
            self._write(
                finding, sealed({**origin}), f"teachers/{contract.id}/names/{name}.json", f"as {name}"
            )
        for finding in self._damage(Kind.SEAL, teacher=contract.id):
            self._move_aside(finding.path)
            self._done(finding, MOVED, "the next build writes it")

    def _known_as(self, contract: Contract) -> CachedTeacher:
        """Return a teacher under one of its names that can be read, else without an origin."""
        folder = self.folder / "teachers" / contract.id / "names"
        for name in (file[:-5] for file in list_folder(folder) if file.endswith(".json")):
            with suppress(CorruptCacheError, UnreadableError):
                return CachedTeacher(name, contract, read_origin(folder / f"{name}.json"))
        return CachedTeacher(contract.id[:12], contract, {})

    def _restore(self, contract: Contract) -> None:
        """Encode a teacher's lost shards again, missing files included.

        Do nothing if a file is unreadable: then it is not known what is lost.
        """
        findings = self._damage(*_VECTORS, teacher=contract.id)
        if self._verifier.has_unread(f"teachers/{contract.id}") or self._verifier.has_unread("corpora"):
            for finding in findings:
                self._done(finding, LEFT, f"{finding.what}; repair again once all files can be read")
            return
        folder, checks = f"teachers/{contract.id}", self._verifier.checks
        is_newer = any(one.is_newer and one.path.startswith(f"{folder}/") for one in self._findings)
        if is_newer:
            return
        lost, sound = list(checks.lost[contract.id].values()), checks.shards[contract.id]
        store, encoder, made = self._verifier.sound_store(contract), None, list[str]()
        windows, without_text = _plan(lost, self._texts, store)
        if not (findings or windows):
            return
        try:
            if not self._dry_run:
                # Load what computes the vectors before anything is moved.
                if is_derived(contract):
                    read_projection(Cache(self.folder), self._known_as(contract))
                elif windows:
                    encoder = self._load(contract, chain(store.shards, lost))
                    refuse_changed_server(store, lambda: self._texts, lambda s: encoder.encode(s).vectors)
                    Probes.draw(store, self._texts).check(encoder)
                if findings:
                    self._clear(contract, {one.path for one in findings})
                codec = lost[0].header.codec if lost and not sound.names() else None
                made = self._store(contract, windows, encoder, codec)
        except EmbedCacheError as error:
            for finding in findings or [Finding(folder, Kind.SHARD.value, "", "")]:
                self._done(finding, LEFT, first_line(error))
            return
        self.rows += sum(map(len, windows))
        for number, finding in enumerate(findings):
            if without_text and number == 0:
                self._done(finding, LOST, f"no sound corpus has the texts of {without_text:,} rows")
            elif windows or _name(finding) in made:
                detail = "identical" if _name(finding) in made else "not identical"
                self._done(finding, ENCODED, "" if self._dry_run else detail)
            else:
                known = any(_name(finding) == shard.name for shard in lost)
                self._done(finding, MOVED, "no text lacks a vector without it" if known else _UNKNOWN_ROWS)

    def _clear(self, contract: Contract, paths: set[str]) -> None:
        """Move damaged files of a teacher aside; whole shards of a damaged LMDB file become files."""
        lmdb = {entry.path for entry in self._verifier.files(contract.id, Kind.STORE, Kind.SEAL)}
        for path in paths - lmdb:
            self._move_aside(path)
        files = FolderShards(self.folder / "teachers" / contract.id / "shards")
        sound = self._verifier.checks.shards[contract.id]
        for name in sound.names() if lmdb else ():
            files.add(name, sound.open(name))
        for path in lmdb:
            self._move_aside(path)

    def _store(
        self, contract: Contract, windows: Sequence[KeyArray], encoder: TextEncoder | None, codec: str | None
    ) -> list[str]:
        """Encode and store the planned vectors; return the names of all shards and codebooks."""
        cache = Cache(self.folder)
        store = cache.store(contract, codec)
        if encoder is not None:
            self._encode(store, encoder, windows)
        store.finish()
        if is_derived(contract):
            lost = KeyIndex(np.concatenate([_NO_KEYS, *windows]))
            for texts in self._texts:
                if any((lost.locate(keys) >= 0).any() for keys in texts.iter_keys()):
                    extend(cache, self._known_as(contract), texts)
        codebooks = list_folder(cache.teacher_folder(contract) / "codebooks")
        return [*cache.container(contract).names(), *(file.removesuffix(".npy") for file in codebooks)]

    def _encode(self, store: ShardStore, encoder: TextEncoder, windows: Sequence[KeyArray]) -> None:
        """Encode and store the rows of each window; its batches are kept as in a build."""
        self._progress.phase("encode", sum(map(len, windows)))
        texts = (cast("list[str]", find_texts(keys, self._texts)) for keys in windows)
        lost = KeyIndex(np.concatenate(windows))
        derived = Cache(self.folder).derived_folder
        pending = PendingWork(derived, store, encoder, lambda keys: lost.locate(keys) >= 0)
        with pending, closing(encoder.encode_windows(texts, pending.keep_if_due, pending)) as results:
            for keys, encoded in zip(windows, results, strict=True):
                if len(bad := np.flatnonzero(~np.isfinite(encoded.vectors).all(axis=1))):
                    (text,) = find_texts(keys[bad[:1]], self._texts)
                    raise NonFiniteVectorError(f"the teacher returned NaN or infinity for {str(text)[:80]!r}")
                store.put(VectorBatch(keys, *encoded, encoder.provenance))
                pending.stored()
                self._progress.advance(len(keys))

    def _load(self, contract: Contract, shards: Iterable[Shard]) -> TextEncoder:
        """Return the encoder of a teacher, to compute as it did for some shards."""
        if self._encoder is None or self._encoder.teacher.contract != contract:
            known = self._known_as(contract)
            self._progress.phase(f"load teacher {known.name}")
            spec = Cache(self.folder).model_source(known)
            self._encoder = self._computing.encoder(contract, spec=spec, name=known.name, shards=shards)
        return self._encoder


def _name(finding: Finding) -> str:
    """Return the name of the shard or codebook of a finding."""
    return finding.path.partition("#")[2] or PurePosixPath(finding.path).stem


def _plan(lost: Sequence[Shard], corpora: Sequence[Corpus], store: ShardStore) -> tuple[list[KeyArray], int]:
    """Plan what to encode in place of lost shards.

    A shard whose texts are all known comes back with its rows, in their order. The texts of other lost shards
    are found as texts without a vector.

    Args:
        lost: header and keys of the lost shards, where they are known.
        corpora: sound corpora and views.
        store: the teacher's sound shards.

    Returns:
        Keys of each shard to be, in the order of the corpora; number of lost rows whose text no corpus has.
    """
    all_lost = np.concatenate([_NO_KEYS, *(shard.keys for shard in lost)])
    rows = find_rows(all_lost, corpora)
    ranked, without_text = list[tuple[int, KeyArray]](), 0
    for shard, found in zip(lost, np.split(rows, np.cumsum([*map(len, lost)])[:-1]), strict=False):
        is_missing = store.locate(shard.keys) < 0
        unknown = int((is_missing & (found < 0)).sum())
        without_text += unknown
        if is_missing.any() and not unknown:
            ranked.append((int(found[found >= 0].min()), shard.keys[found >= 0]))
    windows = [keys for _, keys in sorted(ranked, key=lambda one: one[0])]
    rows_each = max(map(len, chain(store.shards, lost)), default=DEFAULT_SHARD_ROWS)
    # A key may be damaged itself: then its text is among those that lack a vector.
    lost_keys = KeyIndex(all_lost)
    for _, missing in rows_without_vector(corpora, store, lost_keys):
        keys = missing.keys()
        has_begun = len(missing) < missing.distinct or (lost_keys.locate(keys) >= 0).any()
        # The teacher need not have encoded every corpus.
        if has_begun or not (lost or store.shards):
            keys = keys[KeyIndex(np.concatenate([_NO_KEYS, *windows])).locate(keys) < 0]
            without_text = max(0, without_text - len(keys))
            windows += [keys[start : start + rows_each] for start in range(0, len(keys), rows_each)]
    return windows, without_text
