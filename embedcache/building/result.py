"""Result of a build, or of its dry run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class ViewResult:
    """Outcome of a view.

    Attributes:
        name: its name.
        outcome: ``made`` or ``there already``; of a dry run ``to make``, or ``to make, not counted``.
        counts: ``changed``, ``unchanged``, and reason -> rows that kept their text for it.
    """

    name: str
    outcome: str
    counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Estimate:
    """Cost of a build, from a sample of the missing texts.

    Attributes:
        tokens: tokens to encode, of a served teacher a token for every four characters; None where the
            teacher has no fast tokenizer.
        truncated_share: share of the missing texts that the teacher would truncate.
        bytes: size of the new shards by codec.
        seconds: time to encode on this machine; None where the teacher is served.
        requests: requests to the server of a served teacher.
        cost: price of the tokens, where a price was given.
    """

    tokens: float | None
    truncated_share: float
    bytes: Mapping[str, int]
    seconds: float | None
    requests: int | None = None
    cost: float | None = None


@dataclass(frozen=True)
class BuildResult:
    """Result of a build, or forecast of a dry run.

    Attributes:
        corpus: name of the corpus.
        teacher: name of the teacher in the cache.
        contract_id: sha256 of its contract.
        output: ``embedding`` or ``logits``.
        codec: codec of new vectors.
        rows: rows of the corpus.
        texts: rows of the corpus and of each view that is encoded.
        distinct: distinct texts of the corpus and of each of these views.
        wanted: distinct texts to encode or to find: all of them, or the texts of ``part``.
        cached: wanted texts whose vectors the cache had.
        fetched: vectors that came from a remote.
        encoded: texts the teacher encoded.
        resumed: texts that a stopped build had encoded.
        truncated: encoded texts of which the teacher saw only the beginning.
        tokens: tokens encoded.
        bytes_written: size of the shards that the cache gained.
        seconds: wall-clock seconds of the build.
        encode_seconds: seconds of encoding and storing.
        added: rows that were added to those before; None where nothing was to be added.
        column: column the texts were read from; None for plain text.
        example: one text of the corpus.
        skipped: reason -> source rows left out.
        first_skipped: reason -> place of the first of them.
        not_asked: source rows left out by conditions on rows.
        kept_rows: of rows in memory, the places of those kept, from 0, int64; None for files.
        part: part of the texts that was asked for, such as ``1/3``; None for all.
        views: views that were made or found.
        beside: host and process of a build that ran into the cache at the same time; empty if none did.
        remote: URL of the remote that was read.
        remote_bytes: bytes that came from it.
        verdicts: comparisons of its vectors with the teacher's.
        prompt: text put before every text.
        prompt_names: names of the model's own prompts, where none was chosen.
        loading: loading arguments of the teacher, as JSON.
        route: route of a Router model, and its other routes; empty for any other model.
        computed: dtype, device and backend of new vectors, such as ``bfloat16 on cuda``; empty for none.
        quantized: mean and worst cosine of a quantized teacher's vectors to those of the whole model, over
            texts of the corpus; None where nothing was encoded.
        estimate: cost, of a dry run where texts are missing.
        dry_run: True if nothing was written.
    """

    corpus: str
    teacher: str
    contract_id: str
    output: str
    codec: str
    rows: int
    texts: int
    distinct: int
    wanted: int
    cached: int = 0
    fetched: int = 0
    encoded: int = 0
    resumed: int = 0
    truncated: int = 0
    tokens: int = 0
    bytes_written: int = 0
    seconds: float = 0.0
    encode_seconds: float = 0.0
    added: int | None = None
    column: str | None = None
    example: str = ""
    skipped: Mapping[str, int] = field(default_factory=dict)
    first_skipped: Mapping[str, str] = field(default_factory=dict)
    not_asked: int = 0
    kept_rows: NDArray[np.int64] | None = field(default=None, compare=False, repr=False)
    part: str | None = None
    views: tuple[ViewResult, ...] = ()
    beside: str = ""
    remote: str | None = None
    remote_bytes: int = 0
    verdicts: tuple[str, ...] = ()
    prompt: str = ""
    prompt_names: tuple[str, ...] = ()
    loading: str = ""
    route: str = ""
    computed: str = ""
    quantized: tuple[float, float] | None = None
    estimate: Estimate | None = None
    dry_run: bool = False
