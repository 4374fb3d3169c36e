"""Push and pull: a cache comes out as it went in, only what is missing travels, and kills lose nothing."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import flip_middle
from share_helpers import (
    SHARD_ROWS,
    TEXTS,
    claims_left,
    content,
    files_of,
    make_cache,
    manifest_bytes,
    manifest_of,
    objects_of,
)

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.derived import projection_bytes, write_derived
from embedcache.errors import CorruptCacheError, InputError, RemoteError, StorageError
from embedcache.share import PullChoice, PushChoice, compare_with_remote, list_remote, pull, push, sync
from embedcache.share.places import parse_location
from embedcache.share.pushing.selection import LocalObject
from embedcache.share.remote.marker import MARKER_BYTES
from embedcache.share.remote.remote import MARKER, Remote
from embedcache.testing import fake_teacher, sentences
from embedcache.views.plan import ViewOptions

OTHER = fake_teacher(12, name="other", seed=3)


def test_a_cache_comes_out_as_it_went_in(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    pushed = push(cache, str(tmp_path / "remote"))
    pulled = pull(tmp_path / "there", str(tmp_path / "remote"))
    assert content(tmp_path / "there") == content(cache.folder)
    assert verify(tmp_path / "there").findings == ()
    assert pushed.sent == len(objects_of(cache.folder))
    assert pulled.fetched == len(content(cache.folder)) - 1  # cache.json is no object
    assert pushed.sent_bytes > pulled.fetched_bytes > 0
    assert (pulled.fetched_text_rows, pulled.fetched_vectors) == (len(TEXTS), len(TEXTS))
    assert np.array_equal(Cache(tmp_path / "there").lookup(TEXTS), cache.lookup(TEXTS))


def test_nothing_of_a_cache_but_what_is_shared_lies_on_a_remote(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    cache.remember_model(fake_teacher(8).contract, "a place of this machine")
    push(cache, str(tmp_path / "remote"))
    assert (tmp_path / "remote" / MARKER).read_bytes() == MARKER_BYTES
    paths = {file["path"] for file in manifest_of(tmp_path / "remote")["files"]}
    assert paths == content(cache.folder).keys() - {"cache.json"}
    assert {path.name for path in (tmp_path / "remote").iterdir()} <= {
        MARKER,
        "objects",
        "manifests",
        "cards",
        "claims",
    }
    assert claims_left(tmp_path / "remote") == []
    everything = b"".join(files_of(tmp_path / "remote", ".").values())
    assert b"a place of this machine" not in everything
    assert str(tmp_path).encode() not in everything


def test_only_what_is_missing_travels(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    cache = make_cache(tmp_path / "cache")
    push(cache, remote)
    before = files_of(tmp_path / "remote", ".")
    again = push(cache, remote)
    assert (again.sent, again.manifest) == (0, "")
    assert files_of(tmp_path / "remote", ".") == before

    pull(tmp_path / "there", remote)
    assert pull(tmp_path / "there", remote).fetched == 0
    more = make_cache(tmp_path / "cache", sentences(SHARD_ROWS, seed=9), name="more")
    assert push(more, remote).sent == 4  # a shard, its index, a part, a description
    assert pull(tmp_path / "there", remote).fetched == 3
    assert content(tmp_path / "there") == content(cache.folder)


def test_a_push_sends_what_the_remote_has_only_in_part(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    push(cache, str(tmp_path / "remote"))
    whole = files_of(tmp_path / "remote", "objects")
    cut, gone = sorted(whole)[:2]
    (tmp_path / "remote" / "objects" / cut).write_bytes(whole[cut][:-1])
    (tmp_path / "remote" / "objects" / gone).unlink()
    assert push(cache, str(tmp_path / "remote")).sent == 2
    assert files_of(tmp_path / "remote", "objects") == whole


@pytest.mark.parametrize("codec", ["float32", "int8", "pq"])
@pytest.mark.parametrize(("here", "there"), [("arrow", "lmdb"), ("lmdb", "arrow"), ("lmdb", "lmdb")])
def test_shards_go_into_whichever_store_there_is(tmp_path: Path, codec: str, here: str, there: str) -> None:
    texts = sentences(400, seed=1)
    cache = make_cache(tmp_path / "cache", texts, store=here, codec=codec, shard_rows=300)
    target = tmp_path / "there"
    if there == "lmdb":
        make_cache(target, sentences(300, seed=2), store="lmdb", codec=codec, name="own", shard_rows=300)
    own = content(target) if target.exists() else {}
    push(cache, str(tmp_path / "remote"))
    pull(target, str(tmp_path / "remote"))
    assert content(target) == {**own, **content(cache.folder)}
    opened = Cache(target)
    assert opened.store(opened.teacher().contract).kind == there
    if codec != "pq" or there == "arrow":
        assert np.array_equal(opened.lookup(texts), cache.lookup(texts))
    assert not [finding for finding in verify(target).findings if finding.is_damage]


def test_views_tables_and_projections_travel(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", views=ViewOptions(("crop",)))
    base = cache.teacher()
    matrix = np.eye(4, 8, dtype=np.float32)
    write_derived(cache, base, "small", matrix, "a test")
    push(cache, str(tmp_path / "remote"))
    pull(tmp_path / "there", str(tmp_path / "remote"))
    assert content(tmp_path / "there") == content(cache.folder)
    there = Cache(tmp_path / "there")
    assert there.corpus().view("crop").texts() == cache.corpus().view("crop").texts()
    assert {teacher.name for teacher in there.teachers()} == {"fake", "small"}
    assert projection_bytes(matrix) in files_of(tmp_path / "remote", "objects").values()


def test_a_view_that_was_never_finished_is_replaced(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", views=ViewOptions(("crop",)))
    push(cache, str(tmp_path / "remote"))
    make_cache(tmp_path / "there")
    draft = tmp_path / "there" / "corpora" / "corpus" / "views" / "crop"
    draft.mkdir(parents=True)
    shutil.copy(cache.corpora_folder / "corpus" / "corpus.json", draft / "corpus.json")
    pull(tmp_path / "there", str(tmp_path / "remote"))
    assert content(tmp_path / "there") == content(cache.folder)


def test_teachers_and_corpora_can_be_chosen(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    cache = make_cache(tmp_path / "cache")
    make_cache(tmp_path / "cache", TEXTS[:50], teacher=OTHER, name="few")
    push(cache, remote, PushChoice(teachers=["other"], corpora=["few"]))
    assert {one.names for one in list_remote(remote).teachers} == {("other",)}
    assert {one.name for one in list_remote(remote).corpora} == {"few"}
    push(cache, remote)
    pull(tmp_path / "a", remote, PullChoice(teachers=["other"], text=False))
    assert [one.name for one in Cache(tmp_path / "a").teachers()] == ["other"]
    assert Cache(tmp_path / "a").corpus_names() == []
    assert np.array_equal(Cache(tmp_path / "a").lookup(TEXTS[:50]), cache.lookup(TEXTS[:50], teacher="other"))
    pull(
        tmp_path / "b", remote, PullChoice(teachers=[OTHER.contract.id[:8]], corpora=["corpus"], alias="mine")
    )
    assert Cache(tmp_path / "b").corpus().texts() == TEXTS
    assert Cache(tmp_path / "b").corpus_names() == ["mine"]
    assert not verify(tmp_path / "b").damage
    with pytest.raises(InputError, match=r"no teacher 'nobody' .* it has fake, other"):
        pull(tmp_path / "c", remote, PullChoice(teachers=["nobody"]))
    with pytest.raises(InputError, match=r"no corpus 'nothing' .* it has corpus, few"):
        pull(tmp_path / "c", remote, PullChoice(corpora=["nothing"]))
    assert not (tmp_path / "c").exists()


def test_vectors_can_be_shared_without_a_word_of_text(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    push(cache, str(tmp_path / "remote"), PushChoice(text=False))
    everything = b"".join(files_of(tmp_path / "remote", ".").values())
    assert not [text for text in TEXTS if text.encode() in everything]
    pull(tmp_path / "there", str(tmp_path / "remote"))
    assert np.array_equal(Cache(tmp_path / "there").lookup(TEXTS), cache.lookup(TEXTS))
    with pytest.raises(InputError, match="--no-text"):
        push(cache, str(tmp_path / "remote"), PushChoice(text=False, corpora=["corpus"]))


def test_sync_is_pull_and_push(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    one = make_cache(tmp_path / "one", TEXTS[:100], name="one")
    two = make_cache(tmp_path / "two", TEXTS[50:], name="two")
    assert sync(one, remote).pulled is None
    assert not compare_with_remote(two, remote).is_same
    done = sync(two, remote)
    assert done.pulled is not None
    assert done.pulled.fetched > 0
    assert done.pushed.sent > 0
    assert sync(one, remote).pushed.sent == 0
    assert content(one.folder) == content(two.folder)
    assert compare_with_remote(two, remote).is_same


def test_what_sets_cache_and_remote_apart_is_counted(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    one = make_cache(tmp_path / "one", TEXTS[:80], name="one")
    two = make_cache(tmp_path / "two", TEXTS[80:], name="two")
    push(one, remote)
    lines = {line.name: line for line in compare_with_remote(two, remote).lines}
    assert lines.keys() == {"one", "two", "fake"}
    assert (lines["one"].remote_rows, lines["one"].cache_rows) == (80, 0)
    assert (lines["two"].remote_rows, lines["two"].cache_rows) == (0, 160)
    assert (lines["fake"].remote_rows, lines["fake"].cache_rows) == (80, 160)
    assert lines["fake"].both_files == 2  # contract and name


def test_what_is_damaged_is_not_sent(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    shard = next(cache.folder.glob("teachers/*/shards/*.arrow"))
    data = flip_middle(shard)
    with pytest.raises(CorruptCacheError, match="embedcache verify"):
        push(cache, str(tmp_path / "remote"))
    assert data not in files_of(tmp_path / "remote", "objects").values()
    assert files_of(tmp_path / "remote", "manifests") == {}
    assert claims_left(tmp_path / "remote") == []


def test_what_was_there_already_is_checked_before_it_is_listed(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    push(cache, str(tmp_path / "remote"))
    shutil.rmtree(tmp_path / "remote" / "manifests")
    shard = next(cache.folder.glob("teachers/*/shards/*.arrow"))
    flip_middle(shard)
    with pytest.raises(CorruptCacheError, match="embedcache verify"):
        push(cache, str(tmp_path / "remote"))
    assert not (tmp_path / "remote" / "manifests").exists()


def test_limits_are_held_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache(tmp_path / "cache")
    push(cache, str(tmp_path / "remote"))
    size = sum(path.stat().st_size for path in cache.folder.glob("[ct]*/**/*.*") if path.is_file())
    size += manifest_bytes(tmp_path / "remote")
    assert pull(tmp_path / "dry", str(tmp_path / "remote"), PullChoice(max_bytes=size)).fetched_bytes <= size
    with pytest.raises(InputError, match="--max-bytes"):
        pull(tmp_path / "there", str(tmp_path / "remote"), PullChoice(max_bytes=1000))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(StorageError, match="1,000 are free, of which 67,108,864 are left to other processes"):
        pull(tmp_path / "there", str(tmp_path / "remote"))
    assert not (tmp_path / "there").exists()


def test_where_there_is_no_remote_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="no remote at"):
        pull(tmp_path / "there", str(tmp_path / "nowhere"))
    cache = make_cache(tmp_path / "cache")
    with pytest.raises(RemoteError, match="is a cache, not a remote"):
        push(cache, str(cache.folder))
    with pytest.raises(RemoteError, match="is a cache, not a remote"):
        pull(tmp_path / "there", str(cache.folder))
    push(cache, str(tmp_path / "remote"))
    (tmp_path / "remote" / MARKER).write_text('{"format": "embedcache-remote", "version": 99}')
    with pytest.raises(RemoteError, match="upgrade embedcache"):
        pull(tmp_path / "there", str(tmp_path / "remote"))
    assert not (tmp_path / "there").exists()


def test_where_no_push_has_ended_it_is_said(tmp_path: Path) -> None:
    remote, cache = tmp_path / "remote", make_cache(tmp_path / "cache")
    done = push(cache, str(remote))
    with pytest.raises(InputError, match="has no push that --require-signature and --skip-manifest leave"):
        pull(tmp_path / "there", str(remote), PullChoice(skip_manifests=[done.manifest[:12]]))
    (remote / "manifests" / f"{done.manifest}.json").unlink()
    for wanted in ([], ["corpus"]):
        with pytest.raises(InputError, match=r"nothing to pull: .* has no finished push"):
            pull(tmp_path / "there", str(remote), PullChoice(corpora=wanted))
    assert not (tmp_path / "there").exists()
    assert push(cache, str(remote)).sent == 0
    assert pull(tmp_path / "there", str(remote)).fetched > 0


def test_nothing_is_ever_overwritten_on_a_remote(tmp_path: Path) -> None:
    caches = [make_cache(tmp_path / f"c{n}", TEXTS[40 * n : 40 * n + 80], name=f"n{n}") for n in range(3)]
    seen: dict[str, bytes] = {}
    for cache in caches:
        push(cache, str(tmp_path / "remote"))
        found = files_of(tmp_path / "remote", ".")
        assert {path: found[path] for path in seen} == seen
        seen = found
    pull(tmp_path / "there", str(tmp_path / "remote"))
    union: dict[str, str] = {}
    for cache in caches:
        union |= content(cache.folder)
    assert content(tmp_path / "there") == union


def test_manifests_are_read_once(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    push(cache, str(tmp_path / "remote"))
    pull(tmp_path / "there", str(tmp_path / "remote"))
    pull(tmp_path / "there", str(tmp_path / "remote"))
    (copy,) = (tmp_path / "there" / "derived" / "remotes").glob(f"*/{'?' * 64}.json")
    assert copy.read_bytes() in files_of(tmp_path / "remote", "manifests").values()
    # A copy that lies is not believed, and found out.
    copy.write_bytes(copy.read_bytes().replace(b"corpus", b"corpsu"))
    assert [finding.kind for finding in verify(tmp_path / "there").damage] == ["manifest of a remote"]
    assert pull(tmp_path / "there", str(tmp_path / "remote")).fetched == 0
    assert not verify(tmp_path / "there").findings


# Kills at every step of every write

# A fork of this process would inherit its threads' locks.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["embedcache.share", "embedcache.testing", "pyarrow"])


def _killed(at: int, what: Callable[..., object], cache: Path, remote: Path) -> bool:
    """Push or pull in a process that is killed at write step ``at``; return whether it came so far."""
    child = _FORKS.Process(target=_run, args=(at, what, cache, remote))
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def _run(at: int, what: Callable[..., object], cache: Path, remote: Path) -> None:
    count = iter(range(sys.maxsize))

    def step(name: str, path: Path) -> None:
        if next(count) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    fsio.on_write_step = step
    what(cache, str(remote), jobs=2)


def _steps(count: int, request: pytest.FixtureRequest) -> list[int]:
    if request.config.getoption("--slow"):
        return list(range(count))
    return np.random.default_rng(count).choice(count, 4, replace=False).tolist()


def _count_steps(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    steps: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(fsio, "on_write_step", lambda *step: steps.append(step))
        work()
    return len(steps)


def test_a_push_killed_at_any_step_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS[:100])
    count = _count_steps(monkeypatch, lambda: push(cache, str(tmp_path / "remote"), jobs=2))
    expected = files_of(tmp_path / "remote", "objects")
    for step in _steps(count, request):
        remote = tmp_path / f"remote-{step}"
        if not _killed(step, push, cache.folder, remote):
            continue
        for name, data in files_of(remote, "objects").items():
            if ".tmp-" not in name:
                assert data == expected[name]
        if not [name for name in files_of(remote, "manifests") if ".tmp-" not in name]:
            push(cache, str(remote))
        pull(tmp_path / f"there-{step}", str(remote))
        assert content(tmp_path / f"there-{step}") == content(cache.folder)


def test_a_pull_killed_at_any_step_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS[:100], views=ViewOptions(("crop",)))
    remote = str(tmp_path / "remote")
    push(cache, remote)
    count = _count_steps(monkeypatch, lambda: pull(tmp_path / "whole", remote, jobs=2))
    expected = content(cache.folder)
    for step in _steps(count, request):
        there = tmp_path / f"there-{step}"
        if not _killed(step, pull, there, tmp_path / "remote"):
            continue
        found = content(there)
        assert found.items() <= expected.items()
        if "cache.json" in found:
            assert not [finding for finding in verify(there).findings if finding.is_damage]
        done = pull(there, remote)
        assert done.fetched == len(expected) - len(found | {"cache.json": ""})
        assert content(there) == expected


def test_files_that_were_found_right_before_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = str(tmp_path / "remote")
    cache = make_cache(tmp_path / "cache", TEXTS[:80])
    push(cache, remote)
    make_cache(tmp_path / "cache", TEXTS[80:160], name="more")
    read: list[str] = []
    plain = LocalObject.read

    def reading(self: LocalObject, data: pa.Buffer) -> pa.Buffer:
        read.append(self.where)
        return plain(self, data)

    monkeypatch.setattr(LocalObject, "read", reading)
    done = push(Cache(tmp_path / "cache"), remote)
    shards = [where for where in read if "/shards/" in where and not where.startswith("the row index")]
    assert done.present > 2
    # Two new ones of forty rows.
    assert len(set(shards)) == 2


def test_a_shard_that_changed_since_it_was_found_right_is_never_listed_again(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    cache = make_cache(tmp_path / "cache", TEXTS[:80])
    push(cache, str(remote))
    shard = next(cache.folder.glob("teachers/*/shards/*.arrow"))
    stat = shard.stat()
    flip_middle(shard)
    # Its time says nothing, for anybody can set it.
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    make_cache(tmp_path / "more", TEXTS[80:160], name="more")
    shutil.copytree(tmp_path / "more" / "corpora" / "more", cache.folder / "corpora" / "more")
    before = files_of(remote, "manifests")
    with pytest.raises(CorruptCacheError, match="is damaged"):
        push(Cache(cache.folder), str(remote))
    assert files_of(remote, "manifests") == before


def test_a_manifest_that_a_push_mends_is_not_told_of(tmp_path: Path) -> None:
    cache, remote = make_cache(tmp_path / "cache"), tmp_path / "remote"
    push(cache, str(remote))
    (manifest,) = (remote / "manifests").iterdir()
    sound = manifest.read_bytes()
    manifest.write_bytes(sound[:-5])
    other = remote / "manifests" / f"{'0' * 64}.json"
    other.write_bytes(b"nonsense")
    # Else its copy is used.
    shutil.rmtree(tmp_path / "cache" / "derived" / "remotes")
    done = push(cache, str(remote))
    assert manifest.read_bytes() == sound
    assert done.manifest == manifest.stem
    assert [one for one in done.told if "cannot be read" in one and manifest.name in one] == []
    assert len([one for one in done.told if "cannot be read" in one and other.name in one]) == 1


def test_a_manifest_that_somebody_mends_is_read_again(tmp_path: Path) -> None:
    push(make_cache(tmp_path / "cache"), str(tmp_path / "remote"))
    (manifest,) = (tmp_path / "remote" / "manifests").iterdir()
    sound = manifest.read_bytes()
    manifest.write_bytes(sound[:-5])
    remote = Remote(parse_location(str(tmp_path / "remote")))
    assert remote.survey().refused.keys() == {manifest.stem}
    manifest.write_bytes(sound)
    survey = remote.survey()
    assert ([one.id for one in survey.manifests], survey.refused) == ([manifest.stem], {})
    # What could be read is not read again.
    manifest.write_bytes(b"other")
    assert remote.survey() == survey
