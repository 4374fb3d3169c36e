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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from distill.errors import DataError
from distill.evaluation.files import skipped_note
from distill.evaluation.geometry import read_stsb
from distill.evaluation.machine import processor, thread_count
from distill.evaluation.models import Encode
from distill.evaluation.pairs import PAIR_COLUMNS
from distill.evaluation.result import Figure, SuiteResult
from distill.evaluation.task import SuiteFile, SuiteOptions, register_suite
from distill.onnx import INT8_GRAPH, OnnxEncoder, import_onnxruntime

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
    files=[SuiteFile("stsb_test", PAIR_COLUMNS)],
    version=lambda: f"{processor()}, {thread_count()} threads",
    on_request=True,
)
def latency(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Time one model; one whose vectors are cached is loaded for it."""
    sts = read_stsb(data, "stsb_test")
    sentences = [text for pair in sts.items for text in pair]
    model, threads = options.model, thread_count()
    options.progress.phase("time")
    options.progress.note(model.name if model else "encoder")
    source = model.locate() if model else None
    if model is None or source is None:
        # Its encoder: encode of a model remembers vectors.
        call, runtime = encode if model is None else model.encoder, "encoder in memory"
        timing = measure(partial(_sliced, call), sentences)
    else:
        contract = model.contract()
        runtime = "onnxruntime" if contract is None else "sentence-transformers"
        job = {
            "source": str(source.absolute()),
            "contract": None if contract is None else contract.to_json(),
            "texts": sentences,
            "threads": threads,
        }
        timing = _in_process(job, model.name)
    note = f"{len(sentences)} sentences, mean of {PASSES} passes, {runtime}, {threads} threads: {processor()}"
    return SuiteResult(
        figures_of(timing),
        headline=SPEED,
        notes=(note, *skipped_note("STS-B", sts.skipped)),
        settings={"data": str(data), "runtime": runtime, "threads": threads, "processor": processor()},
    )


def figures_of(timing: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the figures of a timing as ``measure`` gives it."""
    calls, batch = np.array(timing["calls"]), float(np.mean(timing["batch"]))
    sentences, single = calls.shape[1], calls.sum(axis=1)
    p50, p95 = (np.percentile(calls, [50, 95]) * 1e3).tolist()
    values = {
        "batch_1_seconds": (float(single.mean()), "seconds a pass"),
        SPEED: (sentences / float(single.mean()), "sentences a second"),
        "batch_1_ms_p50": (p50, "milliseconds, median"),
        "batch_1_ms_p95": (p95, "milliseconds, 95th percentile"),
        BATCH_SPEED: (sentences / batch, "sentences a second"),
    }
    if timing["peak_megabytes"] is not None:
        values["peak_memory_megabytes"] = timing["peak_megabytes"], "MB"
    figures = {name: Figure(value, measure, items=sentences) for name, (value, measure) in values.items()}
    std = {"std_of_passes": float(single.std(ddof=1))}
    return figures | {"batch_1_seconds": replace(figures["batch_1_seconds"], others=std)}


def measure(call: Call, texts: Sequence[str]) -> dict[str, Any]:
    """Time ``call`` over ``texts``: after a warm-up, passes with one text a call, then passes in batches.

    Returns:
        ``calls``: seconds of each call, by pass; ``batch``: seconds of each pass in batches;
        ``peak_megabytes``: None, for a caller that knows.
    """
    for text in texts[:WARM_UP]:
        call([text], 1)
    calls = [[_seconds(call, [text], 1) for text in texts] for _ in range(PASSES)]
    call(texts[:BATCH_SIZE], BATCH_SIZE)
    batch = [_seconds(call, texts, BATCH_SIZE) for _ in range(PASSES)]
    return {"calls": calls, "batch": batch, "peak_megabytes": None}


def _seconds(call: Call, texts: Sequence[str], size: int) -> float:
    start = time.perf_counter()
    call(texts, size)
    return time.perf_counter() - start


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
    if done.returncode:
        fault = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DataError(f"{name} cannot be timed: {fault}")
    # Libraries may print as well; the timing is the last line.
    timing: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
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
    prompt = contract.prompt or None
    return lambda texts, size: model.encode(
        list(texts), batch_size=size, prompt=prompt, show_progress_bar=False
    ), before


def _onnx(job: Mapping[str, Any]) -> tuple[Call, int | None]:
    import_onnxruntime()
    graph, before = Path(job["source"]), _kilobytes("VmRSS")
    encoder = OnnxEncoder(graph.parent.parent, int8=graph.name == INT8_GRAPH, threads=job["threads"])
    return encoder.encode, before


def _kilobytes(field: str) -> int | None:
    # Not getrusage: its peak is inherited from the process that started this one.
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


if __name__ == "__main__":
    main()
