"""Deleting from a remote: nothing that a pull could find is lost, and nothing goes while anybody pushes."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from share_helpers import TEXTS, claims_left, claims_on, content, files_of, make_cache, make_key, put_object

from embedcache import fsio
from embedcache.check import verify
from embedcache.cli.main import cli, main
from embedcache.errors import InputError, RemoteError
from embedcache.fsio import canonical_json
from embedcache.share import (
    CollectResult,
    PullChoice,
    check_remote,
    collect_remote,
    list_remote,
    pull,
    push,
)
from embedcache.share.remote import remote as remote_module
from embedcache.share.remote.claims import Claims
from embedcache.share.remote.remote import Remote


def collect(remote: Path, **settings: Any) -> CollectResult:
    return collect_remote(str(remote), **{"hours": 0.0, "delete": True, **settings})


def age(remote: Path, hours: float = 1.0) -> None:
    """Let all files of a remote be so old."""
    for path in remote.rglob("*"):
        if path.is_file():
            then = path.stat().st_mtime - hours * 3600
            os.utime(path, (then, then))


def all_of(remote: Path) -> dict[str, bytes]:
    return {path: data for path, data in files_of(remote, "").items() if not path.endswith("README")}


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """Return a remote that a cache was pushed to, grew, and was pushed to again."""
    cache = make_cache(tmp_path / "cache", TEXTS[:80])
    push(cache, str(tmp_path / "remote"))
    make_cache(tmp_path / "cache", TEXTS[80:160], name="more")
    push(cache, str(tmp_path / "remote"), by="Ann")
    age(tmp_path / "remote")
    return tmp_path / "remote"


def test_a_manifest_that_another_stands_for_goes_and_nothing_else_does(grown: Path, tmp_path: Path) -> None:
    before = all_of(grown)
    old, new = sorted(list_remote(str(grown)).pushes, key=lambda one: one.files)
    found = collect(grown)
    assert (found.deleted, found.young) == (True, 0)
    gone = before.keys() - all_of(grown).keys()
    assert gone == {one.path for one in found.found}
    assert f"manifests/{old.manifest}.json" in gone
    assert {path.partition("/")[0] for path in gone} == {"manifests", "cards"}
    assert [one.manifest for one in list_remote(str(grown)).pushes] == [new.manifest]
    pull(tmp_path / "there", str(grown))
    assert content(tmp_path / "there") == content(tmp_path / "cache")
    assert collect(grown).found == ()
    assert claims_left(grown) == []


def test_nothing_is_deleted_unless_told_to(grown: Path) -> None:
    before = files_of(grown, "")
    found = collect_remote(str(grown), hours=0.0)
    assert (len(found.found), found.deleted) == (2, False)
    assert files_of(grown, "") == before


def test_what_is_young_stays(grown: Path) -> None:
    before = all_of(grown)
    put_object(grown, b"left of a push that was killed")
    found = collect(grown, hours=24)
    assert (found.found, found.young) == ((), 1)
    assert all_of(grown).items() > before.items()
    age(grown, 25)
    assert len(collect(grown, hours=24).found) == 3
    assert all_of(grown).items() < before.items()


def test_what_no_manifest_lists_goes_and_files_of_other_names_stay(grown: Path) -> None:
    digest = put_object(grown, b"nobody's")
    (grown / "objects" / "ab").mkdir(exist_ok=True)
    (grown / "objects" / "ab" / "notes.txt").write_text("mine")
    (grown / "notes.txt").write_text("mine")
    age(grown)
    assert f"objects/{digest[:2]}/{digest}" in {one.path for one in collect(grown).found}
    assert not (grown / "objects" / digest[:2] / digest).exists()
    assert (grown / "objects" / "ab" / "notes.txt").exists()
    assert (grown / "notes.txt").exists()


def begin_writes(remote: Path) -> dict[str, Path]:
    """Leave what writes that were stopped leave, and what only looks so; return the files by name."""
    inside = f"objects/ab/.tmp-{'0' * 32}-ab{'1' * 62}"
    claim = f"claims/.tmp-{'1' * 32}-x.beat"
    names = {
        "object": inside,
        "claim": claim,
        "manifest": f"manifests/.tmp-{'2' * 32}-x.json",
        "card": f"cards/.tmp-{'3' * 32}-x.md",
        "marker": f".tmp-{'4' * 32}-embedcache-remote.json",
        "foreign": f".tmp-{'5' * 32}-thesis.pdf",
        "foreign inside": "objects/ab/.tmp-mine",
    }
    (remote / "objects" / "ab").mkdir(exist_ok=True)
    for name in names.values():
        (remote / name).write_bytes(b"the first half")
    link = remote / "cards" / f".tmp-{'6' * 32}-link"
    link.symlink_to(remote / names["object"])
    return {**{name: remote / path for name, path in names.items()}, "link": link}


def test_what_a_write_that_was_stopped_has_left_goes_once_it_is_old(grown: Path, tmp_path: Path) -> None:
    collect(grown)
    kept = all_of(grown)
    begun = begin_writes(grown)
    # Not even with --older 0: somebody who pushes --alone may be writing it.
    found = collect(grown)
    assert (found.found, found.young) == ((), 5)
    assert all(path.exists() for path in begun.values())
    age(grown, 2)
    listed = collect(grown, hours=24)
    assert (listed.found, listed.young) == ((), 5)
    found = collect(grown, delete=False)
    assert {grown / one.path for one in found.found} == {
        path for name, path in begun.items() if not name.startswith(("foreign", "link"))
    }
    assert {(one.why, one.bytes) for one in found.found} == {("left of a write", 14)}
    assert collect(grown).found == found.found
    left = {name for name, path in begun.items() if path.is_symlink() or path.exists()}
    assert left == {"foreign", "foreign inside", "link"}
    assert all_of(grown).items() >= kept.items()
    # Where nothing else lies no folder has to be kept.
    assert not (grown / "objects" / "ab" / "README").exists()
    pull(tmp_path / "there", str(grown))
    assert content(tmp_path / "there") == content(tmp_path / "cache")


def test_a_push_that_was_killed_on_its_way_leaves_what_is_found(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(grown)
    private = make_cache(tmp_path / "private", TEXTS[120:200], name="private")
    killed: list[Path] = []

    def kill(step: str, path: Path) -> None:
        if step == "written" and path.parent.parent.name == "objects":
            killed.append(path)
            # As if it had never come to tidy up.
            monkeypatch.setattr(fsio, "_remove", lambda temporary: None)
            raise KeyboardInterrupt

    monkeypatch.setattr(fsio, "on_write_step", kill)
    with pytest.raises(KeyboardInterrupt):
        push(private, str(grown), jobs=1)
    monkeypatch.undo()
    # A thread may have begun the next one before it heard of the end.
    left = sorted(grown.glob("objects/??/.tmp-*"))
    assert len(left) == len(killed) > 0
    assert (collect(grown).young, all(path.exists() for path in left)) == (len(left), True)
    # Of a push that is taken back nothing stays, whatever its age: it may hold the texts.
    pushed = push(private, str(grown))
    found = collect(grown, drop=[pushed.manifest])
    assert {path.relative_to(grown).as_posix() for path in left} <= {one.path for one in found.found}
    assert not any(path.exists() for path in left)


@pytest.mark.parametrize("is_readable", [True, False])
def test_of_a_push_that_is_taken_back_no_half_of_a_manifest_or_signature_stays(
    grown: Path, tmp_path: Path, is_readable: bool
) -> None:
    collect(grown)
    private, _ = make_key(tmp_path, "ann")
    pushed = push(make_cache(tmp_path / "private", TEXTS[200:], name="p"), str(grown), sign=private).manifest
    if not is_readable:
        (grown / "manifests" / f"{pushed}.json").write_bytes(b"nonsense")
    (signature,) = (grown / "signatures" / pushed).glob("*.json")
    tail, mine = f".tmp-{'0' * 32}-", (grown / "manifests", f"{pushed}.json")
    left = [mine[0] / f"{tail}{mine[1]}", signature.with_name(f"{tail}{signature.name}")]
    other = grown / "manifests" / f"{tail}{'a' * 64}.json"
    for path in (*left, other):
        path.write_bytes(b"half")
    collect(grown, drop=[pushed])
    assert not any(path.exists() for path in left)
    # Those of others go by their age.
    assert other.exists()


def test_two_pushes_of_which_neither_holds_the_other_both_stay(tmp_path: Path) -> None:
    for name, texts in (("one", TEXTS[:80]), ("two", TEXTS[40:120])):
        push(make_cache(tmp_path / name, texts, name=name), str(tmp_path / "remote"))
    age(tmp_path / "remote")
    assert collect(tmp_path / "remote").found == ()
    assert len(list_remote(str(tmp_path / "remote")).pushes) == 2


def test_a_licence_that_one_push_alone_declares_keeps_its_manifest(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS[:80])
    push(cache, str(tmp_path / "remote"), text_licence="CC0")
    make_cache(tmp_path / "cache", TEXTS[80:160], name="more")
    push(cache, str(tmp_path / "remote"))
    age(tmp_path / "remote")
    assert collect(tmp_path / "remote").found == ()


def test_what_a_key_has_signed_stays_for_those_who_ask_for_it(tmp_path: Path) -> None:
    private, public = make_key(tmp_path, "ann")
    cache = make_cache(tmp_path / "cache", TEXTS[:80])
    push(cache, str(tmp_path / "remote"), sign=private)
    make_cache(tmp_path / "cache", TEXTS[80:160], name="more")
    push(cache, str(tmp_path / "remote"))
    age(tmp_path / "remote")
    assert collect(tmp_path / "remote").found == ()
    pull(tmp_path / "signed", str(tmp_path / "remote"), PullChoice(require_signature=public))
    # Once the larger one is signed as well, it stands for the other.
    push(cache, str(tmp_path / "remote"), sign=private)
    age(tmp_path / "remote")
    gone = {one.path.partition("/")[0] for one in collect(tmp_path / "remote").found}
    assert gone >= {"manifests", "signatures"}
    pull(tmp_path / "there", str(tmp_path / "remote"), PullChoice(require_signature=public))
    assert content(tmp_path / "there") == content(cache.folder)


def test_a_push_is_taken_back_with_all_that_it_alone_lists(grown: Path, tmp_path: Path) -> None:
    private = make_cache(tmp_path / "private", TEXTS[120:200], name="private")
    kept = all_of(grown)
    pushed = push(private, str(grown))
    found = collect(grown, drop=[pushed.manifest[:8]], hours=24)
    assert all_of(grown) == kept
    assert pushed.sent + 2 == len(found.found)
    assert "private" not in [one.name for one in list_remote(str(grown)).corpora]
    # By way of nothing but what is left, all can be pushed again.
    push(private, str(grown))
    pull(tmp_path / "there", str(grown))
    assert content(tmp_path / "there").items() >= content(private.folder).items()
    assert not verify(tmp_path / "there").findings


@pytest.mark.parametrize("begin", ["", "x", "abc", "../..", "0" * 64])
def test_what_names_no_manifest_is_refused(grown: Path, begin: str) -> None:
    before = all_of(grown)
    told = "no manifest of .* begins with" if len(begin) == 64 else "expected six or more hexadecimal digits"
    with pytest.raises(InputError, match=told) as found:
        collect(grown, drop=[begin])
    assert "more digits" not in str(found.value)
    assert all_of(grown) == before


def test_digits_that_several_manifests_begin_with_are_refused(
    grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"abcdef{digit * 58}" for digit in "01"]
    monkeypatch.setattr(Remote, "manifest_ids", lambda self, **_: ids)
    with pytest.raises(
        InputError, match=r"2 manifests of .* begin with .*expected exactly one for --drop: give more digits"
    ):
        collect(grown, drop=["abcdef"])


def test_a_manifest_that_cannot_be_read_stops_everything_until_it_is_taken_back(grown: Path) -> None:
    newer = canonical_json({"version": 2})
    digest = put_object(grown, newer)
    (grown / "objects" / digest[:2] / digest).rename(grown / "manifests" / f"{digest}.json")
    age(grown)
    before = all_of(grown)
    with pytest.raises(RemoteError, match=f"cannot be read .*upgrade embedcache.*--drop {digest[:12]}"):
        collect(grown)
    assert all_of(grown) == before
    collect(grown, drop=[digest])
    assert len(list_remote(str(grown)).pushes) == 1


def test_a_push_is_taken_back_while_another_manifest_cannot_be_read(grown: Path, tmp_path: Path) -> None:
    collect(grown)
    kept = all_of(grown)
    key, _ = make_key(tmp_path, "ann")
    pushed = push(make_cache(tmp_path / "private", TEXTS[200:], name="private"), str(grown), sign=key)
    bad = "ab" * 32
    (grown / "manifests" / f"{bad}.json").write_bytes(b"nonsense")
    before = all_of(grown)
    found = collect(grown, drop=[pushed.manifest])
    assert list(found.unreadable) == [bad]
    gone = before.keys() - all_of(grown).keys()
    # The one that cannot be read may list any object or card.
    assert {path.partition("/")[0] for path in gone} == {"manifests", "signatures"}
    assert all(pushed.manifest in path for path in gone)
    other = list_remote(str(grown)).pushes[0].manifest
    told = CliRunner().invoke(cli, ["remote", "gc", str(grown), "--drop", other])
    assert (told.exit_code, f"manifest {bad[:12]} cannot be read" in told.output) == (1, True)
    found = collect(grown, drop=[bad])
    assert (dict(found.unreadable), all_of(grown)) == ({}, kept)


def test_more_manifests_than_other_commands_read_can_be_deleted(
    grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, most in (("MOST_MANIFESTS", 1), ("MOST_MANIFESTS_BYTES", 1000)):
        with monkeypatch.context() as patched:
            patched.setattr(remote_module, name, most)
            with pytest.raises(RemoteError, match="let 'embedcache remote gc' delete"):
                list_remote(str(grown))
            found = collect(grown, delete=False)
            assert {one.path.partition("/")[0] for one in found.found} == {"manifests", "cards"}
            newest = max((grown / "manifests").glob("*.json"), key=lambda path: path.stat().st_size)
            assert collect(grown, delete=False, drop=[newest.stem]).found


def test_a_push_is_taken_back_whose_manifest_cannot_be_fetched(
    grown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest = max((grown / "manifests").glob("*.json"), key=lambda path: path.stat().st_size)
    read = Remote.read

    def failing(self: Remote, path: str, most: int) -> bytes | None:
        if newest.stem in path and path.startswith("manifests/"):
            raise RemoteError("cannot be fetched")
        return read(self, path, most)

    monkeypatch.setattr(Remote, "read", failing)
    with pytest.raises(RemoteError, match="cannot be fetched"):
        collect(grown)
    collect(grown, drop=[newest.stem])
    assert not newest.exists()


def test_what_lies_in_the_folder_of_other_digits_goes_and_is_told_of(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = max(list_remote(str(grown)).pushes, key=lambda push: push.files)
    collect(grown)
    # One that a manifest lists, and its double in a place where nobody looks for it.
    source = next(grown.glob("objects/??/*"))
    folder = grown / "objects" / ("00" if source.parent.name != "00" else "01")
    folder.mkdir(exist_ok=True)
    misplaced = folder / source.name
    misplaced.write_bytes(source.read_bytes())
    (folder / "note.txt").write_text("not embedcache's")
    path = misplaced.relative_to(grown).as_posix()
    check = check_remote(str(grown))
    assert check.misplaced == (path,)
    assert check.is_sound
    monkeypatch.setattr(sys, "argv", ["embedcache", "remote", "verify", str(grown)])
    main()
    assert f"1 file in a wrong folder, as {path}," in capsys.readouterr().out.replace("\n", " ")
    assert collect(grown, hours=1).young == 1
    result = collect(grown)
    assert [(deletion.path, deletion.why) for deletion in result.found] == [
        (path, "lies where nobody looks for it")
    ]
    assert (misplaced.exists(), source.exists(), (folder / "note.txt").exists()) == (False, True, True)
    assert [push.manifest for push in list_remote(str(grown)).pushes] == [manifest.manifest]
    pull(tmp_path / "there", str(grown))
    assert not verify(tmp_path / "there").findings


# Others at work


def test_nothing_is_deleted_while_anybody_pushes(grown: Path) -> None:
    before = all_of(grown)
    with (
        claims_on(grown, elsewhere=True).alive() as other,
        pytest.raises(RemoteError, match="1 other process is at work"),
    ):
        collect(grown)
    assert all_of(grown) == before
    # Nor when it has only stood still for a while.
    other._beat()
    beat = grown / "claims" / f"{other.mark}.beat"
    os.utime(beat, (beat.stat().st_mtime - 3000,) * 2)
    with pytest.raises(RemoteError, match="nothing was deleted"):
        collect(grown)
    os.utime(beat, (beat.stat().st_mtime - 1000,) * 2)
    assert collect(grown).deleted


def test_a_push_waits_until_nothing_is_deleted_any_more(grown: Path, tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "other", TEXTS[200:], name="other")
    done: list[object] = []
    pushing = threading.Thread(target=lambda: done.append(push(cache, str(grown))))
    with claims_on(grown, elsewhere=True).collecting():
        pushing.start()
        time.sleep(0.5)
        assert pushing.is_alive()
        assert "other" not in [one.name for one in list_remote(str(grown)).corpora]
    pushing.join(60)
    assert len(done) == 1


def test_a_push_never_declares_what_was_deleted_under_it(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(tmp_path / "other", TEXTS[200:], name="other")
    orphan = (cache.folder / "corpora" / "other" / "corpus.json").read_bytes()
    put_object(grown, orphan)
    age(grown)
    refused: list[str] = []

    def looking(look: Callable[..., set[str]]) -> Callable[..., set[str]]:
        def act(*arguments: object) -> set[str]:
            found = look(*arguments)
            # The worst moment: it has just been seen, and is counted on.
            try:
                collect(grown)
            except RemoteError as error:
                refused.append(str(error))
            return found

        return act

    monkeypatch.setattr(Remote, "present", looking(Remote.present))
    # That, and contract and name of the teacher.
    assert push(cache, str(grown)).present == 3
    monkeypatch.undo()
    assert refused
    assert all("at work" in one for one in refused)
    pull(tmp_path / "there", str(grown))
    assert content(tmp_path / "there").items() >= content(cache.folder).items()


def test_who_has_stood_still_deletes_nothing_more(grown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = all_of(grown)
    monkeypatch.setattr(Claims, "overslept", True)
    with pytest.raises(RemoteError, match="stood still"):
        collect(grown)
    assert all_of(grown) == before


def test_who_has_stood_still_looks_again_at_what_it_declared(
    grown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = make_cache(tmp_path / "other", TEXTS[200:], name="other")
    write = Remote.write
    target: list[Path] = []

    def deleting(self: Remote, path: str, data: bytes) -> None:
        write(self, path, data)
        if path.startswith("manifests/"):
            sent = max((grown / "objects").glob("??/*"), key=lambda one: one.stat().st_mtime_ns)
            sent.unlink()
            target.append(sent)

    monkeypatch.setattr(Claims, "overslept", True)
    monkeypatch.setattr(Remote, "write", deleting)
    assert push(cache, str(grown)).manifest
    assert len(target) == 1
    assert target[0].exists()


# The command


def test_the_command_lists_and_with_yes_deletes(
    grown: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: object) -> str:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["embedcache", "remote", "gc", *map(str, words)])
        main()
        return capsys.readouterr().out

    assert "0 files that nobody needs" in run(grown)
    out = run(grown, "--older", 0)
    assert "2 files that nobody needs" in out
    assert "stands for it" in out
    assert "--yes deletes them" in out
    assert len(list_remote(str(grown)).pushes) == 2
    found = json.loads(run(grown, "--older", 0, "--yes", "--json"))
    assert (found["deleted"], len(found["found"])) == (True, 2)
    assert len(list_remote(str(grown)).pushes) == 1
