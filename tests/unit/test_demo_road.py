"""The demo with a tiny teacher and a small tree of documentation."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from distill_helpers import TEXTS

from distill.demo import collect_sentences, run_demo, sentences_of
from distill.errors import DataError

pytest_plugins = ["distill_fixtures"]


@pytest.fixture
def documentation(tmp_path: Path) -> Path:
    root = tmp_path / "packages"
    for number in range(16):
        sentences = [f"The {' '.join(text.split()[:-1])} in the house." for text in TEXTS[number::16]]
        (root / "boats").mkdir(parents=True, exist_ok=True)
        body = "\n\n".join(sentences)
        (root / "boats" / f"m{number}.py").write_text(
            f'"""{body}"""\nraise SystemExit(3)\n', encoding="utf-8"
        )
    return root


def test_the_demo_goes_from_sentences_to_a_student_and_names_the_next_commands(
    documentation, tmp_path, teacher_folder, capsys
):
    settings = {"teacher": str(teacher_folder), "sentences": 120, "epochs": 1, "roots": [documentation]}
    out = tmp_path / "demo"
    trained = run_demo(out, student="layers:1", **settings)
    sentences = (out / "documentation.txt").read_text(encoding="utf-8").splitlines()
    assert len(set(sentences)) == len(sentences) == 120
    assert json.loads((trained.folder / "run.json").read_text())["corpus"]["rows"] == 120
    assert (trained.best / "model.safetensors").exists()
    printed = " ".join(capsys.readouterr().out.split())
    for part in ("fidelity", "tiny (teacher)", str(trained.best), "distill export", "embedcache build"):
        assert part in printed


def test_modules_are_parsed_and_never_run_and_broken_ones_give_nothing(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test.py").write_text('"""The tests of a package are left out."""')
    (tmp_path / "a.py").write_text(
        '"""Nothing here may ever be run."""\nraise SystemExit(3)\n\n\n'
        'def hoist():\n    """Raise the sail until it is tight.  It takes a while, as the rope is long."""\n'
    )
    (tmp_path / "b.py").write_text('"""Nothing here may ever be RUN."""\ndef broken(:')
    (tmp_path / "c.py").write_bytes(b'"""The file has a null byte."""\x00')
    (tmp_path / "d.py").write_text('"""The pattern \\d is no escape. Another sentence is fine here."""\n')
    assert set(collect_sentences(10, roots=[tmp_path])) == {
        "Nothing here may ever be run.",
        "Raise the sail until it is tight.",
        "It takes a while, as the rope is long.",
        "Another sentence is fine here.",
    }


def test_the_standard_library_gives_the_same_sentences_each_time():
    roots = [Path(os.__file__).parent]
    found = collect_sentences(300, roots=roots)
    assert len(set(found)) == 300
    assert collect_sentences(50, roots=roots) == found[:50]


def test_too_few_sentences_are_one_clear_error(documentation, tmp_path):
    with pytest.raises(DataError, match="expected at least 2000"):
        run_demo(
            tmp_path / "demo", teacher="-", student="-", sentences=10_000, epochs=1, roots=[documentation]
        )
    assert not (tmp_path / "demo").exists()


@pytest.mark.parametrize(
    ("docstring", "sentences"),
    [
        ("The ``name`` of *every* file is\nkept as it is.", ["The name of every file is kept as it is."]),
        ("Was it cold? It was! The wind blew from the north.", ["The wind blew from the north."]),
        ("The list of them:\n    The code is in here.\n\nThis is read again.", ["This is read again."]),
        (">>> x\nThe output of a doctest is here.", []),
        ("The file (which is small) isn't read.", ["The file (which is small) isn't read."]),
        ("The file is small", []),
        ("The " + "very " * 38 + "long road.", []),
        ("Call foo() to read the file.", []),
        ("The file is at https://example.org for all.", []),
        ("Alle Hunde schlafen gern lange.", []),
    ],
)
def test_plain_english_sentences_are_taken_and_code_is_not(docstring, sentences):
    assert list(sentences_of(docstring)) == sentences
