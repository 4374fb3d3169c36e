"""Row indexes that are kept for the next time, without waiting for the disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from share_helpers import TEXTS, make_cache

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.keys import key_array
from embedcache.share import push
from embedcache.share.remote.manifest import Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.remotes import location_of
from embedcache.share.rows.remote_keys import RemoteKeys


def keys_of(remote: Path, cache: Cache | None) -> RemoteKeys:
    source = Remote(location_of(str(remote)))
    stock = Stock(source.manifests())
    (contract_id,) = stock.teacher_names
    return RemoteKeys(source, cache, stock, contract_id)


@pytest.mark.parametrize("can_link", [True, False])
def test_row_indexes_are_kept_in_a_new_cache_without_waiting_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_link: bool
) -> None:
    push(make_cache(tmp_path / "cache"), str(tmp_path / "remote"))
    cache, keys = Cache.create(tmp_path / "mine"), keys_of(tmp_path / "remote", None)
    if not can_link:

        def refuse(*_: object, **__: object) -> None:
            raise OSError(errno.EXDEV, "another file system")

        monkeypatch.setattr(os, "link", refuse)
    synced: list[str] = []
    monkeypatch.setattr(
        fsio, "on_write_step", lambda step, path: synced.append(path.name) if step == "synced" else None
    )
    keys.load()
    kept = keys.kept_in(cache)
    indexes = sorted((cache.derived_folder / "remotes").rglob("*.index"))
    assert len(indexes) == len(keys.shards) > 1
    assert not [name for name in synced if name.endswith(".index")]
    assert not list(cache.folder.rglob(".tmp-*"))
    # Both go on, whichever of the two ends first.
    expected = keys.locate(key_array(TEXTS))
    del keys
    assert all(np.array_equal(a, b) for a, b in zip(kept.locate(key_array(TEXTS)), expected, strict=True))
    assert keys_of(tmp_path / "remote", cache).bytes_to_load() == 0
    assert not verify(cache.folder).damage


def test_a_kept_index_that_a_crash_has_damaged_is_fetched_again(tmp_path: Path) -> None:
    push(make_cache(tmp_path / "cache"), str(tmp_path / "remote"))
    cache = Cache.create(tmp_path / "mine")
    keys_of(tmp_path / "remote", cache).load()
    for path in (cache.derived_folder / "remotes").rglob("*.index"):
        path.write_bytes(bytes(path.stat().st_size))
    keys = keys_of(tmp_path / "remote", cache)
    assert (keys.locate(key_array(TEXTS))[0] >= 0).all()
    assert not verify(cache.folder).damage
