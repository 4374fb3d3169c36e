"""Objects of the Python interface: what they show, and where they stand for their folders."""

from __future__ import annotations

import os
import shutil

import pytest
from distill_helpers import small_run
from suite_helpers import model

import distill
import embedcache
from distill.errors import ConfigError
from distill.evaluation.runner import evaluate
from distill.sweep import SweepRuns
from embedcache.cache import Cache
from embedcache.notebook import html_table
from embedcache.testing import FakeEncoder, fake_teacher

pytest_plugins = ["distill_fixtures"]
PAIRS = [{"text1": f"a {i}", "text2": f"b {i}", "score": i % 7} for i in range(40)]


@pytest.mark.parametrize("package", [distill, embedcache])
def test_a_package_shows_its_public_names_and_nothing_else(package):
    assert dir(package) == sorted(package.__all__)


@pytest.fixture(scope="module")
def run(built_cache, tmp_path_factory):
    return small_run(Cache(built_cache), tmp_path_factory.mktemp("runs") / "a")


def test_a_run_and_a_cache_stand_for_their_folders(run, built_cache, tmp_path):
    assert os.fspath(run) == str(run.folder)
    assert os.fspath(Cache(built_cache)) == str(built_cache)
    assert evaluate(run, pairs=PAIRS, progress=False).students[0][0].run == str(run.folder)
    with pytest.raises(distill.DistillError, match="finished"):
        distill.resume(run)


def test_objects_show_themselves_in_ten_lines_and_as_tables(run, built_cache):
    found = evaluate([model(f"m{number}") for number in range(30)], pairs=PAIRS)
    for shown in (Cache(built_cache), run, found, SweepRuns()):
        assert len(repr(shown).splitlines()) <= 10
        assert max(map(len, repr(shown).splitlines())) < 200
    for shown in (run, found, SweepRuns()):
        assert shown._repr_html_().startswith("<table>")
    assert "m0: " in repr(found)
    assert "and 22 more" in repr(found)
    assert "layers:1" in repr(run)
    assert "<b>" not in evaluate(model("<b>"), pairs=PAIRS)._repr_html_()


def test_figures_and_metrics_are_data_frames(run):
    pytest.importorskip("pandas")
    found = evaluate([model("x"), model("y")], pairs=PAIRS)
    frame = found.to_frame()
    assert list(frame["measure"]) == ["spearman", "pearson"] * 2
    assert frame["value"][0] == found["x"].figures["pairs"].value
    assert (frame["low"] < frame["value"]).all()
    metrics = run.to_frame()
    assert metrics["step"].max() == run.result.steps
    assert SweepRuns().to_frame().empty


def test_all_that_has_to_be_named_is_named_at_once(two_teachers, tmp_path):
    teacher = FakeEncoder(fake_teacher(16))
    folder = shutil.copytree(two_teachers, tmp_path / "k")
    embedcache.build(["another text", "and one more"], teacher=teacher, cache=folder, name="second")
    with pytest.raises(ConfigError) as caught:
        distill.run(cache=folder)
    assert "second|texts" in str(caught.value)
    assert "fake|other|tiny" in str(caught.value)


def test_a_table_says_how_many_rows_it_leaves_out() -> None:
    text = html_table([{"a": n, "b": 0.5} for n in range(60)], "many")
    assert "10 more" in text
    assert text.count("<tr>") == 51
