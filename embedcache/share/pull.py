"""Pull: read the manifests, download missing files into a quarantine, check it, then admit it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from embedcache.cache import Cache
from embedcache.corpus.subset import copy_rows, subset_name, text_keys
from embedcache.inventory import Kind
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.share.files import Selection, local_corpora, missing_files
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import LEAVE_OUT, SharedFile
from embedcache.share.plan import Plan, select_manifests
from embedcache.share.remote import Remote
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import SampleCheck, compare, local_encoder
from embedcache.store import ShardStore


@dataclass(frozen=True)
class PullResult:
    """Result of a pull, or with ``dry_run`` the most it would bring.

    Attributes:
        remote: its URL.
        files: files that came.
        bytes: their size.
        corpora: names of the corpora that came.
        vectors: rows of vectors that came, by the teacher's name.
        left_out: files on the remote under names that the cache uses for other content.
        samples: comparisons of vectors with the live teacher and with the cache's own.
    """

    remote: str
    files: int
    bytes: int
    corpora: list[str]
    vectors: dict[str, int]
    left_out: list[str]
    samples: list[SampleCheck]

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
    dry_run: bool = False,
    progress: Progress = NO_PROGRESS,
) -> PullResult:
    """Fetch the files of a remote that a cache lacks; a missing cache is created.

    What is downloaded is checked and compared before anything of it enters the cache. Vectors that are not
    the teacher's are refused with everything else of that teacher.

    Args:
        cache: the cache's folder.
        remote: name or URL of the remote.
        selection: files to fetch; default: everything.
        max_bytes: refuse to fetch more than this.
        require_signature: file of public ed25519 keys; only manifests that one of them signed count.
        skip_manifests: beginnings of digests of manifests that do not count.
        dry_run: fetch nothing, and return the most that would be: which vectors a corpus needs is not known
            before its texts are here.
        progress: receives what is done.

    Raises:
        InputError: if something asked for is not on the remote, or is more than ``max_bytes``.
        ContractMismatchError: if a teacher of the same name has another contract; it names the fields.
        RemoteError: if the remote cannot be reached, or what lies there is refused; nothing of it enters.
        StorageError: if the disk has no room, or the cache cannot be written.
    """
    folder, selection = Path(cache).expanduser(), selection or Selection()
    source = Remote(remote)
    source.refuse_nested(folder)
    here = Cache(folder) if (folder / "cache.json").exists() else None
    listed = select_manifests(source.open(), here, require_signature, skip_manifests)
    plan = Plan.make(source, listed, here, selection)
    if dry_run:
        return _result(source, plan, plan.files if here is None else missing_files(here, plan.files), [])
    target = here or Cache.create(folder)
    incoming = Incoming(target, source, listed, max_bytes=max_bytes, progress=progress)
    with incoming.locked(plan.files):
        texts, shards = plan.texts, plan.shards
        # Which vectors a corpus needs is known when its texts are here.
        incoming.fetch("pull", [*texts, *plan.documents] if selection.corpora else plan.files)
        incoming.check_corpora(plan.corpora, texts)
        incoming.check_documents(plan.documents)
        names = {*plan.corpora}
        if selection.where is not None:
            texts = _take_part(incoming.staged, names.pop(), selection.where)
            names = {file.entry.corpus for file in texts}
        if selection.corpora and shards:
            shards = _shards_of(incoming, names, shards)
            incoming.fetch("pull vectors", shards)
        samples, admitted, stores = list[SampleCheck](), list(texts), dict[str, ShardStore]()
        for contract_id in plan.teachers:
            mine = [one for one in (*plan.documents, *shards) if one.entry.teacher == contract_id]
            if mine:
                sample, stores[contract_id] = _check_teacher(incoming, mine)
                samples += [] if sample is None else [sample]
                admitted += [] if sample is not None and sample.is_bad else mine
        new = incoming.admit(admitted, {one: store.container for one, store in stores.items()})
    for store in stores.values():
        store.container.finish()
    return _result(source, plan, new, samples)


def _result(
    source: Remote, plan: Plan, files: Sequence[SharedFile], samples: list[SampleCheck]
) -> PullResult:
    corpora = sorted({file.entry.corpus for file in files} - {""})
    vectors: Counter[str] = Counter()
    for file in files:
        if file.rows:
            vectors[plan.teachers[file.entry.teacher][0]] += file.rows
    size = sum(file.bytes for file in files)
    return PullResult(source.url, len(files), size, corpora, dict(vectors), plan.left_out, samples)


def _shards_of(incoming: Incoming, names: Collection[str], missing: Sequence[SharedFile]) -> list[SharedFile]:
    """Return those of the missing shards that hold vectors of corpora, here or in the quarantine."""
    known = [(cache, name) for cache in (incoming.staged, incoming.cache) for name in cache.corpus_names()]
    keys = np.concatenate([text_keys(cache.corpus(name)) for cache, name in known if name in names])
    teachers = sorted({shard.entry.teacher for shard in missing})
    lists = [RemoteKeys(incoming, incoming.listed.shards(one)) for one in teachers]
    needed = {shard.sha256 for one in lists for shard in one.shards_with(keys)}
    return [shard for shard in missing if shard.sha256 in needed]


def _take_part(staged: Cache, name: str, where: str) -> list[SharedFile]:
    """Replace a corpus in the quarantine by chosen rows; return their files."""
    from embedcache.querying import select_rows

    corpus, part = staged.corpus(name), subset_name(name, where)
    copy_rows(corpus, select_rows(staged, name, where), staged.corpora_folder, part)
    shutil.rmtree(corpus.folder)
    return local_corpora(staged, Selection(corpora=[part]))[0].documents


def _check_teacher(incoming: Incoming, files: Sequence[SharedFile]) -> tuple[SampleCheck | None, ShardStore]:
    """Check a teacher's shards and compare its vectors.

    Returns:
        The comparison, None where there is nothing to compare; and the cache's store of the teacher.
    """
    cache, staged, shards = incoming.cache, incoming.staged, [file for file in files if file.rows]
    teachers = (*cache.teachers(), *staged.teachers())
    teacher = next(one for one in teachers if one.contract.id == files[0].entry.teacher)
    came, own = incoming.open_store(teacher.contract, shards), cache.store(teacher.contract)
    tables = [file for file in files if file.entry.kind is Kind.TABLE]
    if not (shards or tables):
        return None, own
    corpora = [texts for one in (*staged.corpora(), *cache.corpora()) for texts in (one, *one.views())]
    load = partial(local_encoder, cache, teacher, came)
    table = incoming.path(tables[0]) if tables else None
    sample = compare(teacher.name, came, own, corpora, load, table=table, progress=incoming.progress)
    if sample.is_bad:
        pushed = incoming.listed.pushed_by([file.sha256 for file in (*shards, *tables)])
        message = f"{sample.message}. Refused, pushed in {pushed}. {LEAVE_OUT}"
        sample = replace(sample, message=message)
    return sample, own
