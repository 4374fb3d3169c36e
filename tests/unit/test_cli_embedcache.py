"""The command line: exit codes, one line an error, JSON that parses, help for everything, a quick start."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from embedcache import __version__
from embedcache.cache import Cache
from embedcache.cli import build as build_module
from embedcache.cli import options
from embedcache.cli.main import cli, main
from embedcache.codecs import CODEC_NAMES
from embedcache.corpus.sources import FORMATS
from embedcache.errors import StorageError
from embedcache.store.containers.choose import STORE_KINDS
from embedcache.teacher.aliases import ALIASES
from embedcache.testing import sentences

TEXTS = sentences(20)
COMMANDS = sorted(cli.commands)


class Outcome(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


class Shell:
    """Runs ``embedcache`` in this process, as its console script would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Outcome:
        self.monkeypatch.setattr(sys, "argv", ["embedcache", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *self.capsys.readouterr())


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.setenv("COLUMNS", "200")
    return Shell(monkeypatch, capsys)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in [*TEXTS, "", TEXTS[0]]))
    # A file written just now may change again unseen, and is not trusted to be the same later.
    an_hour_ago = path.stat().st_mtime - 3600
    os.utime(path, (an_hour_ago, an_hour_ago))
    return path


def assert_one_line(outcome: Outcome, code: int, *parts: str) -> None:
    assert outcome.code == code
    assert outcome.out == ""
    assert re.match(r"embedcache( [a-z]+)?: ", outcome.err)
    assert outcome.err.count("\n") == 1
    assert outcome.err.endswith("\n")
    for part in parts:
        assert part in outcome.err


def test_build_encodes_then_reuses(shell: Shell, corpus: Path, tmp_path: Path, tiny_teacher: Path) -> None:
    arguments = (
        "build",
        corpus,
        "--teacher",
        tiny_teacher,
        "--cache",
        tmp_path / "c",
        "--compute-dtype",
        "float32",
    )
    first = shell(*arguments, "--json")
    assert first.code == 0
    summary = json.loads(first.out)
    assert (summary["rows"], summary["distinct"], summary["encoded"]) == (21, 20, 20)
    assert summary["skipped"] == {"empty": 1}
    assert json.loads(shell(*arguments, "--json").out)["encoded"] == 0
    table = shell(*arguments)
    assert table.code == 0
    for part in ("corpus with tiny", "20 (1 duplicates)", "20 already in the cache", "1 empty", "0 B"):
        assert part in table.out


def test_every_setting_of_build_reaches_it(
    shell: Shell, corpus: Path, tmp_path: Path, plain_teacher: Path
) -> None:
    outcome = shell(
        *(
            "build",
            corpus,
            "--teacher",
            plain_teacher,
            "--cache",
            tmp_path / "c",
            "--name",
            "named",
            "--limit",
            9,
        ),
        *("--pooling", "cls", "--prompt", "the ", "--max-length", 9, "--truncate-dim", 4, "--normalize"),
        *("--teacher-name", "other", "--codec", "float32", "--compute-dtype", "bfloat16", "--device", "cpu"),
        *("--batch-tokens", 50, "--threads", 1, "--shard-rows", 4, "--format", "text"),
    )
    assert outcome.code == 0
    cache = Cache(tmp_path / "c")
    assert len(cache.corpus("named")) == 9
    contract = cache.teacher("other").contract
    assert (contract.pooling, contract.prompt, contract.max_length) == ("cls", "the ", 9)
    assert (contract.truncate_dim, contract.dimension, contract.normalize) == (4, 4, True)
    store = cache.store(contract)
    assert (store.codec_name, len(store.shards)) == ("float32", 3)
    assert store.shards[0].header.provenance["compute_dtype"] == "bfloat16"


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
def test_store_and_codec_reach_the_cache(
    shell: Shell, corpus: Path, tmp_path: Path, tiny_teacher: Path, kind: str, codec: str
) -> None:
    build = ("build", corpus, "--teacher", tiny_teacher, "--cache", tmp_path / "c")
    assert shell(*build, "--store", kind, "--codec", codec).code == 0
    store = Cache(tmp_path / "c").store(Cache(tmp_path / "c").teacher().contract)
    assert (store.kind, store.codec_name) == (kind, codec)
    again = json.loads(shell(*build, "--json").out)
    assert (again["encoded"], again["reused"]) == (0, 20)


