"""Speed of encoding in a build, against the usual alternatives.

Over the same sentences, in turn, several rounds, so that a busy machine slows all of them:

  encode  ``SentenceTransformer.encode`` with its default settings
  bare    the forward pass alone on batches that are ready, with the layers and streams the build uses
  build   the whole ``embedcache.build``: read, key, tokenise, encode, write, fsync

The last two run in every dtype of torch asked for and, on a CPU where it is installed, in OpenVINO, in
float32 and with int8 weights.

Ratios of the best rounds are what counts; the rates themselves depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

import embedcache
from embedcache.teacher.batching import token_budget_batches
from embedcache.teacher.encode import Encoder, padded_features
from embedcache.teacher.load import Teacher, load_teacher, quiet_transformers
from embedcache.teacher.openvino_model import has_openvino
from embedcache.teacher.options import QUANTIZATIONS, EncodeOptions


def read_sentences(file: Path | None, column: str | None, rows: int) -> list[str]:
    """Distinct sentences of ``file``, at most ``rows`` of them chosen by a fixed seed."""
    if file is None:
        from distill.demo import collect_sentences

        return collect_sentences(rows, minimum=min(rows, 20_000))
    from embedcache.corpus.readers import ReadOptions, ReadReport, read_batches

    batches = read_batches([file], ReadOptions(text_column=column), ReadReport())
    texts = list(dict.fromkeys(text for batch in batches for text in batch.texts))
    chosen = np.random.default_rng(0).permutation(len(texts))[:rows]
    return [texts[i] for i in chosen]


def random_teacher(folder: Path, shape: str, device: str) -> Teacher:
    """A teacher of a well-known shape with random weights: for speed, weights do not matter."""
    from transformers import RobertaConfig, RobertaModel

    sizes = {"roberta-large": (24, 1024, 16), "roberta-base": (12, 768, 12)}
    layers, width, heads = sizes[shape]
    config = RobertaConfig(
        vocab_size=50265,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        pad_token_id=0,
        max_position_embeddings=514,
        type_vocab_size=1,
    )
    with quiet_transformers():
        RobertaModel(config).save_pretrained(folder)
        load_teacher("minilm-l6", device="cpu").model.tokenizer.save_pretrained(folder)
    return load_teacher(folder, pooling="mean", max_length=256, device=device, name=shape)


def product_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Measured rate of one large matrix product, in FLOP/s."""
    n = 8192 if device.type == "cuda" else 2048
    a, b = torch.randn(n, n, device=device, dtype=dtype), torch.randn(n, n, device=device, dtype=dtype)

    def product() -> None:
        torch.mm(a, b)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return 2 * n**3 / min(timed(product) for _ in range(10))


def timed(function: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def bare_pass(encoder: Encoder, texts: list[str]) -> Callable[[], None]:
    """A function that runs the forward pass alone, on batches made beforehand."""
    assert encoder.tokenizer is not None  # noqa: S101 - benchmarks use text encoders
    tokenized = encoder.tokenizer(texts)
    batches = token_budget_batches(tokenized.lengths, encoder.batch_tokens)
    ready = [padded_features(tokenized, rows, encoder.tokenizer) for rows in batches]

    def run() -> None:
        with ThreadPoolExecutor(encoder.streams, initializer=encoder.start_stream) as pool:
            list(pool.map(encoder.forward, ready))

    return run


def encoders(teacher: Teacher, dtypes: list[str]) -> dict[str, Encoder]:
    """Return an encoder of each kind by its name."""
    found = {dtype: Encoder(teacher, compute_dtype=dtype) for dtype in dtypes}
    if found[dtypes[0]].device.type == "cpu" and has_openvino():
        found["openvino"] = Encoder(teacher, compute_dtype="float32", backend="openvino")
        quantized = replace(teacher.contract, quantization=QUANTIZATIONS["int8"])
        found["openvino int8"] = Encoder(replace(teacher, contract=quantized))
    return found


def measure(
    teacher: Teacher, kinds: dict[str, Encoder], texts: list[str], rounds: int, folder: Path
) -> dict[str, dict[str, float]]:
    """Rates of every kind of encoder, and what follows from them."""
    model = teacher.model
    corpus = folder / "sentences.txt"
    corpus.write_text("\n".join(texts) + "\n", encoding="utf-8")
    ways: dict[str, Callable[[], object]] = {"encode": lambda: model.encode(texts)}
    for kind, encoder in kinds.items():
        ways[f"{kind} bare"] = bare_pass(encoder, texts)
        ways[f"{kind} build"] = partial(build_anew, encoder, corpus, folder)
    best = dict.fromkeys(ways, float("inf"))
    for number in range(rounds):
        for name, way in ways.items():
            seconds = timed(way)
            best[name] = min(best[name], seconds)
            print(f"  round {number + 1} {name:20} {len(texts) / seconds:10,.0f} rows/s", flush=True)
    reference = model.encode(texts[:500])
    linear = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "embeddings" not in n)
    figures = {}
    for kind, encoder in kinds.items():
        got = encoder.encode(texts[:500]).vectors
        cosine = (got * reference).sum(1) / np.linalg.norm(got, axis=1) / np.linalg.norm(reference, axis=1)
        tokens = encoder.tokenizer(texts).ids.size if encoder.tokenizer else 0
        encode, bare, build = (best[name] for name in ("encode", f"{kind} bare", f"{kind} build"))
        figures[kind] = {
            "encode": len(texts) / encode,
            "bare": len(texts) / bare,
            "build": len(texts) / build,
            "build/encode": encode / build,
            "build/bare": bare / build,
            "largest difference": float(np.abs(got - reference).max()),
            "cosine mean": float(cosine.mean()),
            "cosine worst": float(cosine.min()),
            "share of product rate": 2
            * linear
            * tokens
            / build
            / product_rate(encoder.device, encoder.dtype),
        }
    return figures


def build_anew(encoder: Encoder, corpus: Path, folder: Path) -> None:
    """Build into a new cache."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        embedcache.build(corpus, teacher=encoder, cache=name, encode=EncodeOptions(codec="float16"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--teacher", default="minilm-l6")
    parser.add_argument(
        "--shape", choices=["roberta-large", "roberta-base"], help="random weights of this shape"
    )
    parser.add_argument(
        "--sentences", type=Path, help="file of sentences; default: documentation on this machine"
    )
    parser.add_argument("--text-column")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--json", type=Path, help="also write the figures here")
    arguments = parser.parse_args()
    texts = read_sentences(arguments.sentences, arguments.text_column, arguments.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if arguments.shape:
            teacher = random_teacher(folder / "teacher", arguments.shape, arguments.device)
        else:
            teacher = load_teacher(arguments.teacher, device=arguments.device)
        teacher.model.encode(texts[:200])
        kinds = encoders(teacher, arguments.dtypes)
        figures = measure(teacher, kinds, texts, arguments.rounds, folder)
    print(
        f"{len(texts):,} sentences, {arguments.shape or arguments.teacher}, {arguments.device}, "
        f"best of {arguments.rounds}"
    )
    for kind, values in figures.items():
        print(kind, "  ".join(f"{k} {v:,.0f}" if v > 10 else f"{k} {v:.7g}" for k, v in values.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
