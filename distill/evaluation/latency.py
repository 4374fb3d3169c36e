"""Latency: speed and memory of a model on a CPU, after SimTDE's protocol.

All sentences of STS-B test, 2 x 1379, in the file's order, one a call; mean of three passes after a warm-up.
Then three passes in batches of 32, and the memory that loading and running the model added. Each model runs
in a separate process, by what its user would call: ``SentenceTransformer.encode`` in float32, or
``onnxruntime``; tokenising is included. ``OMP_NUM_THREADS`` sets the threads, else all cores are used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distill.errors import DataError
from distill.evaluation.files import PAIR_COLUMNS, require_folder, skipped_note
from distill.evaluation.geometry import read_stsb
from distill.evaluation.models import Encode, cpu_threads, processor
from distill.evaluation.result import Figure, SuiteResult
from distill.evaluation.task import SuiteFile, SuiteOptions, register_suite

PASSES, BATCH_SIZE = 3, 32
WARM_UP = 50
"""Sentences encoded before the clock starts."""

SPEED, BATCH_SPEED = "batch_1_sentences_per_second", f"batch_{BATCH_SIZE}_sentences_per_second"
"""Figures of sentences a second, one at a time and in batches."""

_KILOBYTES_PER_MEGABYTE = 1e3 / 1.024  # the kernel's kB are 1024 bytes, a megabyte is 10^6

Call = Callable[[Sequence[str], int], object]
"""Encodes texts in batches of a size."""


@register_suite(
    "latency",
    summary="seconds and memory on a CPU, one sentence at a time and in batches, on STS-B test",
    files=[SuiteFile("stsb_test", PAIR_COLUMNS, ("STS-B",))],
    options=("machine",),
    on_request=True,
)
def latency(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Time one model; one whose vectors are cached is loaded for it."""
    sts = read_stsb(require_folder(data, "latency"), "stsb_test")
    sentences = [text for pair in sts.pairs for text in pair]
    model, threads = options.model, cpu_threads()
    options.progress(f"time {model.name if model else 'encoder'}", 0, 0)
    if model is None or model.source is None:
        # Its encoder: encode of a model remembers vectors.
        call = encode if model is None else model.encoder
        timing, runtime = (
            measure(lambda texts, size: _sliced(call, texts, size), sentences),
            "encoder in memory",
        )
    else:
        contract = model.contract()
        job = {
            "source": str(model.source.absolute()),
            "contract": None if contract is None else contract.to_json(),
            "texts": sentences,
            "threads": threads,
        }
        timing, runtime = (
            _in_process(job, model.name),
            "onnxruntime" if contract is None else "sentence-transformers",
        )
    note = f"{len(sentences)} sentences, mean of {PASSES} passes, {runtime}, {threads} threads: {processor()}"
    return SuiteResult(
        figures_of(timing, len(sentences)),
        headline=SPEED,
        notes=(note, *skipped_note("STS-B", sts.skipped)),
        settings={"data": str(data), "runtime": runtime, "threads": threads, "processor": processor()},
    )


def figures_of(timing: Mapping[str, Any], sentences: int) -> dict[str, Figure]:
    """Return the figures of a timing as :func:`measure` gives it."""
    single, batch = np.mean(timing["single"]), np.mean(timing["batch"])
    std = {"std_of_passes": float(np.std(timing["single"], ddof=1))} if len(timing["single"]) > 1 else {}
    values = {
        "batch_1_seconds": (float(single), "seconds a pass"),
        SPEED: (sentences / float(single), "sentences a second"),
        "batch_1_ms_p50": (timing["p50_ms"], "milliseconds, median"),
        "batch_1_ms_p95": (timing["p95_ms"], "milliseconds, 95th percentile"),
        BATCH_SPEED: (sentences / float(batch), "sentences a second"),
        "peak_memory_megabytes": (timing["peak_megabytes"], "MB"),
    }
    return {
        name: Figure(value, measure, items=sentences, others=std if name == "batch_1_seconds" else {})
        for name, (value, measure) in values.items()
        if value is not None
    }


