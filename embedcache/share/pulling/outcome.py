"""How much a pull is about to fetch, and how much it has fetched."""

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
        files: files to be fetched; if a condition chooses the rows of a part, as if it chose all.
        bytes: their size.
        least_bytes: how much of that is fetched in any case.
        counted_bytes: what ``max_bytes`` counts in any case: files, vectors, and the manifests and
            descriptions that were read to tell.
        text_rows: rows of corpora and views in those.
        vectors: vectors in those; for a part of a corpus, at most so many vectors are taken out of shards.
        present: files that the cache has already.
        present_bytes: their size.
        corpus: what a part of a corpus is to be called; empty if no part is pulled.
        vector_bytes: about how many bytes the vectors of a part take, beside ``bytes``: row indexes,
            codebooks and rows that are neighbours. If a condition chooses the rows, as if it chose all.
        most_vector_bytes: about how many they take if the rows lie apart.
        least_vector_bytes: how much of that is fetched in any case; all of it if the cache has what tells.
        told: what is worth telling.
    """

    remote: str
    manifests: int
    files: int
    bytes: int
    least_bytes: int
    counted_bytes: int
    text_rows: int
    vectors: int
    present: int
    present_bytes: int
    corpus: str = ""
    vector_bytes: int = 0
    most_vector_bytes: int = 0
    least_vector_bytes: int = 0
    told: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the estimate as a JSON object."""
        return asdict(self)


OnEstimate = Callable[[PullEstimate], None]


@dataclass(frozen=True)
class TakenVectors:
    """How many vectors of one teacher a part of a corpus has got.

    Attributes:
        teacher: its name.
        present: texts whose vector the cache had already.
        taken: texts whose vector was fetched.
        missing: texts of which neither the cache nor the remote has a vector.
        bytes: bytes that were fetched.
    """

    teacher: str
    present: int
    taken: int
    missing: int
    bytes: int


@dataclass(frozen=True)
class PulledPart:
    """A part of a corpus that was pulled.

    Attributes:
        corpus: what it is called in the cache.
        rows: how many rows it has.
        of: how many the whole has.
        was_there: whether the cache had it already.
        texts: distinct texts of its rows and of its views.
        vectors: how many vectors it has got, for each teacher.
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
        fetched_bytes: their size, and that of the vectors and row indexes of a part.
        fetched_row_bytes: how much of that are vectors and row indexes of a part, which are no files.
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
    fetched_row_bytes: int
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
    return sum(file.file.bytes for file in files)


def unread_bytes_of(files: Sequence[Wanted]) -> int:
    """Return how many bytes are still to be fetched for files: documents are read as a pull is planned."""
    return bytes_of([file for file in files if file.data is None])


def text_rows_of(files: Sequence[Wanted]) -> int:
    """Return how many rows of corpora and views files have together."""
    return sum(file.file.rows for file in files if file.entry.corpus)


def vectors_of(files: Sequence[Wanted]) -> int:
    """Return how many vectors files have together."""
    return sum(file.file.rows for file in files if file.entry.kind is Kind.SHARD)
