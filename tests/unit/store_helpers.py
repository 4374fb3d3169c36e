"""Stores for tests, with their derived files in a folder, as a cache has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embedcache.contract import Contract
from embedcache.store import FolderShards, LmdbShards, ShardStore, VectorBatch
from embedcache.store.checked import CHECKED, CheckedFiles
from embedcache.store.index import StoreIndex
from embedcache.testing import example_batch, example_contract

CONTRACT = example_contract()


def open_store(
    folder: Path, codec: str | None = None, contract: Contract = CONTRACT, kind: str = "arrow"
) -> ShardStore:
    checked = CheckedFiles(folder / "index" / CHECKED)
    is_lmdb = kind == "lmdb"
    container = (
        LmdbShards(folder / "vectors.mdb", checked) if is_lmdb else FolderShards(folder / "shards", checked)
    )
    books, index = folder / "codebooks", StoreIndex(folder / "index", checked)
    return ShardStore(container, contract, codec, codebooks=books, index=index)


def texts(first: int, last: int) -> list[str]:
    return [f"text {number}" for number in range(first, last)]


def filled(
    folder: Path, shards: int = 4, rows: int = 25, kind: str = "arrow"
) -> tuple[ShardStore, VectorBatch]:
    """Return a finished float32 store of several shards, and everything in it as one batch."""
    store = open_store(folder, "float32", kind=kind)
    batches = [example_batch(texts(n * rows, (n + 1) * rows), seed=n) for n in range(shards)]
    for batch in batches:
        store.put(batch)
    store.finish()
    columns = ("keys", "vectors", "tokens", "truncated")
    return store, VectorBatch(*(np.concatenate([getattr(one, name) for one in batches]) for name in columns))


def shard_files(folder: Path) -> list[Path]:
    return sorted((folder / "shards").iterdir())


def index_files(folder: Path) -> list[Path]:
    return sorted((folder / "index").glob("*.npy"))
