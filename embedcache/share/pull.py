"""Pull: read the manifests, download what is missing into a quarantine, check it, then admit it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import DESCRIPTION
from embedcache.corpus.subset import copy_rows, subset_name, text_keys
from embedcache.errors import InputError, RemoteError, StorageError
from embedcache.fsio import sha256_file
from embedcache.inventory import Kind
from embedcache.keys import KeyArray
from embedcache.live import Computing
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.files import Selection, corpus_paths, missing_files
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import ManifestSet, SharedFile, names_beginning
from embedcache.share.plan import Plan
from embedcache.share.remote import Remote
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import SampleCheck, compare, local_teacher
from embedcache.share.sign import require_signed
from embedcache.sizes import readable

_RESERVE_BYTES = 64 << 20


@dataclass(frozen=True)
class PullResult:
    """Result of a pull, or with ``dry_run`` the most it would fetch.

    Attributes:
        remote: its URL.
        files: files that came.
        bytes: their size.
        corpora: names of the corpora that came.
        vectors: rows of vectors that came, by the teacher's name.
        left_out: what is on the remote under a name that the cache uses for something else.
        samples: how vectors compare with the teacher and with one's own.
    """

    remote: str
    files: int
    bytes: int
    corpora: list[str]
    vectors: dict[str, int]
    left_out: list[str]
    samples: list[SampleCheck] = field(default_factory=list)

    @property
    def is_bad(self) -> bool:
        """True if a teacher was refused because its vectors are not the teacher's."""
        return any(sample.is_bad for sample in self.samples)


def pull(
    cache: str | Path,
    remote: str,
    selection: Selection | None = None,
    *,
    max_bytes: int | None = None,
    require_signature: str | Path | None = None,
    skip_manifests: Sequence[str] = (),
    sample_check: bool = True,
    computing: Computing | None = None,
    dry_run: bool = False,
    progress: Progress = NO_PROGRESS,
) -> PullResult:
    """Fetch what a remote has and a cache lacks; the cache is made where there is none.

    What is downloaded is checked and compared before anything of it enters the cache. Vectors that are not
    the teacher's are refused with everything else of that teacher.

    Args:
        cache: the cache's folder.
        remote: name or URL of the remote.
        selection: what to fetch; default: everything.
        max_bytes: refuse to fetch more than this.
        require_signature: file of public ed25519 keys; only manifests that one of them signed count.
        skip_manifests: beginnings of digests of manifests that do not count.
        sample_check: compare a sample of vectors with the live teacher and with one's own.
        computing: how to run the teacher.
        dry_run: fetch nothing, and return the most that would be: which vectors a corpus needs is not known
            before its texts are here.
        progress: receives what is done.

    Raises:
        InputError: if something asked for is not on the remote, or is more than ``max_bytes``.
        ContractMismatchError: if a teacher of the same name has another contract; it names the fields.
        RemoteError: if the remote cannot be reached, or what lies there is refused; nothing of it enters.
        StorageError: if the disk has no room, or the cache cannot be written.
    """
    folder, chosen = Path(cache).expanduser(), selection or Selection()
    source = Remote(remote)
    source.refuse_nested(folder)
    here = Cache(folder) if (folder / "cache.json").exists() else None
    listed = select_manifests(source.open(), here, require_signature, skip_manifests)
    if dry_run:
        plan = Plan.make(source, listed, here, chosen)
        return _result(source, plan, plan.files)
    return pull_listed(
        source,
        listed,
        here or folder,
        chosen,
        max_bytes=max_bytes,
        sample_check=sample_check,
        computing=computing,
        progress=progress,
    )


def pull_listed(
    source: Remote,
    listed: ManifestSet,
    cache: Cache | Path,
    selection: Selection,
    *,
    max_bytes: int | None = None,
    sample_check: bool = True,
    computing: Computing | None = None,
    progress: Progress = NO_PROGRESS,
) -> PullResult:
    """Fetch what manifests list and a cache lacks; see :func:`pull`.

    Args:
        source: the remote.
        listed: the manifests that count.
        cache: the cache, or the folder of a new one.
        selection, max_bytes, sample_check, computing, progress: as for :func:`pull`.
    """
    plan = Plan.make(source, listed, cache if isinstance(cache, Cache) else None, selection)
    opened = cache if isinstance(cache, Cache) else Cache.create(cache)
    texts, shards, lists = plan.texts, plan.shards, list[RemoteKeys]()
    if selection.corpora and (plan.shards or selection.is_part):
        lists = [RemoteKeys(opened, source, listed.shards(one), progress) for one in plan.teachers]
    key_bytes = sum(one.missing_bytes for one in lists)
    refuse_too_much(opened.folder, plan.texts if lists else plan.files, max_bytes, key_bytes)
    incoming = Incoming(opened, source, listed, progress)
    with incoming.locked(plan.files) as staged:
        incoming.fetch("pull texts", plan.texts)
        incoming.check_corpora(plan.texts, plan.corpora)
        if lists:
            if selection.is_part:
                texts, keys = _take_part(incoming, staged, staged.corpus(*plan.corpora), selection)
            else:
                keys = _corpus_keys((staged, opened), plan.corpora)
            shards = missing_files(opened, (shard for one in lists for shard in one.shards_with(keys)))
            refuse_too_much(opened.folder, [*plan.texts, *plan.documents, *shards], max_bytes, key_bytes)
        incoming.fetch("pull vectors", [*plan.documents, *shards])
        samples, admitted = [], list(texts)
        for contract_id in plan.teachers:
            mine = [one for one in (*plan.documents, *shards) if one.entry.teacher == contract_id]
            sample = _check_teacher(incoming, staged, mine, sample_check, computing) if mine else None
            samples += [] if sample is None else [sample]
            admitted += [] if sample is not None and sample.is_bad else mine
        incoming.admit(admitted)
    return _result(source, plan, admitted, samples)


