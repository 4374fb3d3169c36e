"""Mirrors: shards that are fetched, checked and evicted under a limit give the vectors of a pulled cache."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forks
import numpy as np
import pytest
from damage import flip_middle
from distill_helpers import build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sharing import edit, gather_windows, manifests_of
from streaming_helpers import pushed, shard_bytes, shard_size, slow_down

from embedcache.cache import Cache
from embedcache.errors import InputError, RemoteError, StorageError
from embedcache.keys import key_array
from embedcache.live import Computing
from embedcache.share.mirror import Mirror, StreamedStore
from embedcache.share.pull import pull
from embedcache.share.push import push
from embedcache.share.remote import Remote, object_path
from embedcache.store import ShardStore
from embedcache.testing import sentences, tiny_encoder
from embedcache.verify import verify

TEXTS = sentences(600, seed=4)
ROWS = 50


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("teacher") / "tiny")


def built(folder: Path, teacher: Path, texts: list[str], **options: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "texts.txt").write_text("\n".join(texts) + "\n")
    return build(folder / "texts.txt", teacher, folder / "cache", **{"shard_rows": ROWS, **options}).folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, teacher: Path) -> Path:
    """Twelve shards of 50 rows."""
    return built(tmp_path_factory.mktemp("source") / "a", teacher, TEXTS)


@pytest.fixture(scope="module")
def remote(source: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return pushed(source, tmp_path_factory.mktemp("remote") / "team")


@pytest.fixture
def own(remote: str, tmp_path: Path) -> Path:
    """A copy of the remote that a test may change."""
    return Path(shutil.copytree(remote, tmp_path / "team"))


@pytest.fixture(scope="module")
def size(source: Path) -> Callable[[float], int]:
    """Return a function that gives the bytes of N shards."""
    one = shard_size(source)
    return lambda shards: int(shards * one)


def store_of(cache: Path) -> ShardStore:
    opened = Cache(cache)
    return opened.store(opened.teacher().contract)


def gather(store: ShardStore) -> np.ndarray:
    return store.gather(store.locate(key_array(TEXTS)))


@contextmanager
def streamed(remote: str | Path, folder: Path, limit: int, **options: Any) -> Iterator[StreamedStore]:
    with Mirror.open(str(remote), folder, limit=limit, **options) as mirror:
        store = mirror.store(mirror.cache.teacher().contract)
        assert isinstance(store, StreamedStore)
        yield store


def names_in(mirror: Path) -> set[str]:
    return {path.stem for path in mirror.rglob("teachers/*/shards/[!.]*.arrow")}


def rows_of(store: StreamedStore, *shards: int) -> np.ndarray:
    """Return the positions of the rows of some shards."""
    return np.flatnonzero(np.isin(store.shards_at(np.arange(600)), shards))


@contextmanager
def polled(mirror: Path) -> Iterator[list[int]]:
    """Measure the shards in a mirror all the time."""
    seen, ended = [0], threading.Event()

    def poll() -> None:
        while not ended.wait(0.002):
            seen.append(shard_bytes(mirror))

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


# Vectors


@pytest.mark.parametrize("codecs", [["pq"], ["int8", "float32"]], ids="-".join)
def test_vectors_are_those_of_a_pulled_cache(tmp_path, teacher, codecs):
    """Of texts that are stored in several codecs, the finest is read."""
    for number, codec in enumerate(codecs):
        texts, rows = (TEXTS, 300) if codec == "pq" else (TEXTS[40 * number : 40 * number + 200], ROWS)
        cache = built(tmp_path / codec / "texts", teacher, texts, codec=codec, shard_rows=rows)
        push(cache, str(tmp_path / "team"))
    pull(tmp_path / "pulled", str(tmp_path / "team"))
    whole = store_of(tmp_path / "pulled")
    (corpus,) = Cache(tmp_path / "pulled").corpus_names()
    keys = key_array([*TEXTS, "a text that no shard has"])
    limit = 3 * max(shard.bytes for shard in whole.shards)
    with streamed(tmp_path / "team", tmp_path / "mirror", limit, corpus=corpus) as store:
        found = store.locate(keys) >= 0
        assert np.array_equal(found, whole.locate(keys) >= 0)
        assert not found[-1]
        assert (store.codec_name, store.dtype, len(store)) == (whole.codec_name, whole.dtype, len(whole))

        @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.integers(0, int(found.sum()) - 1), max_size=80))
        def same(rows: list[int]) -> None:
            mine, theirs = store.locate(keys[found][rows]), whole.locate(keys[found][rows])
            np.testing.assert_array_equal(store.gather(mine), whole.gather(theirs))
            for a, b in zip(store.seen(mine), whole.seen(theirs), strict=True):
                np.testing.assert_array_equal(a, b)

        same()
        for position in (-1, 10**6):
            with pytest.raises(IndexError):
                store.gather(np.array([0, position]))


def test_a_mirror_without_a_limit_is_a_pulled_cache_and_a_later_limit_counts_its_files(
    source, remote, tmp_path, size
):
    folder = tmp_path / "mirror"
    with Mirror.open(remote, folder) as mirror:
        assert mirror.fetched_bytes > size(10)
        np.testing.assert_array_equal(
            gather(mirror.store(mirror.cache.teacher().contract)), gather(store_of(source))
        )
    assert verify(folder).findings == ()
    with Mirror.open(remote, folder) as again:
        assert again.fetched_bytes == 0
    with streamed(remote, folder, size(3.2)) as store:
        assert not list((folder / "teachers").rglob("*.arrow"))
        next(folder.rglob(f"{store.shard_names[0]}.arrow")).unlink()
        store.gather(rows_of(store, 0))
        assert shard_bytes(folder) <= size(3.2)
    with Mirror.open(remote, folder) as mirror:
        assert len(gather(mirror.store(mirror.cache.teacher().contract))) == 600


# Room


def test_shards_stay_under_the_limit_while_windows_move(source, remote, tmp_path, monkeypatch, size):
    fetched: list[str] = []
    slow_down(monkeypatch, 0.002, fetched)
    generator = np.random.default_rng(1)
    with polled(tmp_path / "mirror") as seen, streamed(remote, tmp_path / "mirror", size(4.5)) as store:
        positions, whole = store.locate(key_array(TEXTS)), store_of(source)
        expected = np.empty_like(vectors := whole.vectors(whole.locate(key_array(TEXTS))))
        expected[positions] = vectors
        windows = [sorted(part) for part in generator.permutation(12).reshape(6, 2).tolist()]
        for number in range(6):
            store.want(*windows[number : number + 2])
            rows = rows_of(store, *windows[number])
            store.admit(rows, Computing())
            for part in np.array_split(generator.permutation(rows), 4):
                np.testing.assert_array_equal(store.vectors(part), expected[part])
    assert size(3.5) < max(seen) <= size(4.5)
    assert len(fetched) == len({*fetched}) == 12


def test_processes_share_a_mirror_and_its_limit(remote, tmp_path, size):
    """Each needs two shards at a time and together they may keep three: they take turns."""
    with polled(tmp_path / "mirror") as seen:
        words = (remote, tmp_path / "mirror", size(3.2))
        children = [forks.start(gather_windows, *words, seed) for seed in range(2)]
        for child in children:
            child.join(300)
            assert child.exitcode == 0
    assert size(2) < max(seen) <= size(3.2)
    assert not list((tmp_path / "mirror").rglob(".tmp-*"))


def test_the_least_recently_used_goes_first_and_one_has_to_fit(remote, tmp_path, size):
    with streamed(remote, tmp_path / "mirror", size(3.2)) as store:
        for shard in (0, 1, 2, 0, 3):
            store.gather(rows_of(store, shard))
        assert names_in(tmp_path / "mirror") == {store.shard_names[number] for number in (0, 2, 3)}
    with (
        streamed(remote, tmp_path / "small", size(0.5)) as store,
        pytest.raises(StorageError, match="cache_limit"),
    ):
        store.gather(rows_of(store, 2))


# Folders


def test_another_folder_is_refused_as_a_mirror(source, remote, own, tmp_path):
    before = sorted(source.rglob("*"))
    with pytest.raises(InputError, match=r"no mirror of .*mirror"):
        Mirror.open(remote, source)
    assert sorted(source.rglob("*")) == before
    Mirror.open(remote, tmp_path / "mirror", limit=10**6).close()
    with pytest.raises(InputError, match=r"no mirror of .*mirror"):
        Mirror.open(str(own), tmp_path / "mirror")
    with pytest.raises(InputError, match="cannot contain each other"):
        Mirror.open(str(own), own / "mirror")
    shutil.rmtree(tmp_path / "mirror" / "derived")
    with pytest.raises(InputError, match="only copies"):
        Mirror.open(remote, tmp_path / "mirror", limit=10**6)


def test_of_several_corpora_and_versions_one_is_chosen(own, source, teacher, tmp_path, size):
    limit = size(3)
    Mirror.open(str(own), tmp_path / "mirror", limit=limit).close()
    time.sleep(1.1)  # Manifests are sorted by their second.
    push(built(tmp_path / "newer", teacher, [*TEXTS[:90], "one more text"]), str(own))
    older = f"texts@{Cache(source).corpus().info.digest[:12]}"
    for corpus, rows in ((None, 91), (older, 600)):
        with Mirror.open(str(own), tmp_path / "mirror", corpus=corpus, limit=limit) as mirror:
            assert len(mirror.cache.corpus(mirror.corpus)) == rows
    push(built(tmp_path / "more", teacher, TEXTS[:60], name="others"), str(own))
    with pytest.raises(InputError, match=r"2 corpora \(others, texts\).*corpus"):
        Mirror.open(str(own), tmp_path / "other")
    with Mirror.open(str(own), tmp_path / "other", corpus="others", limit=limit) as mirror:
        assert mirror.cache.corpus_names() == ["others"]
    with pytest.raises(InputError, match="no corpus 'missing'"):
        Mirror.open(str(own), tmp_path / "other", corpus="missing")


# Damage


@pytest.mark.parametrize("damage", [flip_middle, Path.unlink])
def test_an_object_that_is_damaged_or_gone_is_refused_by_name(own, tmp_path, damage, size):
    with streamed(own, tmp_path / "mirror", size(3.2)) as store:
        damage(own / object_path(store.shard_names[5]))
        (manifest,) = (own / "manifests").iterdir()
        with pytest.raises(RemoteError, match=rf"Pushed in {manifest.name[-69:-57]} \(by Ann\)"):
            store.gather(rows_of(store, 5))
        store.gather(rows_of(store, 4))
    assert names_in(tmp_path / "mirror") == {store.shard_names[4]}
    assert not list((tmp_path / "mirror").rglob(".tmp-*"))


def test_a_shard_that_is_damaged_in_the_mirror_is_fetched_again(remote, tmp_path, size):
    mirror = tmp_path / "mirror"
    with streamed(remote, mirror, size(3.2)) as store:
        first = store.gather(rows_of(store, 5))
    flip_middle(next(mirror.rglob(f"{store.shard_names[5]}.arrow")))
    with streamed(remote, mirror, size(3.2)) as store:
        np.testing.assert_array_equal(store.gather(rows_of(store, 5)), first)


@pytest.mark.parametrize(("what", "is_here"), [("keys", True), ("codec", False)])
def test_a_manifest_that_lies_about_a_shard_is_refused(own, tmp_path, what, is_here, size):
    """The key list is another shard's, or the codec is a finer one; also of a shard that is in the mirror."""
    (files,) = (value["files"] for value in manifests_of(own))
    shard, other = [file for file in files if file.get("keys")][5:7]
    if is_here:
        with streamed(own, tmp_path / "mirror", size(12)) as store:
            gather(store)
    lie = {"codec": "float16"} if what == "codec" else {"keys": other["keys"]}
    edit(own, shard["sha256"], lambda file: file.update(lie))
    with streamed(own, tmp_path / "mirror", size(12)) as store:
        with pytest.raises(RemoteError, match=r"other rows, keys or another codec.*\(by Ann\)"):
            store.gather(rows_of(store, store.shard_names.index(shard["sha256"])))
        assert shard["sha256"] not in names_in(tmp_path / "mirror")


# Ends


def test_leftovers_of_a_killed_run_are_removed_by_the_next_fetch(remote, tmp_path, size):
    with streamed(remote, tmp_path / "mirror", size(1.2)) as store:
        left = Path(store.container.where(".tmp-0123-half"))
        left.parent.mkdir(parents=True)
        left.write_bytes(b"half")
        store.gather(rows_of(store, 1))
        assert not left.exists()


def test_closing_ends_downloads_at_once(remote, tmp_path, monkeypatch, size):
    def endless(one: Remote, *_: Any) -> None:
        one.stop.wait(60)
        raise RemoteError("stopped")

    with Mirror.open(remote, tmp_path / "mirror", limit=size(12.2)) as mirror:
        store: Any = mirror.store(mirror.cache.teacher().contract)
        monkeypatch.setattr(Remote, "fetch", endless)
        store.want(list(range(12)))
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(store.gather, np.arange(600))
            time.sleep(0.2)
            began = time.monotonic()
            mirror.close()
            with pytest.raises(RemoteError):
                reading.result(20)
    assert time.monotonic() - began < 2
    store.want([1])
