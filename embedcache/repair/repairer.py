"""Repair of a cache: documents first, then vectors.

Nothing is guessed and nothing is deleted. What cannot be repaired stays and is listed with what to do.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.cache import CACHE_MARKER, read_origin
from embedcache.cached_teacher import noted_model
from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, TeacherError
from embedcache.fsio import write_json, write_sealed_json
from embedcache.inventory import Kind, entry_at
from embedcache.live import Computing
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import is_derived
from embedcache.repair.fixes import LEFT, MADE, Repair, Work
from embedcache.repair.vectors import VectorRepair
from embedcache.teacher.aliases import ALIASES
from embedcache.teacher.resolve import origin_of, resolve
from embedcache.verify import Verifier
from embedcache.verify.files import UPGRADE

if TYPE_CHECKING:
    from embedcache.teacher.encode import Encoder


def repair(
    cache: str | Path,
    *,
    computing: Computing | None = None,
    encoder: Encoder | None = None,
    dry_run: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Repair:
    """Bring back what is damaged in a cache. Killed, it goes on when it is run again.

    Args:
        cache: its folder.
        computing: how to run teachers; default: as when their vectors were made.
        encoder: an encoder of one of the teachers.
        dry_run: only plan; no teacher is loaded.
        progress: receives what is done.

    Raises:
        MissingInputError, CacheFormatError: if the folder is no cache.
        StorageError: if the cache cannot be written; what was repaired before stays.
    """
    started = time.perf_counter()
    work = Work(Verifier(cache, progress), computing or Computing(), dry_run=dry_run)
    is_newer = any(one.path == "cache.json" and one.fix == UPGRADE for one in work.findings)
    # A link may lead out of the cache: nothing is written while there is one.
    if not is_newer and not work.damage(Kind.SPECIAL):
        _repair_all(work, encoder)
    done = {fix.path for fix in work.fixes}
    for finding in work.findings:
        if finding.path not in done:
            work.done(finding, LEFT, f"{finding.what}; {finding.fix}")
    return Repair(str(work.folder), dry_run, tuple(work.fixes), work.rows, time.perf_counter() - started)


def _repair_all(work: Work, encoder: Encoder | None) -> None:
    for finding in work.damage(Kind.MARKER):
        work.move_aside(finding.path)
        if not work.dry_run:
            write_sealed_json(work.folder / finding.path, CACHE_MARKER)
        work.done(finding, MADE)
    found = map(work.verifier.contract, work.verifier.teacher_ids())
    contracts = [contract for contract in found if contract is not None]
    for contract in contracts:
        _repair_documents(work, contract)
    vectors = VectorRepair(work, encoder)
    # Projections are made of the vectors of other teachers.
    for contract in sorted(contracts, key=is_derived):
        vectors.repair(contract)


def _repair_documents(work: Work, contract: Contract) -> None:
    """Write a teacher's contract and names again."""
    folder = f"teachers/{contract.id}/"
    for finding in work.damage(Kind.CONTRACT, folder=folder):
        work.move_aside(finding.path)
        if not work.dry_run:
            write_json(work.folder / finding.path, contract.to_json())
        work.done(finding, MADE, "from the header of a shard")
    for finding in work.damage(Kind.NAME, folder=folder):
        stem = entry_at(finding.path).stem
        # Where all names are lost, a file NAME.json stands for them.
        name = contract.id[:12] if stem == "NAME" else stem
        origin = _origin(work, contract, name)
        work.move_aside(finding.path)
        if not work.dry_run:
            write_sealed_json(work.folder / folder / "names" / f"{name}.json", origin)
        unknown = "" if origin else "; where its model came from is not known, see --teacher-model"
        work.done(finding, MADE, f"as {name}{unknown}")


def _origin(work: Work, contract: Contract, name: str) -> dict[str, str]:
    """Return where the model of a teacher came from, by what is known; empty if nothing is."""
    note = noted_model(work.folder / "derived", contract.id)
    for spec in (work.computing.teacher_model, note, name if name in ALIASES else None):
        with suppress(TeacherError):
            if spec is not None:
                return origin_of(resolve(spec))
    for path in sorted((work.folder / "teachers" / contract.id / "names").glob("[!.]*.json")):
        with suppress(CorruptCacheError):
            return read_origin(path)
    return {}
