"""``embedcache doctor``: what it prints, draws and exits with."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from doctor_helpers import TEXTS, add_corpus, make_cache, unit

import embedcache.doctor.plot as plot_module
from embedcache.cache import Cache
from embedcache.cli.doctor import doctor_command
from embedcache.doctor import examine
from embedcache.doctor.examine import DEFAULT_SAMPLE
from embedcache.doctor.plot import plot
from embedcache.errors import EmbedCacheError, InputError, MissingExtraError, StorageError
from embedcache.testing import example_contract


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("healthy") / "c", unit(600))


@pytest.fixture(scope="module")
def ill(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    vectors = unit(600)
    vectors[3] = np.nan
    return make_cache(tmp_path_factory.mktemp("ill") / "c", vectors)


def doctor(cache: Cache, *arguments: object) -> Result:
    words = ["--cache", str(cache.folder), *map(str, arguments)]
    return CliRunner(env={"COLUMNS": "120"}).invoke(doctor_command, words)


def as_json(cache: Cache, *arguments: object) -> dict[str, Any]:
    outcome = doctor(cache, *arguments, "--json")
    assert outcome.exit_code == 0, outcome.output
    value: dict[str, Any] = json.loads(outcome.stdout)
    return value


def test_every_line_and_both_histograms_are_printed(healthy: Cache) -> None:
    outcome = doctor(healthy)
    assert outcome.exit_code == 0
    for one in examine(healthy).verdicts:
        assert one.name in outcome.stdout
        assert one.figure in outcome.stdout
    assert "5 to 5  ████████████████████████████████████████  600" in outcome.stdout
    assert "pairs by cosine" in outcome.stdout
    assert " bad " not in outcome.stdout
    assert "for example" not in outcome.stdout


def test_texts_of_what_is_bad_are_shown(ill: Cache) -> None:
    outcome = doctor(ill)
    assert " bad " in outcome.stdout
    assert f"NaN or infinite, for example:\n  '{TEXTS[3]}'\n" in outcome.stdout


def test_texts_that_share_a_vector_are_shown_together(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[100:180] = vectors[100]
    shown = doctor(make_cache(tmp_path / "c", vectors)).stdout.partition("identical vectors, for example:\n")[
        2
    ]
    texts = {repr(text) for text in TEXTS[100:180]}
    assert {line.removeprefix("  ").removeprefix("  and ") for line in shown.splitlines()[:2]} < texts
    assert [line.startswith("    and ") for line in shown.splitlines()[:2]] == [False, True]


@pytest.mark.parametrize(("strict", "code"), [((), 0), (("--strict",), 1)])
def test_strict_fails_where_a_verdict_is_bad(
    healthy: Cache, ill: Cache, strict: tuple[str, ...], code: int
) -> None:
    assert doctor(ill, *strict).exit_code == code
    assert doctor(ill, "--json", *strict).exit_code == code
    assert doctor(healthy, *strict).exit_code == 0


def test_json_is_the_diagnosis(ill: Cache) -> None:
    assert as_json(ill) == json.loads(json.dumps(examine(ill).to_json()))


def test_sample_and_seed_reach_it(healthy: Cache) -> None:
    small, other = as_json(healthy, "--sample", 60), as_json(healthy, "--sample", 60, "--seed", 5)
    assert small["sample"]["rows"] == other["sample"]["rows"] == 60
    assert small["sample"]["spectrum"] != other["sample"]["spectrum"]
    assert doctor(healthy, "--sample", 1).exit_code == 2
    (option,) = [one for one in doctor_command.params if one.name == "sample"]
    assert option.default == DEFAULT_SAMPLE


def test_teacher_and_corpus_are_chosen_by_name(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c", unit(600))
    cache.register_teacher("other", example_contract(4), {})
    add_corpus(cache, TEXTS[:70], "part")
    assert isinstance(doctor(cache).exception, InputError)
    assert as_json(cache, "--teacher", "teacher")["vectors"]["looked_at"] == 600
    assert as_json(cache, "--teacher", "teacher", "--corpus", "part")["vectors"]["looked_at"] == 70
    outcome = doctor(cache, "--teacher", "other")
    assert isinstance(outcome.exception, InputError)
    assert "holds no vector of 'other'" in str(outcome.exception)


def test_evaluation_sets_are_shown(healthy: Cache, tmp_path: Path) -> None:
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "clean.txt").write_text("quite other words\n")
    (tmp_path / "sets" / "notes.md").write_text("words\n")
    (tmp_path / "spoilt.txt").write_text(f"{TEXTS[0]}\n{TEXTS[1].upper()}!\nother words\n")
    arguments = ("--against", tmp_path / "sets", "--against", tmp_path / "spoilt.txt")
    outcome = doctor(healthy, *arguments)
    assert "contaminated: 1 of 2 sets" in outcome.stdout
    assert "66.67%" in outcome.stdout
    assert f"spoilt.txt: '{TEXTS[0]}'" in outcome.stdout
    assert "1 of 2 evaluation sets were not met" in outcome.stdout
    training = tmp_path / "sets" / "pairs.tsv"
    training.write_text("split\tsentence1\tsentence2\ntrain\tsome words\tother\ntest\tquite\tnew\n")
    both = doctor(healthy, "--against", training).stdout
    assert "2 of 2 evaluation sets (1 to test on, 1 to train on) were not met" in both
    training.unlink()
    assert "not read: notes.md (its ending says no format)" in outcome.stdout
    assert doctor(healthy, *arguments, "--strict").exit_code == 1
    clean = doctor(healthy, "--against", tmp_path / "sets")
    assert "evaluation sets that were met" not in clean.stdout
    assert "1 of 1 evaluation sets were not met" in clean.stdout
    value = as_json(healthy, *arguments)
    assert [(one["set"], one["texts"], one["exact"], one["folded"]) for one in value["overlap"]] == [
        ("clean.txt", 1, 0, 0),
        ("spoilt.txt", 3, 1, 2),
    ]
    assert value["unread"] == {"notes.md": "its ending says no format"}


def test_a_plot_is_drawn_beside_the_table_and_beside_json(healthy: Cache, tmp_path: Path) -> None:
    target = tmp_path / "p.png"
    outcome = doctor(healthy, "--plot", target)
    assert outcome.exit_code == 0, outcome.exception
    assert f"plot: {target}" in outcome.stdout.replace("\n", "")
    assert target.read_bytes().startswith(b"\x89PNG")
    target.unlink()
    assert as_json(healthy, "--plot", target)["worst"] == "ok"
    assert target.exists()


def test_the_ending_says_the_format(healthy: Cache, tmp_path: Path) -> None:
    diagnosis = examine(healthy)
    assert plot(diagnosis, tmp_path / "P.PDF").read_bytes().startswith(b"%PDF")
    drawn = plot(diagnosis, tmp_path / "p.svg").read_bytes()
    assert drawn.startswith(b"<?xml")
    assert plot(diagnosis, tmp_path / "again.svg").read_bytes() == drawn


def test_a_plot_names_what_it_shows(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c", unit(600), tokens=[40] * 300 + [50] * 300)
    text = plot(examine(cache), tmp_path / "p.svg").read_text(encoding="utf-8")
    for label in (
        "teacher: 600 vectors",
        "length of the vector",
        "promised: 1",
        "cosine of the two vectors",
        "mean -0.00",
        "principal component",
        "share of the variance, %",
        "effective rank 16",
        "participation ratio 16",
        "length in tokens",
        "cut at 64",
    ):
        assert label in text, label
    assert "→" not in text
    free = make_cache(tmp_path / "free", unit(600), normalize=False, max_length=0)
    text = plot(examine(free), tmp_path / "free.svg").read_text(encoding="utf-8")
    assert "promised" not in text
    assert "cut at" not in text
    far = make_cache(tmp_path / "far", unit(600), max_length=512)
    assert "cut at 512 →" in plot(examine(far), tmp_path / "far.svg").read_text(encoding="utf-8")


def test_what_cannot_be_drawn_is_refused_before_the_work(
    healthy: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(name: str) -> EmbedCacheError:
        outcome = doctor(healthy, "--plot", tmp_path / name)
        assert isinstance(outcome.exception, EmbedCacheError)
        assert outcome.stdout == ""
        return outcome.exception

    assert "expected a name that ends in .svg, .png, .pdf" in str(refused("p.jpg"))
    (tmp_path / "folder.svg").mkdir()
    assert "it is a folder; name a file in it" in str(refused("folder.svg"))
    (tmp_path / "folder.svg").rmdir()
    (tmp_path / "file").touch()
    below = refused("file/new/p.svg")
    assert isinstance(below, StorageError)
    assert "a part of the path is a file" in str(below)
    (tmp_path / "file").unlink()

    def full(**settings: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr("tempfile.TemporaryFile", full)
        assert "the file system is read-only" in str(refused("new/p.svg"))
    monkeypatch.setattr(plot_module, "find_spec", lambda name: None)
    missing = refused("p.png")
    assert isinstance(missing, MissingExtraError)
    assert "pip install 'embedcache[plot]'" in str(missing)
    assert list(tmp_path.iterdir()) == []


def test_nothing_measured_is_nothing_drawn(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c", unit(1), texts=TEXTS[:1])
    with pytest.raises(InputError, match="nothing to plot"):
        plot(examine(cache), tmp_path / "p.png")
