"""Mirrors: shards that are fetched, checked and evicted under a limit give the vectors of a pulled cache."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip_middle
from distill_helpers import build
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import run_together
from sharing import edit, make_key, manifests_of
from streaming_helpers import pushed, shard_bytes

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
CODECS = ["float32", "float16", "int8", "pq"]


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


def store_of(cache: Path) -> ShardStore:
    opened = Cache(cache)
    return opened.store(opened.teacher().contract)


def size(source: Path, shards: float) -> int:
    """Return the bytes of so many shards."""
    return int(shards * max(shard.bytes for shard in store_of(source).shards))


@contextmanager
def streamed(remote: str | Path, folder: Path, limit: int, **options: Any) -> Iterator[StreamedStore]:
    with Mirror.open(str(remote), folder, limit=limit, **options) as mirror:
        store = mirror.store(mirror.cache.teacher().contract)
        assert isinstance(store, StreamedStore)
        yield store


def names_in(mirror: Path) -> set[str]:
    return {path.stem for path in mirror.rglob("teachers/*/shards/*.arrow") if path.name[0] != "."}


def objects_of_shards(remote: Path, cache: Path) -> list[Path]:
    return [remote / object_path(shard.name) for shard in store_of(cache).shards]


def all_positions(store: Any) -> np.ndarray:
    return store.locate(key_array(TEXTS))


@contextmanager
def polled(mirror: Path) -> Iterator[list[int]]:
    """Measure the shards in a mirror all the time."""
    seen, ended = [0], threading.Event()

    def poll() -> None:
        while not ended.wait(0.0005):
            seen.append(shard_bytes(mirror))

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


# Vectors


@pytest.mark.parametrize("codecs", [["float16"], ["pq"], ["int8", "float32"], CODECS], ids="-".join)
def test_vectors_are_those_of_a_pulled_cache(tmp_path, teacher, codecs):
    """Of texts that are stored in several codecs, the finest is read."""
    parts = {}
    for number, codec in enumerate(codecs):
        texts = TEXTS[0 if codec == "pq" else 40 * number : 600 if codec == "pq" else 40 * number + 200]
        rows = 300 if codec == "pq" else ROWS
        parts[codec] = built(tmp_path / codec / "texts", teacher, texts, codec=codec, shard_rows=rows)
        push(parts[codec], str(tmp_path / "team"))
    pull(tmp_path / "pulled", str(tmp_path / "team"), sample_check=False)
    whole = store_of(tmp_path / "pulled")
    corpus = Cache(tmp_path / "pulled").corpus_names()[0]
    largest = max(shard.bytes for shard in whole.shards)
    keys = key_array([*TEXTS, "a text that no shard has"])
    with streamed(tmp_path / "team", tmp_path / "mirror", 3 * largest, corpus=corpus) as store:
        there = store.locate(keys) >= 0
        assert np.array_equal(there, whole.locate(keys) >= 0)
        assert not there[-1]
        assert (store.codec_name, store.dtype) == (whole.codec_name, whole.dtype)

        @settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(st.integers(0, int(there.sum()) - 1), max_size=80))
        def same(rows: list[int]) -> None:
            chosen = keys[there][rows]
            mine, theirs = store.locate(chosen), whole.locate(chosen)
            assert store.gather(mine).dtype == whole.gather(theirs).dtype
            np.testing.assert_array_equal(store.gather(mine), whole.gather(theirs))
            np.testing.assert_array_equal(store.vectors(mine), whole.vectors(theirs))
            for a, b in zip(store.seen(mine), whole.seen(theirs), strict=True):
                np.testing.assert_array_equal(a, b)

        same()
        for position in (-1, 10**6):
            with pytest.raises(IndexError):
                store.gather(np.array([0, position]))


def test_without_a_limit_a_mirror_is_a_pulled_cache(source, remote, tmp_path):
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        assert mirror.fetched_bytes > size(source, 10)
        contract = mirror.cache.teacher().contract
        store, whole = mirror.store(contract), store_of(source)
        np.testing.assert_array_equal(store.gather(all_positions(store)), whole.gather(all_positions(whole)))
    assert verify(tmp_path / "mirror").findings == ()
    with Mirror.open(remote, tmp_path / "mirror") as again:
        assert again.fetched_bytes == 0


def test_a_limit_also_counts_what_a_run_without_one_left(source, remote, tmp_path):
    Mirror.open(remote, tmp_path / "mirror").close()
    with streamed(remote, tmp_path / "mirror", size(source, 3.2)) as store:
        assert not list((tmp_path / "mirror" / "teachers").rglob("*.arrow"))
        gone = store.shard_names[0]
        store.gather(rows_of(store, 1))
        assert gone in names_in(tmp_path / "mirror")
        (tmp_path / "mirror").joinpath("derived", "mirror").rglob(f"{gone}.arrow").__next__().unlink()
        store.gather(rows_of(store, 0))
        assert shard_bytes(tmp_path / "mirror") <= size(source, 3.2)
    with Mirror.open(remote, tmp_path / "mirror") as mirror:
        store = mirror.store(mirror.cache.teacher().contract)
        assert len(store.gather(all_positions(store))) == 600


# Room


def test_shards_stay_under_the_limit_while_windows_move(source, remote, tmp_path, monkeypatch):
    slow_down(monkeypatch, 0.002)
    limit, generator = size(source, 4.5), np.random.default_rng(1)
    with polled(tmp_path / "mirror") as seen, streamed(remote, tmp_path / "mirror", limit) as store:
        positions = all_positions(store)
        expected = store_of(source).gather(all_positions(store_of(source)))
        windows = [sorted(part) for part in generator.permutation(12).reshape(6, 2).tolist()]
        for number in range(6):
            store.want(*windows[number : number + 2])
            rows = np.flatnonzero(np.isin(store.shards_at(positions), windows[number]))
            assert len(rows) == 100
            store.admit(positions[rows], Computing())
            for part in np.array_split(generator.permutation(rows), 4):
                np.testing.assert_array_equal(store.gather(positions[part]), expected[part])
    assert size(source, 3.5) < max(seen) <= limit


_GATHER = """
import sys
import numpy as np
from embedcache.keys import key_array
from embedcache.share.mirror import Mirror
from embedcache.testing import sentences

