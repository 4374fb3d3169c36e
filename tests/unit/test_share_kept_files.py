"""Row indexes that are kept for the next time, and whole shards that are fetched for some of their bytes."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from share_helpers import TEXTS, make_cache, without_indexes

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.check.progress import Meter
from embedcache.errors import StorageError
from embedcache.keys import key_array
from embedcache.share import PullChoice, pull, push
from embedcache.share.places.base import RangesNotServedError
from embedcache.share.places.folder import FolderPlace
from embedcache.share.pulling import take_rows
from embedcache.share.remote.download import download
from embedcache.share.remote.manifest import SharedFile, Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.remotes import location_of
from embedcache.share.rows import row_indexes
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.temporaries import abandoned_bytes, being_made


def keys_of(remote: Path, cache: Cache | None) -> RemoteKeys:
    source = Remote(location_of(str(remote)))
    stock = Stock(source.survey().manifests)
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


@pytest.mark.parametrize("is_writable", [True, False])
def test_whole_shards_that_are_read_for_their_keys_lie_beside_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    remote = tmp_path / "remote"
    push(make_cache(tmp_path / "cache"), str(remote))
    without_indexes(remote)
    mine = Cache.create(tmp_path / "mine")
    places: list[Path] = []

    def note(remote: Remote, file: SharedFile, place: Path, meter: Meter) -> None:
        places.append(place)
        download(remote, file, place, meter)

    monkeypatch.setattr(row_indexes, "download", note)
    if not is_writable:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
        (mine.derived_folder).mkdir(exist_ok=True)
        (mine.derived_folder / "remotes").write_text("a file, so that no folder can be made")
    keys_of(remote, mine).load()
    home = mine.derived_folder / "remotes" if is_writable else tmp_path / "elsewhere"
    assert len(places) > 1
    assert all(place.is_relative_to(home) and not place.exists() for place in places)


def test_a_shard_without_a_row_index_is_not_fetched_where_there_is_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = tmp_path / "remote"
    push(make_cache(tmp_path / "cache"), str(remote))
    without_indexes(remote)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(StorageError, match=r"1,000 are free, .*'embedcache push' from a cache that"):
        keys_of(remote, Cache.create(tmp_path / "mine")).load()


def test_whole_shards_that_killed_pulls_have_left_are_swept(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "mine")
    target = cache.derived_folder / "remotes" / ("0" * 32) / f"{'1' * 64}.arrow"
    with being_made(target) as place:
        left = place
        place.write_bytes(bytes(1000))
        assert abandoned_bytes(cache.folder, delete=True) == 0
    assert not left.exists()
    left.write_bytes(bytes(1000))
    assert abandoned_bytes(cache.folder, delete=True) == 1000
    assert not left.exists()


def test_whole_shards_that_are_fetched_for_some_rows_lie_beside_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(make_cache(tmp_path / "cache"), str(tmp_path / "remote"))
    places: list[Path] = []

    def note(remote: Remote, file: SharedFile, place: Path, meter: Meter) -> None:
        places.append(place)
        download(remote, file, place, meter)

    def no_ranges(self: FolderPlace, path: str, start: int, length: int) -> bytes:
        raise RangesNotServedError("whole files alone")

    monkeypatch.setattr(FolderPlace, "read_range", no_ranges)
    monkeypatch.setattr(take_rows, "download", note)
    pull(tmp_path / "mine", str(tmp_path / "remote"), PullChoice(corpora=["corpus"], where="row % 20 = 0"))
    assert len(places) > 1
    beside = tmp_path / "mine" / "derived" / "remotes"
    assert all(place.is_relative_to(beside) and not place.exists() for place in places)
