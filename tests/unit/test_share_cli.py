"""The commands of sharing: remotes by name, tables and JSON, exit codes, and the way through the how-to."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import pytest
from share_helpers import TEXTS, content, files_of, make_cache

from embedcache.cache import Cache
from embedcache.check.verify.deep import BAD
from embedcache.cli.main import main
from embedcache.cli.options import read_size
from embedcache.errors import CorruptCacheError, InputError
from embedcache.share import (
    PullChoice,
    SampleCheck,
    add_remote,
    collect_remote,
    list_remote,
    list_remotes,
    pull,
    push,
    remove_remote,
    transfer,
)
from embedcache.share import remotes as remotes_module
from embedcache.share.pulling import models_at_hand, sample
from embedcache.share.pulling.sample_check import bad_samples
from embedcache.share.remotes import CONFIG_VARIABLE, config_file, location_of
from embedcache.sizes import parse_size, readable
from embedcache.testing import fake_teacher

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sharing.md"


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep remotes in a file of the test's own."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "settings" / "remotes.json"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "settings" / "remotes.json"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs ``embedcache`` and returns exit code, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["embedcache", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


# Remotes by name


def test_remotes_are_kept_per_user(config: Path, tmp_path: Path) -> None:
    assert list_remotes() == {}
    assert add_remote("team", "s3://bucket/teachers/") == "s3://bucket/teachers"
    add_remote("here", str(tmp_path / "remote"))
    add_remote("team", "s3://bucket/teachers")
    assert list_remotes() == {"here": str(tmp_path / "remote"), "team": "s3://bucket/teachers"}
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    assert location_of("team").host == "bucket"
    with pytest.raises(InputError, match=r"is s3://bucket/teachers already"):
        add_remote("team", "s3://other/teachers")
    remove_remote("team")
    with pytest.raises(InputError, match="no remote 'team': there are here"):
        remove_remote("team")
    with pytest.raises(InputError, match=r"no remote 'team' .*embedcache remote add team URL"):
        location_of("team")


def test_no_secret_is_ever_kept(config: Path) -> None:
    with pytest.raises(InputError) as found:
        add_remote("team", "s3://key:s3cr3t@bucket/x")
    assert "s3cr3t" not in str(found.value)
    assert not config.exists()


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "a/b", ".x"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="cannot name a remote"):
        add_remote(name, "s3://bucket/x")


def test_damaged_settings_are_told_of(config: Path) -> None:
    add_remote("team", "s3://bucket/x")
    config.write_bytes(config.read_bytes().replace(b"bucket", b"backet"))
    with pytest.raises(CorruptCacheError, match="delete it"):
        list_remotes()


def test_urls_and_paths_need_no_file_of_names(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.parent.mkdir()
    config.write_bytes(b"damaged")
    monkeypatch.chdir(tmp_path)
    assert location_of("s3://bucket/x").host == "bucket"
    assert location_of("./team").url == str(tmp_path / "team")
    assert location_of(str(tmp_path)).url == str(tmp_path)
    with pytest.raises(CorruptCacheError, match="is damaged"):
        location_of("team")


@pytest.mark.parametrize("kind", ["unreadable", "folder", "link"])
def test_nobody_is_told_to_delete_a_file_of_names_that_cannot_be_read(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    add_remote("team", "s3://bucket/x")
    if kind == "unreadable":

        def refuse(path: Path) -> bytes:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "read_bytes", refuse)
    else:
        config.rename(tmp_path / "kept")
        config.mkdir() if kind == "folder" else config.symlink_to(tmp_path / "kept")
    with pytest.raises(InputError, match="cannot be read") as found:
        list_remotes()
    assert "delete it" not in str(found.value)
    with pytest.raises(InputError, match="cannot be read"):
        add_remote("other", "s3://bucket/y")


def test_two_that_add_a_name_at_once_keep_both(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = remotes_module._write

    def slow(names: Mapping[str, str]) -> None:
        time.sleep(0.2)
        write(names)

    monkeypatch.setattr(remotes_module, "_write", slow)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: add_remote(name, f"s3://bucket/{name}"), ("one", "two")))
    assert set(list_remotes()) == {"one", "two"}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(remove_remote, ("one", "two")))
    assert list_remotes() == {}


def test_without_the_variable_they_lie_in_the_users_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE)
    for folder in (None, "/settings"):
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        if folder:
            monkeypatch.setenv("XDG_CONFIG_HOME", folder)
        # Where earlier versions kept them.
        assert config_file() == Path(click.get_app_dir("embedcache")) / "remotes.json"


def test_an_error_names_the_command_and_its_subcommand(tmp_path: Path, shell: Any) -> None:
    (tmp_path / "push").mkdir()
    for words, who in (
        (["remote", "ls", tmp_path / "push"], "embedcache remote ls: no remote"),
        (["remote", "--debug", "verify", "push"], "embedcache remote verify: no remote"),
        (["remote", "lst"], "embedcache remote: no such command"),
        (["pull", "push", "--cache", tmp_path / "cache"], "embedcache pull: no remote"),
    ):
        code, _, errors = shell(*words)
        assert code != 0
        assert errors.splitlines()[-1].startswith(who)


def test_a_folder_is_a_remote_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "team").mkdir()
    monkeypatch.chdir(tmp_path)
    assert location_of("team").path == str(tmp_path / "team")
    assert location_of("./new").path == str(tmp_path / "new")
    add_remote("team", "s3://bucket/x")
    assert location_of("team").scheme == "s3"


def test_a_word_that_is_neither_name_nor_folder_is_no_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cache = make_cache(tmp_path / "cache", TEXTS[:20])
    add_remote("team", "s3://bucket/x")
    for word in ("täam 1", "-team", "team\n"):
        with pytest.raises(InputError, match=r"no remote .* \(there are team\) and no folder of that name"):
            push(cache, word)
    with pytest.raises(InputError, match="did you mean s3://bucket"):
        location_of("s3:bucket")
    # What is there, and what has a slash in it, is a path.
    (tmp_path / "täam 1").mkdir()
    for path in ("täam 1", "./täam 2", "new/täam", ".", "~"):
        assert location_of(path).url == str(Path(path).expanduser().absolute())


# Commands


def blocks_of_the_page(text: str | None = None) -> list[list[str]]:
    """Return the lines of each block of commands of the how-to, or of a part of it."""
    page = PAGE.read_text(encoding="utf-8") if text is None else text
    return [
        block.splitlines() for block in re.findall(r"^```bash\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    ]


def test_a_teacher_goes_from_one_to_the_other(tmp_path: Path, shell: Any) -> None:
    cache = make_cache(tmp_path / "mine")
    assert shell("remote", "list")[1].startswith("none; add one")
    assert shell("remote", "add", "team", tmp_path / "remote")[0] == 0
    assert shell("remote", "list")[1] == f"team: {tmp_path / 'remote'}\n"
    words = ("--by", "Ann", "-m", "first", "--text-licence", "CC-BY-4.0")
    code, out, err = shell("push", "team", "--cache", cache.folder, *words)
    assert (code, err) == (0, "")
    (card,) = files_of(tmp_path / "remote", "cards").values()
    assert "CC-BY-4.0" in card.decode()
    assert re.search(r"push to .* files and row indexes . size", out)
    assert re.search(r"sent\s+│\s+16\s", out)
    assert re.search(r"manifest [0-9a-f]{12}; .* s, .*B/s", out)
    assert "nothing to add" in shell("push", "team", "--cache", cache.folder)[1]
    listed = shell("remote", "ls", "team")[1]
    for word in ("fake", "corpus", "Ann", "first", "240"):
        assert word in listed
    assert shell("remote", "diff", "team", "--cache", cache.folder)[0] == 0
    code, out, err = shell("pull", "team", "--cache", tmp_path / "there")
    assert (code, err) == (0, "10 files to be fetched, 42.0 kB, with 240 rows of texts and 240 vectors\n")
    assert re.search(r"fetched\s+│\s+10\s", out)
    assert "240 rows of texts and 240 vectors fetched, of 1 manifest; " in out
    assert "not compared" in out
    assert content(tmp_path / "there") == content(cache.folder)
    make_cache(tmp_path / "other", TEXTS[:9])
    code, out, err = shell("push", "team", "--cache", tmp_path / "other")
    assert "corpus 'corpus'" in err
    assert "stop this push and" in err
    assert "take this push back" not in err
    assert "has taken this push back" in out
    collect_remote("team", drop=[out.rpartition("manifest ")[2][:12]], delete=True)
    make_cache(tmp_path / "there", TEXTS[:10], name="more")
    code, out, _ = shell("remote", "diff", "team", "--cache", tmp_path / "there")
    assert code == 1
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert [line[:5] for line in lines] == [
        ["corpus", "corpus", "in both", "2", ""],
        ["corpus", "more", "to push", "2", "10"],
        ["teacher", "fake", "in both", "8", ""],
    ]
    assert shell("sync", "team", "--cache", tmp_path / "there")[0] == 0
    assert shell("remote", "diff", "team", "--cache", tmp_path / "there")[0] == 0
    assert shell("remote", "remove", "team")[0] == 0
    assert (tmp_path / "remote" / "manifests").is_dir()


def test_the_how_to_works_command_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Any
) -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## ")[1]
    assert section.startswith("Share a teacher with your team in five minutes")
    lines = [line for block in blocks_of_the_page(section) for line in block]
    assert len(lines) == 7
    monkeypatch.chdir(tmp_path)
    cache = make_cache(tmp_path / "cache")
    for line in lines:
        if "./theirs" in line and "sync" in line:
            make_cache(tmp_path / "theirs", TEXTS[:10], name="news")
        code, out, err = shell(*shlex.split(line)[1:])
        # The teammate lacks everything yet, which is what diff's exit code says.
        assert code == (1 if "remote diff" in line else 0), (line, err)
        # What is about to be fetched is said beforehand.
        assert not err or err.endswith(" vectors\n"), (line, err)
        assert out, line
    assert content(tmp_path / "theirs").items() >= content(cache.folder).items()
    assert "news" in shell("remote", "ls", "team")[1]


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen")
def test_the_how_to_of_signing_works_command_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Any
) -> None:
    pytest.importorskip("cryptography", reason="needs the extra sign")
    (lines,) = (block for block in blocks_of_the_page() if "ssh-keygen" in block[0])
    assert [line.split()[0] for line in lines] == ["ssh-keygen", "embedcache", "embedcache"]
    monkeypatch.chdir(tmp_path)
    cache = make_cache(tmp_path / "cache")
    shell("remote", "add", "team", "./team")
    # Of somebody else, whom nobody asked.
    push(make_cache(tmp_path / "other", TEXTS[:10], name="other"), str(tmp_path / "team"))
    subprocess.run(shlex.split(lines[0]), check=True)
    for line in lines[1:]:
        code, out, err = shell(*shlex.split(line)[1:])
        assert code == 0, (line, err)
        # What is about to be fetched is said beforehand.
        assert not err or err.endswith(" vectors\n"), (line, err)
        assert out, line
    assert content(tmp_path / "theirs") == content(cache.folder)


def test_the_how_to_of_tidying_up_works_command_by_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Any
) -> None:
    (lines,) = (block for block in blocks_of_the_page() if "remote gc" in block[0])
    monkeypatch.chdir(tmp_path)
    cache = make_cache(tmp_path / "cache", TEXTS[:80])
    shell("remote", "add", "team", "./team")
    push(cache, str(tmp_path / "team"))
    make_cache(tmp_path / "cache", TEXTS[80:], name="more")
    push(cache, str(tmp_path / "team"))
    for path in (tmp_path / "team").rglob("*.*"):
        os.utime(path, (path.stat().st_mtime - 25 * 3600,) * 2)
    for line in lines:
        assert len(files_of(tmp_path / "team", "manifests")) == 2
        code, out, err = shell(*shlex.split(line)[1:])
        assert code == 0, (line, err)
        # What is about to be fetched is said beforehand.
        assert not err or err.endswith(" vectors\n"), (line, err)
        assert out, line
    assert len(files_of(tmp_path / "team", "manifests")) == 1


def test_a_manifest_that_cannot_be_read_is_told_of_everywhere_and_skipped_when_told_to(
    tmp_path: Path, shell: Any
) -> None:
    cache = make_cache(tmp_path / "mine")
    remote = tmp_path / "remote"
    push(cache, str(remote))
    bad = "ab" * 32
    (remote / "manifests" / f"{bad}.json").write_bytes(b"nonsense \x1b[2J")
    for words in (
        ("pull", remote, "--cache", tmp_path / "there"),
        ("remote", "diff", remote, "--cache", cache.folder),
    ):
        code, out, err = shell(*words)
        assert (code, out) == (1, "")
        assert f"manifests/{bad}.json" in err
        assert f"--skip-manifest {bad[:12]}" in err
        # Only options that the command has are named.
        assert ("--require-signature" in err) == (words[0] == "pull")
    assert not (tmp_path / "there").exists()
    code, out, _ = shell("remote", "ls", remote)
    assert code == 1
    assert f"manifest {bad[:12]} cannot be read" in out
    # A push is right without it, and says so.
    make_cache(tmp_path / "mine", TEXTS[:10], name="more")
    code, out, _ = shell("push", remote, "--cache", cache.folder)
    assert code == 0
    assert f"manifests/{bad}.json of {remote} cannot be read" in out
    assert shell("remote", "diff", remote, "--cache", cache.folder, "--skip-manifest", bad[:6])[0] == 0
    code, out, err = shell("pull", remote, "--cache", tmp_path / "there", "--skip-manifest", bad[:6])
    assert code == 0
    assert f"manifest {bad[:6]} was left out, as was asked for" in err
    assert content(tmp_path / "there") == content(cache.folder)
    code, _, err = shell("sync", remote, "--cache", tmp_path / "there", "--skip-manifest", "abcdef")
    assert code == 2
    assert "begins with 'abcdef'" in err
    assert shell("sync", remote, "--cache", tmp_path / "there", "--skip-manifest", bad)[0] == 0


def test_what_a_manifest_that_is_skipped_alone_lists_is_not_pulled(tmp_path: Path) -> None:
    push(make_cache(tmp_path / "one", TEXTS[:80], name="one"), str(tmp_path / "remote"))
    second = push(make_cache(tmp_path / "two", TEXTS[80:160], name="two"), str(tmp_path / "remote"))
    pull(tmp_path / "there", str(tmp_path / "remote"), PullChoice(skip_manifests=[second.manifest]))
    assert content(tmp_path / "there") == content(tmp_path / "one")


def test_json_is_what_the_functions_return(tmp_path: Path, shell: Any) -> None:
    cache = make_cache(tmp_path / "mine")
    remote = tmp_path / "remote"
    pushed = json.loads(shell("push", remote, "--cache", cache.folder, "--json")[1])
    assert pushed["sent"] == 16
    listed = json.loads(shell("remote", "ls", remote, "--json")[1])
    assert listed["pushes"][0]["manifest"] == pushed["manifest"]
    assert listed["teachers"][0]["rows"] == len(TEXTS)
    pulled = json.loads(shell("pull", remote, "--cache", tmp_path / "there", "--json")[1])
    assert 0 < pulled["fetched_bytes"] < pushed["sent_bytes"]
    assert pulled["samples"][0]["verdict"] == "not compared"
    assert json.loads(shell("remote", "diff", remote, "--cache", cache.folder, "--json")[1])["same"] is True
    synced = json.loads(shell("sync", remote, "--cache", cache.folder, "--json")[1])
    assert synced["pushed"]["sent"] == synced["pulled"]["fetched"] == 0
    assert json.loads(shell("remote", "list", "--json")[1]) == {}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("pull nowhere --cache there", "no remote 'nowhere'"),
        ("pull ./nowhere --cache there", "no remote at"),
        ("push ./remote --cache there", "no cache at there"),
        ("pull s3://key:s3cr3t@bucket/x --cache there", "AWS_PROFILE"),
        ("remote add team s3://key:s3cr3t@bucket/x", "AWS_PROFILE"),
        ("pull ./remote --cache there --max-bytes lots", "is no size"),
        ("pull ./remote --cache there --require-signature nothing", "no key at nothing"),
        *(
            (
                f"{command} --cache there --require-signature a.pub --require-signature b.pub",
                "2 keys (a.pub, b.pub)",
            )
            for command in ("pull ./remote", "sync ./remote", "build x --teacher t --remote ./remote")
        ),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Any, words: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = shell(*shlex.split(words))
    assert code in (1, 2)
    assert (out, err.count("\n")) == ("", 1)
    assert told in err
    assert "s3cr3t" not in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500", 500),
        ("20MB", 20_000_000),
        ("1.5 GB", 1_500_000_000),
        ("3k", 3000),
        ("2T", 2 * 10**12),
        ("20KB", 20_000),
        ("7kb", 7000),
        ("3Mb", 3_000_000),
        ("2 g", 2 * 10**9),
    ],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert read_size(None, None, text) == expected


@pytest.mark.parametrize("count", [1, 999, 1000, 287_668, 999_999, 1_500_000, 10**9, 3 * 10**12 + 1])
def test_a_size_that_is_written_for_people_can_be_read_again(count: int) -> None:
    assert parse_size(readable(count)) <= count <= parse_size(readable(count, up=True))
    assert parse_size(readable(count, up=True)) - parse_size(readable(count)) <= count / 9


def test_a_size_is_written_with_its_unit() -> None:
    assert (readable(287_668), readable(287_668, up=True)) == ("287.6kB", "287.7kB")
    assert (readable(999), readable(2 * 10**9)) == ("999B", "2GB")


@pytest.mark.parametrize("text", ["", "x", "-1", "1PB", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        read_size(None, None, text)


def test_a_cache_that_is_not_there_yet_lacks_everything(tmp_path: Path, shell: Any) -> None:
    make_cache(tmp_path / "mine")
    push(tmp_path / "mine", str(tmp_path / "remote"))
    words = ("remote", "diff", str(tmp_path / "remote"), "--json", "--cache")
    code, out, _ = shell(*words, str(tmp_path / "theirs"))
    lines = json.loads(out)["lines"]
    assert code == 1
    assert {one["kind"] for one in lines} == {"teacher", "corpus"}
    assert all(one["remote_files"] and not one["cache_files"] for one in lines)
    assert not (tmp_path / "theirs").exists()
    Cache.create(tmp_path / "empty")
    assert json.loads(shell(*words, str(tmp_path / "empty"))[1])["lines"] == lines
    pull(tmp_path / "theirs", str(tmp_path / "remote"))
    assert shell(*words, str(tmp_path / "theirs"))[0] == 0


def test_a_sync_says_what_it_is_about_to_fetch_and_no_rate_of_nothing(tmp_path: Path, shell: Any) -> None:
    remote, there = str(tmp_path / "remote"), tmp_path / "there"
    push(make_cache(tmp_path / "mine"), remote)
    code, out, err = shell("sync", remote, "--cache", there)
    assert code == 0
    assert re.search(r"[1-9]\d* files to be fetched, .* with 240 rows of texts and 240 vectors", err)
    # The push after it has nothing to send.
    assert out.count("B/s") == 1
    out, err = shell("sync", remote, "--cache", there)[1:]
    assert err == ""
    assert f"nothing to fetch from {remote}: 10 files, 42.0 kB, already there, of 1 manifest; " in out
    assert "fetched   " not in out
    assert "B/s" not in out
    again = shell("pull", remote, "--cache", there, "--dry-run")
    told = f"nothing to fetch from {remote}: 10 files, 42.0 kB, already there; 1 manifest read\n"
    assert again == (0, told, "")


def test_a_remote_that_nobody_has_pushed_to_is_listed_in_one_line(tmp_path: Path, shell: Any) -> None:
    remote = tmp_path / "remote"
    manifest = push(make_cache(tmp_path / "mine"), str(remote)).manifest
    (remote / "manifests" / f"{manifest}.json").unlink()
    assert shell("remote", "ls", remote)[:2] == (0, f"nothing has been pushed to {remote} yet\n")


def test_a_remote_is_told_from_a_cache(tmp_path: Path, shell: Any) -> None:
    make_cache(tmp_path / "mine")
    remote, mine = str(tmp_path / "remote"), str(tmp_path / "mine")
    push(mine, remote)
    for words in (
        ("ls", "--cache", remote),
        ("pull", remote, "--cache", remote),
        ("push", str(tmp_path / "other"), "--cache", remote),
        ("merge", remote, "--into", str(tmp_path / "new")),
        ("merge", mine, "--into", remote),
        ("verify", "--cache", remote),
        ("repair", "--cache", remote),
    ):
        code, _, err = shell(*words)
        assert code == 2, (words, err)
        assert f"{remote} is a remote, not a cache: pull from it" in err
        assert f"'embedcache remote ls {remote}'" in err


def test_jobs_says_how_many_transfers_there_are_at_once(
    tmp_path: Path, shell: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools: list[int] = []

    class Counted(ThreadPoolExecutor):
        def __init__(self, most: int, **settings: Any) -> None:
            pools.append(most)
            super().__init__(most, **settings)

    monkeypatch.setattr(transfer, "ThreadPoolExecutor", Counted)
    cache = make_cache(tmp_path / "mine")
    done = push(cache, str(tmp_path / "remote"))
    for words in (
        ["push", "NEW", "--cache", cache.folder],
        ["pull", "REMOTE", "--cache", "NEW"],
        ["sync", "REMOTE", "--cache", "NEW"],
        ["remote", "verify", "REMOTE"],
        ["remote", "gc", "REMOTE", "--drop", done.manifest, "--yes"],
    ):
        used = []
        for jobs in (1, 2):
            remote, new = tmp_path / f"{words[1]}-{jobs}", tmp_path / f"new-{words[1]}-{words[0]}-{jobs}"
            shutil.copytree(tmp_path / "remote", remote)
            places = {"REMOTE": remote, "NEW": new}
            pools.clear()
            assert shell(*(places.get(str(word), word) for word in words), "--jobs", jobs)[0] == 0
            used.append(list(pools))
            shutil.rmtree(remote)
        # The others only look something up.
        assert {pair for pair in zip(*used, strict=True) if pair[0] != pair[1]} == {(1, 2)}, words


def test_an_end_that_is_asked_for_leaves_what_has_arrived(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "mine")
    push(cache, str(tmp_path / "remote"))
    # The signal comes in the middle: when the first shard is there. The only thread that fetches goes on once
    # the main thread has had time to hear of it.
    script = """if True:
        import os, signal, sys, time
        from embedcache import fsio
        from embedcache.cli.main import main
        asked = []

        def step(name, path):
            if name == "renamed" and path.suffix == ".arrow" and path.parent.name == "shards" and not asked:
                asked.append(path)
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1.0)

        fsio.on_write_step = step
        sys.argv[0] = "embedcache"
        main()
    """
    words = ["pull", str(tmp_path / "remote"), "--cache", str(tmp_path / "there"), "--jobs", "1"]
    child = subprocess.Popen([sys.executable, "-c", script, *words], stderr=subprocess.PIPE, text=True)
    _, errors = child.communicate(timeout=300)
    assert child.returncode == 130
    assert "whatever was stored is whole, run the same command again" in errors
    found = content(tmp_path / "there")
    assert found.items() < content(cache.folder).items()
    assert not list((tmp_path / "there").rglob(".tmp-*"))
    pull(tmp_path / "there", str(tmp_path / "remote"))
    assert content(tmp_path / "there") == content(cache.folder)


def test_a_script_can_tell_what_was_refused_from_what_was_done(tmp_path: Path, shell: Any) -> None:
    remote, there = tmp_path / "remote", tmp_path / "there"
    push(make_cache(tmp_path / "mine"), str(remote))
    assert shell("pull", remote, "--cache", there)[0] == 0
    code, out, _ = shell("pull", remote, "--cache", there, "--json")
    assert (code, json.loads(out)["fetched"]) == (0, 0)
    code, out, _ = shell("push", remote, "--cache", there, "--json")
    assert (code, json.loads(out)["sent"]) == (0, 0)
    assert shell("pull", remote, "--cache", there, "--teacher", "nobody", "--json")[:2] == (2, "")
    assert shell("pull", "nobody", "--cache", there, "--json")[:2] == (2, "")
    assert shell("pull", tmp_path / "nowhere", "--cache", there, "--json")[:2] == (1, "")
    for manifest in (remote / "manifests").iterdir():
        manifest.write_bytes(b"{}")
    code, out, errors = shell("pull", remote, "--cache", tmp_path / "new", "--json")
    assert (code, out) == (1, "")
    assert "refused" in errors


def test_rows_of_texts_and_vectors_are_counted_apart(tmp_path: Path, shell: Any) -> None:
    remote = tmp_path / "remote"
    push(make_cache(tmp_path / "mine", [*TEXTS[:41], TEXTS[0]]), str(remote))
    code, out, errors = shell("pull", remote, "--cache", tmp_path / "there", "--dry-run")
    assert (code, errors) == (0, "")
    assert "with 42 rows of texts and 41 vectors; 1 manifest read" in out
    _, out, errors = shell("pull", remote, "--cache", tmp_path / "there")
    assert "with 42 rows of texts and 41 vectors" in errors
    assert "42 rows of texts and 41 vectors fetched, of 1 manifest; " in out
    _, out, _ = shell("pull", remote, "--cache", tmp_path / "vectors", "--no-text", "--json")
    done = json.loads(out)
    assert (done["fetched_text_rows"], done["fetched_vectors"]) == (0, 41)
    words = ("pull", remote, "--cache", tmp_path / "part", "--corpus", "corpus", "--rows", "1")
    _, out, errors = shell(*words)
    assert "with 42 rows of texts, and at most 1 vector, about" in errors
    assert "42 rows of texts and 1 vector fetched" in out


def test_a_remote_without_texts_shows_no_table_of_corpora(tmp_path: Path, shell: Any) -> None:
    make_cache(tmp_path / "mine", TEXTS[:20])
    assert shell("push", tmp_path / "remote", "--cache", tmp_path / "mine", "--no-text")[0] == 0
    out = shell("remote", "ls", tmp_path / "remote")[1]
    assert ("teachers" in out, "corpora" in out, "pushes" in out) == (True, False, True)


# The sample


def test_a_pull_compares_a_sample_where_the_model_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Any
) -> None:
    push(make_cache(tmp_path / "mine"), str(tmp_path / "remote"))
    asked: list[dict[str, Any]] = []

    class Line:
        verdict, meaning = BAD, "these are not this teacher's vectors"

    class Found:
        worst, sampled, lines = BAD, 100, (Line,)
        wrong_shards: frozenset[str]

    def check_deep(cache: Path, **settings: Any) -> list[Any]:
        asked.append(settings)
        Found.wrong_shards = settings["shards"]
        return [Found]

    monkeypatch.setattr(sample, "check_deep", check_deep)
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: spec == "fake")
    code, out, _ = shell("pull", tmp_path / "remote", "--cache", tmp_path / "there")
    assert code == 1
    assert "fake: 100 texts compared: bad; other vectors than the teacher's" in out
    assert asked[0]["teacher"] == fake_teacher(8).contract.id
    # It is said again, but does not take that time again.
    assert shell("pull", tmp_path / "remote", "--cache", tmp_path / "there")[0] == 1
    assert len(asked) == 1
    assert shell("pull", tmp_path / "remote", "--cache", tmp_path / "other", "--no-sample-check")[0] == 0
    assert len(asked) == 1


def test_a_sync_of_one_corpus_leaves_others_where_they_are(tmp_path: Path, shell: Any) -> None:
    mine, theirs, remote = tmp_path / "mine", tmp_path / "theirs", tmp_path / "remote"
    for folder, name in ((mine, "one"), (mine, "two"), (theirs, "three"), (theirs, "four")):
        make_cache(folder, TEXTS[:20], name=name)
    push(theirs, str(remote))
    chosen = ("--teacher", "fake", "--corpus", "one", "--corpus", "three")
    assert shell("sync", remote, "--cache", mine, *chosen)[0] == 0
    assert Cache(mine).corpus_names() == ["one", "three", "two"]
    assert {corpus.name for corpus in list_remote(str(remote)).corpora} == {"four", "one", "three"}


def test_a_folder_that_a_stranger_names_is_not_loaded(tmp_path: Path) -> None:
    assert not models_at_hand.is_at_hand(str(tmp_path))
    assert not models_at_hand.is_at_hand("../x")
    assert not models_at_hand.is_at_hand("nobody/nothing")
    assert not models_at_hand.is_at_hand("")


def test_bad_samples_are_told_apart() -> None:
    checks = [SampleCheck("a", "ok", 1, ""), SampleCheck("b", "bad", 1, ""), SampleCheck("c", "look", 1, "")]
    assert [check.teacher for check in bad_samples(checks)] == ["b"]


def test_sharing_costs_the_command_line_nothing() -> None:
    script = "import sys, embedcache.cli.main; print([m for m in sys.modules if m in ('pyarrow', 'numpy')])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    assert done.stdout.strip() == "[]"


def test_the_cards_of_a_remote_are_for_people(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "mine")
    push(cache, str(tmp_path / "remote"), by="Ann | <b>", message="for *everyone*", text_licence="CC-BY-4.0")
    (card,) = files_of(tmp_path / "remote", "cards").values()
    text = card.decode()
    for part in ("Ann \\| \\<b\\>", "for \\*everyone\\*", "CC-BY-4.0", "| fake |", "not declared", "240"):
        assert part in text
    for arguments, told in (
        ({"by": "two\nlines"}, "--by has line breaks"),
        ({"message": "m" * 1001}, "--message has 1,001 letters, expected 1,000 at most"),
        ({"text_licence": "two\nlines"}, "--text-licence has line breaks"),
    ):
        with pytest.raises(InputError, match=told):
            push(cache, str(tmp_path / "remote"), **arguments)
    assert Cache(cache.folder).teacher().origin.get("licence", "") == ""


def test_pushes_are_listed_by_time_those_too_that_do_not_say_theirs(tmp_path: Path, shell: Any) -> None:
    remote = tmp_path / "remote"
    ids = []
    for number, texts in enumerate((TEXTS[:20], TEXTS[:40], TEXTS[:60])):
        cache = make_cache(tmp_path / f"cache{number}", texts, name=f"corpus{number}")
        manifest = push(cache, str(remote), by="Ann" if number == 1 else "").manifest
        path = remote / "manifests" / f"{manifest}.json"
        # Written in 2001, now and in 2099.
        seconds = (1_000_000_000, path.stat().st_mtime, 4_070_908_800)[number]
        os.utime(path, (seconds, seconds))
        ids.append(manifest)
    pushes = list_remote(str(remote)).pushes
    assert [one.manifest for one in pushes] == ids
    assert (pushes[0].when, pushes[0].written) == ("", "2001-09-09T01:46:40Z")
    assert pushes[1].when
    code, shown, _ = shell("remote", "ls", remote)
    assert (code, "2001-09-09T01:46:40Z" in shown) == (0, True)
