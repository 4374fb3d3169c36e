"""Pulling into another codec: what arrives is found right as it was pushed, and then kept in fewer bytes."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damage import flip_middle
from share_helpers import (
    SHARD_ROWS,
    TEXTS,
    content,
    cut_short,
    files_of,
    make_cache,
    manifest_bytes,
    manifest_of,
    replace_file,
)

from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.codecs import Stored, get_codec, measure
from embedcache.compare import compare_caches
from embedcache.conversions import converted_from
from embedcache.describe import describe_teacher
from embedcache.errors import InputError, RemoteError
from embedcache.housekeeping import compact
from embedcache.share import PullChoice, compare_with_remote, preview_pull, pull, push
from embedcache.share.pulling.recode import keeps_less, recoded
from embedcache.store import ShardStore
from embedcache.store.base import CONVERTED_FROM
from embedcache.store.shard import shard_bytes
from embedcache.testing import example_contract, fake_teacher, sentences

SHARDS = len(TEXTS) // SHARD_ROWS


@pytest.fixture
def remote(tmp_path: Path) -> str:
    """Return a remote with vectors as float32."""
    push(make_cache(tmp_path / "mine", codec="float32"), str(tmp_path / "remote"))
    return str(tmp_path / "remote")


def store_of(folder: Path) -> ShardStore:
    cache = Cache(folder)
    return cache.store(cache.teacher().contract)


def codecs_of(folder: Path) -> list[str]:
    return [shard.codec.name for shard in store_of(folder).shards]


@pytest.mark.parametrize("codec", ["float16", "int8"])
def test_what_arrives_is_kept_in_another_codec(tmp_path: Path, remote: str, codec: str) -> None:
    done = pull(tmp_path / "there", remote, PullChoice(codec=codec))
    assert codecs_of(tmp_path / "there") == [codec] * SHARDS
    assert done.converted == SHARDS
    assert 0 < done.converted_bytes == store_of(tmp_path / "there").bytes_on_disk < done.fetched_bytes
    mine, there = Cache(tmp_path / "mine"), Cache(tmp_path / "there")
    expected = get_codec(codec)
    assert np.array_equal(
        there.lookup(TEXTS), expected.decode(expected.encode(mine.lookup(TEXTS))).astype(np.float32)
    )
    assert not np.array_equal(there.lookup(TEXTS), mine.lookup(TEXTS))
    assert verify(tmp_path / "there").findings == ()


def test_copies_say_what_they_were_made_of_and_what_that_lost(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(codec="int8"))
    before = {shard.name: shard for shard in store_of(tmp_path / "mine").shards}
    after = store_of(tmp_path / "there").shards
    assert {converted_from(shard) for shard in after} == set(before)
    for shard in after:
        source = before[converted_from(shard)]
        assert np.array_equal(shard.keys, source.keys)
        assert np.array_equal(shard.tokens, source.tokens)
        assert np.array_equal(shard.truncated, source.truncated)
        assert shard.header.provenance == {
            **source.header.provenance,
            "converted_from_shard": source.name,
        }
        lost = measure(shard.codec, source.codec.decode(source.stored).astype(np.float32))
        assert shard.header.error == pytest.approx(lost.to_json(), abs=1e-9)
        assert shard.header.error["worst_cosine"] < 1


def test_everybody_gets_the_same_copies(tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pull(tmp_path / "one", remote, PullChoice(codec="int8"))
    # Blocks are for memory's sake alone.
    monkeypatch.setattr("embedcache.share.pulling.recode._BLOCK_ROWS", 7)
    pull(tmp_path / "two", remote, PullChoice(codec="int8"), jobs=1)
    one, two = (content(tmp_path / name) for name in ("one", "two"))
    assert {path for path in one if "/shards/" not in path} == {
        path for path in two if "/shards/" not in path
    }
    shards = [sorted(store_of(tmp_path / name).shards, key=converted_from) for name in ("one", "two")]
    for a, b in zip(*shards, strict=True):
        assert np.array_equal(a.stored.vector, b.stored.vector)
        assert a.header.error == pytest.approx(b.header.error, abs=1e-6)
    monkeypatch.undo()
    pull(tmp_path / "three", remote, PullChoice(codec="int8"))
    assert content(tmp_path / "three") == one


@pytest.mark.parametrize("again", [None, "int8", "float16", "float32"])
def test_what_was_converted_is_not_fetched_again(tmp_path: Path, remote: str, again: str | None) -> None:
    pull(tmp_path / "there", remote, PullChoice(codec="int8"))
    before = content(tmp_path / "there")
    assert preview_pull(tmp_path / "there", remote, PullChoice(codec=again)).files == 0
    done = pull(tmp_path / "there", remote, PullChoice(codec=again))
    assert (done.fetched, done.fetched_bytes, done.converted) == (0, 0, 0)
    assert content(tmp_path / "there") == before
    (told,) = done.told
    assert told.startswith(f"{SHARDS} shards left as an earlier pull with --codec has converted them")
    assert "pull into another cache" in told


@pytest.mark.parametrize("choice", [{"text": False}, {"codec": "int8"}, {"codec": "int8", "text": False}])
def test_preview_limit_and_pull_count_the_same_bytes(
    tmp_path: Path, remote: str, choice: dict[str, Any]
) -> None:
    estimate = preview_pull(tmp_path / "there", remote, PullChoice(**choice))
    size = estimate.counted_bytes
    assert size == estimate.bytes + manifest_bytes(remote)
    for ask in (preview_pull, pull):
        with pytest.raises(InputError, match=f"{size:,} bytes would have to be fetched"):
            ask(tmp_path / "there", remote, PullChoice(**choice, max_bytes=size - 1))
    assert (
        pull(tmp_path / "there", remote, PullChoice(**choice, max_bytes=size)).fetched_bytes == estimate.bytes
    )
    most = manifest_bytes(remote)
    assert preview_pull(tmp_path / "there", remote, PullChoice(**choice, max_bytes=most)).bytes == 0


def test_only_what_is_new_is_fetched_and_converted(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(codec="int8"))
    more = sentences(SHARD_ROWS, seed=9)
    push(make_cache(tmp_path / "mine", more, name="more", codec="float32"), remote)
    done = pull(tmp_path / "there", remote, PullChoice(codec="int8"))
    assert (done.fetched, done.converted) == (3, 1)
    assert codecs_of(tmp_path / "there") == ["int8"] * (SHARDS + 1)
    assert len(Cache(tmp_path / "there").lookup(more)) == SHARD_ROWS


def test_nothing_is_converted_to_what_takes_more_room(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    push(make_cache(tmp_path / "mine", codec="int8"), remote)
    done = pull(tmp_path / "there", remote, PullChoice(codec="float16"))
    assert done.converted == 0
    assert done.told == (f"{SHARDS} shards stored as int8 taken so: as float16 no less would be kept",)
    assert content(tmp_path / "there") == content(tmp_path / "mine")
    same = pull(tmp_path / "same", remote, PullChoice(codec="int8"))
    assert (same.converted, same.told) == (0, ())
    assert content(tmp_path / "same") == content(tmp_path / "mine")


def test_a_shard_of_pq_stays_as_it_is(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    texts = sentences(300, seed=1)
    cache = make_cache(tmp_path / "mine", texts, codec="pq", shard_rows=300)
    push(cache, remote)
    assert pull(tmp_path / "there", remote, PullChoice(codec="int8")).converted == 0
    assert content(tmp_path / "there") == content(cache.folder)


def test_codecs_that_take_less_are_told_apart() -> None:
    vectors, logits = example_contract(), example_contract(output="logits")
    order = ["float32", "float16", "int8"]
    for finer, one in enumerate(order):
        assert not keeps_less(vectors, one, one)
        for other in order[finer + 1 :]:
            assert keeps_less(vectors, other, one)
            assert not keeps_less(vectors, one, other)
    # Logits stay floats, as 'embedcache convert' leaves them.
    assert keeps_less(logits, "float16", "float32")
    assert not keeps_less(logits, "int8", "float32")


@pytest.mark.parametrize(
    ("codec", "told"), [("pq", "embedcache convert --codec pq"), ("zip", "unknown codec")]
)
def test_codecs_that_cannot_be_used_are_refused_before_anything_is_read(
    tmp_path: Path, codec: str, told: str
) -> None:
    with pytest.raises(InputError, match=told):
        pull(tmp_path / "there", str(tmp_path / "nowhere"), PullChoice(codec=codec))
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_copies_go_into_whichever_store_there_is(tmp_path: Path, remote: str, kind: str) -> None:
    own = sentences(SHARD_ROWS, seed=2)
    make_cache(tmp_path / "there", own, store=kind, codec="float16", name="own")
    pull(tmp_path / "there", remote, PullChoice(codec="float16"))
    assert store_of(tmp_path / "there").kind == kind
    assert set(codecs_of(tmp_path / "there")) == {"float16"}
    assert pull(tmp_path / "there", remote, PullChoice(codec="float16")).fetched == 0
    assert len(Cache(tmp_path / "there").lookup([*own, *TEXTS])) == len(own) + len(TEXTS)
    assert not verify(tmp_path / "there").damage


def test_copies_are_no_news_to_the_remote_they_were_made_from(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(codec="int8"))
    before = files_of(Path(remote), ".")
    again = push(tmp_path / "there", remote)
    assert (again.sent, again.manifest) == (0, "")
    assert files_of(Path(remote), ".") == before
    assert compare_with_remote(tmp_path / "there", remote).is_same
    # What is more than a copy is sent, alone.
    more = sentences(SHARD_ROWS, seed=9)
    make_cache(tmp_path / "there", more, name="more", codec="int8")
    push(tmp_path / "there", remote)
    pull(tmp_path / "fourth", remote)
    assert sorted(codecs_of(tmp_path / "fourth")) == [*["float32"] * SHARDS, "int8"]
    # Another remote has nothing that they could be copies of.
    other = str(tmp_path / "other")
    push(tmp_path / "there", other)
    pull(tmp_path / "third", other)
    assert content(tmp_path / "third") == content(tmp_path / "there")


def test_a_shard_is_checked_before_it_is_converted(tmp_path: Path, remote: str, no_pauses: None) -> None:
    shard = next(file for file in manifest_of(Path(remote))["files"] if "/shards/" in file["path"])
    place = Path(remote, "objects", shard["sha256"][:2], shard["sha256"])
    flip_middle(place)
    with pytest.raises(RemoteError, match="arrive"):
        pull(tmp_path / "there", remote, PullChoice(codec="int8"), jobs=1)
    assert shard["sha256"] not in {converted_from(one) for one in store_of(tmp_path / "there").shards}


def test_shards_of_other_teachers_are_refused_as_ever(tmp_path: Path, remote: str) -> None:
    other = make_cache(tmp_path / "other", TEXTS[:40], teacher=fake_teacher(8, seed=7), codec="float32")
    replace_file(Path(remote), "/shards/", next(other.folder.glob("teachers/*/shards/*.arrow")).read_bytes())
    with pytest.raises(RemoteError, match="it belongs to the teacher"):
        pull(tmp_path / "there", remote, PullChoice(codec="int8"), jobs=1)


def test_vectors_that_do_not_fit_a_codec_are_told_of(tmp_path: Path, remote: str) -> None:
    store = store_of(tmp_path / "mine")
    shard = store.shards[0]
    vectors = np.array(shard.stored.vector)
    vectors[3, 2] = np.nan
    _, data = shard_bytes(
        shard.header, shard.codec, shard.keys, Stored(vectors), shard.tokens, shard.truncated
    )
    replace_file(Path(remote), "/shards/", data.to_pybytes())
    with pytest.raises(InputError, match=r"cannot be kept as int8 \(row 3 of .* pull without --codec"):
        pull(tmp_path / "there", remote, PullChoice(codec="int8"), jobs=1)
    assert hashlib.sha256(data).hexdigest() not in content(tmp_path / "there").values()


def test_a_damaged_copy_is_made_again(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(codec="int8"))
    copy = next((tmp_path / "there").glob("teachers/*/shards/*.arrow"))
    sound = copy.read_bytes()
    copy.write_bytes(b"x" * len(sound))
    assert pull(tmp_path / "there", remote, PullChoice(codec="int8")).fetched == 1
    assert copy.read_bytes() == sound


def test_a_stranger_cannot_say_that_a_shard_is_here(tmp_path: Path) -> None:
    """A shard that claims to be a copy of another keeps nobody from fetching that one."""
    remote = str(tmp_path / "remote")
    mine = make_cache(tmp_path / "mine", codec="float32")
    store = store_of(tmp_path / "mine")
    stranger = make_cache(tmp_path / "stranger", sentences(20, seed=3), codec="int8", name="other")
    for claimed in store.shards:
        liar = store_of(stranger.folder).shards[0]
        header = replace(liar.header, provenance={"device": "none", CONVERTED_FROM: claimed.name})
        name, data = shard_bytes(header, liar.codec, liar.keys, liar.stored, liar.tokens, liar.truncated)
        container = stranger.container(stranger.teacher().contract)
        container.add(name, data)
        container.finish()
    push(stranger, remote)
    pull(tmp_path / "there", remote)
    claims = {converted_from(shard) for shard in store_of(tmp_path / "there").shards} - {""}
    assert claims == {shard.name for shard in store.shards}
    push(mine, remote)
    assert not compare_with_remote(tmp_path / "there", remote).is_same
    assert preview_pull(tmp_path / "there", remote).vectors == len(TEXTS)
    assert pull(tmp_path / "there", remote, PullChoice(codec="int8")).fetched_vectors == len(TEXTS)
    assert np.array_equal(
        Cache(tmp_path / "there").lookup(TEXTS),
        get_codec("int8").decode(get_codec("int8").encode(mine.lookup(TEXTS))),
    )
    # Nor does the claim keep a part's rows away, or a shard from being sent elsewhere.
    pull(tmp_path / "fourth", remote, PullChoice(teachers=["fake"], corpora=["other"], codec="int8"))
    part = pull(tmp_path / "fourth", remote, PullChoice(corpora=["corpus"], rows=50)).part
    assert part is not None
    assert [one.missing for one in part.vectors] == [0]
    other = str(tmp_path / "elsewhere")
    push(mine, other)
    assert push(tmp_path / "there", other).sent > 0


def test_notes_on_copies_count_where_they_were_written_alone(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(codec="int8"))
    assert (tmp_path / "there" / "derived" / "remotes" / "converted.log").is_file()
    shutil.copytree(tmp_path / "there", tmp_path / "theirs")
    assert preview_pull(tmp_path / "there", remote).files == 0
    assert preview_pull(tmp_path / "theirs", remote).files == SHARDS
    assert compare_with_remote(tmp_path / "there", remote).is_same
    assert not compare_with_remote(tmp_path / "theirs", remote).is_same


def test_copies_that_a_killed_pull_has_made_are_not_fetched_again(tmp_path: Path, remote: str) -> None:
    with cut_short():
        pull(tmp_path / "there", remote, PullChoice(codec="int8"))
    assert pull(tmp_path / "there", remote, PullChoice(codec="int8")).fetched == 0


def test_copies_are_described_as_one_way_of_making(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(codec="int8"))
    there, mine = Cache(tmp_path / "there"), Cache(tmp_path / "mine")
    described: Any = describe_teacher(there, there.teacher())
    assert [one["rows"] for one in described["provenance"]] == [len(TEXTS)]
    (vectors,) = compare_caches(mine, there).vectors
    assert vectors.provenance[0] == vectors.provenance[1]
    # Each is a copy of another shard, so none can be merged with another.
    (done,) = compact(there)
    assert done.shards_after == done.shards_before == SHARDS


def test_the_bytes_of_a_copy_are_a_function_of_its_source(tmp_path: Path, remote: str) -> None:
    shard = store_of(tmp_path / "mine").shards[0]
    name, data = recoded(shard, "int8")
    assert name == hashlib.sha256(data).hexdigest() == recoded(shard, "int8")[0]
    assert name != recoded(shard, "float16")[0] != shard.name
