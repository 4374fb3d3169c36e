"""What a build says about itself, on the way and at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field


@dataclass
class BuildProgress:
    """Where a build stands; handed to the progress callback again and again.

    Attributes:
        phase: ``read``, ``view NAME``, ``carry over`` (rows of the same teacher at another ``max_length``),
            ``fetch`` (shards of a remote), or ``encode``.
        rows: rows read or made, missing texts looked up, files fetched, or vectors encoded so far.
        total: rows, missing texts, or vectors to encode; 0 while reading.
        tokens: tokens encoded so far.
        seconds: seconds since the phase began.
        busy: seconds spent so far in ``read``, ``tokenise``, ``encode`` and ``write``; they overlap.
    """

    phase: str = "read"
    rows: int = 0
    total: int = 0
    tokens: int = 0
    seconds: float = 0.0
    busy: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(("read", "tokenise", "encode", "write"), 0.0)
    )

    def begin(self, phase: str, total: int = 0) -> None:
        """Begin a phase."""
        self.phase, self.rows, self.total, self.seconds = phase, 0, total, 0.0


@dataclass(frozen=True)
class ViewSummary:
    """What a build did about a view.

    Attributes:
        name: the view's name.
        recipe: how it is made, in words; empty where it was removed.
        outcome: ``made``, ``reused``, ``remade``, or ``removed`` with the rows it was made of.
        counts: ``changed``, ``unchanged``, and reason -> rows that kept their text for it.
        seconds: wall-clock seconds that making it took.
    """

    name: str
    recipe: str
    outcome: str
    counts: dict[str, int]
    seconds: float


@dataclass(frozen=True)
class TokenTableSummary:
    """What a build did about the teacher's token embeddings.

    Attributes:
        tokens: rows of the table.
        width: components of a row.
        bytes: size of its file.
        outcome: ``stored now`` or ``there already``.
    """

    tokens: int
    width: int
    bytes: int
    outcome: str


@dataclass(frozen=True)
class OutputSummary:
    """What a build did about one output of the teacher.

    Attributes:
        output: ``embedding`` or ``logits``.
        teacher: the name the cache lists it under.
        contract_id: sha256 of its contract.
        stored: rows that this build encoded and stored.
        carried: rows taken over from the same teacher at another ``max_length``.
        reused: distinct texts that were there already.
    """

    output: str
    teacher: str
    contract_id: str
    stored: int
    carried: int
    reused: int


@dataclass(frozen=True)
class RemoteSummary:
    """Missing rows and bytes that a build fetched from a remote, and how they compare with the teacher."""

    remote: str
    rows: int
    bytes: int
    verdicts: list[str]


@dataclass(frozen=True)
class BuildSummary:
    """What a build did.

    Attributes:
        corpus: the corpus's name.
        teacher: the teacher's name; of several outputs the first one's, as in all counts but ``encoded``.
        contract_id: sha256 of the teacher's contract.
        rows: rows of the corpus.
        distinct: distinct texts among them, and among each view that is encoded.
        encoded: texts that this build ran the teacher on.
        carried: vectors taken over from the same teacher at another ``max_length``.
        coarser_rows: vectors of such a teacher that were not taken over, because its codec keeps less than
            this build's.
        reused: distinct texts whose vectors were there already.
        truncated: texts among the encoded that the teacher saw only the beginning of.
        skipped: reason -> source rows left out of the corpus.
        tokens: tokens encoded.
        batches_halved: forward batches that did not fit into memory and were halved.
        bytes_written: size of the new shards.
        seconds: wall-clock seconds of the whole build, loading the teacher included.
        encode_seconds: wall-clock seconds from the first text tokenised to the last shard written.
        busy: seconds spent in read, tokenise, encode and write; they overlap.
        views: what became of the views that were asked for, and of those that had to go.
        embedded_views: names of the views whose texts the teacher has encoded beside the original ones.
        token_embeddings: what became of the teacher's token embeddings; None where they were not asked for.
        outputs: what became of each output.
        not_asked: source rows that were not asked for; 0 where the source was not read again.
        remote: what was fetched from a remote; None without one.
    """

    corpus: str
    teacher: str
    contract_id: str
    rows: int
    distinct: int
    encoded: int
    carried: int
    coarser_rows: int
    reused: int
    truncated: int
    skipped: dict[str, int]
    tokens: int
    batches_halved: int
    bytes_written: int
    seconds: float
    encode_seconds: float
    busy: dict[str, float]
    views: list[ViewSummary] = field(default_factory=list)
    embedded_views: list[str] = field(default_factory=list)
    token_embeddings: TokenTableSummary | None = None
    outputs: list[OutputSummary] = field(default_factory=list)
    not_asked: int = 0
    remote: RemoteSummary | None = None

    def to_json(self) -> dict[str, object]:
        """Return the summary as a JSON object."""
        return asdict(self)


OnProgress = Callable[[BuildProgress], None]
