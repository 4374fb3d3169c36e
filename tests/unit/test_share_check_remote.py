"""Verifying a remote: what is damaged or missing is found, and goes only if told to and nobody is at work."""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from share_helpers import (
    claims_left,
    claims_on,
    content,
    files_of,
    make_cache,
    manifest_of,
    object_of,
    objects_of,
    put_manifest,
    put_object,
)

from embedcache.check.progress import CheckProgress
from embedcache.cli.main import main
from embedcache.errors import RemoteError
from embedcache.share import check_remote, pull, push
from embedcache.share.places.folder import FolderPlace

SHARD = r"/shards/"
VERIFY = ("remote", "verify")


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """Return a remote that the cache beside it was pushed to."""
    push(make_cache(tmp_path / "cache"), str(tmp_path / "remote"))
    return tmp_path / "remote"


def rot(path: Path) -> bytes:
    """Turn a bit of a file over; return what it was."""
    sound = path.read_bytes()
    path.write_bytes(sound[:40] + bytes([sound[40] ^ 1]) + sound[41:])
    return sound


def objects_on(remote: Path) -> dict[str, bytes]:
    return {name: data for name, data in files_of(remote, "objects").items() if len(name) == 67}


def test_a_sound_remote_is_read_to_the_last_byte(remote: Path, tmp_path: Path) -> None:
    before = files_of(remote, "")
    seen: list[CheckProgress] = []
    found = check_remote(str(remote), on_progress=seen.append)
    assert found.is_sound
    assert found.objects == len(objects_of(tmp_path / "cache"))
    assert found.bytes == sum(map(len, objects_on(remote).values()))
    assert files_of(remote, "") == before
    assert (seen[-1].phase, seen[-1].files, seen[-1].total_files) == ("check", found.objects, found.objects)
    assert seen[-1].bytes == seen[-1].total_bytes == found.bytes


def test_what_is_damaged_or_missing_is_found_and_left_alone(remote: Path) -> None:
    shard, recipe = object_of(remote, SHARD), object_of(remote, r"corpus\.json$")
    entry = next(one for one in manifest_of(remote)["files"] if one["sha256"] == shard.name)
    index = remote / "objects" / entry["index"]["sha256"][:2] / entry["index"]["sha256"]
    rot(shard)
    recipe.write_bytes(recipe.read_bytes()[:-1])
    index.unlink()
    rot(remote / "objects" / (stray := put_object(remote, bytes(100)))[:2] / stray)
    before = files_of(remote, "")
    found = check_remote(str(remote))
    assert not found.is_sound
    assert {(Path(one.path).name, one.fault, one.files) for one in found.faults} == {
        (shard.name, "damaged", (entry["path"],)),
        (recipe.name, "damaged", ("corpora/corpus/corpus.json",)),
        (index.name, "missing", (f"row index of {entry['path']}",)),
        (stray, "damaged", ()),
    }
    assert not any(one.deleted for one in found.faults)
    assert files_of(remote, "") == before


def test_what_was_deleted_is_pushed_again_by_whoever_has_it(
    remote: Path, tmp_path: Path, no_pauses: None
) -> None:
    place = object_of(remote, SHARD)
    sound = rot(place)
    # By its size it is there.
    assert push(tmp_path / "cache", str(remote)).sent == 0
    with pytest.raises(RemoteError, match="embedcache remote verify REMOTE --delete-damaged"):
        pull(tmp_path / "there", str(remote))
    before = objects_on(remote)
    (fault,) = check_remote(str(remote), delete_damaged=True).faults
    assert (fault.path.rpartition("/")[2], fault.deleted) == (place.name, True)
    gone = before.keys() - objects_on(remote).keys()
    assert gone == {f"{place.name[:2]}/{place.name}"}
    assert claims_left(remote) == []
    # Now that is what is wrong.
    assert [one.fault for one in check_remote(str(remote), delete_damaged=True).faults] == ["missing"]
    done = push(tmp_path / "cache", str(remote))
    assert (done.sent, done.manifest) == (1, "")
    assert place.read_bytes() == sound
    assert check_remote(str(remote)).is_sound
    pull(tmp_path / "there", str(remote))
    assert content(tmp_path / "there") == content(tmp_path / "cache")


def test_a_manifest_that_lies_about_a_size_damages_nothing(remote: Path) -> None:
    place = object_of(remote, SHARD)
    value = manifest_of(remote)
    entry = next(one for one in value["files"] if one["sha256"] == place.name)
    entry.pop("index")
    entry["bytes"] -= 1
    put_manifest(remote, value)
    found = check_remote(str(remote), delete_damaged=True)
    assert (found.faults, len(found.wrong), found.is_sound) == ((), 1, False)
    assert place.exists()