remote, folder, limit, seed = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
with Mirror.open(remote, folder, limit=int(limit)) as mirror:
    store = mirror.store(mirror.cache.teacher().contract)
    positions = store.locate(key_array(sentences(600, seed=4)))
    generator = np.random.default_rng(int(seed))
    first = {}
    for turn in range(40):
        shards = generator.choice(12, 2, replace=False)
        store.want(shards[:1].tolist(), shards[1:].tolist())
        rows = np.flatnonzero(np.isin(store.shards_at(positions), shards))
        for row, vector in zip(rows.tolist(), store.gather(positions[rows]), strict=True):
            assert np.array_equal(first.setdefault(row, vector), vector)
"""


def test_processes_share_a_mirror_and_its_limit(source, remote, tmp_path):
    """Each needs two shards at a time and together they may keep three: they take turns."""
    limit = size(source, 3.2)
    with polled(tmp_path / "mirror") as seen:
        run_together(_GATHER, *([remote, str(tmp_path / "mirror"), str(limit), str(n)] for n in range(2)))
    assert size(source, 2) < max(seen) <= limit
    assert not list((tmp_path / "mirror").rglob(".tmp-*"))


def test_several_threads_read_one_store(source, remote, tmp_path):
    whole = store_of(source)
    expected = whole.gather(all_positions(whole))
    wrong: list[int] = []
    with streamed(remote, tmp_path / "mirror", size(source, 3.2)) as store:
        positions = all_positions(store)

        def read(seed: int) -> None:
            generator = np.random.default_rng(seed)
            for _ in range(15):
                rows = generator.choice(600, 5)
                if not np.array_equal(store.gather(positions[rows]), expected[rows]):
                    wrong.append(seed)

        threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def rows_of(store: StreamedStore, shard: int) -> np.ndarray:
    positions = all_positions(store)
    return positions[store.shards_at(positions) == shard]


def test_the_least_recently_used_goes_first(source, remote, tmp_path):
    with streamed(remote, tmp_path / "mirror", size(source, 3.2)) as store:
        for shard in (0, 1, 2, 0, 3):
            store.gather(rows_of(store, shard))
        assert names_in(tmp_path / "mirror") == {store.shard_names[number] for number in (0, 2, 3)}
        store.gather(rows_of(store, 1))


def test_a_shard_above_the_limit_is_an_error(source, remote, tmp_path):
    with (
        streamed(remote, tmp_path / "mirror", size(source, 0.5)) as store,
        pytest.raises(StorageError, match="--cache-limit"),
    ):
        store.gather(rows_of(store, 2))


def test_rows_of_the_window_before_are_still_here_for_the_batch_between_two(
    source, remote, tmp_path, monkeypatch
):
    fetched: list[str] = []
    fetch = Remote.fetch
    monkeypatch.setattr(
        Remote, "fetch", lambda one, sha256, *rest: (fetched.append(sha256), fetch(one, sha256, *rest))
    )
    with streamed(remote, tmp_path / "mirror", size(source, 4.2)) as store:
        windows = [[0, 1], [2, 3], [4, 5]]
        store.want(*windows[:2])
        store.gather(rows_of(store, 0))
        store.gather(rows_of(store, 1))
        wait_for(lambda: len(names_in(tmp_path / "mirror")) == 4)
        store.want(*windows[1:])
        time.sleep(0.05)
        store.gather(np.concatenate([rows_of(store, 1), rows_of(store, 2)]))
        wait_for(lambda: {store.shard_names[4], store.shard_names[5]} <= names_in(tmp_path / "mirror"))
    shards = [name for name in fetched if name in set(store.shard_names)]
    assert len(shards) == len({*shards}) == 6


def wait_for(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.005)


# Folders


def test_another_folder_is_refused_as_a_mirror(source, remote, own, tmp_path):
    before = sorted(source.rglob("*"))
    with pytest.raises(InputError, match=r"no mirror of .*--mirror"):
        Mirror.open(remote, source)
    assert sorted(source.rglob("*")) == before
    Mirror.open(remote, tmp_path / "mirror", limit=10**6).close()
    with pytest.raises(InputError, match=r"no mirror of .*--mirror"):
        Mirror.open(str(own), tmp_path / "mirror")
    with pytest.raises(InputError, match="cannot contain each other"):
        Mirror.open(str(own), own / "mirror")


def test_a_newer_corpus_takes_the_place_of_the_older_one(own, source, teacher, tmp_path):
    Mirror.open(str(own), tmp_path / "mirror", limit=size(source, 3)).close()
    time.sleep(1.1)  # Manifests are sorted by their second.
    newer = built(tmp_path / "newer", teacher, [*TEXTS[:90], "one more text"])
    push(newer, str(own))
    with Mirror.open(str(own), tmp_path / "mirror", limit=size(source, 3)) as mirror:
        assert len(mirror.cache.corpus(mirror.corpus)) == 91
    older = f"texts@{Cache(source).corpus().info.digest[:12]}"
    with Mirror.open(str(own), tmp_path / "mirror", corpus=older, limit=size(source, 3)) as mirror:
        assert len(mirror.cache.corpus(mirror.corpus)) == 600


def test_of_several_corpora_one_is_chosen(own, source, teacher, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "others.txt").write_text("\n".join(TEXTS[:60]) + "\n")
    push(build(tmp_path / "more" / "others.txt", teacher, tmp_path / "more" / "cache").folder, str(own))
    with pytest.raises(InputError, match=r"2 corpora \(others, texts\).*--corpus"):
        Mirror.open(str(own), tmp_path / "mirror")
    with Mirror.open(str(own), tmp_path / "mirror", corpus="others", limit=size(source, 3)) as mirror:
        assert mirror.cache.corpus_names() == ["others"]
    with pytest.raises(InputError, match="no corpus 'missing'"):
        Mirror.open(str(own), tmp_path / "mirror", corpus="missing")


def test_a_required_signature_leaves_other_pushes_out(own, source, teacher, tmp_path):
    private, public = make_key(tmp_path, "key")
    required = {"require_signature": public, "limit": size(source, 3)}
    with pytest.raises(RemoteError, match="sign"):
        Mirror.open(str(own), tmp_path / "mirror", **required)
    signed = built(tmp_path / "signed", teacher, sentences(120, seed=9))
    push(signed, str(own), sign=private)
    with streamed(own, tmp_path / "mirror", **required) as store:
        assert len(store) == 120


def test_a_mirror_without_its_derived_folder_says_what_to_do(remote, tmp_path):
    Mirror.open(remote, tmp_path / "mirror", limit=10**6).close()
    shutil.rmtree(tmp_path / "mirror" / "derived")
    with pytest.raises(InputError, match="only copies"):
        Mirror.open(remote, tmp_path / "mirror", limit=10**6)


# Damage


def slow_down(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    fetch = Remote.fetch

    def slowly(remote: Remote, *arguments: Any) -> None:
        time.sleep(seconds)
        fetch(remote, *arguments)

    monkeypatch.setattr(Remote, "fetch", slowly)


@pytest.mark.parametrize("damage", [flip_middle, Path.unlink, lambda path: path.write_bytes(b"")])
def test_an_object_that_is_damaged_or_gone_is_refused_by_name(source, own, tmp_path, damage):
    with streamed(own, tmp_path / "mirror", size(source, 3.2)) as store:
        damage(own / object_path(store.shard_names[5]))
        (manifest,) = (own / "manifests").iterdir()
        with pytest.raises(RemoteError, match=rf"Pushed in {manifest.name[-69:-57]} \(by Ann\)"):
            store.gather(rows_of(store, 5))
        store.gather(rows_of(store, 4))
    assert names_in(tmp_path / "mirror") == {store.shard_names[4]}
    assert not list((tmp_path / "mirror").rglob(".tmp-*"))


def test_a_shard_that_is_damaged_in_the_mirror_is_fetched_again(source, remote, tmp_path):
    mirror = tmp_path / "mirror"
    with streamed(remote, mirror, size(source, 3.2)) as store:
        positions = rows_of(store, 5)
        first = store.gather(positions)
    (path,) = mirror.rglob(f"{store.shard_names[5]}.arrow")
    flip_middle(path)
    with streamed(remote, mirror, size(source, 3.2)) as store:
        np.testing.assert_array_equal(store.gather(positions), first)


@pytest.mark.parametrize("is_here", [False, True])
@pytest.mark.parametrize("what", ["keys", "codec"])
def test_a_manifest_that_lies_about_a_shard_is_refused(source, own, tmp_path, what, is_here):
    """The key list is another shard's, or the codec is a finer one; also of a shard that is in the mirror."""
    folder = tmp_path / "mirror"
    shards = [shard.name for shard in store_of(source).shards]
    if is_here:
        with streamed(own, folder, size(source, 3.2)) as store:
            store.gather(rows_of(store, 5))
    (files,) = (value["files"] for value in manifests_of(own))
    lie = {"codec": "float16"}
    if what == "keys":
        lie = {"keys": next(one["keys"] for one in files if one["sha256"] == shards[6])}
    edit(own, shards[5], lambda file: file.update(lie))
    with streamed(own, folder, size(source, 3.2)) as store:
        rows = np.flatnonzero(store.shards_at(np.arange(600)) == store.shard_names.index(shards[5]))
        with pytest.raises(RemoteError, match=r"other rows, keys or another codec.*\(by Ann\)"):
            store.gather(rows)
        assert names_in(folder) == set()


