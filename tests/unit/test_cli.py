"""The command line: exit codes, one line per error, JSON that parses, help for everything, a quick start."""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from embedcache import __version__
from embedcache.cache import Cache
from embedcache.cli import options
from embedcache.cli.guard import interrupt
from embedcache.cli.main import cli
from embedcache.codecs import CODEC_NAMES
from embedcache.corpus.readers import ReadOptions
from embedcache.corpus.sources import FORMATS
from embedcache.errors import StorageError
from embedcache.share.read_through import RemoteOptions
from embedcache.store.containers import STORE_KINDS
from embedcache.teacher.options import EncodeOptions, TeacherOptions
from embedcache.testing import sentences
from embedcache.views.plan import ViewOptions

if TYPE_CHECKING:
    from shell import Outcome, Shell

pytest_plugins = ["shell"]

TEXTS = sentences(20)
Words = tuple[object, ...]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in [*TEXTS, "", TEXTS[0]]))
    os.utime(path, (1e9, 1e9))
    return path


@pytest.fixture
def build(corpus: Path, tmp_path: Path, tiny_teacher: Path) -> Words:
    return ("build", corpus, "--teacher", tiny_teacher, "--cache", tmp_path / "c")


def test_build_prints_only_the_steps_it_took(
    shell: Shell, build: Words, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shell(*build, "--json").json
    assert (first["rows"], first["distinct"], first["encoded"]) == (21, 20, 20)
    assert first["skipped"] == {"empty": 1}
    monkeypatch.setenv("EMBEDCACHE_CACHE", str(build[-1]))
    table = shell(*build[:-2])
    assert table.code == 0
    for part in ("corpus with tiny", "20 (1 duplicates)", "20 were in the cache", "1 empty", TEXTS[0][:50]):
        assert part in table.out
    for absent in ("reused", "fetched", "view", "written", "truncated"):
        assert absent not in table.out
    assert "tiny" in shell("ls").out


def test_a_dry_run_prints_a_plan(shell: Shell, build: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.building.dry_run.PROBE_SECONDS", 0.01)
    outcome = shell(*build, "--dry-run")
    assert outcome.code == 0
    assert all(
        part in outcome.out for part in ("dry run", "to encode", "tokens", "float16", "time to encode")
    )
    assert shell(*build, "--dry-run", "--json").json["estimate"]["bytes"].keys() == {*CODEC_NAMES}
    assert not Path(str(build[-1])).exists()


def test_options_of_build_reach_it(shell: Shell, corpus: Path, tmp_path: Path, plain_teacher: Path) -> None:
    outcome = shell(
        *("build", corpus, "--teacher", plain_teacher, "--cache", tmp_path / "c", "--name", "named"),
        *("--pooling", "cls", "--prompt", "the ", "--max-length", 9, "--truncate-dim", 4, "--normalize"),
        *("--teacher-name", "other", "--codec", "float32", "--compute-dtype", "bfloat16", "--device", "cpu"),
        *("--threads", 1, "--format", "text", "--limit", 9, "--view", "crop", "--embed-views", "crop"),
    )
    assert outcome.code == 0
    cache = Cache(tmp_path / "c")
    contract = cache.teacher("other").contract
    assert len(cache.corpus("named")) == 9
    assert (contract.pooling, contract.prompt, contract.max_length) == ("cls", "the ", 9)
    assert (contract.truncate_dim, contract.dimension, contract.normalize) == (4, 4, True)
    store = cache.store(contract)
    assert (store.codec_name, len(store)) == ("float32", 18)
    assert store.shards[0].header.provenance["compute_dtype"] == "bfloat16"


def test_build_offers_every_option_of_the_library() -> None:
    offered = {parameter.name for parameter in cli.commands["build"].params}
    renamed = {"seed": "view_seed", "embed": "embed_views", "spec": "teacher"}
    kinds = (ReadOptions, TeacherOptions, EncodeOptions, ViewOptions, RemoteOptions)
    of_library = {renamed.get(field.name, field.name) for kind in kinds for field in dataclasses.fields(kind)}
    only_python = {"skip_manifests", "view_seed"}
    own = {
        "sources",
        "cache",
        "teacher_name",
        "overwrite",
        "append",
        "dry_run",
        "as_json",
        "price_per_million",
    }
    assert offered == of_library - only_python | own
    assert (options.CODEC_NAMES, options.STORE_KINDS) == (CODEC_NAMES, STORE_KINDS)
    assert set(options.FORMATS) == set(FORMATS)
    shard_rows = next(one for one in cli.commands["build"].params if one.name == "shard_rows")
    assert shard_rows.default == EncodeOptions().shard_rows


def test_help_of_build_is_grouped() -> None:
    text = CliRunner().invoke(cli, ["build", "--help"]).output
    headings = [line for line in text.splitlines() if line.endswith(" options:")]
    names = ("Common", "Input", "Teacher", "Speed", "View", "Remote", "Many machines")
    assert headings == [f"{name} options:" for name in names]


def assert_one_line(outcome: Outcome, code: int, *parts: str) -> None:
    assert (outcome.code, outcome.out, outcome.err.count("\n")) == (code, "", 1)
    assert re.match(r"embedcache( [a-z]+)?: ", outcome.err)
    assert all(part in outcome.err for part in parts), outcome.err


def test_the_users_mistakes_are_one_line_and_exit_code_2(
    shell: Shell, build: Words, corpus: Path, tmp_path: Path, plain_teacher: Path
) -> None:
    cache = build[-2:]
    (tmp_path / "file").write_text("")
    assert_one_line(shell("ls", *cache), 2, "no cache at")
    assert_one_line(shell("build", "none", *build[2:]), 2, "none does not exist")
    assert_one_line(shell("build", corpus, "--teacher", "nobody", *cache), 2, "nobody")
    assert_one_line(shell("build", corpus, "--teacher", plain_teacher, *cache), 2, "pooling")
    assert_one_line(shell("build", tmp_path / "file", *build[2:]), 2, "no rows")
    assert_one_line(shell(*build, "--translator", "en-de"), 2, "--translator")
    assert_one_line(shell("ls", "--cache", corpus), 2, "is a file")
    twice = ["--max-length", "9", "--max-length", "8"]
    assert_one_line(shell(*build, *twice), 2, "--max-length is given 2 times")
    for words in ("build", "build x --limit 0", "build x --colour red"):
        assert_one_line(shell(*words.split()), 2, "embedcache build: ", "(see 'embedcache build --help')")
    assert_one_line(shell("nothing"), 2, "embedcache: ", "(see 'embedcache --help')")
    assert not (tmp_path / "c").exists()


def test_failures_are_one_line_and_exit_code_1(shell: Shell, build: Words, corpus: Path) -> None:
    assert_one_line(shell(*build[:-1], corpus / "cache"), 1, "cannot write")
    shell(*build)
    (shard,) = Path(str(build[-1])).glob("teachers/*/shards/*")
    shard.write_bytes(b"nothing")
    assert_one_line(shell(*build), 1, shard.name, "embedcache repair")
    shard.unlink()
    assert shell(*build).code == 0


def test_debug_shows_the_traceback_and_no_command_at_all_the_help(shell: Shell, tmp_path: Path) -> None:
    outcome = shell("ls", "--cache", tmp_path / "none", "--debug")
    assert (outcome.code, "Traceback (most recent call last)" in outcome.err) == (2, True)
    assert outcome.err.splitlines()[-1].startswith("embedcache ls: no cache at")
    assert (shell().code, shell().err.startswith("Usage: embedcache ")) == (2, True)


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """Python's own handler of SIGINT, and afterwards the one before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("error", [None, ValueError("x"), OSError(28, "No space"), StorageError("full")])
def test_whichever_error_ctrl_c_became_the_command_was_interrupted(
    shell: Shell, build: Words, monkeypatch: pytest.MonkeyPatch, heeds_ctrl_c: None, error: Exception | None
) -> None:
    def pressed(*arguments: object, **settings: object) -> None:
        try:
            interrupt(signal.SIGINT, None)
        except KeyboardInterrupt:
            raise error or KeyboardInterrupt from None

    monkeypatch.setattr("embedcache.building.build.build", pressed)
    outcome = shell(*build)
    assert outcome.code == 130
    # The terminal's ^C stands on a separate line.
    first, *_, last = outcome.err.splitlines()
    assert (first, last.startswith("embedcache: interrupted")) == ("", True)
    assert "run the same command again" in outcome.err or "full" in outcome.err
    # A second one does not wait for Python's end.
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_a_bug_keeps_its_traceback(shell: Shell, build: Words, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.building.build.build", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        shell(*build)


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_and_option_has_help(name: str, shell: Shell) -> None:
    command = cli.commands[name]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert (parameter.help or "").endswith((".", "]", "...")), parameter.name
    assert shell(name, "--help").out.startswith(f"Usage: embedcache {name}")


def test_the_package_runs_as_the_command_does() -> None:
    command = [sys.executable, "-m", "embedcache"]
    assert __version__ in subprocess.run([*command, "--version"], capture_output=True, text=True).stdout
    environment = {name: value for name, value in os.environ.items() if name != "EMBEDCACHE_CACHE"}
    done = subprocess.run([*command, "ls"], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match("embedcache ls: .*--cache", done.stderr)


@pytest.mark.parametrize("words", ["", "embedcache --help", "embedcache build --help", "distill --help"])
def test_the_start_is_light_and_quick(words: str) -> None:
    heavy = "{'torch', 'transformers', 'sentence_transformers', 'pyarrow', 'numpy', 'scipy', 'pandas'}"
    script = f"""
import contextlib, embedcache, distill, sys
sys.argv = {words.split()}
with contextlib.suppress(SystemExit):
    {f"from {words.split()[0]}.cli.main import main; main()" if words else ""}
    pass
print(sorted({heavy} & set(sys.modules)))"""

    def cpu_seconds() -> float:
        # Not the wall clock: that measures who else uses the machine.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        assert done.stdout.splitlines()[-1] == "[]"
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Neighbours on a core, and files that are not in memory yet, make one start slower than another.
    assert any(cpu_seconds() < 0.3 for _ in range(10))
