"""Push and pull over a folder: everything arrives, nothing is sent or fetched twice, parts can be chosen."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from damage import flip_middle
from sharing import TEXTS, content, make_cache, manifests_of, objects_in

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
FAKE, TWO = fake_teacher(8), fake_teacher(8, name="two", seed=2)


@pytest.fixture(scope="module")
def ann(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Return a cache of two corpora, one of them with a view and with vectors of two teachers; read it."""
    folder = tmp_path_factory.mktemp("ann") / "cache"
    make_cache(folder, TEXTS[:80], name="plain")
    make_cache(folder, TEXTS[80:200], name="rich", views=CROP)
    return make_cache(folder, TEXTS[80:200], name="rich", teacher=TWO)


@pytest.fixture(scope="module")
def team(ann: Cache, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a remote that Ann's cache was pushed to; pull from it."""
    remote = str(tmp_path_factory.mktemp("team") / "remote")
    push(ann.folder, remote)
    return remote


@pytest.fixture
def remote(tmp_path: Path) -> str:
    return str(tmp_path / "remote")


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the digest of every object that is fetched."""
    digests: list[str] = []
    fetch = Remote.fetch

    def noted(self: Remote, sha256: str, *arguments: Any) -> None:
        fetch(self, sha256, *arguments)
        digests.append(sha256)

    monkeypatch.setattr(Remote, "fetch", noted)
    return digests


def test_everything_arrives_and_nothing_is_sent_or_fetched_twice(
    tmp_path: Path, remote: str, fetched: list[str]
) -> None:
    texts = sentences(300)
    mine = make_cache(tmp_path / "mine", texts, views=CROP)
    make_cache(mine.folder, texts, teacher=TWO, codec="pq", shard_rows=300, store="lmdb")
    mine.register_teacher("second", FAKE.contract, {"spec": "elsewhere"})
    table = TokenTable(np.ones((2, 4), np.float32), ("a", "b"))
    table.write(table_path(mine.folder, FAKE.contract), FAKE.contract)
    projected = write_derived(mine, mine.teacher("fake"), "small", np.eye(8, dtype=np.float32)[:4], "test")
    extend(mine, projected, mine.corpus())
    first = push(mine.folder, remote)
    assert first.sent == len(objects_in(remote))
    pull(tmp_path / "theirs", remote)
    assert content(tmp_path / "theirs") == content(mine.folder)
    assert not verify(tmp_path / "theirs").damage
    fetched.clear()
    for folder in (mine.folder, tmp_path / "theirs"):
        again = push(folder, remote)
        assert (again.sent, again.files, again.manifest, again.present) == (0, 0, "", first.sent)
        assert (pull(folder, remote).files, fetched) == (0, [])


def test_shards_enter_the_store_that_the_cache_has(tmp_path: Path, team: str, ann: Cache) -> None:
    theirs = make_cache(tmp_path / "theirs", TEXTS[200:], name="other", store="lmdb")
    pull(theirs.folder, team)
    theirs = Cache(theirs.folder)
    assert theirs.store(FAKE.contract).kind == "lmdb"
    assert np.array_equal(theirs.lookup(TEXTS[:80], "fake"), ann.lookup(TEXTS[:80], "fake"))
    assert not verify(theirs.folder).damage


# Pushing


def test_manifests_are_deltas(tmp_path: Path, remote: str) -> None:
    mine = make_cache(tmp_path / "mine", TEXTS[:80])
    push(mine.folder, remote)
    make_cache(mine.folder, TEXTS[80:120], name="more")
    push(mine.folder, remote)
    one, two = manifests_of(remote)
    shards = [{file["path"] for file in manifest["files"] if "rows" in file} for manifest in (one, two)]
    assert [len(paths) for paths in shards] == [2, 1]
    assert not shards[0] & shards[1]
    assert [card["name"] for card in two["corpora"]] == ["more"]
    assert two["teachers"][0]["rows"] == 40


def test_the_next_push_heals_missing_and_cut_objects(tmp_path: Path, remote: str) -> None:
    mine = make_cache(tmp_path / "mine")
    sent = push(mine.folder, remote).sent
    for number, path in enumerate(objects_in(remote).values()):
        path.unlink() if number % 2 else os.truncate(path, 3)
    assert push(mine.folder, remote).sent == sent
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


# Pulling


def test_an_interrupted_pull_goes_on(
    tmp_path: Path, ann: Cache, team: str, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = Remote.fetch

    def failing(self: Remote, *arguments: Any) -> None:
        if len(fetched) > 2:
            raise KeyboardInterrupt
        fetch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "fetch", failing)
        patch.setattr("embedcache.share.remote.JOBS", 1)
        with pytest.raises(KeyboardInterrupt):
            pull(tmp_path / "theirs", team)
    assert set(content(tmp_path / "theirs")) == {"cache.json"}
    pull(tmp_path / "theirs", team)
    assert len(fetched) == len({*fetched}) > 3
    assert content(tmp_path / "theirs") == content(ann.folder)
    assert not (tmp_path / "theirs" / "derived" / "incoming").exists()


def test_versions_of_a_corpus_are_chosen_by_digest_and_none_replaces_ones_own(
    tmp_path: Path, remote: str
) -> None:
    old, new = make_cache(tmp_path / "old", TEXTS[:60]), make_cache(tmp_path / "new", TEXTS[40:100])
    push(old.folder, remote)
    push(new.folder, remote, clock=lambda: time.time() + 60)
    first, second = old.corpus().info.digest, new.corpus().info.digest
    for number, (asked, digest) in enumerate(
        (("corpus", second), (f"corpus@{first[:8]}", first), (f"corpus@{second}", second))
    ):
        pull(tmp_path / str(number), remote, Selection(corpora=[asked]))
        assert Cache(tmp_path / str(number)).corpus().info.digest == digest
        assert not verify(tmp_path / str(number)).damage
    with pytest.raises(InputError, match=first[:12]):
        pull(tmp_path / "none", remote, Selection(corpora=["corpus@000000"]))
    # The old one is one of the versions, so there is no clash.
    assert pull(old.folder, remote).left_out == []
    assert old.corpus().info.digest == first
    other = make_cache(tmp_path / "other", TEXTS[200:])
    before = content(other.folder)
    done = pull(other.folder, remote)
    assert (len(done.left_out), done.vectors["fake"] > 0) == (1, True)
    assert before.items() <= content(other.folder).items()
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


@pytest.mark.parametrize("taken", ["corpus", "teacher"])
def test_files_of_a_build_during_a_pull_are_not_replaced(
    tmp_path: Path, remote: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(make_cache(tmp_path / "mine").folder, remote)
    theirs, admit, built = tmp_path / "theirs", Incoming.admit, dict[str, str]()

    def late(incoming: Incoming, *arguments: Any) -> Any:
        other = fake_teacher(8, seed=1) if taken == "teacher" else FAKE
        make_cache(theirs, TEXTS[:30], teacher=other, name="corpus" if taken == "corpus" else "own")
        built.update(content(theirs))
        return admit(incoming, *arguments)

    monkeypatch.setattr(Incoming, "admit", late)
    with pytest.raises((InputError, ContractMismatchError)):
        pull(theirs, remote)
    assert content(theirs) == built != {}


# Selections


@pytest.mark.parametrize("act", ["push", "pull"])
def test_chosen_teachers_or_texts_come_alone(act: str, tmp_path: Path, ann: Cache, team: str) -> None:
    for number, (selection, teachers, corpora) in enumerate(
        [
            (Selection(teachers=["two"], corpora=["plain"]), ["two"], ["plain"]),
            (Selection(text=False), ["fake", "two"], []),
        ]
    ):
        source, theirs = team, tmp_path / f"cache{number}"
        if act == "push":
            source = str(tmp_path / f"remote{number}")
            push(ann.folder, source, selection)
        pull(theirs, source, selection if act == "pull" else None)
        found = Cache(theirs)
        # Of a pull, vectors are those of the chosen texts.
        assert found.corpus_names() == corpora
        assert [one.name for one in found.teachers()] == teachers


@pytest.mark.parametrize(
    "wrong",
    [
        {"text": False, "corpora": ["rich"]},
        {"where": "row < 3"},
        {"where": "row < 3", "corpora": ["plain", "rich"]},
        {"where": "row > 9999", "corpora": ["rich"]},
        {"where": "nonsense =", "corpora": ["rich"]},
        {"corpora": ["../a"]},
        {"corpora": ["a@x"]},
        {"corpora": ["none"]},
        {"teachers": ["none"]},
    ],
)
def test_a_selection_that_cannot_be_is_refused(wrong: Any, tmp_path: Path, ann: Cache, team: str) -> None:
    with pytest.raises(InputError):
        pull(tmp_path / "cache", team, Selection(**wrong))
    with pytest.raises(InputError):
        push(ann.folder, str(tmp_path / "remote"), Selection(**wrong))
    assert set(content(tmp_path / "cache")) <= {"cache.json"}
    assert not (tmp_path / "remote").exists()


def test_a_chosen_corpus_fetches_the_shards_of_its_texts_alone(
    tmp_path: Path, ann: Cache, team: str, fetched: list[str]
) -> None:
    assert pull(tmp_path / "theirs", team, Selection(corpora=["plain"])).vectors == {"fake": 80}
    theirs = Cache(tmp_path / "theirs")
    assert theirs.corpus_names() == ["plain"]
    have = {shard.name for shard in theirs.store(FAKE.contract).shards}
    # A larger pull does not fetch the same shards again.
    fetched.clear()
    assert pull(theirs.folder, team).vectors["fake"] >= 120
    assert not have & set(fetched)
    assert content(theirs.folder) == content(ann.folder)


def test_a_part_of_a_corpus_comes_with_its_views_and_vectors(tmp_path: Path, ann: Cache, team: str) -> None:
    selection = Selection(corpora=["rich"], where="row >= 50")
    done = pull(tmp_path / "theirs", team, selection)
    theirs, whole = Cache(tmp_path / "theirs"), ann.corpus("rich")
    (name,) = theirs.corpus_names()
    part = theirs.corpus(name)
    assert name != "rich"
    assert part.texts() == whole.texts()[50:]
    assert part.view("crop").texts() == whole.view("crop").texts()[50:]
    for texts in (part.texts(), part.view("crop").texts()):
        assert np.array_equal(theirs.lookup(texts, "fake"), ann.lookup(texts, "fake"))
    assert done.vectors["fake"] < len(ann.store(FAKE.contract))
    assert not verify(theirs.folder).damage
    assert pull(theirs.folder, team, selection).files == 0


def test_views_that_were_made_later_come_to_a_corpus_that_is_here(tmp_path: Path, remote: str) -> None:
    mine = make_cache(tmp_path / "mine")
    for views in ((), CROP):
        make_cache(mine.folder, views=views)
        push(mine.folder, remote)
        pull(tmp_path / "theirs", remote)
        assert content(tmp_path / "theirs") == content(mine.folder)
    assert not verify(tmp_path / "theirs").damage


# Limits


def test_more_than_max_bytes_or_the_disk_has_is_refused_before_it_is_fetched(
    tmp_path: Path, team: str, fetched: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine"
    size = pull(mine, team, dry_run=True).bytes
    assert not mine.exists()
    for selection, limit in ((None, size - 1), (Selection(corpora=["plain"]), 1000)):
        with pytest.raises(InputError, match="max_bytes"):
            pull(mine, team, selection, max_bytes=limit)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
        with pytest.raises(StorageError, match="1,000 bytes are free"):
            pull(mine, team)
    assert fetched == []
    assert pull(mine, team, max_bytes=size).bytes == size
    # Key lists count as well.
    with pytest.raises(InputError, match="max_bytes"):
        pull(tmp_path / "others", team, Selection(corpora=["plain", "rich"]), max_bytes=size)
