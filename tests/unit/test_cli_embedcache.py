"""What info, ls and teachers print."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from embedcache.cli.main import cli, main
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
