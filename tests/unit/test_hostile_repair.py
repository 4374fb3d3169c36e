"""Repair of caches that were tampered with: it ends, invents nothing and touches nothing beside the cache."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from check_helpers import KINDS, TEACHER, TEXTS, MakeCopy, content_of, copy_of, files_of, mended
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from embedcache.cache import Cache
from embedcache.check import repair, verify
from embedcache.check.repair.mending import NOT_REPAIRED
from embedcache.fsio import sealed, spelled_json

pytest_plugins = ["check_fixtures"]


def tampered(data: bytes, other: bytes, draw: st.DataObject) -> bytes:
    """Return ``data`` changed in one of the ways files come to harm."""
    place = draw.draw(st.integers(0, max(len(data) - 1, 0)))
    length = draw.draw(st.integers(1, 64))
    how = draw.draw(st.sampled_from(["bytes", "cut", "splice", "swap", "repeat"]))
    if how == "bytes":
        return data[:place] + draw.draw(st.binary(min_size=length, max_size=length)) + data[place + length :]
    if how == "cut":
        return data[:place]
    if how == "splice":
        return data[:place] + other[place:]
    return other if how == "swap" else data[:place] + data[max(0, place - length) :]


def assert_mended_or_listed(
    sound_caches: dict[str, Path], tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    """Tamper with some files of a cache and see what repair makes of it."""
    cache = tmp_path / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    copy_of(sound_caches[kind], cache)
    names = files_of(cache)
    for name in data.draw(st.lists(st.sampled_from(names), min_size=1, max_size=4, unique=True)):
        other = (cache / data.draw(st.sampled_from(names))).read_bytes()
        (cache / name).write_bytes(tampered((cache / name).read_bytes(), other, data))
    done = mended(cache)
    assert {path.name for path in tmp_path.iterdir()} == {"cache"}
    left = {mend.path for mend in done.mends if mend.outcome == NOT_REPAIRED}
    assert {one.path for one in verify(cache).damage} == left
    # Of a store and its seal that are both damaged nobody can say what they held.
    seal_is_gone = any(mend.path.endswith("vectors.mdb") and "seal" in mend.detail for mend in done.mends)
    if not left and not seal_is_gone:
        lookup = Cache(cache).lookup(TEXTS, TEACHER.contract.id)
        np.testing.assert_array_equal(lookup, Cache(sound_caches[kind]).lookup(TEXTS, "fake"))
        assert mended(cache).mends == ()


AGAIN_AND_AGAIN = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, suppress_health_check=AGAIN_AND_AGAIN)
@given(data=st.data())
def test_whatever_was_done_to_a_cache_it_is_mended_or_listed(
    sound_caches: dict[str, Path], tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    assert_mended_or_listed(sound_caches, tmp_path, kind, data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=300, suppress_health_check=AGAIN_AND_AGAIN)
@given(data=st.data())
def test_whatever_was_done_to_a_cache_again_and_again(
    sound_caches: dict[str, Path], tmp_path: Path, kind: str, data: st.DataObject
) -> None:
    assert_mended_or_listed(sound_caches, tmp_path, kind, data)


def test_a_note_of_another_source_invents_no_corpus(fresh: MakeCopy, tmp_path: Path) -> None:
    cache = fresh("arrow")
    secret = tmp_path / "secret.tsv"
    secret.write_text("text\tid\tlabel\nnot yours\t1\t2\n")
    note = cache / "derived" / "sources" / "corpus.json"
    told = json.loads(note.read_bytes())
    del told["sha256"]
    told["files"][0]["path"] = str(secret)
    note.write_bytes(spelled_json(sealed(told)))
    (part,) = (cache / "corpora" / "corpus").glob("*.arrow")
    part.write_bytes(b"gone")
    (left,) = mended(cache).left
    assert "gives other rows" in left.detail
    assert part.read_bytes() == b"gone"
    assert b"not yours" not in b"".join((cache / name).read_bytes() for name in files_of(cache))


def test_what_never_was_a_shard_is_listed_and_moved_only_when_asked(
    fresh: MakeCopy, sound_caches: dict[str, Path]
) -> None:
    cache = fresh("arrow")
    data = b"ARROW1\0\0 and then no Arrow at all ARROW1"
    (shards,) = cache.glob("teachers/*/shards")
    path = shards / f"{hashlib.sha256(data).hexdigest()}.arrow"
    path.write_bytes(data)
    (left,) = mended(cache).left
    assert path.name in left.path
    assert "--quarantine" in left.detail
    assert path.read_bytes() == data
    assert mended(cache, quarantine=True).left == []
    assert (cache / "quarantine" / path.relative_to(cache)).read_bytes() == data
    shutil.rmtree(cache / "quarantine")
    assert content_of(cache) == content_of(sound_caches["arrow"])


def test_nothing_is_moved_through_a_linked_quarantine(fresh: MakeCopy, tmp_path: Path) -> None:
    cache = fresh("arrow")
    outside = tmp_path / "outside"
    outside.mkdir()
    (cache / "quarantine").symlink_to(outside)
    (cache / "strange.txt").write_text("strange")
    done = repair(cache, quarantine=True)
    assert [mend.path for mend in done.left] == ["quarantine"]
    assert list(outside.iterdir()) == []
    assert (cache / "strange.txt").exists()


def test_an_unsealed_store_is_sealed_only_when_it_is_sound(
    fresh: MakeCopy, sound_caches: dict[str, Path]
) -> None:
    cache = fresh("lmdb")
    (file,), (seal,) = cache.glob("teachers/*/vectors.mdb"), cache.glob("teachers/*/vectors.seal.json")
    seal.unlink()
    whole = file.read_bytes()
    for pattern in (b"ARROW1\0\0", b"f"):
        place = whole.index(pattern, 8192) + len(pattern) + 20
        file.write_bytes(whole[:place] + np.random.default_rng(place).bytes(1500) + whole[place + 1500 :])
        assert mended(cache).left == []
        assert content_of(cache) == content_of(sound_caches["lmdb"])
        assert verify(cache).findings == ()
        seal.unlink()
