"""Taking rows: the vectors of some keys of a teacher on a remote, into the store of a cache.

A shard most of whose rows are wanted is fetched whole and kept as it is. Rows of other shards are read by
range and stored in new shards, whose provenance says that they were taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.check.findings import Kind
from embedcache.check.progress import Meter
from embedcache.codecs import Codec, Stored, get_codec, measure, pq
from embedcache.errors import InputError, RemoteError
from embedcache.fsio import canonical_json
from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_DTYPE, KeyArray
from embedcache.missing import DEFAULT_SHARD_ROWS
from embedcache.share.places.base import RangesNotServedError
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.new_shards import write_rows
from embedcache.share.pulling.recode import check_kept_codec, keeps_less
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.download import download
from embedcache.share.remote.manifest import SharedFile
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.rows.row_ranges import RowRange, put_rows, ranges_of, read_rows
from embedcache.share.rows.shard_index import ShardIndex
from embedcache.share.temporaries import being_made
from embedcache.share.transfer import JOBS, PULL_PATIENCE_SECONDS, run_all
from embedcache.store.base import TAKEN_AS, VectorBatch, way_of_making
from embedcache.store.containers import FolderShards, LmdbShards

if TYPE_CHECKING:
    from embedcache.store.store import ShardStore

WHOLE_SHARE = 0.5
"""Share of a shard's rows that makes it come whole.