def test_info_tells_everything_of_a_teacher_or_a_corpus(
    shell: Shell, corpus: Path, tmp_path: Path, tiny_teacher: Path
) -> None:
    cache = ("--cache", tmp_path / "c")
    shell("build", corpus, "--teacher", tiny_teacher, "--codec", "int8", *cache)
    teacher = json.loads(shell("info", "tiny", *cache, "--json").out)["teacher"]
    assert teacher["coverage"] == {"corpus": {"distinct": 20, "missing": 0}}
    assert teacher["codecs"]["int8"]["rows"] == 20
    assert 0.99 < teacher["codecs"]["int8"]["worst_cosine"] < 1
    assert teacher["fields"]["pooling"] == "mean"
    found = json.loads(shell("info", "corpus", *cache, "--json").out)["corpus"]
    assert (found["rows"], found["read_from"]) == (21, [str(corpus)])
    shown = shell("info", "tiny", *cache).out
    assert "worst_cosine" in shown
    assert "max_length: 64" in shown
    assert "prompt: none" in shown
    assert "normalize: True" not in shown
    assert "normalize: yes" in shown
    assert f"worst_cosine: {teacher['codecs']['int8']['worst_cosine']:.6f} " in shown
    missing = shell("info", "nobody", *cache)
    assert_one_line(missing, 2, "no teacher 'nobody'", "corpora: corpus")


def test_ls_lists_corpora_and_teachers(
    shell: Shell, corpus: Path, tmp_path: Path, tiny_teacher: Path
) -> None:
    shell("build", corpus, "--teacher", tiny_teacher, "--cache", tmp_path / "c")
    found = json.loads(shell("ls", "--cache", tmp_path / "c", "--json").out)
    assert [(one["name"], one["rows"], one["labels"]) for one in found["corpora"]] == [("corpus", 21, False)]
    (teacher,) = found["teachers"]
    assert (teacher["name"], teacher["vectors"], teacher["width"]) == ("tiny", 20, 16)
    assert (teacher["codec"], teacher["pooling"], teacher["max_length"]) == ("float16", "mean", 64)
    table = shell("ls", "--cache", tmp_path / "c").out
    assert "False" not in table
    assert re.search(r"corpus .* no ", table)
    assert "tiny" in table


def test_teachers_lists_the_aliases(shell: Shell) -> None:
    found = json.loads(shell("teachers", "--json").out)
    assert set(found) == set(ALIASES)
    assert {
        "minilm-l6",
        "simcse-roberta-large",
        "unsup-simcse-roberta-large",
        "simcse-bert-base",
        "unsup-simcse-bert-base",
        "mpnet-base",
        "bge-small",
        "e5-small",
    } <= set(found)
    assert set(found["e5-small"]) >= {"model_id", "dimension", "pooling", "licence", "prompt"}
    table = shell("teachers").out
    for name, alias in ALIASES.items():
        assert name in table
        assert alias.model_id in table