def _result(
    source: Remote, plan: Plan, files: Sequence[SharedFile], samples: Sequence[SampleCheck] = ()
) -> PullResult:
    corpora = sorted({file.entry.corpus for file in files} - {""})
    vectors: Counter[str] = Counter()
    for file in files:
        if file.rows:
            vectors[plan.teachers[file.entry.teacher][0]] += file.rows
    size = sum(file.bytes for file in files)
    return PullResult(source.url, len(files), size, corpora, dict(vectors), plan.left_out, list(samples))


def select_manifests(
    source: Remote,
    cache: Cache | None,
    require_signature: str | Path | None = None,
    skip_manifests: Sequence[str] = (),
) -> ManifestSet:
    """Return the manifests that are signed as required and not skipped.

    Raises:
        InputError: if ``skip_manifests`` names none.
        RemoteError: if none is signed, or one cannot be used.
    """
    names = source.manifest_names()
    if not names:
        raise RemoteError(f"{source.url}: nothing was pushed there yet.")
    skipped = names_beginning(names, skip_manifests, source.url)
    names = [name for name in names if name not in skipped]
    if require_signature is not None:
        names = require_signed(source, names, require_signature)
    return source.manifests(cache, names)


def refuse_too_much(folder: Path, files: Iterable[SharedFile], max_bytes: int | None, more: int = 0) -> None:
    """Refuse to fetch more bytes than allowed, or than the disk has room for.

    Args:
        folder: where they go.
        files: the files.
        max_bytes: how many bytes are allowed; None: any number.
        more: bytes beside the files.

    Raises:
        InputError: if they are more than ``max_bytes``.
        StorageError: if the disk has no room for them.
    """
    size = sum(file.bytes for file in files) + more
    if max_bytes is not None and size > max_bytes:
        raise InputError(
            f"{readable(size)} would be fetched, --max-bytes allows {max_bytes:,}. Raise it, or fetch less."
        )
    free = shutil.disk_usage(folder).free
    if size and size + _RESERVE_BYTES > free:
        raise StorageError(
            f"{folder}: {readable(size)} would be fetched, {free:,} bytes are free. Make room."
        )


def _corpus_keys(caches: Iterable[Cache], names: Iterable[str]) -> KeyArray:
    """Return the keys of corpora and their views, which may lie in either cache."""
    folders = [cache.corpora_folder / name for cache in caches for name in names]
    places = [path.parent for folder in folders for path in folder.rglob(DESCRIPTION)]
    return np.concatenate([Corpus(place).keys() for place in places])


def _take_part(
    incoming: Incoming, staged: Cache, corpus: Corpus, selection: Selection
) -> tuple[list[SharedFile], KeyArray]:
    """Replace a corpus in the quarantine by chosen rows; return their missing files, and the keys."""
    rows = np.arange(len(corpus), dtype=np.int64)
    if selection.where is not None:
        from embedcache.querying import select_rows

        rows = select_rows(staged, corpus.name, selection.where)
    rows = rows if selection.rows is None else rows[: selection.rows]
    keys, part = text_keys(corpus, rows), corpus
    name = subset_name(corpus.name, len(corpus), selection.rows, selection.where)
    if name != corpus.name:
        part = copy_rows(corpus, rows, staged.corpora_folder, name)
        shutil.rmtree(corpus.folder)
    own = incoming.cache.corpora_folder / name
    if (own / DESCRIPTION).is_file() and Corpus(own).info.digest != part.info.digest:
        raise InputError(f"the cache has another corpus {name!r}. Pull the part into another cache.")
    files = []
    for path in (path for one in (part, *part.views()) for path in corpus_paths(one)):
        place = path.relative_to(staged.folder).as_posix()
        files.append(SharedFile(path=place, sha256=sha256_file(path), bytes=path.stat().st_size))
    return missing_files(incoming.cache, files), keys


def _check_teacher(
    incoming: Incoming,
    staged: Cache,
    files: list[SharedFile],
    sample_check: bool,
    computing: Computing | None,
) -> SampleCheck | None:
    """Check a teacher's files and compare its vectors; None where nothing was compared."""
    cache, contract = incoming.cache, incoming.contract(files[0].entry.teacher)
    came = incoming.open_store(contract, files)
    table = next((incoming.path(file) for file in files if file.entry.kind is Kind.TABLE), None)
    if not (came.shards or table) or not sample_check:
        return None
    teacher = incoming.teacher(contract.id)
    corpora = [texts for one in (*staged.corpora(), *cache.corpora()) for texts in (one, *one.views())]
    load = partial(local_teacher, cache, teacher, came, computing)
    sample = compare(
        came, cache.store(contract), teacher, corpora, load, table=table, progress=incoming.progress
    )
    if not sample.is_bad:
        return sample
    pushed = incoming.listed.pushed_by([file.sha256 for file in files if file.rows or table])
    message = f"{sample.message}; refused, pushed in {pushed}: --skip-manifest leaves it out"
    return replace(sample, message=message)
