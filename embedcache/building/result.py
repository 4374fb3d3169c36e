"""Result of a build, or of its dry run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class OutputResult:
    """Rows of one output of the teacher.

    Attributes:
        output: ``embedding`` or ``logits``.
        teacher: name in the cache.
        contract_id: sha256 of its contract.
        codec: codec of new vectors.
        cached: distinct texts that were in the cache.
        reused: rows taken over from the same teacher at another ``max_length``.
        coarser: rows of such a teacher left out because their codec keeps less.
        fetched: rows that came from a remote.
        encoded: rows the teacher encoded.
        bytes_written: size of the new shards.
    """

    output: str
    teacher: str
    contract_id: str
    codec: str
    cached: int = 0
    reused: int = 0
    coarser: int = 0
    fetched: int = 0
    encoded: int = 0
    bytes_written: int = 0


@dataclass(frozen=True)
class ViewResult:
    """Outcome of a view.

    Attributes:
        name: its name.
        outcome: ``made``, ``remade``, ``there already``, ``removed`` with the rows it was made of;
            of a dry run ``to make``.
        counts: ``changed``, ``unchanged``, and reason -> rows that kept their text for it.
    """

    name: str
    outcome: str
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimate:
    """Cost of a build, from a sample of the missing texts.

    Attributes:
        tokens: tokens to encode; None where the teacher has no fast tokenizer.
        tokens_error: standard error of ``tokens``; 0 where every text was counted.
        truncated_share: share of the missing texts that the teacher would truncate.
        bytes: size of the new shards by codec, of the first output.
        build_seconds: time to encode.
        live_epoch_seconds: teacher's time in each epoch of a training that runs it, in random batches of 128.
        cached_epoch_seconds: time to read an epoch's vectors from a cache.
        epochs_to_pay: epochs after which the build has cost less than running the teacher; None if never.
    """

    tokens: float | None
    tokens_error: float
    truncated_share: float
    bytes: Mapping[str, int]
    build_seconds: float
    live_epoch_seconds: float
    cached_epoch_seconds: float
    epochs_to_pay: float | None


@dataclass(frozen=True)
class BuildResult:
    """Result of a build, or forecast of a dry run.

    Attributes:
        corpus: name of the corpus.
        teacher: name of the teacher; of several outputs the first one's.
        contract_id: sha256 of its contract.
        rows: rows of the corpus.
        distinct: distinct texts among them and among each view that is encoded.
        cached: distinct texts whose vectors were in the cache.
        reused: vectors taken over from the same teacher at another ``max_length``.
        fetched: vectors that came from a remote.
        encoded: texts the teacher encoded.
        truncated: texts among these of which the teacher saw only the beginning.
        tokens: tokens encoded.
        batches_halved: forward batches that did not fit into memory and were halved.
        bytes_written: size of the new shards.
        seconds: wall-clock seconds of the build.
        encode_seconds: seconds of encoding and storing.
        column: column the texts were read from; None for plain text, or where nothing was read.
        example: one text of the corpus.
        skipped: reason -> source rows left out.
        first_skipped: reason -> place of the first of them.
        not_asked: source rows left out by ``--rows``.
        outputs: each output.
        views: views that were made, found or removed.
        embedded_views: views the teacher encodes beside the original texts.
        token_embeddings: ``(tokens, width)`` of the table of token embeddings; None where not asked for.
        remote: URL of the remote that was read.
        remote_bytes: bytes that came from it.
        verdicts: comparisons of its vectors with the teacher's.
        estimate: cost, of a dry run where texts are missing.
        dry_run: whether nothing was written.
        notes: warnings of a dry run.
    """

    corpus: str
    teacher: str
    contract_id: str
    rows: int
    distinct: int
    cached: int
    reused: int = 0
    fetched: int = 0
    encoded: int = 0
    truncated: int = 0
    tokens: int = 0
    batches_halved: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    encode_seconds: float = 0.0
    column: str | None = None
    example: str = ""
    skipped: Mapping[str, int] = field(default_factory=dict)
    first_skipped: Mapping[str, str] = field(default_factory=dict)
    not_asked: int = 0
    outputs: tuple[OutputResult, ...] = ()
    views: tuple[ViewResult, ...] = ()
    embedded_views: tuple[str, ...] = ()
    token_embeddings: tuple[int, int] | None = None
    remote: str | None = None
    remote_bytes: int = 0
    verdicts: tuple[str, ...] = ()
    estimate: Estimate | None = None
    dry_run: bool = False
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the result as a JSON object."""
        return asdict(self)
