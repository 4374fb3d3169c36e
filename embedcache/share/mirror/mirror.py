"""A mirror: a cache on this machine with everything of a remote but shards, which are fetched when needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache, CachedTeacher
from embedcache.check.findings import Kind
from embedcache.check.live import Computing
from embedcache.check.progress import Meter, OnCheck
from embedcache.contract import Contract
from embedcache.errors import InputError, RemoteError, StorageError
from embedcache.fsio import make_directory
from embedcache.locked_folder import locked_file
from embedcache.sample_notes import bad_shards
from embedcache.share.limits import Allowance, refuse_without_room
from embedcache.share.mirror.limit import refuse_small_limit
from embedcache.share.mirror.sample import MirrorSamples, TextsOf
from embedcache.share.mirror.shards import MirrorShards
from embedcache.share.mirror.streamed import StreamedStore
from embedcache.share.mirror_notes import streamed_shards
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.choice import PullChoice
from embedcache.share.pulling.fetching import fetch_in_stages
from embedcache.share.pulling.outcome import bytes_of, unread_bytes_of
from embedcache.share.pulling.plan import Preparation, prepare
from embedcache.share.pulling.sample_check import SampleCheck
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.manifest import SharedFile
from embedcache.share.remote.open_stock import open_remote
from embedcache.share.remote.remote import MARKER, Remote
from embedcache.share.remotes import list_remotes, location_of
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.transfer import JOBS
from embedcache.teacher.outputs import LOGITS

_LESS = "give a folder on another disk with --mirror"
_LESS_BYTES = "train on less: pull a part with 'embedcache pull --rows', and train from that cache"


def is_remote(place: str) -> bool:
    """Return whether ``place`` is a remote: a URL, a folder that was pushed to, or the name of a remote.

    The folder of a cache is no remote.
    """
    if "://" in place:
        return True
    folder = Path(place).expanduser()
    if folder.is_dir():
        return (folder / MARKER).is_file() and not (folder / "cache.json").exists()
    return place in list_remotes()


def default_mirror(remote: str) -> Path:
    """Return the default folder of the mirror of a remote, below the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "embedcache" / "mirrors" / Remote(location_of(remote)).id