def test_tables_are_whole_in_a_pipe(
    shell: Shell, corpus: Path, tmp_path: Path, tiny_teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    table = shell("teachers").out
    assert "offline with the [minilm] extra" in table
    assert "from the model" not in table
    rows = {name: next(line for line in table.splitlines() if f" {name} " in line) for name in ALIASES}
    for name, alias in ALIASES.items():
        assert alias.model_id in rows[name]
        assert f" {alias.pooling or alias.own_pooling} " in rows[name]
    name = "a-teacher-of-a-rather-long-name-that-would-be-cut"
    shell("build", corpus, "--teacher", tiny_teacher, "--teacher-name", name, "--cache", tmp_path / "c")
    assert name in shell("ls", "--cache", tmp_path / "c").out


def test_what_the_user_can_mend_is_one_line_and_exit_code_2(
    shell: Shell, corpus: Path, tmp_path: Path, tiny_teacher: Path, plain_teacher: Path
) -> None:
    cache = ("--cache", tmp_path / "c")
    assert_one_line(shell("ls", *cache), 2, "no cache at", "does not exist")
    assert_one_line(
        shell("build", "none.txt", "--teacher", tiny_teacher, *cache), 2, "none.txt does not exist"
    )
    assert_one_line(shell("build", corpus, "--teacher", "nobody", *cache), 2, "no teacher 'nobody'")
    assert_one_line(shell("build", corpus, "--teacher", plain_teacher, *cache), 2, "--pooling mean|cls")
    (tmp_path / "file").write_text("")
    assert_one_line(
        shell("build", tmp_path / "file", "--teacher", tiny_teacher, *cache), 2, "no rows to read"
    )


def test_failures_underneath_are_one_line_and_exit_code_1(
    shell: Shell, corpus: Path, tmp_path: Path, tiny_teacher: Path
) -> None:
    build = ("build", corpus, "--teacher", tiny_teacher, "--cache", tmp_path / "c")
    shell(*build)
    (shard,) = (tmp_path / "c").glob("teachers/*/shards/*")
    shard.write_bytes(b"nothing")
    assert_one_line(shell(*build), 1, shard.name, "is damaged", "embedcache repair")
    shard.unlink()
    assert shell(*build).code == 0


def test_a_folder_that_cannot_be_made_is_exit_code_1(
    shell: Shell, corpus: Path, tmp_path: Path, tiny_teacher: Path
) -> None:
    outcome = shell("build", corpus, "--teacher", tiny_teacher, "--cache", corpus / "cache")
    assert_one_line(outcome, 1, "cannot write", "choose another folder")


def test_debug_shows_the_traceback(shell: Shell, tmp_path: Path) -> None:
    outcome = shell("ls", "--cache", tmp_path / "none", "--debug")
    assert outcome.code == 2
    assert "Traceback (most recent call last)" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("embedcache ls: no cache at")


def test_ctrl_c_says_that_nothing_is_lost(
    shell: Shell, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("embedcache.builder.build", interrupted)
    outcome = shell("build", corpus, "--teacher", "t", "--cache", "c")
    assert outcome.code == 130
    # click has ended the line of the terminal's ^C.
    told = "embedcache: interrupted; whatever was stored is whole, run the same command again"
    assert outcome.err.splitlines() == ["", told]


@pytest.fixture
def pressed(ctrl_c: None) -> Callable[..., None]:
    """What a library does that turns a Ctrl-C into an error of its own."""

    def press(error: Exception) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise error from None

    return press


@pytest.mark.parametrize(
    ("error", "also_told"),
    [
        (ValueError("could not determine the shape of object type 'torch.storage.UntypedStorage'"), []),
        (
            OSError(28, "No space left on device", "/full"),
            ["embedcache build: No space left on device (/full)"],
        ),
        (
            StorageError("cannot write x:\nthe disk is full"),
            ["embedcache build: cannot write x: the disk is full"],
        ),
    ],
)
def test_whatever_ends_a_command_after_ctrl_c_it_was_interrupted(
    shell: Shell,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
    pressed: Callable[..., None],
    error: Exception,
    also_told: list[str],
) -> None:
    monkeypatch.setattr("embedcache.builder.build", lambda *_, **__: pressed(error))
    outcome = shell("build", corpus, "--teacher", "t", "--cache", "c")
    assert outcome.code == 130
    # The first line has the terminal's ^C.
    first, *lines = outcome.err.splitlines()
    assert first == ""
    assert [line.partition("; --debug")[0] for line in lines[:-1]] == also_told
    assert lines[-1] == "embedcache: interrupted; whatever was stored is whole, run the same command again"
    # A second one does not wait for Python's end.
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    signal.signal(signal.SIGINT, signal.default_int_handler)
    outcome = shell("--debug", "build", corpus, "--teacher", "t", "--cache", "c")
    assert type(error).__name__ in outcome.err


def test_a_signal_in_the_middle_of_handling_another_does_not_hang() -> None:
    script = """
import signal, sys
from embedcache.cli.guard import interrupt

def press_again(frame, event, argument):
    global lines
    lines += event == "line"
    if event == "line" and lines == first:
        signal.raise_signal(signal.SIGINT)
    return press_again

signal.signal(signal.SIGINT, interrupt)
for first in range(1, 13):
    lines = 0
    try:
        sys.settrace(press_again)
        interrupt(signal.SIGTERM, None)
    except KeyboardInterrupt:
        sys.settrace(None)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_an_error_without_ctrl_c_is_no_interrupt(
    shell: Shell, corpus: Path, monkeypatch: pytest.MonkeyPatch, pressed: Callable[..., None]
) -> None:
    def broken(*arguments: object, **settings: object) -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr("embedcache.builder.build", lambda *_, **__: pressed(ValueError("x")))
    assert shell("build", corpus, "--teacher", "t", "--cache", "c").code == 130
    signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr("embedcache.builder.build", broken)
    with pytest.raises(ValueError, match="a mistake of ours"):
        shell("build", corpus, "--teacher", "t", "--cache", "c")


@pytest.mark.parametrize(
    "arguments",
    [
        ("build",),
        ("build", "x", "--cache", "c"),
        ("build", "x", "--teacher", "t"),
        ("build", "x", "--teacher", "t", "--cache", "c", "--limit", "0"),
        ("build", "x", "--teacher", "t", "--cache", "c", "--codec", "int4"),
        ("build", "x", "--teacher", "t", "--cache", "c", "--colour", "red"),
        ("ls",),
        ("nothing",),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_exit_code_2(shell: Shell, arguments: tuple[str, ...]) -> None:
    outcome = shell(*arguments)
    command = f"embedcache {arguments[0]}" if arguments[0] in COMMANDS else "embedcache"
    assert_one_line(outcome, 2, f"{command}: ", f"(see '{command} --help')")
    assert "Usage:" not in outcome.err
    assert "Error" not in outcome.err


def test_no_command_at_all_shows_the_help_and_is_exit_code_2(shell: Shell) -> None:
    outcome = shell()
    assert outcome.code == 2
    assert outcome.err.startswith("Usage: embedcache ")
    assert "Traceback" not in outcome.err


def test_shards_that_no_memory_holds_are_refused(shell: Shell, corpus: Path, tmp_path: Path) -> None:
    cache = tmp_path / "c"
    outcome = shell("build", corpus, "--teacher", "t", "--cache", cache, "--shard-rows", 10**12)
    assert_one_line(outcome, 2, "--shard-rows", "3,072.0 TB", "at most 1,048,576 (3.2 GB)")
    assert not cache.exists()


def test_a_file_is_no_cache(shell: Shell, corpus: Path) -> None:
    assert_one_line(shell("ls", "--cache", corpus), 2, f"{corpus} is a file, and a cache is a folder")


def test_a_teacher_whose_lmdb_file_is_gone_is_listed_as_missing(
    shell: Shell, corpus: Path, tmp_path: Path, tiny_teacher: Path
) -> None:
    cache = tmp_path / "c"
    build = ("build", corpus, "--teacher", tiny_teacher, "--cache", cache)
    shell(*build, "--store", "lmdb", "--teacher-name", "gone")
    shell(*build, "--max-length", 9, "--teacher-name", "whole")
    (file,) = cache.glob("teachers/*/vectors.mdb")
    file.unlink()
    listed = shell("ls", "--cache", cache)
    assert listed.code == 0
    gone, whole = (line for line in listed.out.splitlines() if line.startswith("│") and "mean" in line)
    assert " lmdb, missing " in gone
    assert gone.count(" unknown ") == 3
    assert " arrow " not in gone
    assert " arrow " in whole
    assert "gone: " in listed.out.splitlines()[-1]
    assert "embedcache repair" in listed.out.splitlines()[-1]
    teachers = {
        one["name"]: one for one in json.loads(shell("ls", "--json", "--cache", cache).out)["teachers"]
    }
    assert (teachers["gone"]["vectors"], teachers["gone"]["codec"]) == (None, None)
    assert teachers["whole"]["damage"] is None
    told = json.loads(shell("info", "gone", "--json", "--cache", cache).out)["teacher"]
    assert told["store"] == "lmdb, missing"
    assert "embedcache repair" in told["damage"]
    assert told["fields"]["max_length"] != 9
    assert "coverage" not in told
    assert "lmdb, missing" in shell("info", "gone", "--cache", cache).out


def test_there_are_commands() -> None:
    assert {"build", "ls", "teachers"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_has_help(name: str, shell: Shell) -> None:
    command = cli.commands[name]
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.help.endswith((".", "]", "...")), parameter.help
    outcome = shell(name, "--help")
    assert outcome.code == 0
    assert outcome.out.startswith(f"Usage: embedcache {name}")


def test_build_offers_what_the_library_does() -> None:
    import dataclasses
    import inspect

    from embedcache.builder import build
    from embedcache.share.read_through import RemoteOptions
    from embedcache.views.plan import ViewOptions

    offered = {parameter.name for parameter in build_module.build_command.params} - {"as_json", "dry_run"}
    renamed = {"seed": "view_seed", "replace": "replace_views", "embed": "embed_views"}
    of_views = {renamed.get(field.name, field.name) for field in dataclasses.fields(ViewOptions)}
    of_remote = {field.name for field in dataclasses.fields(RemoteOptions)}
    of_library = set(inspect.signature(build).parameters) - {"encoder", "on_progress"}
    assert offered == of_library | of_views | of_remote


def test_the_choices_are_those_of_the_library() -> None:
    # Written down twice, because the library's own would take too long to import for --help.
    assert options.CODEC_NAMES == CODEC_NAMES
    assert options.STORE_KINDS == STORE_KINDS
    assert set(options.FORMATS) == set(FORMATS)


def test_the_version_is_told(shell: Shell) -> None:
    outcome = shell("--version")
    assert outcome.code == 0
    assert __version__ in outcome.out


def test_the_package_runs_as_the_command_does() -> None:
    done = subprocess.run([sys.executable, "-m", "embedcache", "ls"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "embedcache ls: missing option '--cache'" in done.stderr


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def called(command: str, *arguments: str) -> str:
    """Return Python code that does what the console script ``command`` does."""
    return f"import sys; sys.argv = {[command, *arguments]}; from {command}.cli.main import main; main()"


@pytest.mark.parametrize(
    "code",
    [
        "import embedcache",
        "import distill",
        called("embedcache", "--help"),
        called("embedcache", "build", "--help"),
        called("distill", "--help"),
    ],
    ids=[
        "import embedcache",
        "import distill",
        "embedcache --help",
        "embedcache build --help",
        "distill --help",
    ],
)
def test_the_start_is_light_and_quick(code: str) -> None:
    heavy = "{'torch', 'transformers', 'sentence_transformers', 'pyarrow', 'numpy', 'scipy', 'pandas'}"
    loaded = python(f"{code}\nimport sys; print(sorted({heavy} & set(sys.modules)))").splitlines()[-1]
    assert loaded == "[]"

    def cpu_seconds() -> float:
        # Not the wall clock: that measures who else uses the machine.
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        python(code)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # Neighbours on a core, and files that are not in memory yet, make one start slower than another.
    assert any(cpu_seconds() < 0.3 for _ in range(10))
