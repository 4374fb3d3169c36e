"""Contamination: test texts that a run was trained on or chosen by, counted as by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from distill_helpers import TEXTS, small_run

from distill.config.finetune import FinetuneConfig
from distill.errors import DataError
from distill.evaluation.contamination import Seen, contamination, describe
from distill.evaluation.runner import evaluate
from embedcache.progress import LineProgress

pytest_plugins = ["distill_fixtures"]

NEW = [f"a sentence that nobody has seen, number {number}" for number in range(8)]


def loud(text: str) -> str:
    """The same sentence in other letters, blanks and marks."""
    return f"  {text.upper()} !?"


SETS = {
    "pairs": [(loud(TEXTS[0]), TEXTS[1]), (TEXTS[1], NEW[0]), (NEW[1], NEW[2]), (NEW[3], NEW[4])],
    "clean": [(NEW[0], NEW[1]), (NEW[5], NEW[6]), (NEW[2], NEW[7])],
    "single": [(loud(TEXTS[3]),), (NEW[0],), (NEW[0],)],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, built_cache: Path) -> Path:
    """A run whose checkpoint was chosen on a pair of the clean set, sides swapped, and two others."""
    place = tmp_path_factory.mktemp("run")
    pairs = [(loud(NEW[1]), NEW[0]), (NEW[0], NEW[6]), (TEXTS[5], TEXTS[6])]
    rows = [f"s\t{number}\t{left}\t{right}" for number, (left, right) in enumerate(pairs)]
    dev = place / "dev.tsv"
    dev.write_text("\n".join(["subset\tscore\tsentence1\tsentence2", *rows]) + "\n", encoding="utf-8")
    return small_run(built_cache, place / "run", dev=str(dev)).folder


@pytest.fixture
def changed(run: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the run with some keys of its record and its configuration changed."""

    def change(record: dict[str, object] | None = None, **config: object) -> Path:
        own = tmp_path / "changed"
        shutil.copytree(run, own)
        facts = {**json.loads((own / "run.json").read_text()), **(record or {})}
        (own / "run.json").write_text(json.dumps(facts))
        settings = yaml.safe_load((own / "config.yaml").read_text())
        for key, value in config.items():
            settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
        (own / "config.yaml").write_text(yaml.safe_dump(settings))
        return own

    return change


def test_a_run_is_counted_by_its_training_and_development_texts(run):
    lines: list[str] = []
    seen = contamination(SETS, run, progress=LineProgress(lines.append))
    assert seen == {
        "pairs": Seen(sentences=7, sentences_seen=2, pairs=4, pairs_seen=1, selected_on=0),
        "clean": Seen(sentences=6, sentences_seen=0, pairs=3, pairs_seen=0, selected_on=1),
        "single": Seen(sentences=2, sentences_seen=1, pairs=0, pairs_seen=0, selected_on=0),
    }
    assert lines[-1].startswith(f"training texts {len(set(TEXTS)):,} texts")
    assert [one.is_selected for one in seen.values()] == [False, True, False]
    notes = " | ".join(describe(seen))
    assert "2 of 7 sentences, 1 of 4 pairs of pairs" in notes
    assert "SELECTED ON TEST PAIRS" in notes
    assert "nothing of clean" in notes


def test_only_rows_that_the_run_saw_count(changed):
    limited = changed(training={"limit": 1})
    assert contamination(SETS, limited)["pairs"].sentences_seen == 1


def test_a_fine_tuned_student_has_seen_the_texts_of_both_stages(run, changed, tmp_path):
    triples = tmp_path / "triples.tsv"
    triples.write_text(f"anchor\tpositive\n{NEW[2]}\t{NEW[7]}\nthird text\tfourth text\n", encoding="utf-8")
    start = {"spec": str(run), "run": str(run), "contract_id": "c"}
    corpus = {"name": "triples", "rows": 2, "digest": "d"}
    own = changed({"kind": "finetune", "start": start, "corpus": corpus})
    config = FinetuneConfig(start=str(run), triples=str(triples))
    (own / "config.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    seen = contamination(SETS, own)
    assert (seen["clean"].pairs_seen, seen["pairs"].pairs_seen) == (1, 1)
    # The first stage was chosen on test pairs.
    assert seen["clean"].selected_on == 1
    triples.write_text("anchor\tpositive\na\tb\nc\td\ne\tf\n", encoding="utf-8")
    with pytest.raises(DataError, match="has 3 rows, had 2"):
        contamination(SETS, own)


@pytest.mark.parametrize(
    ("record", "config", "message"),
    [
        ({"cache": "/gone"}, {}, "no cache /gone"),
        ({"corpus": {"name": "texts", "rows": 1, "digest": "0" * 64}}, {}, "corpus 'texts'"),
        ({"dev": {"name": "dev.tsv", "sha256": "0" * 64}}, {}, "has changed"),
        ({}, {"evaluation": {"data": "/gone.tsv"}}, "/gone.tsv"),
    ],
)
def test_missing_or_changed_data_is_refused(changed, record, config, message):
    with pytest.raises(DataError, match=message):
        contamination(SETS, changed(record, **config))


def test_an_evaluation_marks_figures_only_where_that_is_asked_for(run, tmp_path):
    rows = [f"s\t{number}\t{left}\t{right}" for number, (left, right) in enumerate(SETS["pairs"])]
    text = "\n".join(["subset\tscore\tsentence1\tsentence2", *rows]) + "\n"
    (tmp_path / "stsb_test.tsv").write_text(text, encoding="utf-8")
    options = {"data": tmp_path, "beside_teacher": False, "bootstrap": 0}
    assert evaluate(run, **options).models[0][1].marks == {}
    marked = evaluate(run, contamination=True, **options).models[0][1]
    assert marked.marks["contamination"]["stsb"]["sentences_seen"] == 2
    assert any("2 of 7 sentences" in note for note in marked.notes)