class Mirror:
    """A cache that has everything of a remote but some shards, which it fetches when they are needed.

    :meth:`open` fills one. It is a context manager, at whose end nothing more is fetched.

    Args:
        prepared: what the remote has, as it was planned.
        corpus: the description of the corpus in that plan.
        cache: the mirror, which has everything else of the remote.
        shards: fetches shards into it.
        meter: counts row indexes that are fetched.
        is_restricted: whether some pushes to the remote are not looked at.

    Attributes:
        cache: the mirror.
        corpus: name of the corpus in the mirror. It is another than on the remote if the mirror has another
            corpus of that name, or this corpus under another name.
        corpus_on_remote: name of the corpus on the remote.
    """

    def __init__(
        self,
        prepared: Preparation,
        corpus: Wanted,
        cache: Cache,
        shards: MirrorShards,
        meter: Meter,
        *,
        is_restricted: bool = False,
    ) -> None:
        self.cache = cache
        self._source, self._stock = prepared.source, prepared.stock
        self._allowance = prepared.allowance
        self._shards, self._meter = shards, meter
        self._is_restricted = is_restricted
        self._samples = MirrorSamples(cache, prepared.source.id, prepared.plan.contracts)
        self.corpus_on_remote = PurePosixPath(corpus.file.path).parent.name
        self.corpus = PurePosixPath(corpus.path).parent.name
        self._stores: dict[str, StreamedStore] = {}

    @classmethod
    def open(
        cls,
        remote: str,
        folder: str | Path | None = None,
        *,
        teachers: Collection[str] = (),
        corpus: str | None = None,
        require_signature: str | Path | None = None,
        skip_manifests: Collection[str] = (),
        limit: int | None = None,
        max_bytes: int | None = None,
        logits: bool = False,
        jobs: int = JOBS,
        on_progress: OnCheck | None = None,
        on_wait: Callable[[str], None] | None = None,
    ) -> Mirror:
        """Fill a mirror with everything of a remote but shards, and return it.

        Processes that fill the same mirror at the same time take turns.

        Args:
            remote: the name or the URL of a remote.
            folder: the mirror's folder, which may be a cache already; default: :func:`default_mirror`.
            teachers: names or contract ids of teachers whose vectors are wanted; default: all. The documents
                of the others come too, as far as their names are clear.
            corpus: the corpus to have, ``NAME`` or ``NAME@DIGEST``; default: the only one of the remote.
            require_signature: file of a public ed25519 key; only manifests that it signed are looked at.
            skip_manifests: leave out manifests whose names begin so.
            limit: bytes of fetched shards that are kept at a time; default: any number.
            max_bytes: refuse to fetch more than this; shards count only without ``limit``, those of the rows
                that :meth:`StreamedStore.expect` is told of. Default: fetch as much as there is room for.
            logits: whether shards of logits, which are small, come at once and as a whole.
            jobs: transfers at once.
            on_progress: called as the work goes on.
            on_wait: told, now and then, which shard is waited for, where that takes more than some seconds;
                from a thread of its own.

        Raises:
            InputError, ContractMismatchError, RemoteError, StorageError: as :func:`embedcache.share.pull`.
        """
        place = default_mirror(remote) if folder is None else Path(folder).expanduser()
        meter = Meter(on_progress)
        choice = PullChoice(
            corpora=() if corpus is None else [corpus],
            require_signature=require_signature,
            skip_manifests=skip_manifests,
            max_bytes=max_bytes,
        )
        with _alone(place):
            prepared = _prepare(place, remote, choice, teachers, meter)
            described = _corpus_in(prepared)
            if limit is not None:
                refuse_small_limit(limit, prepared.plan, teachers, prepared.cache)
            wanted = _wanted_at_once(prepared, teachers, logits=logits)
            cache = prepared.cache or Cache.create(place)
            arrivals = _fill(prepared, cache, wanted, jobs, meter)
        shards = MirrorShards(
            prepared.source,
            cache,
            prepared.plan.contracts,
            _listed_shards(prepared),
            arrivals,
            limit,
            jobs,
            on_wait,
        )
        is_restricted = require_signature is not None or bool(skip_manifests)
        return cls(prepared, described, cache, shards, meter, is_restricted=is_restricted)

    def __enter__(self) -> Mirror:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Fetch nothing more."""
        self._shards.close()

    @property
    def fetched_bytes(self) -> int:
        """Bytes of files, row indexes and shards that have come so far."""
        return self._meter.bytes

    def store(self, contract: Contract) -> StreamedStore:
        """Return the store of a teacher's vectors.

        Raises:
            InputError: if the remote has no such teacher, or its row indexes are more than may be fetched.
            RemoteError: if the keys of its shards cannot be had.
            StorageError: if the disk has no room for their row indexes.
        """
        if contract.id not in self._stores:
            keys = RemoteKeys(self._source, self.cache, self._stock, contract.id)
            if not keys.shards:
                raise InputError(
                    f"{self._source.where} has no vectors of teacher {contract.id[:12]}: name another "
                    "--teacher"
                )
            # A shard that nobody has a row index of is fetched whole for it, and does not stay.
            whole = sum(shard.bytes for shard in keys.whole_to_load())
            self._allowance.take(keys.bytes_to_load())
            refuse_without_room(self.cache.folder, keys.bytes_to_load() - whole, _LESS)
            index = self.cache.derived_folder / "index" / contract.id
            left_out = bad_shards(self.cache, contract.id)
            if self._is_restricted:
                # Earlier runs may have fetched shards of pushes that are not to be looked at.
                left_out |= streamed_shards(self.cache, contract.id)
            self._stores[contract.id] = StreamedStore(
                contract, keys, self._shards, index, self._meter, self._allowance, left_out
            )
        return self._stores[contract.id]

    def compare_sample(
        self,
        teacher: CachedTeacher,
        positions: NDArray[np.integer],
        texts_of: TextsOf,
        computing: Computing,
    ) -> SampleCheck | None:
        """Compare a sample of rows with the live teacher; see :meth:`MirrorSamples.compare`.

        Args:
            teacher: the teacher.
            positions: of the rows in :meth:`store`.
            texts_of: returns the texts of rows, by their places in ``positions``.
            computing: how to run the teacher.

        Raises:
            RemoteError: if a shard cannot be had, or is refused.
            StorageError: if there is no room for it.
        """
        return self._samples.compare(teacher, self.store(teacher.contract), positions, texts_of, computing)


def remaining_manifests(remote: str, begins: Collection[str]) -> list[str]:
    """Return those of ``begins`` that the name of a manifest on a remote begins with.

    Raises:
        InputError: if there is no remote of that name.
        RemoteError: if it cannot be reached.
    """
    names = Remote(location_of(remote)).manifest_ids()
    return [begin for begin in begins if any(name.startswith(begin) for name in names)]


def _prepare(
    place: Path, remote: str, choice: PullChoice, teachers: Collection[str], meter: Meter
) -> Preparation:
    """Plan to fetch all teachers, or if that fails, for example as two have one name, the ones asked for."""
    # What was read for the first plan counts, and its manifests are not read again for the second.
    source, allowance = open_remote(remote), Allowance(choice.max_bytes, _LESS_BYTES)
    try:
        # Logits, and what another teacher was derived from, are teachers of their own.
        return prepare(place, source, choice, meter, into_mirror=True, allowance=allowance)
    except InputError:
        if not teachers:
            raise
    fewer = replace(choice, teachers=teachers)
    return prepare(place, source, fewer, meter, into_mirror=True, allowance=allowance)


def _wanted_at_once(prepared: Preparation, teachers: Collection[str], *, logits: bool) -> list[Wanted]:
    """Return the files of a plan that come when a mirror is opened: all but most shards."""
    contracts, asked = prepared.plan.contracts, _asked(prepared.plan.wanted, teachers)

    def comes(wanted: Wanted) -> bool:
        teacher = wanted.entry.teacher
        if wanted.entry.kind is Kind.SHARD:
            return logits and contracts[teacher].output == LOGITS
        return wanted.entry.kind is not Kind.TABLE or teacher in asked

    return [wanted for wanted in prepared.plan.wanted if comes(wanted)]


def _fill(prepared: Preparation, cache: Cache, wanted: Sequence[Wanted], jobs: int, meter: Meter) -> Arrivals:
    """Fetch those of ``wanted`` that are not in a mirror, and return what fetches files into it."""
    codebooks = [file.file.sha256 for file in wanted if file.entry.kind is Kind.CODEBOOK]
    arrivals = Arrivals(
        prepared.source, cache, contracts=prepared.plan.contracts, codebooks=codebooks, meter=meter
    )
    missing = [file for file in wanted if not arrivals.has(file)]
    size = bytes_of(missing)
    prepared.allowance.take(unread_bytes_of(missing))
    refuse_without_room(cache.folder, size, _LESS)
    meter.begin("fetch", total_files=len(missing), total_bytes=size)
    fetch_in_stages(prepared.source, cache, arrivals, missing, jobs)
    return arrivals


def _listed_shards(prepared: Preparation) -> dict[str, dict[str, SharedFile]]:
    """Return the shards of a plan by contract id and name."""
    return {
        contract_id: {shard.sha256: shard for shard in prepared.stock.shards(contract_id)}
        for contract_id in prepared.plan.contracts
    }


def _corpus_in(prepared: Preparation) -> Wanted:
    """Return the description of the only corpus of a plan."""
    corpora = [wanted for wanted in prepared.plan.wanted if wanted.entry.kind is Kind.CORPUS]
    if len(corpora) != 1:
        names = ", ".join(wanted.entry.corpus for wanted in corpora) or "none"
        raise RemoteError(
            f"{prepared.source.where} has {len(corpora)} corpora to train on ({names}), expected one: "
            "name it with --corpus NAME"
        )
    return corpora[0]


def _asked(wanted: Sequence[Wanted], teachers: Collection[str]) -> set[str]:
    """Return the contract ids of the teachers with these names or ids; of all where there are none."""
    names = [file.entry for file in wanted if file.entry.kind is Kind.NAME]
    named = {name.teacher for name in names if name.stem in teachers}
    ids = {file.entry.teacher for file in wanted} - {""}
    return named | {
        contract_id
        for contract_id in ids
        if not teachers or any(contract_id.startswith(name) for name in teachers)
    }


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes of this machine from filling the same mirror inside the block.

    Raises:
        StorageError: if a file beside the folder cannot be written, or not be locked.
    """
    make_directory(folder.parent)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked_file(folder.with_name(f".{folder.name}.lock")))
        except StorageError as error:
            raise StorageError(f"{error}; another folder is given with --mirror") from error
        yield
