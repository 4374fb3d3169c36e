"""How long models take for one sentence at a time: PyTorch folders and their ONNX exports, best of passes.

    python benchmarks/one_at_a_time.py stsb_test.tsv mpnet runs/base/best export export:int8

Shorter than ``distill eval --suite latency``, which times whole test sets; nothing else should be running.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer

from distill.evaluation.sts import read_pairs
from distill.export import OnnxEncoder

_WARM_UP = 10


def encoder(name: str) -> Callable[[list[str]], Any]:
    """Return what encodes texts with a model's folder, or an export's (``FOLDER:int8``: its int8 graph)."""
    folder, _, kind = name.partition(":")
    if (Path(folder) / "onnx").is_dir():
        return OnnxEncoder(folder, int8=kind == "int8").encode
    return partial(SentenceTransformer(folder, device="cpu").encode, show_progress_bar=False)


def main() -> None:
    """Time the models in turn, and print milliseconds a sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=Path, help="a TSV of sentence pairs")
    parser.add_argument("models", nargs="+", help="folders; the first is what others are compared with")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--passes", type=int, default=2)
    options = parser.parse_args()
    pairs = read_pairs(options.pairs, "pairs")
    texts = [text for pair in zip(pairs.left, pairs.right, strict=True) for text in pair][: options.sentences]
    models = {name: encoder(name) for name in options.models}
    best = dict.fromkeys(models, float("inf"))
    for encode in models.values():
        for text in texts[:_WARM_UP]:
            encode([text])
    # In turn, so that what else the machine does falls on all of them.
    for _ in range(options.passes):
        for name, encode in models.items():
            began = time.perf_counter()
            for text in texts:
                encode([text])
            best[name] = min(best[name], time.perf_counter() - began)
    first = best[options.models[0]]
    for name, seconds in best.items():
        print(f"{name}: {1000 * seconds / len(texts):.1f} ms a sentence, {first / seconds:.2f} times as fast")


if __name__ == "__main__":
    main()
