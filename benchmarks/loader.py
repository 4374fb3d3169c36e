"""Speed of the training loader, against Hugging Face datasets on the same rows.

Token ids and vectors of every row, shuffled, bucketed by length and padded. First the loader alone, then how
long a real training step waits for it. Corpus and vectors are made up: their values do not matter here.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from distill.data.dataset import DistillDataset, open_rows
from distill.data.loader import Loader
from distill.data.sampler import epoch_batches
from distill.data.source import DistillSource
from distill.data.tokens import RowLengths, TokenArrays, tokenise_corpus
from embedcache.cache import Cache
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.store.base import VectorBatch
from embedcache.teacher.load import load_teacher
from embedcache.teacher.tokenize import fast_tokenizer
from embedcache.testing import example_contract, sentences

SHARD_ROWS = 16384


def make_cache(folder: Path, rows: int, dimension: int) -> Cache:
    """A cache with ``rows`` made-up sentences and random float16 vectors."""
    cache = Cache.create(folder)
    texts = sentences(rows, longest=24)
    corpus, _ = store_corpus(cache.corpora_folder, "made-up", [RowBatch(texts, None, None)], ReadReport())
    contract = example_contract(dimension)
    cache.register_teacher("made-up", contract, {})
    store = cache.store(contract)
    keys, generator = corpus.keys(), np.random.default_rng(0)
    for start in range(0, rows, SHARD_ROWS):
        part = keys[start : start + SHARD_ROWS]
        vectors = generator.normal(size=(len(part), dimension)).astype(np.float32)
        counts = np.zeros(len(part), dtype=np.int32)
        store.put(VectorBatch(part, vectors, counts, counts.astype(bool), {}))
    return cache


def loader_rate(dataset: DistillDataset, tokens: TokenArrays, batch_size: int, epoch: int) -> float:
    """Rows a second of one epoch of the loader."""
    lengths = RowLengths(tokens, dataset.rows)
    began = time.perf_counter()
    rows = 0
    batches = epoch_batches(lengths, batch_size, seed=0, epoch=epoch)
    for batch in Loader(DistillSource(dataset, (tokens,)), batches):
        rows += len(batch.rows)
    return rows / (time.perf_counter() - began)


def huggingface_rate(dataset: DistillDataset, tokens: TokenArrays, batch_size: int, folder: Path) -> float:
    """The same batches out of a memory-mapped Hugging Face dataset of (input_ids, vector), padded alike."""
    import datasets
    import pyarrow as pa

    ids = pa.LargeListArray.from_arrays(pa.array(tokens.offsets), pa.array(tokens.ids))
    stored = dataset.targets.gather(np.arange(len(dataset)))
    flat = pa.array(stored.reshape(-1))
    table = pa.table({"input_ids": ids, "vector": pa.FixedSizeListArray.from_arrays(flat, stored.shape[1])})
    datasets.Dataset(table).save_to_disk(folder)
    datasets.disable_progress_bars()
    data = datasets.load_from_disk(folder).with_format("numpy")
    batches = epoch_batches(RowLengths(tokens, dataset.rows), batch_size, seed=0, epoch=0)
    began = time.perf_counter()
    rows = 0
    for index in batches[: len(batches) // 4]:
        part = data[index]
        width = max(len(row) for row in part["input_ids"])
        padded = np.zeros((len(index), width), dtype=np.int64)
        for number, row in enumerate(part["input_ids"]):
            padded[number, : len(row)] = row
        torch.from_numpy(padded), torch.from_numpy((padded != 0).astype(np.int64))
        torch.from_numpy(np.asarray(part["vector"]))
        rows += len(index)
    return rows / (time.perf_counter() - began)


def waiting(cache: Path, steps: int, batch_size: int, folder: Path, device: str) -> tuple[float, float]:
    """Share of a training run that waits for data, and its rows a second."""
    import distill

    run = distill.run(
        cache=cache,
        student="minilm-l6",
        out=folder,
        epochs=1,
        limit=steps * batch_size,
        batch_size=batch_size,
        held_out=0,
        device=device,
        optimizer={"warmup": 0.0},
    )
    return run.result.waited, run.result.rows_per_second


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--dimension", type=int, default=384)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="training steps; 0 leaves training out")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = make_cache(folder / "cache", arguments.rows, arguments.dimension)
        dataset = open_rows(cache).split()
        tokenizer = fast_tokenizer(load_teacher("minilm-l6", max_length=128, device="cpu").model, 128, "")
        assert tokenizer is not None  # noqa: S101 - the teacher above has one
        tokens = tokenise_corpus(cache, dataset.corpus, tokenizer)
        rates = [loader_rate(dataset, tokens, arguments.batch_size, i) for i in range(arguments.rounds)]
        figures["loader rows/s"] = max(rates)
        try:
            figures["datasets rows/s"] = huggingface_rate(
                dataset, tokens, arguments.batch_size, folder / "hf"
            )
            figures["ratio"] = figures["loader rows/s"] / figures["datasets rows/s"]
        except ImportError:
            print(
                "Hugging Face datasets is not installed: pip install 'embedcache-distill[formats]' to compare"
            )
        figures["mean tokens a row"] = len(tokens.ids) / len(dataset.corpus)
        if arguments.steps:
            share, rate = waiting(
                folder / "cache", arguments.steps, arguments.batch_size, folder / "run", arguments.device
            )
            figures["waiting %"], figures["training rows/s"] = 100 * share, rate
    for label, value in figures.items():
        print(f"{label:20} {value:12,.3f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