It takes at most twice the room then, needs one request, and is checked against its name as a whole. It is
never sent again. The rest of its rows is likely to be wanted one day.
"""

_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class RowsPlan:
    """The rows of a remote that are to be taken.

    Attributes:
        whole: the shards that are fetched whole.
        keys: the wanted keys that the remote has and the store lacks, distinct.
        shards: number of the shard of each in ``remote_keys.shards``, shape (n,), ascending.
        rows: its row there, ascending in each shard.
        ranged_bytes: of ranges of other shards.
        book_bytes: of the codebooks that the cache lacks.
        codec: rows whose codec keeps more are kept in this one; None: as they were pushed.
    """

    whole: tuple[SharedFile, ...]
    keys: KeyArray
    shards: _Numbers
    rows: _Numbers
    ranged_bytes: int
    book_bytes: int
    codec: str | None = None

    def __len__(self) -> int:
        """Return how many of the wanted rows come."""
        return len(self.keys)

    @property
    def bytes(self) -> int:
        """What will be fetched: whole shards, ranges of others, and codebooks."""
        return sum(shard.bytes for shard in self.whole) + self.ranged_bytes + self.book_bytes


@dataclass(frozen=True)
class TakenRows:
    """What was taken.

    Attributes:
        rows: rows that were wanted and came.
        bytes: what was fetched for them, row indexes not counted.
        whole_shards: shards that came whole.
        unranged_shards: shards that were fetched whole for some of their rows, because the remote gives no
            parts of files.
    """

    rows: int = 0
    bytes: int = 0
    whole_shards: int = 0
    unranged_shards: int = 0


def plan_rows(
    store: ShardStore,
    remote_keys: RemoteKeys,
    keys: KeyArray,
    *,
    codec: str | None = None,
    jobs: int = JOBS,
    meter: Meter | None = None,
) -> RowsPlan:
    """Find which of ``keys`` a remote has and ``store`` lacks; nothing but row indexes is fetched.

    Args:
        store: where they are to go.
        remote_keys: what the remote has of the same teacher.
        keys: the wanted rows, in any order.
        codec: keep rows in this codec where theirs keeps more; default: as they were pushed. ``pq`` would
            have to be learnt, and is refused.
        jobs: transfers at once.
        meter: counts row indexes.

    Raises:
        InputError: if ``codec`` cannot be used.
        RemoteError: if a row index cannot be had, or is refused.
        StorageError: if there is no room for it.
    """
    if codec is not None:
        check_kept_codec(codec)
    lacking = keys[KeyIndex(keys).first_places()]
    lacking = lacking[store.locate(lacking) < 0]
    if not len(lacking):
        none = np.empty(0, dtype=np.int64)
        return RowsPlan((), lacking, none, none, 0, 0, codec)
    remote_keys.load(meter, jobs)
    shards, rows = remote_keys.locate(lacking, codec)
    # By shard and row, not as asked: neighbours are read together, and a run that was killed, repeated with
    # the keys that are still missing, cuts the same shards.
    order = np.lexsort((rows, shards))
    order = order[shards[order] >= 0]
    shards, rows, lacking = shards[order], rows[order], lacking[order]
    whole: list[SharedFile] = []
    ranged = 0
    for number, mine in _by_shard(shards):
        shard = remote_keys.shards[number]
        stays = codec is None or not keeps_less(store.contract, codec, remote_keys.header(shard).codec)
        if stays and mine.stop - mine.start >= WHOLE_SHARE * shard.rows:
            whole.append(shard)
        else:
            ranged += sum(span.size for span in ranges_of(remote_keys.index(shard), rows[mine]))
    books = remote_keys.codebook_bytes(remote_keys.codebooks_of(shards))
    return RowsPlan(tuple(whole), lacking, shards, rows, ranged, books, codec)


def take_rows(
    store: ShardStore,
    remote_keys: RemoteKeys,
    plan: RowsPlan,
    *,
    shard_rows: int = DEFAULT_SHARD_ROWS,
    jobs: int = JOBS,
    meter: Meter | None = None,
    check_size: Callable[[int], None] | None = None,
) -> TakenRows:
    """Bring rows of a remote into ``store``.

    What has arrived is stored shard by shard, so a run that was stopped has lost nothing, and the next takes
    the rest. The caller ends with :meth:`ShardStore.finish`.

    Args:
        store: where they go; its teacher has a contract and a name in the cache of ``remote_keys``.
        remote_keys: what the remote has of the same teacher, as it was planned with; it needs a cache.
        plan: which rows, as :func:`plan_rows` returns them. What has come into the store since is not
            fetched again.
        shard_rows: rows of a shard that is made of rows taken alone.
        jobs: transfers at once.
        meter: counts what arrives.
        check_size: called where the remote serves no ranges, before whole shards are fetched instead, with
            the bytes that are then still to be fetched; raises if that is too much.

    Raises:
        InputError: if a vector does not fit the plan's codec.
        RemoteError: if something cannot be had, or is refused.
        StorageError: if the cache cannot be written; what has arrived stays.
    """
    meter = meter or Meter()
    if not len(plan):
        return TakenRows()
    taking = _Taking(store, remote_keys, plan.codec, jobs, meter)
    taking.fetch_whole(plan)
    left = store.locate(plan.keys) < 0
    shards, rows, lacking = plan.shards[left], plan.rows[left], plan.keys[left]
    meter.begin("fetch rows", total_rows=len(rows), total_bytes=plan.ranged_bytes)
    batches = [
        pile[start : start + shard_rows]
        for pile in taking.piles(shards)
        for start in range(0, len(pile), shard_rows)
    ]
    for number, batch in enumerate(batches):

        def check_whole(left: Sequence[_Numbers] = batches[number:]) -> None:
            if check_size is not None:
                check_size(sum(taking.whole_bytes(shards[some]) for some in left))

        taking.fetch_rows(lacking[batch], shards[batch], rows[batch], check_whole)
    return TakenRows(
        rows=len(plan),
        bytes=taking.bytes,
        whole_shards=len(plan.whole),
        unranged_shards=len(taking.unranged),
    )


class _Taking:
    """One run of :func:`take_rows`.

    Attributes:
        bytes: what was fetched so far.
        unranged: shards that were fetched whole for some of their rows.
    """

    def __init__(
        self, store: ShardStore, remote_keys: RemoteKeys, codec: str | None, jobs: int, meter: Meter
    ) -> None:
        if remote_keys.cache is None:
            raise ValueError("rows are taken into a cache: RemoteKeys needs it")
        container = store.container
        if not isinstance(container, (FolderShards, LmdbShards)):
            raise TypeError("rows are taken into a store on disk")
        self._store, self._keys, self._codec, self._jobs, self._meter = store, remote_keys, codec, jobs, meter
        self._remote = remote_keys.remote
        self._folder = remote_keys.cache.teacher_folder(store.contract)
        self._aside = remote_keys.cache.derived_folder / "remotes" / self._remote.id
        self._codebooks = remote_keys.stock.codebooks(remote_keys.contract_id)
        self._arrivals = Arrivals(
            self._remote,
            remote_keys.cache,
            contracts={remote_keys.contract_id: store.contract},
            codebooks=self._codebooks,
            meter=meter,
            containers={remote_keys.contract_id: container},
        )
        self.bytes = 0
        self.unranged: set[str] = set()
        self._gives_ranges = True

    def fetch_whole(self, plan: RowsPlan) -> None:
        """Fetch the shards that come whole, and the codebooks that any of the rows need."""
        books = [self._codebook(name) for name in sorted(self._keys.codebooks_of(plan.shards))]
        wanted = [Wanted(file, file.path) for file in (*books, *plan.whole)]
        missing = [one for one in wanted if not self._arrivals.has(one)]
        size = sum(one.file.bytes for one in missing)
        self._meter.begin("fetch shards", total_files=len(missing), total_bytes=size)
        missing.sort(key=lambda one: -one.file.bytes)
        for kind in (Kind.CODEBOOK, Kind.SHARD):
            batch = [one for one in missing if one.entry.kind is kind]
            self._arrivals.fetch_all(batch, self._jobs)
        self.bytes += size
        for shard in plan.whole:
            self._store.adopt(shard.sha256)

    def piles(self, shards: _Numbers) -> list[_Numbers]:
        """Return which rows can be stored together: those of one codec and one way of making."""
        found: dict[bytes, list[_Numbers]] = {}
        for number, mine in _by_shard(shards):
            header = self._keys.header(self._keys.shards[number])
            kind = canonical_json([header.codec, header.codebook, way_of_making(header.provenance)])
            found.setdefault(kind, []).append(np.arange(mine.start, mine.stop))
        return [np.concatenate(found[kind]) for kind in sorted(found)]

    def whole_bytes(self, shards: _Numbers) -> int:
        """Return the size of the shards with these numbers, each counted once."""
        return sum(self._keys.shards[number].bytes for number in np.unique(shards).tolist())

    def fetch_rows(
        self, keys: KeyArray, shards: _Numbers, rows: _Numbers, check_whole: Callable[[], None]
    ) -> None:
        """Fetch rows that can be stored together, and store them as one shard.

        Args:
            keys: of the rows.
            shards: number of the shard of each.
            rows: its row there.
            check_whole: called before their shards are fetched whole; raises if that is too much.
        """
        files = [self._keys.shards[number] for number, _ in _by_shard(shards)]
        parts = [mine for _, mine in _by_shard(shards)]
        indexes = [self._keys.index(file) for file in files]
        header = indexes[0].header
        codec = self._codec_of(header.codec, header.codebook)
        width = codec.width(header.contract.dimension)
        if any(index.row_bytes != width * codec.dtype.itemsize for index in indexes):
            raise RemoteError(
                f"row indexes of {self._remote.where} tell of vectors of another width than their teacher's: "
                "they are damaged or hostile"
            )
        vector = np.empty((len(keys), width), dtype=codec.dtype)
        self._read(files, indexes, parts, rows, vector, check_whole)
        pairs = list(zip(indexes, parts, strict=True))
        scales = [index.scale[rows[mine]] for index, mine in pairs if index.scale is not None]
        batch = VectorBatch(
            _checked_keys(keys, np.concatenate([index.keys[rows[mine]] for index, mine in pairs])),
            np.empty((0, 0), dtype=np.float32),
            np.concatenate([index.tokens[rows[mine]] for index, mine in pairs]),
            np.concatenate([index.truncated[rows[mine]] for index, mine in pairs]),
            {**way_of_making(header.provenance), TAKEN_AS: header.codec},
        )
        errors = [index.header.error for index in indexes]
        error = {name: min(one[name] for one in errors) for name in errors[0]}
        self._put(codec, Stored(vector, np.concatenate(scales) if scales else None), batch, error)
        self._meter.add(rows=len(keys))

    def _put(self, codec: Codec, stored: Stored, batch: VectorBatch, error: Mapping[str, float]) -> None:
        if self._codec is not None and keeps_less(self._store.contract, self._codec, codec.name):
            vectors = np.asarray(codec.decode(stored), dtype=np.float32)
            codec = get_codec(self._codec)
            try:
                stored = codec.encode(vectors)
            except InputError as refusal:
                raise InputError(
                    f"vectors of {self._remote.where} cannot be kept as {codec.name} ({refusal}): take them "
                    "as they are, without --codec"
                ) from refusal
            error = measure(codec, vectors, stored).to_json()
        write_rows(self._store, codec, stored, batch, error)

    def _read(
        self,
        files: Sequence[SharedFile],
        indexes: Sequence[ShardIndex],
        parts: Sequence[slice],
        rows: _Numbers,
        out: NDArray[Any],
        check_whole: Callable[[], None],
    ) -> None:
        """Read the vectors of rows of several shards into ``out``, several ranges at a time."""
        pairs = list(zip(files, indexes, parts, strict=True))
        work = [
            (file, index, mine, span) for file, index, mine in pairs for span in ranges_of(index, rows[mine])
        ]

        read_sizes: list[int] = []

        def read(part: tuple[SharedFile, ShardIndex, slice, RowRange]) -> None:
            file, index, mine, span = part
            if self._gives_ranges:
                try:
                    data = read_rows(self._remote, file, index, span)
                except RangesNotServedError:
                    self._gives_ranges = False
                    return
                put_rows(index, span, data, rows[mine], out[mine])
                read_sizes.append(span.size)
                self._meter.add(size=span.size)

        def read_whole(part: tuple[SharedFile, ShardIndex, slice]) -> None:
            file, index, mine = part
            self._read_whole(file, index, rows[mine], out[mine])

        if self._gives_ranges:
            run_all(read, work, jobs=self._jobs, stop=self._remote.stop, patience=PULL_PATIENCE_SECONDS)
        self.bytes += sum(read_sizes)
        if not self._gives_ranges:
            check_whole()
            run_all(read_whole, pairs, jobs=self._jobs, stop=self._remote.stop)
            self.bytes += sum(file.bytes for file in files)
            self.unranged |= {file.sha256 for file in files}

    def _read_whole(self, file: SharedFile, index: ShardIndex, rows: _Numbers, out: NDArray[Any]) -> None:
        """Take rows out of a shard that has to be fetched as a whole for it."""
        with being_made(self._aside / f"{file.sha256}.arrow") as place:
            download(self._remote, file, place, self._meter)
            shape = (len(index), index.row_bytes)
            vectors = np.memmap(place, np.uint8, "r", offset=index.start, shape=shape)
            out.view(np.uint8).reshape(len(out), -1)[:] = vectors[rows]

    def _codec_of(self, name: str, codebook: str | None) -> Codec:
        return get_codec(name) if codebook is None else pq.load(self._folder / "codebooks", codebook)

    def _codebook(self, name: str) -> SharedFile:
        if name not in self._codebooks:
            raise RemoteError(
                f"shards of {self._remote.where} need the codebook {name[:12]}…, which no manifest lists: "
                "it is damaged or hostile; push it again from a cache that has it"
            )
        return self._codebooks[name]


def _by_shard(shards: _Numbers) -> list[tuple[int, slice]]:
    """Return the runs of ascending shard numbers: number, and where its rows stand."""
    edges = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(shards)] if len(shards) else [0]
    return [(int(shards[a]), slice(a, b)) for a, b in pairwise(edges)]


def _checked_keys(wanted: KeyArray, found: KeyArray) -> KeyArray:
    if not np.array_equal(wanted.view(np.uint8), np.ascontiguousarray(found, KEY_DTYPE).view(np.uint8)):
        raise RemoteError("a row index has changed while rows were taken: run the same command again")
    return wanted