def measure(call: Call, texts: Sequence[str], passes: int = PASSES) -> dict[str, Any]:
    """Time ``call`` over ``texts``: after a warm-up, passes with one text a call, then passes in batches.

    Returns:
        ``single`` and ``batch``: seconds of each pass; ``p50_ms`` and ``p95_ms``: percentiles of one call;
        ``peak_megabytes``: None, for a caller that knows.
    """
    for text in texts[:WARM_UP]:
        call([text], 1)
    each = np.empty((passes, len(texts)))
    for number in range(passes):
        for row, text in enumerate(texts):
            start = time.perf_counter()
            call([text], 1)
            each[number, row] = time.perf_counter() - start
    call(texts[:BATCH_SIZE], BATCH_SIZE)
    batch = []
    for _ in range(passes):
        start = time.perf_counter()
        call(texts, BATCH_SIZE)
        batch.append(time.perf_counter() - start)
    p50, p95 = (np.percentile(each, [50, 95]) * 1e3).tolist()
    return {
        "single": each.sum(axis=1).tolist(),
        "p50_ms": p50,
        "p95_ms": p95,
        "batch": batch,
        "peak_megabytes": None,
    }


def _sliced(encode: Encode, texts: Sequence[str], size: int) -> object:
    return [encode(texts[row : row + size]) for row in range(0, len(texts), size)]


def _in_process(job: Mapping[str, Any], name: str) -> dict[str, Any]:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(job["threads"]),
        "CUDA_VISIBLE_DEVICES": "",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run(  # noqa: S603 - this very module
        [sys.executable, "-m", __name__],
        input=json.dumps(job),
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        # Python looks for packages in its folder first.
        cwd=Path(__file__).parents[2],
        check=False,
    )
    # Libraries may print as well; the timing is the last line.
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode or not last.startswith("{"):
        fault = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DataError(f"{name} cannot be timed: {fault}")
    timing: dict[str, Any] = json.loads(last)
    return timing


def main() -> None:
    """Time the model of a job from standard input, and print the timing."""
    job = json.load(sys.stdin)
    call, before = (_onnx if job["contract"] is None else _torch)(job)
    timing = measure(call, job["texts"])
    peak = _kilobytes("VmHWM")
    if peak is not None and before is not None:
        timing["peak_megabytes"] = (peak - before) / _KILOBYTES_PER_MEGABYTE
    sys.stdout.write(f"\n{json.dumps(timing)}\n")


def _torch(job: Mapping[str, Any]) -> tuple[Call, int | None]:
    import sentence_transformers  # noqa: F401 - its own memory is not the model's
    import torch

    from embedcache.contract import Contract
    from embedcache.teacher.load import load_by_contract

    torch.set_num_threads(job["threads"])
    contract, before = Contract.from_json(job["contract"]), _kilobytes("VmRSS")
    model = load_by_contract(job["source"], contract, name="model", remedy="evaluate again").model

    def call(texts: Sequence[str], size: int) -> object:
        prompt = contract.prompt or None
        return model.encode(list(texts), batch_size=size, prompt=prompt, show_progress_bar=False)

    return call, before


def _onnx(job: Mapping[str, Any]) -> tuple[Call, int | None]:
    from distill.onnx import INT8_GRAPH, OnnxEncoder, import_onnxruntime

    import_onnxruntime()
    graph, before = Path(job["source"]), _kilobytes("VmRSS")
    return OnnxEncoder(
        graph.parent.parent, int8=graph.name == INT8_GRAPH, threads=job["threads"]
    ).encode, before


def _kilobytes(field: str) -> int | None:
    # Not getrusage: its peak is inherited from the process that started this one.
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


if __name__ == "__main__":
    main()
