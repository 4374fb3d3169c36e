"""Pages of the docs, command by command, with a tiny model in the place of the teacher."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from distill.cli.main import cli as distill_cli
from embedcache import EncodeOptions, build
from embedcache.cli.main import cli as embedcache_cli
from embedcache.teacher.aliases import ALIASES
from embedcache.testing import sentences

DOCS = Path(__file__).resolve().parents[2] / "docs"
CLIS = {"embedcache": embedcache_cli, "distill": distill_cli}
TEXTS = sentences(300, seed=11)


@pytest.fixture(autouse=True)
def place(tiny_teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder, where the alias minilm-l6 stands for a tiny teacher."""
    name = str(ALIASES["minilm-l6"].module)
    package, folder = ModuleType(name), tmp_path / "package"
    package.__file__, package.__spec__ = str(folder / "__init__.py"), ModuleSpec(name, None)
    folder.mkdir()
    (folder / "model").symlink_to(tiny_teacher)
    monkeypatch.setitem(sys.modules, name, package)
    monkeypatch.setenv("EMBEDCACHE_CONFIG", str(tmp_path / "remotes.json"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setattr("embedcache.building.dry_run.PROBE_SECONDS", 0.01)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def run_blocks(page: str) -> int:
    """Run the shell commands and the Python of a page in its order; return how many blocks it has."""
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(bash|python)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    for language, block in blocks:
        if language == "python":
            exec(small(shorter(block)), names)  # noqa: S102 - a page of this repository
        else:
            for line in block.replace("\\\n", " ").splitlines():
                run_command(shlex.split(line, comments=True))
    return len(blocks)


def shorter(python: str) -> str:
    """Return Python whose runs take one epoch."""
    return re.sub(r"(distill\.run\((?:[^()]|\([^()]*\))*)\)", r"\1, epochs=1)", python)


def small(word: str) -> str:
    """Return a command's word, or Python, for a tiny teacher: it has fewer layers and a narrower width."""
    return word.replace("layers:3", "layers:1").replace("dim=256", "dim=8").replace("64,128", "4,8")


def run_command(words: list[str]) -> None:
    program, *arguments = words
    assert program in {*CLIS, "pip", "ssh-keygen"}
    if program == "ssh-keygen":
        subprocess.run(words, check=True)
    if program in CLIS:
        arguments = [*map(small, arguments)]
        short = ["--epochs", "1"] if arguments[0] in ("run", "sweep") else []
        # Anything but a return, such as SystemExit for exit code 1, fails the test.
        CLIS[program].main([*arguments, *short], program, standalone_mode=False)


def write_table(path: str, names: list[str], rows: list[tuple[object, ...]]) -> None:
    with Path(path).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([names, *rows])


def test_the_page_on_sharing() -> None:
    Path("sentences.txt").write_text("".join(f"{text}\n" for text in TEXTS[:240]), encoding="utf-8")
    Path("more.txt").write_text("".join(f"{text}\n" for text in TEXTS[60:]), encoding="utf-8")
    build("sentences.txt", teacher="minilm-l6", cache="ann", encode=EncodeOptions(shard_rows=64))
    assert run_blocks("sharing.md") > 5
    assert {path.name for path in Path("ann/corpora").iterdir()} == {"sentences"}
    assert {path.name for path in Path("bob/corpora").iterdir()} == {"sentences", "more"}
    assert len(list(Path("some/corpora").iterdir())) == 1
    assert Path("run/best/model.safetensors").read_bytes() == Path("run2/best/model.safetensors").read_bytes()


def test_the_first_day() -> None:
    pytest.importorskip("onnxscript", reason="the [onnx] extra is not installed")
    for path, texts in (("reviews.csv", TEXTS[:200]), ("more.csv", TEXTS[200:])):
        write_table(path, ["id", "title", "body"], [(at, "A title", text) for at, text in enumerate(texts)])
    scored = [(one, other, at % 6) for at, (one, other) in enumerate(pairwise(TEXTS))]
    write_table("faq.csv", ["text1", "text2", "score"], scored[:60])
    write_table("chosen.csv", ["text1", "text2", "score"], scored[60:120])
    assert run_blocks("first-day.md") > 10
    assert {path.name for path in Path("cache/corpora").iterdir()} == {"reviews", "frame", "gaps"}
    assert Path("report.html").stat().st_size > 10_000
    assert len((DOCS / "first-day.md").read_text(encoding="utf-8").split()) <= 1500
    assert os.listdir("export/onnx")  # noqa: PTH208
