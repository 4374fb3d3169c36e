"""Pulling: what a remote has and a cache lacks is fetched.

Everything is planned before anything is written: which manifests count, which versions are meant, whether
each path is one that a cache has, how many bytes it takes. Then files arrive in an order in which the cache
is valid at every moment, so that a pull that was killed has lost nothing, and the next goes on from there.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from embedcache.cache import Cache
from embedcache.check.bench import Bench
from embedcache.check.findings import Kind
from embedcache.check.live import Computing
from embedcache.check.progress import Meter, OnCheck
from embedcache.check.verify.corpora import check_rows
from embedcache.corpus.description import check_name
from embedcache.errors import InputError, RemoteError, StorageError
from embedcache.share.arrive import Arrivals
from embedcache.share.documents import Documents
from embedcache.share.layout import STAGES, stage_of
from embedcache.share.manifest import Stock
from embedcache.share.plan_corpora import CorpusChoice, CorpusPlanner
from embedcache.share.plan_teachers import TeacherPlanner
from embedcache.share.remote import Remote
from embedcache.share.remotes import location_of
from embedcache.share.sample import SampleCheck, check_samples
from embedcache.share.sign import PublicKey, signed_manifests
from embedcache.share.transfer import JOBS, run_all
from embedcache.share.wanted import PullPlan, Wanted

# What other processes may write to the disk meanwhile.
_SPARE_BYTES = 64 << 20


@dataclass(frozen=True)
class PullResult:
    """What a pull did.

    Attributes:
        remote: from where.
        manifests: how many manifests were looked at.
        fetched: files fetched.
        fetched_bytes: their size.
        fetched_rows: rows of those: of shards and of parts of corpora.
        present: files that the cache had already.
        present_bytes: their size.
        told: what is worth telling: versions and names that stayed as they are in the cache.
        samples: what became of comparing samples with the live teachers, on the first pull of each.
        seconds: how long the transfer took, without that comparison.
    """

    remote: str
    manifests: int
    fetched: int
    fetched_bytes: int
    fetched_rows: int
    present: int
    present_bytes: int
    told: tuple[str, ...]
    samples: tuple[SampleCheck, ...]
    seconds: float

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return asdict(self)


def pull(
    cache: Cache | str | Path,
    remote: str,
    *,
    teachers: Collection[str] = (),
    corpora: Collection[str] = (),
    text: bool = True,
    alias: str | None = None,
    max_bytes: int | None = None,
    require_signature: str | Path | None = None,
    sample_check: bool = True,
    computing: Computing | None = None,
    jobs: int = JOBS,
    on_progress: OnCheck | None = None,
) -> PullResult:
    """Fetch what ``remote`` has and ``cache`` lacks. Repeated, it fetches only what is still missing.

    Args:
        cache: the cache or its folder, which is made where there is none.
        remote: the name or the URL of a remote.
        teachers: pull these alone, names or contract ids; default: all.
        corpora: pull these alone, ``NAME`` or ``NAME@DIGEST``; default: all. Vectors are not chosen by it.
        text: whether corpora and their views are pulled.
        alias: what the one corpus of ``corpora``, or else the one teacher of ``teachers``, is called here.
        max_bytes: refuse to fetch more than this.
        require_signature: file of a public ed25519 key; only manifests that it signed are looked at.
        sample_check: whether a sample of each teacher that is new here is compared with the live teacher,
            where its model is on this machine.
        computing: how to run that teacher; default: as when the vectors were made.
        jobs: transfers at once.
        on_progress: called as the work goes on.

    Raises:
        InputError: if a name is not there, several versions are and none was chosen, the cache holds another
            one, or more than ``max_bytes`` would have to be fetched. Nothing was written then.
        ContractMismatchError: if a teacher's name is another's in the cache.
        RemoteError: if the remote cannot be reached, or what lies there is refused.
        StorageError: if the cache cannot be written; what has arrived stays.
    """
    started = time.perf_counter()
    if corpora and not text:
        raise InputError(
            "--corpus together with --no-text: with the one texts are pulled, with the other none"
        )
    if alias is not None and len(corpora or teachers) != 1:
        raise InputError("--as needs one --corpus, or else one --teacher, that it is another name of")
    if alias is not None:
        check_name(alias)
    key = None if require_signature is None else PublicKey.load(Path(require_signature))
    stop = threading.Event()
    source = Remote(location_of(remote), stop=stop)
    meter = Meter(on_progress)
    meter.begin("read the remote")
    source.require()
    opened = _opened(cache)
    stock = Stock(source.manifests(opened, None if key is None else signed_manifests(source, key)))
    choices = [CorpusChoice.parse(one) for one in corpora or stock.corpus_names] if text else []
    with TemporaryDirectory(prefix="embedcache-pull-") as scratch:
        plan = _plan(
            source, stock, opened, Path(scratch), teachers, choices, alias, names_corpus=bool(corpora)
        )
    if not plan.wanted:
        raise InputError(f"nothing to pull: {source.where} has no teacher and no corpus that was asked for")
    if opened is None:
        _refuse_too_much(_folder(cache), sum(one.file.bytes for one in plan.wanted), max_bytes)
    # From here on something is written.
    target = opened or Cache.create(_folder(cache))
    codebooks = [one.file.sha256 for one in plan.wanted if one.entry.kind is Kind.CODEBOOK]
    arrivals = Arrivals(source, target, plan.contracts, codebooks, meter)
    missing = [one for one in plan.wanted if not arrivals.has(one)]
    size = sum(one.file.bytes for one in missing)
    _refuse_too_much(target.folder, size, max_bytes)
    meter.begin("fetch", total_files=len(missing), total_bytes=size)
    try:
        _fetch(source, target, arrivals, missing, jobs)
    finally:
        arrivals.finish()
    seconds = time.perf_counter() - started
    samples: tuple[SampleCheck, ...] = ()
    if sample_check:
        samples = check_samples(target, source, plan.contracts, computing or Computing(), on_progress)
    present = len(plan.wanted) - len(missing)
    return PullResult(
        remote=source.where,
        manifests=len(stock.manifests),
        fetched=len(missing),
        fetched_bytes=size,
        fetched_rows=sum(one.file.rows for one in missing),
        present=present,
        present_bytes=sum(one.file.bytes for one in plan.wanted) - size,
        told=tuple(plan.told),
        samples=samples,
        seconds=seconds,
    )


def _folder(cache: Cache | str | Path) -> Path:
    return cache.folder if isinstance(cache, Cache) else Path(cache).expanduser()


def _opened(cache: Cache | str | Path) -> Cache | None:
    """Return the cache, or None where there is none yet."""
    if isinstance(cache, Cache):
        return cache
    folder = _folder(cache)
    # What was killed as it made the cache has left names that begin with a dot.
    is_new = not folder.exists() or (
        folder.is_dir() and all(entry.name.startswith(".") for entry in folder.iterdir())
    )
    return None if is_new else Cache(folder)


def _plan(
    source: Remote,
    stock: Stock,
    cache: Cache | None,
    scratch: Path,
    teachers: Collection[str],
    choices: Sequence[CorpusChoice],
    alias: str | None,
    *,
    names_corpus: bool,
) -> PullPlan:
    """Return what is to be fetched; ``alias`` is the name of a corpus, or else of a teacher."""
    documents = Documents(source, scratch)
    of_teachers = TeacherPlanner(stock, documents, cache, source.where)
    of_corpora = CorpusPlanner(stock, documents, cache, source.where)
    wanted = of_teachers.plan(of_teachers.choose(teachers), None if names_corpus else alias)
    wanted += of_corpora.plan(choices, alias if names_corpus else None)
    return PullPlan(wanted, of_teachers.contracts, [*of_teachers.told, *of_corpora.told])


def _refuse_too_much(folder: Path, size: int, most: int | None) -> None:
    if most is not None and size > most:
        raise InputError(
            f"{size:,} bytes would have to be fetched, more than the {most:,} of --max-bytes: allow more, or "
            "pull less with --teacher, --corpus or --no-text"
        )
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    free = shutil.disk_usage(there).free
    if size + _SPARE_BYTES > free:
        raise StorageError(
            f"cannot write {folder}: {size:,} bytes would have to be fetched, and {free:,} are free; make "
            "room, or pull less with --teacher, --corpus or --no-text"
        )


def _fetch(source: Remote, cache: Cache, arrivals: Arrivals, missing: Sequence[Wanted], jobs: int) -> None:
    for number, kinds in enumerate(STAGES):
        batch = [one for one in missing if stage_of(one.entry) == number]
        if Kind.CORPUS in kinds:
            for one in batch:
                _refuse_wrong_rows(source, cache, one)
        # The largest first, or the last one would leave the other threads idle.
        batch.sort(key=lambda one: -one.file.bytes)
        run_all(arrivals.fetch, batch, jobs=jobs, stop=source.stop)


def _refuse_wrong_rows(source: Remote, cache: Cache, described: Wanted) -> None:
    """Look at all rows of a corpus or a view, whose parts are there, before it is described.

    Raises:
        RemoteError: if a key is not that of its text, rows are missing, or others than described.
    """
    folder = described.path.rpartition("/")[0]
    if described.info is None:
        return
    for finding in check_rows(Bench(cache.folder), folder, described.info, ()):
        raise RemoteError(
            f"{described.file.path} of {source.where} is refused ({finding.path}: {finding.found}): it is "
            "damaged or hostile; pull others alone, with --corpus ('embedcache gc' takes away what has "
            "arrived of it)"
        )
