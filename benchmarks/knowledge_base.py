"""Recall of a knowledge base's graph, and the time that retrieval adds to a student.

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

from distill.reaugkd.classifier import RetrievalAugmentedClassifier, open_encoder
from distill.reaugkd.index import IndexSettings, NeighbourIndex
from distill.reaugkd.knowledge_base import Header, KnowledgeBase, Origin
from distill.reaugkd.student import open_student_folder
from distill.vectors import unit
from embedcache.cache import Cache
from embedcache.codecs import Vectors
from embedcache.keys import KEY_DTYPE, first_occurrences

K, TAU = 10, 0.07
CODECS = ["float32", "float16", "int8"]


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
    index = NeighbourIndex.from_bytes(index.to_bytes(), settings)
    index.add(vectors[first:])
    built = time.perf_counter() - began
    facts = {"codec": settings.codec, "ef_search": settings.ef_search, "build_seconds": round(built, 1)}
    return index, {**facts, "bytes": len(index.to_bytes()), **measure_search(index, queries)}


def measure_search(index: NeighbourIndex, queries: Vectors) -> dict[str, object]:
    """Recall of the graph, and seconds a query in the graph and of exact search."""
    index.search(queries[:1], K)
    began = time.perf_counter()
    index.search(queries, K)
    searched = time.perf_counter()
    index.exact(queries, K)
    seconds = (searched - began) / len(queries), (time.perf_counter() - searched) / len(queries)
    return {"recall": index.recall(queries, K), "seconds": seconds[0], "exact_seconds": seconds[1]}


def measure_time(
    student: Path, index: NeighbourIndex, texts: Sequence[str], batch: int, threads: int
) -> dict[str, object]:
    """Milliseconds a text takes the student, and what retrieval adds."""
    opened = open_student_folder(student)
    origin = Origin(teacher="t", contract="", logits="", labels=tuple(opened.head.labels))
    header = Header(
        rows=len(index),
        dimension=index.dimension,
        origin=origin,
        index=index.settings,
        tau=TAU,
        texts=False,
    )
    soft = np.full((len(index), len(origin.labels)), 1 / len(origin.labels), dtype=np.float32)
    base = KnowledgeBase(header, index, soft, np.empty(len(index), dtype=KEY_DTYPE))
    encode = open_encoder(opened, None, "cpu", threads)
    classifier = RetrievalAugmentedClassifier(encode, opened.head, base, k=K)
    classifier.answer(texts[:batch])
    answers = [classifier.answer(texts[start : start + batch]) for start in range(0, len(texts), batch)]
    encoding = sum(one.encode_seconds for one in answers)
    retrieving = sum(one.search_seconds for one in answers)
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
        "--student", type=Path, help="a model folder with a classifier, as wide as the teacher"
    )
    parser.add_argument("--rows", type=int, default=67_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=CODECS)
    parser.add_argument("--ef-search", type=int, nargs="+", default=[64])
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
            index = NeighbourIndex.from_bytes(index.to_bytes(), settings)
            found = measure_search(index, queries)
            print(json.dumps({"codec": codec, "ef_search": ef_search, **found}), flush=True)
        if options.student is not None:
            for batch in (32, 1):
                timed = measure_time(options.student, index, texts[-options.texts :], batch, options.threads)
                print(json.dumps({"codec": codec, **timed}), flush=True)


if __name__ == "__main__":
    main()
