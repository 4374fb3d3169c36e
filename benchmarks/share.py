"""Pull from S3 on the loopback device against a plain download of the same objects; requests of each command.

Needs rclone. ``PYTHONPATH=tests python benchmarks/share.py`` prints Markdown tables.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from remote_servers import BUCKET, Proxy, s3_environment, s3_server

from embedcache.cache import Cache
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.share import Selection, collect, pull, push
from embedcache.share.location import open_filesystem
from embedcache.store.base import VectorBatch
from embedcache.testing import example_contract, sentences


def make_cache(folder: Path, rows: int, shard_rows: int, dimension: int) -> Path:
    """A cache with ``rows`` made-up sentences and random vectors."""
    cache = Cache.create(folder)
    texts = sentences(rows, longest=24)
    corpus, _ = store_corpus(cache.corpora_folder, "made-up", [RowBatch(texts, None, None)], ReadReport())
    contract = example_contract(dimension)
    cache.register_teacher("made-up", contract, {})
    store = cache.store(contract)
    keys, generator = corpus.keys(), np.random.default_rng(0)
    for start in range(0, rows, shard_rows):
        part = keys[start : start + shard_rows]
        vectors = generator.random((len(part), dimension), dtype=np.float32)
        counts = np.zeros(len(part), dtype=np.int32)
        store.put(VectorBatch(part, vectors, counts, counts.astype(bool), {}))
    return folder


def seconds_of(act: Callable[[], object]) -> float:
    """Return how long a call takes, in seconds."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def compare_pull(folder: Path, size: int, rounds: int) -> None:
    """Print a table of plain downloads and pulls, alternating."""
    cache = make_cache(folder / "large", size // (2 * 768), 16384, 768)
    url = f"s3://{BUCKET}/large"
    push(cache, url, Selection(text=False))
    fs, root = open_filesystem(url)
    # All but the key lists, which a whole pull does not need.
    wanted = {hashlib.sha256(path.read_bytes()).hexdigest() for path in cache.rglob("*") if path.is_file()}
    found = fs.find(f"{root}/objects", detail=True)
    objects = {path: one for path, one in found.items() if path.rpartition("/")[2] in wanted}
    total = sum(one["size"] for one in objects.values())
    print(f"{len(objects)} objects, {total:,} bytes\n\n| round | `fs.get`, s | `pull`, s | of its rate |")
    print("|---|---|---|---|")
    ratios = []
    for number in range(rounds):
        times = {}
        # The one that runs first changes, for what the system remembers of files differs.
        for what in ("plain", "pull") if number % 2 else ("pull", "plain"):
            target = folder / what
            if what == "plain":
                fs = open_filesystem(url)[0]
                target.mkdir()
                places = [str(target / path.rpartition("/")[2]) for path in objects]
                times[what] = seconds_of(lambda fs=fs, places=places: fs.get(list(objects), places))
            else:
                times[what] = seconds_of(lambda target=target: pull(target, url))
            shutil.rmtree(target)
            os.sync()
        ratios.append(times["plain"] / times["pull"])
        print(f"| {number + 1} | {times['plain']:.2f} | {times['pull']:.2f} | {ratios[-1]:.0%} |", flush=True)
    print(f"\nMedian: {statistics.median(ratios):.0%}\n")


def count_requests(folder: Path, proxy: Proxy, shards: int) -> None:
    """Print a table of requests and seconds of each command."""
    cache, url = make_cache(folder / "small", shards * 16, 16, 384), f"s3://{BUCKET}/small"
    print(f"{shards} shards\n\n| | requests | of these | seconds |\n|---|---|---|---|")
    commands = {
        "first push": lambda: push(cache, url),
        "push, nothing new": lambda: push(cache, url),
        "first pull": lambda: pull(folder / "pulled", url),
        "pull, nothing new": lambda: pull(folder / "pulled", url),
        "`remote gc`": lambda: collect(url),
    }
    for name, act in commands.items():
        proxy.requests.clear()
        seconds = seconds_of(act)
        methods = [one.partition(" ")[0] for one in proxy.requests]
        counts = ", ".join(f"{methods.count(one):,} {one}" for one in sorted(set(methods)))
        print(f"| {name} | {len(methods):,} | {counts} | {seconds:.1f} |", flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="Bytes of vectors to pull.")
    parser.add_argument("--rounds", type=int, default=5, help="Downloads and pulls.")
    parser.add_argument("--shards", type=int, default=320, help="Shards of the cache to count requests for.")
    parser.add_argument("--folder", type=Path, help="Folder for temporary files.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name, s3_server(Path(name) / "buckets") as port:
        os.environ.update(s3_environment(port))
        compare_pull(Path(name), options.bytes, options.rounds)
        proxy = Proxy(port)
        os.environ.update(s3_environment(proxy.port))
        count_requests(Path(name), proxy, options.shards)
        proxy.close()


if __name__ == "__main__":
    main()
