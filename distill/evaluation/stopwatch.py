"""How long a model takes, in a process of its own: ``python -m distill.evaluation.stopwatch``.

The ``latency`` suite starts it, so that neither the memory nor the threads of an evaluation that already
holds other models are measured. It reads one job as JSON from standard input and writes one JSON object a
line: ``{"done": 2000}`` as sentences are done, and at the end ``{"timing": ...}`` or ``{"error": ...}``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Encode = Callable[[Sequence[str], int], object]
"""(texts, batch size) -> whatever vectors the model gives."""

WARM_UP = 50
"""Sentences encoded one at a time before the clock starts."""

TOLD_EVERY = 100
"""Sentences after which it is told how many are done, where they come one at a time."""

_KILOBYTES_PER_MEGABYTE = 1e3 / 1.024  # the kernel's kB are 1024 bytes, a megabyte is 10^6


@dataclass(frozen=True)
class Timing:
    """How long one model took.

    Attributes:
        single: seconds of each pass over all texts, one text a call.
        text_p50_ms, text_p95_ms: percentiles of the milliseconds of a call with one text, over all passes.
        batch: seconds of each pass over all texts in batches.
        peak_megabytes: what loading and running the model added to the process's memory at its peak, in units
            of 10^6 bytes; None where the system does not tell.
    """

    single: Sequence[float]
    text_p50_ms: float
    text_p95_ms: float
    batch: Sequence[float]
    peak_megabytes: float | None = None


def measure(
    encode: Encode,
    texts: Sequence[str],
    *,
    passes: int,
    batch_size: int,
    told: Callable[[int], None],
) -> Timing:
    """Time ``encode`` over ``texts``: after a warm-up, passes with one text a call, then passes in batches.

    Args:
        encode: the model.
        texts: the texts, in the order in which they are given to it; at least one.
        passes: passes of each kind.
        batch_size: texts of a batch.
        told: called with the number of texts done, of 2 * ``passes`` * len(``texts``): while they come one at
            a time every now and then, and after each pass. What it takes is in no figure.
    """
    import numpy as np

    for text in texts[:WARM_UP]:
        encode([text], 1)
    each = np.empty((passes, len(texts)))
    for number in range(passes):
        for row, text in enumerate(texts):
            start = time.perf_counter()
            encode([text], 1)
            each[number, row] = time.perf_counter() - start
            if (row + 1) % TOLD_EVERY == 0 or row + 1 == len(texts):
                told(number * len(texts) + row + 1)
    encode(texts[:batch_size], batch_size)
    batch = []
    for number in range(passes):
        start = time.perf_counter()
        encode(texts, batch_size)
        batch.append(time.perf_counter() - start)
        told((passes + number + 1) * len(texts))
    p50, p95 = np.percentile(each, [50, 95]) * 1e3
    return Timing(each.sum(axis=1).tolist(), float(p50), float(p95), batch)


def main() -> None:
    """Read a job from standard input, do it, and write what came out."""
    from distill.errors import DistillError
    from embedcache.errors import EmbedCacheError

    job = json.load(sys.stdin)
    try:
        _tell({"timing": asdict(_run(job))})
    except (DistillError, EmbedCacheError) as error:
        _tell({"error": str(error)})


def _run(job: Mapping[str, Any]) -> Timing:
    load = _onnx if job["contract"] is None else _torch
    encode, before = load(job)
    timing = measure(
        encode,
        job["texts"],
        passes=job["passes"],
        batch_size=job["batch_size"],
        told=lambda done: _tell({"done": done}),
    )
    peak = _kilobytes("VmHWM")
    added = None if peak is None or before is None else (peak - before) / _KILOBYTES_PER_MEGABYTE
    return Timing(**{**asdict(timing), "peak_megabytes": added})


def _torch(job: Mapping[str, Any]) -> tuple[Encode, int | None]:
    """Return sentence-transformers' own ``encode``, which is what a user of the folder calls."""
    import sentence_transformers  # noqa: F401 - so that its own memory is not counted as the model's
    import torch

    from embedcache.contract import Contract
    from embedcache.teacher.load import load_by_contract

    torch.set_num_threads(job["threads"])
    contract = Contract.from_json(job["contract"])
    before = _kilobytes("VmRSS")
    model = load_by_contract(
        job["source"], contract, name="model", remedy="its folder was changed meanwhile; evaluate it again"
    ).model

    def encode(texts: Sequence[str], batch_size: int) -> object:
        prompt = contract.prompt or None
        return model.encode(list(texts), batch_size=batch_size, prompt=prompt, show_progress_bar=False)

    return encode, before


def _onnx(job: Mapping[str, Any]) -> tuple[Encode, int | None]:
    """Return the export's own encoder."""
    from distill.onnx_encoder import INT8_GRAPH, OnnxEncoder, import_onnxruntime

    import_onnxruntime()
    graph = Path(job["source"])
    before = _kilobytes("VmRSS")
    encoder = OnnxEncoder(graph.parent.parent, int8=graph.name == INT8_GRAPH, threads=job["threads"])
    return encoder.encode, before


def _kilobytes(field: str) -> int | None:
    """Return a memory figure of this process; None on systems other than Linux."""
    # Not getrusage: its peak is inherited from the process that started this one.
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


def _tell(message: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
