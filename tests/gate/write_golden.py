"""Write the golden caches of format version 2.

Run once, by the code whose format they hold; never by a test. Run it again only when the format gets a new
version: what these files guard is that today's package reads and writes what that of then wrote.

    PYTHONPATH=.:tests python tests/gate/write_golden.py
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import torch
from building import content
from gate_helpers import CACHES, GOLDEN, MODEL, SOURCES, VECTORS, build_fake, build_real

from embedcache.cache import Cache
from embedcache.teacher.classifier import ClassifierHead
from embedcache.testing import sentences, tiny_encoder

WORDS_ROWS, PAIRS = 270, 20
LINES = [
    "A plain line.",
    "Straße, naïve, Ελληνικά, 中文, emoji 🙂",
    "  kept as it is  ",
    "",
    "A plain line.",
    "one\twith a tab",
    "a line of far more words than the short teacher of this cache is able to see",
]


def write_sources() -> None:
    """Write the files that the corpora are read from."""
    SOURCES.mkdir()
    rows = [
        {"text": text, "id": f"r{row}", "label": row % 3, "other": text[::-1] if row % 7 else ""}
        for row, text in enumerate(sentences(WORDS_ROWS, longest=7))
    ]
    rows[5]["text"] = "   "  # skipped and counted
    rows[9]["text"] = rows[8]["text"]
    (SOURCES / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    (SOURCES / "lines.txt").write_bytes("\r\n".join(LINES).encode())
    texts = sentences(2 * PAIRS, seed=1)
    pairs = zip(texts[::2], texts[1::2], strict=True)
    lines = ["first\tsecond", *("\t".join(pair) for pair in pairs)]
    (SOURCES / "pairs.tsv").write_text("\n".join(lines) + "\n", "utf-8")


def write_model() -> None:
    """Write a BERT with random weights and a classifier in its folder."""
    tiny_encoder(MODEL, dimension=8, layers=1)
    shutil.rmtree(MODEL.with_name("model-parts"))
    weight = torch.linspace(-1, 1, 16).reshape(2, 8).numpy()
    ClassifierHead(("no", "yes"), weight, np.array([0.5, -0.5], dtype=np.float32), "pairs").write(MODEL)


def described(cache: Path) -> dict[str, object]:
    """Record the vectors of a cache, and return everything else that is to be found in it."""
    opened = Cache(cache)
    corpora = {}
    for corpus in opened.corpora():
        views = {name: list(corpus.view(name).texts()) for name in corpus.view_names()}
        corpora[corpus.name] = {
            "texts": list(corpus.texts()),
            "ids": corpus.ids() if corpus.name == "words" else None,
            "labels": corpus.labels() if corpus.name == "words" else None,
            "views": views,
            "skipped": dict(corpus.info.skipped),
        }
    teachers = {}
    for teacher in opened.teachers():
        held = [name for name in sorted(corpora) if holds(opened, teacher.name, name)]
        texts = [text for name in held for text in opened.corpus(name).texts()]
        np.save(VECTORS / f"{teacher.name}.npy", opened.lookup(texts, teacher.name))
        teachers[teacher.name] = {"contract": teacher.contract.id, "origin": teacher.origin, "corpora": held}
    return {"files": content(cache), "corpora": corpora, "teachers": teachers}


def holds(cache: Cache, teacher: str, corpus: str) -> bool:
    """Return whether a teacher's vectors of a corpus are there."""
    store = cache.store(cache.teacher(teacher).contract)
    return bool((store.locate(cache.corpus(corpus).keys()) >= 0).all())


def main() -> None:
    """Write all golden caches again."""
    if GOLDEN.exists():
        shutil.rmtree(GOLDEN)
    VECTORS.mkdir(parents=True)
    write_sources()
    write_model()
    build_fake(GOLDEN / "fake")
    build_real(GOLDEN / "real")
    recorded: dict[str, object] = {name: described(GOLDEN / name) for name in CACHES}
    opened = Cache(GOLDEN / "real")
    table = opened.token_table(opened.teacher("model"))
    recorded["token table"] = {
        "shape": table.word.shape,
        "tokens": list(table.tokens),
        "word": hashlib.sha256(table.word.tobytes()).hexdigest(),
    }
    for name in CACHES:
        shutil.rmtree(GOLDEN / name / "derived")
        for lock in (GOLDEN / name).rglob("*-lock"):
            lock.unlink()
    text = json.dumps(recorded, ensure_ascii=False, sort_keys=True)
    (GOLDEN / "golden.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