# Ends


_KILLED = """
import os, signal, sys, time
import numpy as np
from embedcache.share.mirror import Mirror
from embedcache.share.remote import Remote

def killed(remote, sha256, size, target, *more):
    if target.suffix == ".arrow" and "shards" in target.parts:
        target.with_name(f".tmp-0123-{sha256}").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    fetch(remote, sha256, size, target, *more)

fetch, Remote.fetch = Remote.fetch, killed
with Mirror.open(sys.argv[1], sys.argv[2], limit=int(sys.argv[3])) as mirror:
    mirror.store(mirror.cache.teacher().contract).gather(np.arange(1))
"""


def test_what_a_killed_run_leaves_is_cleaned_by_the_next_fetch(source, remote, tmp_path):
    command = [sys.executable, "-c", _KILLED, remote, tmp_path / "mirror", str(size(source, 1.2))]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert list((tmp_path / "mirror").rglob(".tmp-*"))
    with streamed(remote, tmp_path / "mirror", size(source, 1.2)) as store:
        store.gather(rows_of(store, 1))
        assert not list((tmp_path / "mirror").rglob(".tmp-*"))


def test_closing_ends_downloads_at_once(source, remote, tmp_path, monkeypatch):
    def unreachable(one: Remote, sha256: str, *rest: Any) -> None:
        one._call("read", lambda *_: (_ for _ in ()).throw(ConnectionError("no route")), "it")

    with Mirror.open(remote, tmp_path / "mirror", limit=size(source, 12.2)) as mirror:
        store = mirror.store(mirror.cache.teacher().contract)
        positions = all_positions(store)
        monkeypatch.setattr(Remote, "fetch", unreachable)
        store.want(list(range(12)))
        ended: list[BaseException] = []

        def read() -> None:
            try:
                store.gather(positions)
            except RemoteError as error:
                ended.append(error)

        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(0.3)
        began = time.monotonic()
        mirror.close()
        thread.join(20)
    assert time.monotonic() - began < 1
    assert len(ended) == 1
    assert not list((tmp_path / "mirror").rglob(".tmp-*"))
    store.want([1])
