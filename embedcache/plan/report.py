"""What a plan says: figures, with their bounds where they are estimates."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from embedcache.plan.probe import Speed
from embedcache.plan.views import ViewOfPlan


@dataclass(frozen=True)
class Range:
    """A figure with its bounds."""

    low: float
    mean: float
    high: float


@dataclass(frozen=True)
class Tokens:
    """How long texts are, as the teacher counts.

    Attributes:
        missing: tokens of all distinct texts that have to be encoded.
        standard_error: of ``missing``; 0 where every text was counted.
        sample: texts that were counted.
        an_epoch: tokens of all rows, what the teacher would read in every epoch of a training that runs it;
            rows not counted are taken to be as long as the sample, which has texts of views that are encoded.
        truncated_share: share of all rows that the teacher sees only the beginning of.
    """

    missing: float
    standard_error: float
    sample: int
    an_epoch: float
    truncated_share: float


@dataclass(frozen=True)
class CodecBytes:
    """What a codec takes on disk.

    Attributes:
        codec: its name.
        a_vector: bytes of a vector, its scale included.
        a_row: bytes of a row, its key and counts included.
        to_write: bytes of the vectors to encode or to carry over.
        distinct: bytes of the vectors of all distinct texts.
        codebook: bytes of the codebook that both of these include; 0 for codecs without one.
    """

    codec: str
    a_vector: int
    a_row: float
    to_write: int
    distinct: int
    codebook: int


@dataclass(frozen=True)
class OutputOfPlan:
    """What a build would keep of one output.

    Attributes:
        output: ``embedding`` or ``logits``.
        teacher: the name it is kept under.
        contract_id: sha256 of its contract.
        codec: how it is or would be stored.
        cached: distinct texts of which it is there.
        reusable: distinct texts of which it can be carried over from another ``max_length``.
        to_write: bytes of all others, and of those carried over.
    """

    output: str
    teacher: str
    contract_id: str
    codec: str
    cached: int
    reusable: int
    to_write: int


@dataclass(frozen=True)
class Plan:
    """What a build would do and cost.

    Attributes:
        teacher: its name.
        contract_id: sha256 of its contract.
        codec: how the cache stores or would store its vectors.
        codec_in_use: whether that is how it stores them; else what a build takes where none is asked for.
        rows: rows of the corpus.
        skipped: reason -> source rows that would be left out.
        not_asked: rows of the source that ``--rows`` leaves out.
        remote: distinct texts whose vectors a build would fetch from the remote.
        remote_bytes: size of the shards that hold them; None without a remote.
        distinct: distinct texts, those of views that are counted among them.
        cached: distinct texts of which every output is there.
        reusable: distinct texts of which what is lacking can be carried over from another ``max_length``.
        missing: distinct texts that have to be encoded.
        tokens: their tokens; None where the teacher has no tokenizer that could be asked.
        bytes: disk space by codec, of the first output.
        encode: speed of a build; None without a probe, or where nothing is missing.
        live: speed of the same teacher in random batches of 128, as a training that runs it needs them.
        build_seconds: time of the build; None without a probe.
        live_epoch_seconds: teacher's time in each epoch of a training that runs it; None without a probe.
        cached_epoch_seconds: time to read the vectors of an epoch from the cache; None without a probe.
        epochs_to_pay: student epochs after which the build has cost less than running the teacher; None
            without a probe, or where reading takes as long as running it. A bound that is never reached is
            infinite.
        notes: what to know before building.
        views: views that the build makes or encodes.
        outputs: each output by itself.
    """

    teacher: str
    contract_id: str
    codec: str
    codec_in_use: bool
    rows: int
    skipped: dict[str, int]
    distinct: int
    cached: int
    reusable: int
    missing: int
    tokens: Tokens | None
    bytes: tuple[CodecBytes, ...]
    encode: Speed | None
    live: Speed | None
    build_seconds: Range | None
    live_epoch_seconds: Range | None
    cached_epoch_seconds: float | None
    epochs_to_pay: Range | None
    notes: tuple[str, ...]
    views: tuple[ViewOfPlan, ...] = ()
    outputs: tuple[OutputOfPlan, ...] = ()
    not_asked: int = 0
    remote: int = 0
    remote_bytes: int | None = None

    def to_json(self) -> dict[str, object]:
        """Return the plan as a JSON object; a bound that is never reached is null."""
        found = asdict(self)
        if self.epochs_to_pay is not None and math.isinf(self.epochs_to_pay.high):
            found["epochs_to_pay"]["high"] = None
        return found
