"""What a pull is about to fetch, and what it has fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from embedcache.check.findings import Kind
from embedcache.share.pulling.wanted import Wanted


@dataclass(frozen=True)
class PullEstimate:
    """What a pull is about to fetch.

    Attributes:
        remote: from where.
        manifests: how many manifests were looked at.
        files: files to be fetched.
        bytes: their size.
        text_rows: rows of corpora and views in those.
        vectors: vectors in those; of a part of a corpus, vectors to be taken out of shards, at most.
        present: files that the cache has already.
        present_bytes: their size.
        corpus: of a part of a corpus, what it is to be called; else empty.
        vector_bytes: of a part of a corpus, about what its vectors take on the way, beside ``bytes``. Where a
            condition chooses the rows, as if it took all.
        told: what is worth telling.
    """

    remote: str
    manifests: int
    files: int
    bytes: int
    text_rows: int
    vectors: int
    present: int
    present_bytes: int
    corpus: str = ""
    vector_bytes: int = 0
    told: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the estimate as a JSON object."""
        return asdict(self)


OnEstimate = Callable[[PullEstimate], None]


@dataclass(frozen=True)
class TakenVectors:
    """What became of a teacher's vectors of the texts of a part.

    Attributes:
        teacher: its name.
        present: of how many texts the cache had a vector.
        taken: of how many one was fetched.
        missing: of how many the remote has none.
        bytes: bytes that were fetched.
    """

    teacher: str
    present: int
    taken: int
    missing: int
    bytes: int


@dataclass(frozen=True)
class PulledPart:
    """What became of a part of a corpus.

    Attributes:
        corpus: what it is called in the cache.
        rows: how many rows it has.
        of: how many the whole has.
        was_there: whether the cache had it already.
        texts: distinct texts of its rows and of its views.
        vectors: of each teacher.
    """

    corpus: str
    rows: int
    of: int
    was_there: bool
    texts: int
    vectors: tuple[TakenVectors, ...]


@dataclass(frozen=True)
class Fetched:
    """What a pull has fetched.

    Attributes:
        fetched: files fetched.
        fetched_bytes: their size.
        fetched_text_rows: rows of corpora and views among that.
        fetched_vectors: vectors among that.
        present: files that the cache had already.
        present_bytes: their size.
        converted: shards among those fetched that are kept in another codec.
        converted_bytes: what they take in the cache.
        part: what became of a part of a corpus, where one was pulled.
        told: what is worth telling: versions and names that stayed as they are in the cache.
    """

    fetched: int
    fetched_bytes: int
    fetched_text_rows: int
    fetched_vectors: int
    present: int
    present_bytes: int
    converted: int
    converted_bytes: int
    part: PulledPart | None
    told: tuple[str, ...]


def bytes_of(files: Sequence[Wanted]) -> int:
    """Return how many bytes files have on the remote together."""
    return sum(one.file.bytes for one in files)


def text_rows_of(files: Sequence[Wanted]) -> int:
    """Return how many rows of corpora and views files have together."""
    return sum(one.file.rows for one in files if one.entry.corpus)


def vectors_of(files: Sequence[Wanted]) -> int:
    """Return how many vectors files have together."""
    return sum(one.file.rows for one in files if one.entry.kind is Kind.SHARD)
