"""Push and pull over a folder: everything arrives, nothing is sent or fetched twice, parts can be chosen."""

from __future__ import annotations

import os
import time
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from damage import flip_middle
from sharing import (
    TEXTS,
    content,
    listed_by,
    make_cache,
    manifests_of,
    objects_in,
)

from embedcache.cache import Cache
from embedcache.errors import ContractMismatchError, EmbedCacheError, InputError, StorageError
from embedcache.projection import extend, write_derived
from embedcache.share import Selection, pull, push, verify_remote
from embedcache.share.incoming import Incoming
from embedcache.share.remote import Remote
from embedcache.teacher.token_table import TokenTable, table_path
from embedcache.testing import fake_teacher, sentences
from embedcache.verify import verify
from embedcache.views.plan import ViewOptions

CROP = ViewOptions(("crop",), embed=("crop",))
CONTRACT = fake_teacher(8).contract


@pytest.fixture
def remote(tmp_path: Path) -> str:
    return str(tmp_path / "remote")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the digest of every object that is fetched."""
    fetched: list[str] = []
    fetch = Remote.fetch

    def noted(self: Remote, sha256: str, size: int, target: Path, on_bytes: Any = None) -> None:
        fetch(self, sha256, size, target, on_bytes)
        fetched.append(sha256)

    monkeypatch.setattr(Remote, "fetch", noted)
    return fetched


def two_names(cache: Cache) -> None:
    cache.register_teacher("second", CONTRACT, {"spec": "elsewhere"})


def token_table(cache: Cache) -> None:
    table = TokenTable(np.ones((2, 4), np.float32), ("a", "b"))
    table.write(table_path(cache.folder, CONTRACT), CONTRACT)


def projection(cache: Cache) -> None:
    matrix = np.eye(8, dtype=np.float32)[:4]
    derived = write_derived(cache, cache.teacher("fake"), "small", matrix, "test")
    extend(cache, derived, cache.corpus())


# Round trips


@pytest.mark.parametrize(
    ("settings", "more"),
    [
        ({"codec": "float32"}, None),
        ({"codec": "int8"}, None),
        ({"codec": "pq", "shard_rows": 260}, None),
        ({"store": "lmdb"}, None),
        ({"views": CROP}, None),
        ({}, token_table),
        ({}, projection),
        ({}, two_names),
    ],
    ids=["float32", "int8", "pq", "lmdb", "views", "token table", "projection", "two names"],
)
def test_everything_of_a_cache_arrives_and_nothing_twice(
    tmp_path: Path, remote: str, counted: list[str], settings: Any, more: Any
) -> None:
    mine = make_cache(tmp_path / "mine", sentences(300), **settings)
    if more is not None:
        more(mine)
    push(mine.folder, remote)
    done = pull(tmp_path / "theirs", remote)
    assert content(tmp_path / "theirs") == content(mine.folder)
    assert done.vectors["fake"] >= 300
    assert done.corpora == ["corpus"]
    assert not verify(tmp_path / "theirs").damage
    counted.clear()
    done = pull(tmp_path / "theirs", remote)
    assert (done.files, done.bytes, counted) == (0, 0, [])


def test_shards_enter_the_store_that_the_cache_has(tmp_path: Path, remote: str) -> None:
    push(make_cache(tmp_path / "mine").folder, remote)
    theirs = make_cache(tmp_path / "theirs", TEXTS[120:], name="other", store="lmdb")
    pull(theirs.folder, remote)
    store = Cache(theirs.folder).store(CONTRACT)
    assert store.kind == "lmdb"
    assert len(store) == 240
    assert np.array_equal(Cache(theirs.folder).lookup(TEXTS[:9]), Cache(tmp_path / "mine").lookup(TEXTS[:9]))
    assert not verify(theirs.folder).damage


# Pushing


def test_manifests_are_deltas_and_nothing_is_sent_twice(tmp_path: Path, remote: str) -> None:
    mine = make_cache(tmp_path / "mine", TEXTS[:80])
    first = push(mine.folder, remote, by="Ann", message="first", licence="CC0")
    assert first.sent == len(objects_in(remote)) == len(listed_by(remote))
    again = push(mine.folder, remote)
    assert (again.sent, again.files, again.manifest) == (0, 0, "")
    assert again.present == first.sent
    make_cache(mine.folder, TEXTS[80:120], name="more")
    push(mine.folder, remote)
    one, two = manifests_of(remote)
    assert (one["by"], one["message"], one["licence"]) == ("Ann", "first", "CC0")
    shards = [{f["path"] for f in manifest["files"] if f.get("rows")} for manifest in (one, two)]
    assert len(shards[0]) == 2
    assert len(shards[1]) == 1
    assert not shards[0] & shards[1]
    assert [card["name"] for card in two["corpora"]] == ["more"]
    assert two["teachers"][0]["rows"] == 40


@pytest.mark.parametrize("harm", ["missing", "truncated"])
def test_the_next_push_heals_a_missing_or_truncated_object(tmp_path: Path, remote: str, harm: str) -> None:
    mine = make_cache(tmp_path / "mine")
    push(mine.folder, remote)
    for path in objects_in(remote).values():
        path.unlink() if harm == "missing" else os.truncate(path, 3)
    assert len((missing := verify_remote(remote)).missing) + len(missing.damaged) == missing.objects
    assert push(mine.folder, remote).sent == missing.objects
    assert verify_remote(remote).is_sound
    assert len(manifests_of(remote)) == 1


@pytest.mark.parametrize("pattern", ["teachers/*/shards/*.arrow", "corpora/*/*.arrow", "teachers/*/names/*"])
def test_damaged_files_are_not_pushed(tmp_path: Path, remote: str, pattern: str) -> None:
    mine = make_cache(tmp_path / "mine")
    path = next(mine.folder.glob(pattern))
    flip_middle(path)
    with pytest.raises(EmbedCacheError, match=path.name[:12]):
        push(mine.folder, remote)
    assert manifests_of(remote) == []


# Pulling again, interrupted, and several versions


def test_more_files_than_a_manifest_lists_are_refused_and_nothing_is_sent(
    tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(tmp_path / "a", TEXTS[:40])
    monkeypatch.setattr(import_module("embedcache.share.push"), "MOST_MANIFEST_BYTES", 1000)
    with pytest.raises(InputError, match="manifest"):
        push(cache.folder, remote)
    assert objects_in(remote) == {}


def test_an_interrupted_pull_goes_on(
    tmp_path: Path, remote: str, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = make_cache(tmp_path / "mine")
    push(mine.folder, remote)
    fetch = Remote.fetch

    def failing(self: Remote, *arguments: Any) -> None:
        if len(counted) > 2:
            raise KeyboardInterrupt
        fetch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "fetch", failing)
        patch.setattr("embedcache.share.remote.JOBS", 1)
        with pytest.raises(KeyboardInterrupt):
            pull(tmp_path / "theirs", remote)
    assert set(content(tmp_path / "theirs")) == {"cache.json"}
    pull(tmp_path / "theirs", remote)
    assert len(counted) == len({*counted}) > 3
    assert content(tmp_path / "theirs") == content(mine.folder)
    assert not (tmp_path / "theirs" / "derived" / "incoming").exists()


@pytest.fixture
def versions(tmp_path: Path, remote: str) -> tuple[Cache, Cache]:
    """Return two caches, older and newer, that have pushed other rows under one corpus name."""
    old, new = make_cache(tmp_path / "old", TEXTS[:60]), make_cache(tmp_path / "new", TEXTS[40:100])
    push(old.folder, remote)
    push(new.folder, remote, clock=lambda: time.time() + 60)
    return old, new


def test_a_version_of_a_corpus_is_chosen_by_its_digest(
    tmp_path: Path, remote: str, versions: tuple[Cache, Cache]
) -> None:
    old, new = (cache.corpus().info.digest for cache in versions)
    for asked, digest in (("corpus", new), (f"corpus@{old[:8]}", old), (f"corpus@{new}", new)):
        place = tmp_path / asked[:15]
        pull(place, remote, Selection(corpora=[asked]))
        assert Cache(place).corpus().info.digest == digest
        assert not verify(place).damage
    with pytest.raises(InputError, match=old[:12]):
        pull(tmp_path / "x", remote, Selection(corpora=["corpus@000000"]))


def test_a_corpus_name_that_the_cache_has_is_left_alone(
    tmp_path: Path, remote: str, versions: tuple[Cache, Cache]
) -> None:
    # Mine is one of the versions, so there is no clash.
    assert pull(versions[0].folder, remote).left_out == []
    assert versions[0].corpus().texts()[0] == TEXTS[0]
    other = make_cache(tmp_path / "other", TEXTS[200:])
    before = content(other.folder)
    done = pull(other.folder, remote)
    assert len(done.left_out) == 1
    assert "'corpus'" in done.left_out[0]
    assert done.vectors["fake"] > 0
    after = content(other.folder)
    assert {path: after[path] for path in before} == before
    with pytest.raises(InputError, match="'corpus'"):
        pull(other.folder, remote, Selection(corpora=["corpus"]))


def test_a_contract_clash_names_the_field_and_both_values(tmp_path: Path, remote: str) -> None:
    push(make_cache(tmp_path / "theirs").folder, remote)
    other = fake_teacher(8, max_length=32)
    mine = make_cache(tmp_path / "mine", teacher=other)
    before = content(mine.folder)
    with pytest.raises(ContractMismatchError, match=r"max_length.*32.*64") as found:
        pull(mine.folder, remote)
    assert found.value.differences["max_length"] == (32, 64)
    assert content(mine.folder) == before
    # Two on the remote are chosen by contract.
    push(mine.folder, remote)
    with pytest.raises(ContractMismatchError, match=other.contract.id[:12]):
        pull(tmp_path / "new", remote)
    pull(tmp_path / "new", remote, Selection(teachers=[other.contract.id[:12]]))
    assert Cache(tmp_path / "new").teacher("fake").contract == other.contract


# Selections


def test_chosen_teachers_or_texts_come_alone(tmp_path: Path, remote: str) -> None:
    mine = make_cache(tmp_path / "mine", TEXTS[:40])
    make_cache(mine.folder, TEXTS[40:80], name="other", teacher=fake_teacher(8, name="two", seed=2))
    some = Selection(teachers=["two"], corpora=["other"])
    push(mine.folder, remote, some)
    pull(tmp_path / "pushed", remote)
    push(mine.folder, remote)
    pull(tmp_path / "pulled", remote, some)
    pull(tmp_path / "vectors", remote, Selection(text=False))
    for place, teachers, corpora in (
        ("pushed", ["two"], ["other"]),
        ("pulled", ["two"], ["other"]),
        ("vectors", ["fake", "two"], []),
    ):
        theirs = Cache(tmp_path / place)
        assert ([one.name for one in theirs.teachers()], theirs.corpus_names()) == (teachers, corpora)
    for wrong in (Selection(teachers=["none"]), Selection(corpora=["none"])):
        for act, folder in ((push, mine.folder), (pull, tmp_path / "c")):
            with pytest.raises(InputError, match="none"):
                act(folder, remote, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": False, "corpora": ["a"]},
        {"where": "row < 3"},
        {"where": "row < 3", "corpora": ["a", "b"]},
        {"corpora": ["../a"]},
        {"corpora": ["a@x"]},
    ],
)
def test_selections_that_contradict_themselves_are_refused(wrong: Any) -> None:
    with pytest.raises(InputError):
        Selection(**wrong)


def test_a_chosen_corpus_fetches_the_shards_of_its_texts_alone(
    tmp_path: Path, remote: str, counted: list[str]
) -> None:
    mine = make_cache(tmp_path / "mine", TEXTS[:80], name="one")
    make_cache(mine.folder, TEXTS[80:200], name="two", views=CROP)
    push(mine.folder, remote)
    done = pull(tmp_path / "theirs", remote, Selection(corpora=["one"]))
    assert done.vectors == {"fake": 80}
    theirs = Cache(tmp_path / "theirs")
    assert theirs.corpus_names() == ["one"]
    assert len(theirs.store(CONTRACT)) == 80
    # Asked for again with more, what is there is not fetched again.
    have = {shard.name for shard in theirs.store(CONTRACT).shards}
    counted.clear()
    assert pull(theirs.folder, remote).vectors["fake"] >= 120
    assert not have & set(counted)
    assert content(theirs.folder) == content(mine.folder)


@pytest.mark.parametrize(("where", "rows"), [("row < 10", slice(10)), ("row >= 50", slice(50, 120))])
def test_a_part_of_a_corpus_with_its_views_and_vectors(
    tmp_path: Path, remote: str, where: str, rows: slice
) -> None:
    mine = make_cache(tmp_path / "mine", views=CROP)
    push(mine.folder, remote)
    selection = Selection(corpora=["corpus"], where=where)
    done = pull(tmp_path / "theirs", remote, selection)
    theirs = Cache(tmp_path / "theirs")
    (name,) = theirs.corpus_names()
    part = theirs.corpus(name)
    assert name != "corpus"
    assert part.texts() == TEXTS[rows]
    assert part.view("crop").texts() == mine.corpus().view("crop").texts()[rows]
    for texts in (part.texts(), part.view("crop").texts()):
        assert np.array_equal(theirs.lookup(texts), mine.lookup(texts))
    assert done.vectors["fake"] < len(mine.store(CONTRACT))
    assert not verify(theirs.folder).damage
    assert pull(theirs.folder, remote, selection).files == 0


@pytest.mark.parametrize("where", ["row > 9999", "nonsense ="])
def test_no_row_or_no_condition_is_refused(tmp_path: Path, remote: str, where: str) -> None:
    push(make_cache(tmp_path / "mine").folder, remote)
    with pytest.raises(InputError):
        pull(tmp_path / "theirs", remote, Selection(corpora=["corpus"], where=where))
    assert set(content(tmp_path / "theirs")) == {"cache.json"}


def test_views_that_were_made_later_come_to_a_corpus_that_is_here(tmp_path: Path, remote: str) -> None:
    mine = make_cache(tmp_path / "mine")
    push(mine.folder, remote)
    pull(tmp_path / "theirs", remote)
    make_cache(mine.folder, views=CROP)
    push(mine.folder, remote)
    pull(tmp_path / "theirs", remote)
    assert content(tmp_path / "theirs") == content(mine.folder)
    assert not verify(tmp_path / "theirs").damage


# Limits


def test_more_than_max_bytes_is_refused_before_it_is_fetched(
    tmp_path: Path, remote: str, counted: list[str]
) -> None:
    push(make_cache(tmp_path / "mine").folder, remote)
    size = pull(tmp_path / "theirs", remote, dry_run=True).bytes
    assert not (tmp_path / "theirs").exists()
    with pytest.raises(InputError, match="max_bytes"):
        pull(tmp_path / "theirs", remote, max_bytes=size - 1)
    with pytest.raises(InputError, match="max_bytes"):
        pull(tmp_path / "theirs", remote, Selection(corpora=["corpus"]), max_bytes=1000)
    assert counted == []
    assert pull(tmp_path / "theirs", remote, max_bytes=size).bytes == size
    # Key lists count as well.
    with pytest.raises(InputError, match="max_bytes"):
        pull(tmp_path / "others", remote, Selection(corpora=["corpus"]), max_bytes=size)


def test_a_disk_without_room_is_an_error_before_anything_is_fetched(
    tmp_path: Path, remote: str, counted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    push(make_cache(tmp_path / "mine").folder, remote)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(StorageError, match="1,000 bytes are free"):
        pull(tmp_path / "theirs", remote)
    assert counted == []


@pytest.mark.parametrize("taken", ["corpus", "teacher"])
def test_what_a_build_makes_during_a_pull_is_not_replaced(
    tmp_path: Path, remote: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(make_cache(tmp_path / "mine").folder, remote)
    theirs, admit = tmp_path / "theirs", Incoming.admit

    def late(incoming: Incoming, *arguments: Any) -> None:
        other = fake_teacher(8, seed=1) if taken == "teacher" else fake_teacher(8)
        make_cache(theirs, TEXTS[:30], teacher=other, name="corpus" if taken == "corpus" else "own")
        before = content(theirs)
        with pytest.raises((InputError, ContractMismatchError)) as refused:
            admit(incoming, *arguments)
        assert content(theirs) == before
        raise refused.value

    monkeypatch.setattr(Incoming, "admit", late)
    with pytest.raises((InputError, ContractMismatchError)):
        pull(theirs, remote)
    assert len(Cache(theirs).lookup(TEXTS[:30])) == 30
