"""What does a knowledge base cost and find: recall of its graph, and what retrieval adds to a student's time.

Real vectors of a corpus in a cache (by default those of a projected teacher), against exact search; then a
real student over real texts, in batches and one at a time, with retrieval and without.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from distill.knowledge_base.index import CODECS, UNSETTLED_EFFORT, IndexSettings, NeighbourIndex
from distill.knowledge_base.recall import measure_recall
from distill.knowledge_base.vote import mixed, neighbour_vote, softmax
from distill.retrieval_classifier import DEFAULT_BETA, student_encoder
from distill.vectors import unit
from embedcache.cache import Cache
from embedcache.codecs import Vectors
from embedcache.keys import first_occurrences

K, TAU = 10, 0.07


def cached_vectors(
    cache: Path, corpus: str | None, teacher: str | None, rows: int
) -> tuple[Vectors, list[str]]:
    """Unit vectors and texts of the first distinct rows of a corpus."""
    opened = Cache(cache)
    found, store = opened.corpus(corpus), opened.store(opened.teacher(teacher).contract)
    keys = found.keys()
    places = np.flatnonzero(first_occurrences([keys]))[:rows]
    return unit(store.vectors(store.locate(keys[places]))), found.texts(places)


def measure_graph(
    vectors: Vectors, queries: Vectors, settings: IndexSettings
) -> tuple[NeighbourIndex, dict[str, object]]:
    """Build a graph, save it, load it, add the last tenth, and compare it with exact search."""
    first = len(vectors) * 9 // 10
    began = time.perf_counter()
    index = NeighbourIndex.build(vectors[:first], settings)
    index = NeighbourIndex.from_bytes(index.to_bytes().tobytes(), settings)
    index.add(vectors[first:])
    built = time.perf_counter() - began
    facts = {"codec": settings.codec, "ef_search": settings.ef_search, "build_seconds": round(built, 1)}
    return index, {**facts, "bytes": index.to_bytes().nbytes, **measure_recall(index, queries, K).to_json()}


def measure_time(
    student: Path, index: NeighbourIndex, texts: Sequence[str], batch: int, threads: int
) -> dict[str, object]:
    """Milliseconds a text takes the student, and what retrieval adds."""
    encode = student_encoder(student, "cpu", threads)
    soft = np.full((len(index), 2), 0.5, dtype=np.float32)
    encode(texts[:batch])
    encoding = retrieving = 0.0
    for start in range(0, len(texts), batch):
        began = time.perf_counter()
        vectors = encode(texts[start : start + batch])
        encoded = time.perf_counter()
        rows, cosines = index.search(unit(vectors), K)
        mixed(softmax(vectors[:, :2]), neighbour_vote(cosines, soft[rows], TAU), DEFAULT_BETA)
        encoding += encoded - began
        retrieving += time.perf_counter() - encoded
    return {
        "batch": batch,
        "student_ms": 1000 * encoding / len(texts),
        "retrieval_ms": 1000 * retrieving / len(texts),
        "added_percent": 100 * retrieving / encoding,
    }


def main() -> None:
    """Measure, and print a JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--corpus")
    parser.add_argument("--teacher")
    parser.add_argument(
        "--student", type=Path, help="a model folder; its vectors are as wide as the teacher's"
    )
    parser.add_argument("--rows", type=int, default=67_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=list(CODECS))
    parser.add_argument("--ef-search", type=int, nargs="+", default=[UNSETTLED_EFFORT])
    parser.add_argument("--texts", type=int, default=872)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    vectors, texts = cached_vectors(
        options.cache, options.corpus, options.teacher, options.rows + options.queries
    )
    vectors, queries = vectors[: -options.queries], vectors[-options.queries :]
    for codec in options.codecs:
        index, facts = measure_graph(
            vectors, queries, IndexSettings(codec=codec, ef_search=options.ef_search[0])
        )
        print(json.dumps(facts), flush=True)
        for ef_search in options.ef_search[1:]:
            settings = IndexSettings(codec=codec, ef_search=ef_search)
            index = NeighbourIndex.from_bytes(index.to_bytes().tobytes(), settings)
            found = measure_recall(index, queries, K).to_json()
            print(json.dumps({"codec": codec, "ef_search": ef_search, **found}), flush=True)
        if options.student is not None:
            for batch in (32, 1):
                timed = measure_time(options.student, index, texts[-options.texts :], batch, options.threads)
                print(json.dumps({"codec": codec, **timed}), flush=True)


if __name__ == "__main__":
    main()
