"""Repair of a cache: documents first, then views, then vectors, each with what was repaired before.

Nothing is guessed and nothing is deleted. What cannot be repaired stays and is listed with what to do.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.cache import CACHE_MARKER, read_origin
from embedcache.cached_teacher import noted_model
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.description import DESCRIPTION, ViewRecord, read_record
from embedcache.corpus.readers import ReadReport
from embedcache.corpus.store import store_corpus
from embedcache.corpus.view_store import rows_of_view
from embedcache.errors import CacheFormatError, CorruptCacheError, EmbedCacheError, TeacherError
from embedcache.fsio import TEMPORARY_PREFIX, commit, write_json, write_sealed_json
from embedcache.inventory import Kind, entry_at
from embedcache.live import Computing
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import is_derived
from embedcache.repair.fixes import LEFT, MADE, WRITTEN, Repair, Work
from embedcache.repair.vectors import VectorRepair
from embedcache.teacher.aliases import ALIASES
from embedcache.teacher.resolve import origin_of, resolve
from embedcache.verify import Verifier
from embedcache.verify.files import UPGRADE
from embedcache.verify.findings import first_line
from embedcache.views.plan import PlannedView

if TYPE_CHECKING:
    from embedcache.teacher.encode import Encoder

_VIEW_KINDS = (Kind.VIEW, Kind.VIEW_PART, Kind.RECIPE)
_BUILD_VIEW = "'embedcache build SRC --name {} --view {}=... --overwrite' makes it again"


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
    return Repair(str(work.folder), dry_run, tuple(work.fixes), time.perf_counter() - started)


def _repair_all(work: Work, encoder: Encoder | None) -> None:
    for finding in work.damage(Kind.MARKER):
        work.move_aside(finding.path)
        if not work.dry_run:
            write_sealed_json(work.folder / finding.path, CACHE_MARKER)
        work.done(finding, WRITTEN)
    for folder in sorted({one.path.rpartition("/")[0] for one in work.damage(*_VIEW_KINDS)}):
        _repair_view(work, folder)
    vectors = VectorRepair(work, encoder)
    contracts = {one: vectors.contract(one) for one in work.verifier.teacher_ids()}
    known = [contract for contract in contracts.values() if contract is not None]
    for contract in known:
        _repair_documents(work, contract)
    # Projections are made of the vectors of other teachers.
    for contract in sorted(known, key=is_derived):
        vectors.repair(contract)


def _repair_view(work: Work, folder: str) -> None:
    """Make the files of a view again, if its recipe needs neither a model nor the source."""
    damaged = [one for one in work.damage(*_VIEW_KINDS) if one.path.rpartition("/")[0] == folder]
    of = work.folder / folder.partition("/views/")[0]
    corpus = next((corpus for corpus in work.texts if corpus.folder == of), None)
    try:
        record = read_record(work.folder / folder)
    except (CorruptCacheError, CacheFormatError):
        return
    problem = ""
    if corpus is None:
        problem = "repair its corpus first"
    elif record.recipe.models or record.recipe.reads_source:
        problem = _BUILD_VIEW.format(corpus.name, record.recipe.name)
    elif not work.dry_run:
        problem = _make_view(work, corpus, record, {one.path for one in damaged})
    for finding in damaged:
        work.done(finding, LEFT if problem else MADE, problem)
    if corpus is not None and not problem and not work.dry_run:
        work.texts.append(View(corpus, record.recipe.name))


def _make_view(work: Work, corpus: Corpus, record: ViewRecord, damaged: Collection[str]) -> str:
    """Make a view beside its folder and take its files from there; return the problem, if there is one."""
    name = record.recipe.name
    staging = corpus.folder / "views" / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    try:
        make = PlannedView(record.recipe, {}, "cpu").maker
        rows = rows_of_view(corpus, lambda first_row, texts: make(texts), Counter())
        fresh, _ = store_corpus(staging, name, rows, ReadReport())
        if fresh.info.digest != record.digest:
            return f"its recipe makes other texts here: {_BUILD_VIEW.format(corpus.name, name)}"
        for file in (*(part.file_name for part in fresh.parts), DESCRIPTION):
            target = corpus.folder / "views" / name / file
            path = target.relative_to(work.folder).as_posix()
            if path in damaged:
                work.move_aside(path)
            if not target.exists():
                commit(fresh.folder / file, target)
    except (EmbedCacheError, ValueError, TypeError, LookupError, OverflowError) as error:
        # A stranger's recipe may be sealed and make no sense.
        return f"it cannot be made again: {first_line(error)}"
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return ""


def _repair_documents(work: Work, contract: Contract) -> None:
    """Write a teacher's contract and names again."""
    folder = f"teachers/{contract.id}/"
    for finding in work.damage(Kind.CONTRACT, folder=folder):
        work.move_aside(finding.path)
        if not work.dry_run:
            write_json(work.folder / finding.path, contract.to_json())
        work.done(finding, WRITTEN, "from the header of a shard")
    for finding in work.damage(Kind.NAME, folder=folder):
        given = entry_at(finding.path).stem
        name, origin = _origin(work, contract, given)
        work.move_aside(finding.path)
        if not work.dry_run:
            write_sealed_json(work.folder / folder / "names" / f"{name}.json", origin)
        unknown = "" if origin else "; where its model came from is not known, see --teacher-model"
        work.done(finding, WRITTEN, f"as {name}{unknown}")


def _origin(work: Work, contract: Contract, name: str) -> tuple[str, dict[str, str]]:
    """Return a name for a teacher and where its model came from; empty where that is not known.

    Args:
        work: the repair.
        contract: the teacher's contract.
        name: the damaged name; ``NAME`` where all are lost.
    """
    given = work.computing.teacher_model
    specs = [given, noted_model(work.folder / "derived", contract.id), name if name in ALIASES else None]
    for spec in specs:
        with suppress(TeacherError):
            if spec is not None:
                source = resolve(spec)
                if spec == given and not work.dry_run:
                    # Refuses the model of another contract.
                    work.computing.encoder(contract, spec=spec, name=source.name, shards=())
                return source.name if name == "NAME" else name, origin_of(source)
    for path in sorted((work.folder / "teachers" / contract.id / "names").glob("[!.]*.json")):
        with suppress(CorruptCacheError):
            return name, read_origin(path)
    return contract.id[:12] if name == "NAME" else name, {}