def test_files_of_other_names_are_none_of_its_objects(remote: Path) -> None:
    place = object_of(remote, SHARD)
    for other in (
        place.with_name(f".tmp-{'0' * 32}-{place.name}"),
        place.with_name("README"),
        place.with_name("x" * 64),
        place.parent / f"{'00' if place.name[:2] != '00' else '11'}{place.name[2:]}",
    ):
        other.write_bytes(b"half")
    before = files_of(remote, "objects")
    found = check_remote(str(remote), delete_damaged=True)
    assert (found.is_sound, found.objects) == (True, len(before) - 4)
    assert files_of(remote, "objects") == before


def test_an_object_without_end_is_not_read_to_its_end(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = object_of(remote, SHARD)
    blocks = FolderPlace.blocks
    read: list[int] = []

    def endless(self: FolderPlace, path: str, size: int) -> Iterator[memoryview]:
        yield from blocks(self, path, size)
        while path.endswith(place.name):
            read.append(1)
            assert len(read) < 1000
            yield memoryview(b"more")

    monkeypatch.setattr(FolderPlace, "blocks", endless)
    assert [one.fault for one in check_remote(str(remote)).faults] == ["damaged"]
    assert len(read) == 1


@pytest.mark.parametrize("is_finished", [True, False])
def test_what_is_being_written_is_not_judged(
    remote: Path, monkeypatch: pytest.MonkeyPatch, is_finished: bool
) -> None:
    place = object_of(remote, SHARD)
    sound = place.read_bytes()
    # As a copy grows that somebody makes with other tools.
    place.write_bytes(sound[:50])
    blocks = FolderPlace.blocks

    def growing(self: FolderPlace, path: str, size: int) -> Iterator[memoryview]:
        yield from blocks(self, path, size)
        if path.endswith(place.name):
            place.write_bytes(sound if is_finished else place.read_bytes() + b"x")

    monkeypatch.setattr(FolderPlace, "blocks", growing)
    found = check_remote(str(remote), delete_damaged=True)
    assert found.is_sound
    assert found.changing == (0 if is_finished else 1)
    assert place.exists()


def test_nothing_is_deleted_while_anybody_pushes_nor_what_is_right_by_then(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["embedcache.share.check_remote"], "_WAIT_SECONDS", 0.05)
    mended, damaged = sorted(remote.glob("objects/??/*"), key=lambda path: path.stat().st_size)[-2:]
    sound = rot(mended)
    rot(damaged)
    phases: list[str] = []
    done: list[Any] = []

    def run() -> None:
        settings = {"delete_damaged": True, "on_progress": lambda one: phases.append(one.phase)}
        done.append(check_remote(str(remote), **settings))

    with claims_on(remote, elsewhere=True).alive():
        running = threading.Thread(target=run)
        running.start()
        deadline = time.monotonic() + 60
        while phases.count("wait until nobody else is at work there (1 now)") < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert mended.exists()
        assert damaged.exists()
        # Somebody did by hand what this is for.
        mended.write_bytes(sound)
    running.join(60)
    assert [(Path(one.path).name, one.deleted) for one in done[0].faults] == [(damaged.name, True)]
    assert mended.read_bytes() == sound
    assert not damaged.exists()
    assert claims_left(remote) == []


def test_a_process_that_never_ends_is_not_waited_for_for_ever(
    run: Any, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules["embedcache.share.check_remote"]
    monkeypatch.setattr(module, "_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(module, "_MOST_WAIT_SECONDS", 0.3)
    place = object_of(remote, SHARD)
    rot(place)
    with claims_on(remote, elsewhere=True).alive():
        check = check_remote(str(remote), delete_damaged=True)
        code, out = run(*VERIFY, remote, "--delete-damaged")
    assert [(Path(fault.path).name, fault.fault, fault.deleted) for fault in check.faults] == [
        (place.name, "damaged", False)
    ]
    assert not check.is_sound
    assert check.kept.startswith(f"1 other process is at work on {remote}")
    assert place.exists()
    assert code == 1
    assert "nothing was deleted; run the same command again later" in out
    assert "damaged, deleted" not in out
    found = check_remote(str(remote), delete_damaged=True)
    assert ([one.deleted for one in found.faults], found.kept) == ([True], "")


def test_what_is_deleted_and_listed_nowhere_is_of_no_harm(run: Any, remote: Path) -> None:
    stray = put_object(remote, bytes(100))
    place = remote / "objects" / stray[:2] / stray
    rot(place)
    code, out = run(*VERIFY, remote)
    assert code == 1
    assert "embedcache push" not in out
    code, out = run(*VERIFY, remote, "--delete-damaged")
    assert code == 0
    assert not place.exists()
    assert "1 damaged and deleted, 0 missing" in out
    assert "1 deleted object was listed by no manifest: nobody needs it" in out
    assert "embedcache push" not in out
    # Of one that somebody needs it is another matter, whatever else goes.
    put_object(remote, bytes(100))
    rot(place)
    rot(object_of(remote, SHARD))
    code, out = run(*VERIFY, remote, "--delete-damaged")
    assert code == 1
    assert "embedcache push" in out


def test_what_a_push_has_listed_meanwhile_is_missed(
    remote: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (manifest,) = (remote / "manifests").iterdir()
    place = object_of(remote, SHARD)
    rot(place)
    (tmp_path / "aside").write_bytes(manifest.read_bytes())
    manifest.unlink()
    blocks = FolderPlace.blocks

    def reading(self: FolderPlace, path: str, size: int) -> Iterator[memoryview]:
        if path.startswith("objects/") and not manifest.exists():
            (tmp_path / "aside").rename(manifest)
        return blocks(self, path, size)

    monkeypatch.setattr(FolderPlace, "blocks", reading)
    found = check_remote(str(remote), delete_damaged=True)
    assert [one.deleted for one in found.faults] == [True]
    assert not found.is_sound


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        pass


def test_a_remote_that_can_only_be_read_is_checked_and_left_alone(remote: Path) -> None:
    place = object_of(remote, SHARD)
    rot(place)
    handler = functools.partial(_Quiet, directory=str(remote))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        # No listing tells a size here.
        assert [(one.path, one.fault) for one in check_remote(url).faults] == [
            (place.relative_to(remote).as_posix(), "damaged")
        ]
        with pytest.raises(RemoteError, match="can only be read: nothing can be deleted there"):
            check_remote(url, delete_damaged=True)
        server.shutdown()


# The command


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs a command; what it returns is the exit code and what was printed."""

    def act(*words: object) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["embedcache", *map(str, words)])
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        return code, capsys.readouterr().out

    return act


def test_the_command_lists_and_deletes_and_says_what_helps(run: Any, remote: Path, tmp_path: Path) -> None:
    code, out = run(*VERIFY, remote)
    assert code == 0
    assert "no object damaged or missing" in out
    assert "push" not in out
    place = object_of(remote, SHARD)
    rot(place)
    code, out = run(*VERIFY, remote)
    assert code == 1
    assert place.name in out
    assert "1 damaged, 0 missing" in out
    assert "--delete-damaged deletes what is damaged; then 'embedcache push' from a cache that has" in out
    assert "missing that" not in out
    assert place.exists()
    code, out = run(*VERIFY, remote, "--delete-damaged", "--json")
    found = json.loads(out)
    assert (code, found["sound"]) == (1, False)
    assert [one["deleted"] for one in found["faults"]] == [True]
    assert not place.exists()
    code, out = run(*VERIFY, remote)
    assert code == 1
    assert "0 damaged, 1 missing" in out
    assert "--delete-damaged" not in out
    assert "1 object is missing that manifests list: 'embedcache push' from a cache that has it sends" in out
    assert "manifests list it already" in run("push", remote, "--cache", tmp_path / "cache")[1]
    code, out = run(*VERIFY, remote, "--json")
    assert (code, json.loads(out)["sound"]) == (0, True)


def test_what_is_wrong_with_an_object_fits_on_a_terminal(run: Any, remote: Path) -> None:
    for pattern in (SHARD, "/corpus.json"):
        rot(object_of(remote, pattern))
    spare = remote / "objects" / "ab" / ("ab" * 32)
    spare.parent.mkdir(exist_ok=True)
    spare.write_bytes(b"another")
    index = manifest_of(remote)["files"]
    index = next(file["index"]["sha256"] for file in index if "index" in file)
    (remote / "objects" / index[:2] / index).unlink()
    code, out = run(*VERIFY, remote, "--delete-damaged")
    lines = out.splitlines()
    *faults, summary, missing, no_need = lines
    assert code == 1
    assert max(map(len, faults)) < 80
    path = object_of(remote, SHARD).relative_to(remote).as_posix()
    at = faults.index(path)
    assert faults[at + 1].startswith("  damaged, deleted, ")
    assert re.fullmatch(r"  teachers/[0-9a-f]{12}/shards/[0-9a-f]{12}\.arrow", faults[at + 2])
    at = faults.index(f"objects/{index[:2]}/{index}")
    assert faults[at + 1].startswith("  missing, ")
    assert re.fullmatch(r"  row index of teachers/[0-9a-f]{12}/shards/[0-9a-f]{12}\.arrow", faults[at + 2])
    at = faults.index(spare.relative_to(remote).as_posix())
    assert faults[at + 1 : at + 3] == ["  damaged, deleted, 7 B", "  listed by no manifest"]
    assert ": 3 damaged and deleted, 1 missing; " in summary
    assert missing.startswith("3 objects are missing that manifests list: 'embedcache push' from a cache")
    assert no_need == "1 deleted object was listed by no manifest: nobody needs it"


def test_a_manifest_that_cannot_be_read_is_told_of(run: Any, remote: Path) -> None:
    name = put_manifest(remote, b"nonsense")
    code, out = run(*VERIFY, remote)
    assert code == 1
    assert f"manifest {name[:12]} cannot be read" in out
