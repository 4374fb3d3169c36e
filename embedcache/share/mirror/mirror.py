"""A mirror: a cache on this machine that has everything of a remote but shards, which come when needed."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from types import TracebackType

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.check.progress import Meter, OnCheck
from embedcache.contract import Contract
from embedcache.errors import InputError, StorageError
from embedcache.fsio import make_directory
from embedcache.share.mirror.limit import refuse_small_limit
from embedcache.share.mirror.shards import MirrorShards
from embedcache.share.mirror.streamed import StreamedStore
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.fetching import fetch_in_stages
from embedcache.share.pulling.plan import Preparation, PullChoice, prepare, refuse_too_much
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.remote import MARKER, Remote
from embedcache.share.remotes import list_remotes, location_of
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.transfer import JOBS
from embedcache.teacher.outputs import LOGITS


def is_remote(place: str) -> bool:
    """Return whether ``place`` is a remote: a URL, a folder that was pushed to, or the name of a remote.

    A folder that is a cache is none.
    """
    if "://" in place:
        return True
    folder = Path(place).expanduser()
    if folder.is_dir():
        return (folder / MARKER).is_file() and not (folder / "cache.json").exists()
    return place in list_remotes()


def default_mirror(remote: str) -> Path:
    """Return where the mirror of a remote lies where nobody says: a folder of the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "embedcache" / "mirrors" / Remote(location_of(remote)).id


class Mirror:
    """A cache that was filled from a remote but for its shards, and what fetches those.

    It is a cache like any other, of which some shards are missing. To be used as a context manager: at its
    end nothing more is fetched.

    Args:
        remote: the name or the URL of a remote.
        folder: the mirror's folder, which may be a cache already; default: :func:`default_mirror`.
        teachers: names or contract ids of teachers whose vectors are wanted; default: all. The documents of
            the others come too, as far as their names are clear.
        corpus: the corpus to have, ``NAME`` or ``NAME@DIGEST``; default: the only one of the remote.
        limit: bytes of fetched shards that are kept at a time; default: any number.
        logits: whether shards of logits, which are small, come at once and as a whole.
        jobs: transfers at once.
        on_progress: called as the work goes on.
        on_wait: told, now and then, which shard is waited for, where that takes more than some seconds; from
            a thread of its own.

    Attributes:
        cache: the mirror.
        corpus: what the corpus is called in it: as on the remote, or otherwise where it has another of that
            name or has this one by another name.
        corpus_on_remote: what it is called on the remote.

    Raises:
        InputError, ContractMismatchError, RemoteError, StorageError: as :func:`embedcache.share.pull`.
    """

    def __init__(
        self,
        remote: str,
        folder: str | Path | None = None,
        *,
        teachers: Collection[str] = (),
        corpus: str | None = None,
        limit: int | None = None,
        logits: bool = False,
        jobs: int = JOBS,
        on_progress: OnCheck | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        place = default_mirror(remote) if folder is None else Path(folder).expanduser()
        self._meter = Meter(on_progress)
        # Processes that train together come here at the same time.
        with _alone(place):
            prepared = _prepare(place, remote, teachers, corpus, self._meter)
            contracts = prepared.plan.contracts
            if limit is not None:
                refuse_small_limit(limit, prepared.plan, teachers, prepared.cache)
            asked = _asked(prepared.plan.wanted, teachers)
            wanted = [
                one
                for one in prepared.plan.wanted
                if (one.entry.kind is not Kind.SHARD or (logits and _is_logits(contracts[one.entry.teacher])))
                and (one.entry.kind is not Kind.TABLE or one.entry.teacher in asked)
            ]
            self.cache = prepared.cache or Cache.create(place)
            codebooks = [one.file.sha256 for one in wanted if one.entry.kind is Kind.CODEBOOK]
            arrivals = Arrivals(prepared.source, self.cache, contracts, codebooks, self._meter)
            missing = [one for one in wanted if not arrivals.has(one)]
            size = sum(one.file.bytes for one in missing)
            refuse_too_much(place, size, None)
            self._meter.begin("fetch", total_files=len(missing), total_bytes=size)
            fetch_in_stages(prepared.source, self.cache, arrivals, missing, jobs)
        self._source = prepared.source
        ((self.corpus_on_remote, self.corpus),) = (
            (PurePosixPath(one.file.path).parent.name, PurePosixPath(one.path).parent.name)
            for one in wanted
            if one.entry.kind is Kind.CORPUS
        )
        listed = {
            contract_id: {shard.sha256: shard for shard in prepared.stock.shards(contract_id)}
            for contract_id in contracts
        }
        self._open_keys: Callable[[str], RemoteKeys] = partial(
            RemoteKeys, prepared.source, self.cache, prepared.stock
        )
        self._shards = MirrorShards(
            prepared.source, self.cache, contracts, listed, arrivals, limit, jobs, on_wait
        )
        self._stores: dict[str, StreamedStore] = {}

    def __enter__(self) -> Mirror:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Fetch nothing more."""
        self._shards.close()

    def store(self, contract: Contract) -> StreamedStore:
        """Return the store of a teacher's vectors.

        Raises:
            InputError: if the remote has no such teacher.
            RemoteError: if the keys of its shards cannot be had.
        """
        if contract.id not in self._stores:
            keys = self._open_keys(contract.id)
            if not keys.shards:
                raise InputError(
                    f"{self._source.where} has no vectors of teacher {contract.id[:12]}: name another "
                    "--teacher"
                )
            index = self.cache.derived_folder / "index" / contract.id
            self._stores[contract.id] = StreamedStore(contract, keys, self._shards, index, self._meter)
        return self._stores[contract.id]


def _prepare(
    place: Path, remote: str, teachers: Collection[str], corpus: str | None, meter: Meter
) -> Preparation:
    """Plan what comes at once: of all teachers, or where two have one name, of those that are asked for."""
    choice = PullChoice(corpora=() if corpus is None else [corpus], into_mirror=True)
    try:
        # What another was derived from, and logits, are teachers of their own.
        return prepare(place, remote, choice, meter)
    except InputError:
        if not teachers:
            raise
    return prepare(place, remote, replace(choice, teachers=teachers), meter)


def _asked(wanted: Sequence[Wanted], teachers: Collection[str]) -> set[str]:
    """Return the contract ids of the teachers with these names or ids; of all where there are none."""
    names = [one.entry for one in wanted if one.entry.kind is Kind.NAME]
    named = {name.teacher for name in names if name.stem in teachers}
    ids = {one.entry.teacher for one in wanted} - {""}
    return named | {one for one in ids if not teachers or any(one.startswith(name) for name in teachers)}


def _is_logits(contract: Contract) -> bool:
    return contract.output == LOGITS


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine from filling the same mirror inside the block."""
    make_directory(folder.parent)
    path = folder.with_name(f".{folder.name}.lock")
    try:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
    except PermissionError as error:
        raise StorageError(f"cannot write {path}: permission denied; give another --mirror") from error
