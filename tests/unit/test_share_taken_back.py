"""A push that is taken back takes what was news in it: what earlier pushes had declared stays."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from share_helpers import TEXTS, content, files_of, make_cache, make_key

from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.check.findings import Kind
from embedcache.cli.main import cli
from embedcache.corpus import part
from embedcache.errors import RemoteError
from embedcache.fsio import canonical_json
from embedcache.share import CollectResult, PullChoice, collect, collect_remote, list_remote, pull, push
from embedcache.share.places import parse_location
from embedcache.share.remote.claims import Claims
from embedcache.share.remote.manifest import Manifest, SharedFile
from embedcache.share.remote.news import rests_of
from embedcache.share.remote.ranges import checked_ranges, ranges_of
from embedcache.share.remote.remote import Remote


def gc(remote: Path, *drop: str, delete: bool = True, **settings: Any) -> CollectResult:
    return collect_remote(str(remote), drop=drop, delete=delete, **{"hours": 0.0, **settings})


def age(remote: Path) -> None:
    """Let all files of a remote be older than an hour."""
    for path in remote.rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - 4000
            os.utime(path, (then, then))


def pulled(remote: Path) -> dict[str, str]:
    """Return what a pull finds, checked."""
    there = remote.parent / "there"
    shutil.rmtree(there, ignore_errors=True)
    pull(there, str(remote))
    assert not verify(there).findings
    return content(there)


def manifests_on(remote: Path) -> dict[str, Manifest]:
    return {each.id: each for each in Remote(parse_location(str(remote))).survey().manifests}


class Pushes:
    """Pushes of a cache that grows: what each has declared and what the cache held then."""

    def __init__(self, folder: Path) -> None:
        self.remote, self._cache = folder / "remote", folder / "cache"
        self.ids: list[str] = []
        self.contents: list[dict[str, str]] = []

    def push(self, texts: Sequence[str], by: str, **settings: Any) -> str:
        name = f"of-{by.lower()}"
        make_cache(self._cache, texts, name=name)
        self.contents.append(content(self._cache))
        self.ids.append(push(self._cache, str(self.remote), by=by, **settings).manifest)
        return self.ids[-1]


@pytest.fixture
def pushes(tmp_path: Path) -> Pushes:
    """Return a push of Alice's, and one of Bob's with all that and more; only his is left."""
    made = Pushes(tmp_path)
    made.push(TEXTS[:80], "Alice")
    made.push(TEXTS[80:160], "Bob")
    age(made.remote)
    gc(made.remote)
    assert list(manifests_on(made.remote)) == made.ids[1:]
    return made


def test_what_earlier_pushes_declared_stays(pushes: Pushes) -> None:
    bob = manifests_on(pushes.remote)[pushes.ids[1]]
    before = files_of(pushes.remote, "")
    planned = gc(pushes.remote, bob.id, delete=False)
    assert files_of(pushes.remote, "") == before
    done = gc(pushes.remote, bob.id)
    assert pulled(pushes.remote) == pushes.contents[0]
    (rest,) = manifests_on(pushes.remote).values()
    assert (planned.kept, planned.found) == (done.kept, done.found)
    (kept,) = done.kept
    assert (kept.dropped, kept.manifest, kept.was_signed) == (bob.id, rest.id, False)
    assert kept.files == len(rest.files) == len(bob.files) - len(bob.new_files)
    assert (rest.card, rest.by, rest.when, rest.news) == (bob.card, "Bob", bob.when, None)
    assert [line.name for line in rest.corpora] == ["of-alice"]
    (teacher,) = rest.teachers
    assert (teacher.names, teacher.rows) == (bob.teachers[0].names, 80)
    assert not gc(pushes.remote).found
    # It says nothing of news: who takes it back as well takes all.
    planned = gc(pushes.remote, rest.id, delete=False)
    assert planned.unsure == (rest.id,)
    gc(pushes.remote, rest.id)
    assert not list(pushes.remote.glob("objects/??/" + "?" * 64))


def test_pushes_that_are_taken_back_one_by_one_leave_the_first(tmp_path: Path) -> None:
    made = Pushes(tmp_path)
    for number, by in enumerate(("Alice", "Bob", "Carol")):
        made.push(TEXTS[60 * number :][:60], by)
    for back in (2, 1):
        # The earlier manifests are too young to be deleted, so there is no need to keep any of their files.
        assert gc(made.remote, made.ids[back], hours=24).kept == ()
        assert pulled(made.remote) == made.contents[back - 1]


def test_what_was_kept_stays_whatever_is_pushed_and_taken_back_later(pushes: Pushes) -> None:
    # She stands for Bob, who stood for Alice.
    carol = pushes.push(TEXTS[160:200], "Carol")
    age(pushes.remote)
    gc(pushes.remote)
    assert list(manifests_on(pushes.remote)) == [carol]
    gc(pushes.remote, carol)
    assert pulled(pushes.remote) == pushes.contents[1]
    # All of it once more, with more: that stands for what is left, and goes in its turn.
    dave = pushes.push(TEXTS[180:], "Dave")
    assert len(manifests_on(pushes.remote)) == 2
    age(pushes.remote)
    gc(pushes.remote)
    assert list(manifests_on(pushes.remote)) == [dave]
    gc(pushes.remote, dave)
    assert pulled(pushes.remote) == pushes.contents[1]


def test_what_stays_can_be_read_without_any_other_push(pushes: Pushes, tmp_path: Path) -> None:
    # She lists the teacher, too, and nothing else of what stays.
    carol = make_cache(tmp_path / "carol", TEXTS[160:], name="of-carol")
    bad = push(carol, str(pushes.remote), by="Carol").manifest
    (kept,) = gc(pushes.remote, pushes.ids[1]).kept
    pull(tmp_path / "without", str(pushes.remote), PullChoice(skip_manifests=[bad]))
    assert content(tmp_path / "without") == pushes.contents[0]
    gc(pushes.remote, bad)
    assert list(manifests_on(pushes.remote)) == [kept.manifest]
    assert pulled(pushes.remote) == pushes.contents[0]


def test_of_a_corpus_that_has_grown_no_part_stays_that_nobody_could_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, "PART_ROWS", 40)
    remote = tmp_path / "remote"
    for by, texts in (("alice", TEXTS[:80]), ("bob", TEXTS[:120])):
        make_cache(tmp_path / by, texts, name="grows")
    first, second = (push(tmp_path / by, str(remote)).manifest for by in ("alice", "bob"))
    manifests = manifests_on(remote)
    assert any("corpora/" in file.path for file in set(manifests[second].files) & set(manifests[first].files))
    # His push keeps the parts that both have; once it is taken back as well, they are of no use.
    gc(remote, first)
    (kept,) = gc(remote, second).kept
    assert not [file.path for file in manifests_on(remote)[kept.manifest].files if "corpora/" in file.path]
    pull(tmp_path / "there", str(remote))


def test_what_was_news_in_any_of_several_goes_with_them(tmp_path: Path) -> None:
    made = Pushes(tmp_path)
    made.push(TEXTS[:80], "Alice")
    made.push(TEXTS[80:160], "Bob")
    assert gc(made.remote, *made.ids).kept == ()
    assert list_remote(str(made.remote)).pushes == ()
    assert not list(made.remote.glob("objects/??/" + "?" * 64))


def test_a_file_that_two_pushed_at_once_stays_with_either(tmp_path: Path) -> None:
    alice = make_cache(tmp_path / "alice", TEXTS[:80])
    shutil.copytree(alice.folder, tmp_path / "bob")
    bob = make_cache(tmp_path / "bob", TEXTS[80:160], name="more")
    first = push(alice, str(tmp_path / "remote")).manifest
    second = push(bob, str(tmp_path / "other")).manifest
    # A union of remotes is a remote: each of the two says that all is news.
    shutil.copytree(tmp_path / "other", tmp_path / "remote", dirs_exist_ok=True)
    age(tmp_path / "remote")
    assert gc(tmp_path / "remote").found == ()
    shutil.copytree(tmp_path / "remote", tmp_path / "copy")
    assert gc(tmp_path / "remote", second).kept == ()
    assert pulled(tmp_path / "remote") == content(alice.folder)
    gc(tmp_path / "copy", first)
    assert pulled(tmp_path / "copy") == content(bob.folder)


def test_vectors_stay_readable_though_the_contract_was_news_elsewhere(tmp_path: Path) -> None:
    made = Pushes(tmp_path)
    first = made.push(TEXTS[:80], "Alice")
    bob = make_cache(tmp_path / "bob", TEXTS[80:160], name="more")
    at_once = push(bob, str(tmp_path / "other")).manifest
    shutil.copytree(tmp_path / "other", made.remote, dirs_exist_ok=True)
    later = made.push(TEXTS[160:200], "Carol")
    age(made.remote)
    gc(made.remote)
    assert first not in manifests_on(made.remote)
    (kept,) = gc(made.remote, later, at_once).kept
    assert kept.dropped == later
    assert pulled(made.remote) == made.contents[0]


def test_a_name_that_was_news_goes_though_a_contract_that_was_stays(tmp_path: Path) -> None:
    made = Pushes(tmp_path)
    made.push(TEXTS[:80], "Alice")
    bob = make_cache(tmp_path / "bob", TEXTS[80:160], name="more")
    at_once = push(bob, str(tmp_path / "other")).manifest
    shutil.copytree(tmp_path / "other", made.remote, dirs_exist_ok=True)
    teacher = Cache(tmp_path / "cache").teacher()
    Cache(tmp_path / "cache").register_teacher("another", teacher.contract, teacher.origin)
    later = made.push(TEXTS[160:200], "Carol")
    shutil.copytree(made.remote, tmp_path / "young")
    # Alice's manifest is too young to be deleted, and lists everything that is no news.
    assert gc(tmp_path / "young", later, at_once, hours=24).kept == ()
    age(made.remote)
    gc(made.remote)
    gc(made.remote, later, at_once)
    assert pulled(made.remote) == made.contents[0]


def test_shards_of_pq_keep_their_codebook_though_it_was_news_elsewhere(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(300)]
    push(make_cache(tmp_path / "mine", texts, codec="pq", shard_rows=300), str(tmp_path / "remote"))
    (whole,) = manifests_on(tmp_path / "remote").values()
    kinds = [file.entry.kind for file in whole.files]
    codebook = kinds.index(Kind.CODEBOOK)
    older, at_once = replace(whole, news=()), replace(whole, by="Bob", news=ranges_of([codebook]))
    ((dropped, rest),) = rests_of([older, at_once], [])
    assert (dropped, rest.files) == (older, whole.files)
    # Where no vector stays, no codebook does.
    at_once = replace(whole, by="Bob", news=ranges_of(sorted([codebook, kinds.index(Kind.SHARD)])))
    ((dropped, rest),) = rests_of([older, at_once], [])
    left = [file.entry.kind for file in rest.files]
    assert sorted(left) == sorted(kind for kind in kinds if kind not in (Kind.CODEBOOK, Kind.SHARD))


@pytest.mark.parametrize("written", [False, True])
def test_killed_before_anything_is_deleted_nothing_is_lost(
    pushes: Pushes, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    def kill(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(collect, "delete_files" if written else "_write_rest", kill)
        with pytest.raises(KeyboardInterrupt):
            gc(pushes.remote, pushes.ids[1])
    assert len(manifests_on(pushes.remote)) == 1 + written
    assert pulled(pushes.remote) == pushes.contents[1]
    if written:
        # Until it is taken back after all, it stands for what it left.
        copy = pushes.remote.with_name("copy")
        shutil.copytree(pushes.remote, copy)
        age(copy)
        gc(copy)
        assert list(manifests_on(copy)) == pushes.ids[1:]
    gc(pushes.remote, pushes.ids[1])
    assert pulled(pushes.remote) == pushes.contents[0]


def test_who_has_stood_still_writes_nothing(pushes: Pushes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claims, "overslept", True)
    before = files_of(pushes.remote, "manifests")
    with pytest.raises(RemoteError, match="stood still"):
        gc(pushes.remote, pushes.ids[1])
    assert files_of(pushes.remote, "manifests") == before


def test_what_stays_of_a_signed_push_is_not_signed(tmp_path: Path) -> None:
    private, public = make_key(tmp_path, "key")
    made = Pushes(tmp_path)
    made.push(TEXTS[:80], "Alice", sign=private)
    made.push(TEXTS[80:160], "Bob", sign=private)
    age(made.remote)
    gc(made.remote)
    shown = CliRunner().invoke(cli, ["remote", "gc", str(made.remote), "--drop", made.ids[1]]).output
    assert f"without the signature of {made.ids[1][:12]}" in shown
    (kept,) = gc(made.remote, made.ids[1]).kept
    assert kept.was_signed
    assert pulled(made.remote) == made.contents[0]
    with pytest.raises(RemoteError, match="none of the 1 manifests"):
        pull(tmp_path / "signed", str(made.remote), PullChoice(require_signature=public))


def test_news_are_what_no_manifest_lists_whoever_signed_it(tmp_path: Path) -> None:
    private, _ = make_key(tmp_path, "key")
    cache = make_cache(tmp_path / "cache", TEXTS[:80])
    first = push(cache, str(tmp_path / "remote")).manifest
    second = push(cache, str(tmp_path / "remote"), sign=private).manifest
    manifests = manifests_on(tmp_path / "remote")
    assert manifests[first].new_files == manifests[first].files
    assert manifests[second].news == ()


def without_news(remote: Path, manifest: str) -> str:
    """Put a manifest in the place of another that says the same, and nothing of news; return its id."""
    path = remote / "manifests" / f"{manifest}.json"
    value = json.loads(path.read_bytes())
    del value["news"]
    data = canonical_json(value)
    path.unlink()
    digest = hashlib.sha256(data).hexdigest()
    (remote / "manifests" / f"{digest}.json").write_bytes(data)
    return digest


def test_of_a_manifest_that_says_nothing_of_news_all_goes_and_that_is_said(pushes: Pushes) -> None:
    name = without_news(pushes.remote, pushes.ids[1])
    manifest = manifests_on(pushes.remote)[name]
    data = (pushes.remote / "manifests" / f"{name}.json").read_bytes()
    assert (manifest.news, manifest.data, manifest.new_files) == (None, data, manifest.files)
    command = ["remote", "gc", str(pushes.remote), "--drop", name[:12]]
    shown = CliRunner().invoke(cli, command).output
    assert f"manifest {name[:12]} does not say which of its files were news: it may list files of" in shown
    shown = CliRunner().invoke(cli, [*command, "--yes"]).output
    assert "does not say" not in shown
    assert not list(pushes.remote.glob("objects/??/" + "?" * 64))


def test_the_command_says_what_stays(pushes: Pushes) -> None:
    command = ["remote", "gc", str(pushes.remote), "--drop", pushes.ids[1][:8]]
    shown = CliRunner().invoke(cli, command).output
    (kept,) = gc(pushes.remote, pushes.ids[1], delete=False).kept
    begin = f"{kept.files} files of {pushes.ids[1][:12]} that earlier pushes had declared stay: manifest "
    assert f"{begin}{kept.manifest[:12]} will list them; --drop {kept.manifest[:12]} takes them back" in shown
    shown = CliRunner().invoke(cli, [*command, "--yes"]).output
    assert f"{begin}{kept.manifest[:12]} lists them; " in shown


@pytest.mark.parametrize("positions", [[], [0], [2, 3, 4], [0, 1, 3, 9], list(range(10))])
def test_ranges_are_read_as_they_were_written(positions: list[int]) -> None:
    ranges = ranges_of(positions)
    assert [each for first, end in ranges for each in range(first, end)] == positions
    assert checked_ranges([list(pair) for pair in ranges], 10) == ranges


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        "01",
        [0, 1],
        [[0]],
        [[0, 1, 2]],
        [[0, 1.0]],
        [[False, 1]],
        [["0", "1"]],
        [[-1, 1]],
        [[0, 0]],
        [[2, 1]],
        [[0, 10]],
        [[0, 1 << 70]],
        [[3, 4], [0, 1]],
        [[0, 2], [1, 3]],
        [[0, 1], [1, 2]],
    ],
)
def test_a_manifest_with_other_news_is_refused(value: object) -> None:
    digests = sorted(hashlib.sha256(bytes([number])).hexdigest() for number in range(9))
    files = tuple(SharedFile(f"teachers/{'a' * 64}/shards/{each}.arrow", each, 9, 1) for each in digests)
    sound = Manifest(files, (), (), "c" * 64, news=((0, 1), (8, 9)))
    assert Manifest.from_bytes(sound.data, sound.id) == sound
    spelled = canonical_json({**sound.to_json(), "news": value})
    with pytest.raises(ValueError, match="ranges"):
        Manifest.from_bytes(spelled, hashlib.sha256(spelled).hexdigest())
