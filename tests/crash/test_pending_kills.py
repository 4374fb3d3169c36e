"""A build of a real teacher, killed at random instants of one shard, loses next to nothing each time."""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
from building import build, content, write_lines
from crashing import memory_folder
from forks import FORKS, preload, start

from embedcache.building import pending
from embedcache.cache import Cache
from embedcache.keys import key_array
from embedcache.store.pieces import Pieces
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import load_teacher
from embedcache.testing import sentences

preload(
    "sentence_transformers.sentence_transformer.modules", "embedcache.teacher.encode", "test_pending_kills"
)

ROWS = 6000
KEEP = 0.1
SLACK = 1.0
"""Seconds for polling, for a batch in work and for a busy machine."""
_MOST_BATCHES = 1 << 16


class Ledger:
    """Time and rows of each batch that an attempt has encoded, in shared memory: no kill loses it."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(16 * (_MOST_BATCHES + 1)))
        self._rows = np.memmap(path, np.float64, "r+", shape=(_MOST_BATCHES + 1, 2))

    def add(self, rows: int) -> None:
        number = int(self._rows[0, 0])
        self._rows[number + 1] = time.monotonic(), rows
        self._rows[0, 0] = number + 1

    def rows(self, before: float = np.inf) -> int:
        """Return the rows that were encoded before a time."""
        batches = self._rows[1 : int(self._rows[0, 0]) + 1]
        return int(batches[batches[:, 0] < before, 1].sum())


def attempt(teacher: Path, source: Path, cache: Path, ledger: Path, answer: Connection) -> None:
    """Build with a slow teacher that keeps its batches often."""
    pending.KEEP_SECONDS, counts, forward = KEEP, Ledger(ledger), Encoder.forward

    def slow(encoder: Encoder, features: dict) -> np.ndarray:
        time.sleep(0.02)
        vectors = forward(encoder, features)
        counts.add(len(vectors))
        return vectors

    Encoder.forward = slow  # type: ignore[method-assign]
    loaded = load_teacher(teacher, device="cpu", name="tiny")
    encoder = Encoder(loaded, compute_dtype="float32", threads=1, batch_tokens=512)
    answer.send(os.getpid())
    build(source, cache, loaded, encoder=encoder)
    answer.send(None)


def held(cache: Path) -> int:
    """Return how many rows are stored or pending."""
    if not (cache / "cache.json").exists() or not Cache(cache).teachers():
        return 0
    contract = Cache(cache).teacher().contract
    keys = [key_array([])]
    store, pieces = (
        Cache(cache).store(contract),
        Pieces(cache / "derived" / "pending" / contract.id, contract),
    )
    keys += [shard.keys for shard in store.shards]
    keys += [piece.keys for piece in pieces.open(pieces.names())]
    return len(np.unique(np.concatenate(keys)))


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_each_kill_loses_only_the_last_moment(tiny_teacher: Path, kills: int) -> None:

    generator = np.random.default_rng(kills)
    with memory_folder() as folder:
        source = write_lines(folder / "corpus.txt", sentences(ROWS, seed=6))

        def begin(cache: str, ledger: str) -> tuple[Connection, object]:
            ours, theirs = FORKS.Pipe(duplex=False)
            process = start(attempt, tiny_teacher, source, folder / cache, folder / ledger, theirs)
            theirs.close()
            ours.recv()
            return ours, process

        began = time.monotonic()
        peace, process = begin("peace", "peace-ledger")
        assert peace.recv() is None
        process.join()
        seconds, number, killed = time.monotonic() - began, 0, 0
        while killed < kills:
            number += 1
            cache, ledger = folder / f"cache-{number}", Ledger(folder / f"ledger-{number}")
            is_done = False
            while not is_done:
                # Some attempts are left to end by themselves.
                patience = generator.uniform(0, seconds / 2) if killed < kills else None
                answer, process = begin(cache.name, f"ledger-{number}")
                before = held(cache)
                encoded = ledger.rows()
                is_done = answer.poll(patience)
                if not is_done:
                    process.kill()
                    process.join()
                    died = time.monotonic()
                    killed += 1
                    gained, long_ago = held(cache) - before, ledger.rows(died - KEEP - SLACK) - encoded
                    assert gained >= long_ago, f"{long_ago} rows were encoded in time, {gained} are kept"
                else:
                    process.join()
            assert content(cache) == content(folder / "peace")
            assert not list(cache.glob("derived/pending/*/[!.]*"))
