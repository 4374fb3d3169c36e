from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from distill.card import (
    EVALUATION_BEGIN,
    EVALUATION_END,
    CardFacts,
    render_card,
    with_evaluation,
    write_card,
)
from embedcache.errors import StorageError

FACTS = CardFacts(
    student="org/small-model",
    teachers=[
        (
            "big-teacher",
            {"pooling": "mean", "prompt": "", "max_length": 256, "normalize": True, "truncate_dim": None},
        )
    ],
    corpus={"name": "captions", "rows": 20000, "digest": "ab12"},
    loss="mse",
    settings={"epochs": 3, "lr": 0.0002},
    scores={"dev spearman": 0.87654, "sts average": 0.5},
    parameters=17_389_824,
    dimension=384,
    seconds=3725.0,
)


def front_matter(card: str) -> dict[str, object]:
    opening, head, _ = card.split("---\n", 2)
    assert opening == ""
    return yaml.safe_load(head)


def cells(line: str) -> int:
    return len(line.replace("\\|", "").strip().strip("|").split("|"))


def test_front_matter_is_yaml_that_the_hub_understands():
    head = front_matter(render_card(FACTS))
    assert head["library_name"] == "sentence-transformers"
    assert head["pipeline_tag"] == "sentence-similarity"
    assert {"distilled", "embedcache"} <= set(head["tags"])
    assert head["base_model"] == "org/small-model"


def test_a_student_whose_head_was_dropped_is_not_called_close_to_its_teacher():
    whole = " ".join(render_card(FACTS).split())
    dropped = " ".join(render_card(replace(FACTS, in_target_space=False)).split())
    assert "vector of 384 numbers, close to the one its teacher gives" in whole
    assert "numbers, close to" not in dropped
    assert "a head that is not part of it brought close to the one its teacher gives" in dropped


@pytest.mark.parametrize("student", ["layers:3", "/data/models/small", "./small", "small", "a/b/c", "../x/y"])
def test_a_student_that_is_no_hub_id_gives_no_base_model(student):
    assert "base_model" not in front_matter(render_card(replace(FACTS, student=student)))


def test_a_folder_that_looks_like_a_hub_id_gives_no_base_model(tmp_path, monkeypatch):
    (tmp_path / "org" / "small-model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "base_model" not in front_matter(render_card(FACTS))


def test_the_teachers_layers_make_the_teacher_the_base_model():
    facts = replace(FACTS, student="layers:0,2,5", teachers=[("org/teacher", {}), ("org/second", {})])
    assert front_matter(render_card(facts))["base_model"] == "org/teacher"
    assert front_matter(render_card(replace(facts, student="org/x")))["base_model"] == "org/x"


def test_every_fact_is_on_the_card():
    card = render_card(FACTS)
    for row in (
        "| made from | org/small-model |",
        "| parameters | 17,389,824 |",
        "| pooling | mean |",
        "| prompt | none |",
        "| normalize | yes |",
        "| truncate_dim | none |",
        "| rows | 20000 |",
        "| digest | ab12 |",
        "| loss | mse |",
        "| lr | 0.0002 |",
        "| dev spearman | 0.8765 |",
        "| sts average | 0.5000 |",
        "| training time | 1 h 2 min |",
    ):
        assert row in card.splitlines()
    assert "big-teacher" in card
    assert "SentenceTransformer(" in card


def test_unknown_training_time_and_missing_scores_are_not_made_up():
    card = render_card(replace(FACTS, seconds=None, scores={}))
    assert "training time" not in card
    assert "No scores were taken." in card
    assert "| measure |" not in card


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (3599.0, "59 min 59 s")])
def test_training_time_reads_in_units(seconds, words):
    assert f"| training time | {words} |" in render_card(replace(FACTS, seconds=seconds))


def test_pipes_and_line_breaks_do_not_break_a_table():
    teacher = {"prompt": "a | b\nc: ", "modules": [{"x|y": 1}]}
    card = render_card(replace(FACTS, teachers=[("big", teacher)], corpus={"na|me": "two\r\nlines"}))
    assert "| prompt | a \\| b c: |" in card.splitlines()
    assert "| na\\|me | two lines |" in card.splitlines()
    rows = [line for line in card.splitlines() if line.startswith("|")]
    assert rows
    assert {cells(line) for line in rows} == {2}


def test_a_new_card_keeps_a_place_for_the_evaluation():
    card = render_card(FACTS)
    before, place, after = (part.strip() for part in re.split(f"{EVALUATION_BEGIN}|{EVALUATION_END}", card))
    assert before.endswith("| sts average | 0.5000 |")
    assert place.startswith("## Evaluation")
    assert after.startswith("## Teacher")
    changed = with_evaluation(card, "figures")
    assert changed == card.replace(place, "figures")


def test_write_card_replaces_what_was_there(tmp_path):
    (tmp_path / "README.md").write_text("old")
    write_card(tmp_path, FACTS)
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == render_card(FACTS)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        write_card(tmp_path / "file", FACTS)


def test_every_teacher_is_named_with_its_contract():
    teachers = [("org/first", {"pooling": "mean"}), ("second", {"pooling": "cls"})]
    card = render_card(replace(FACTS, teachers=teachers))
    assert "# Sentence encoder distilled from org/first and second" in card
    assert card.index("### org/first") < card.index("| pooling | mean |") < card.index("### second")
    assert card.index("### second") < card.index("| pooling | cls |")
    assert "its teachers give together" in card
    assert "teachers" not in render_card(FACTS)
