"""Latency of models on one sentence at a time: PyTorch folders and their ONNX exports, best of passes.

    python benchmarks/one_at_a_time.py stsb_test.tsv TEACHER runs/base export export/onnx/model_int8.onnx

Shorter than ``distill eval --suite latency``, which times whole test sets; nothing else should be running.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from distill.evaluation.model_kinds import open_model
from distill.evaluation.pairs import read_pairs

_WARM_UP = 10


def main() -> None:
    """Time the models in turn, and print milliseconds a sentence."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", type=Path, help="a TSV of sentence pairs")
    parser.add_argument("models", nargs="+", help="as for 'distill eval'; others are compared with the first")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--passes", type=int, default=2)
    options = parser.parse_args()
    pairs = read_pairs(options.pairs, "pairs")
    texts = [text for pair in pairs.items for text in pair][: options.sentences]
    # Encoders, since a model remembers vectors.
    models = {name: open_model(name, device="cpu").encoder for name in options.models}
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
