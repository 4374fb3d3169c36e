from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from distill_helpers import HELD_OUT, TEXTS, small_run
from safetensors.torch import load_file
from transformers import AutoModel

from distill.card import CardFacts, render_card
from distill.cli.progress import describe, train_progress
from distill.config_sources import load_config
from distill.data.dataset import DistillDataset, open_dataset
from distill.layout import RECORD
from distill.training.run import resume
from distill.training.token_views import count_tokens
from distill.training.tracking import TrainProgress
from embedcache.cache import Cache
from embedcache.teacher.load import quiet_transformers
from embedcache.teacher.tokenize import FastTokenizer

pytest_plugins = ["distill_fixtures"]


class Stop(Exception):  # noqa: N818 - what stops a run here is no error
    """Stands for whatever ends a process."""


def vocabulary(teacher) -> int:
    return len(teacher.model[0].tokenizer)


def test_a_run_trains_a_compact_student_and_tells_once_how_it_was_made(built_cache, teacher, tmp_path):
    seen: list[TrainProgress] = []
    size = vocabulary(teacher) - 12
    spec = f"compact:e=8,layers=2,vocab={size}"
    run = small_run(built_cache, tmp_path / "run", student=spec, on_progress=seen.append)
    told = [progress.text for progress in seen if progress.phase == "note"]
    assert tuple(told) == run.notes
    assert len(told) == len(set(told)) == 3
    assert [word in " ".join(told) for word in ("vocabulary", "R2", "parameters")] == [True, True, True]
    record = json.loads((run.folder / RECORD).read_text(encoding="utf-8"))
    assert record["notes"] == run.facts()["notes"] == told
    card = (run.best / "README.md").read_text(encoding="utf-8")
    assert all(f"- {note}" in card for note in told)
    assert f"| made from | {spec} |" in card
    with quiet_transformers():
        plain = AutoModel.from_pretrained(run.best)
    assert (type(plain).__name__, plain.config.model_type, plain.config.vocab_size) == (
        "ElectraModel",
        "electra",
        size,
    )


def test_a_student_with_nothing_to_tell_has_no_notes(built_cache, tmp_path):
    run = small_run(built_cache, tmp_path / "run", student="layers:1")
    assert run.notes == ()
    assert json.loads((run.folder / RECORD).read_text(encoding="utf-8"))["notes"] == []


@pytest.mark.parametrize("kind", ["compact:e=8,layers=2,vocab={size}", "narrow:h=8,layers=2"])
def test_a_resumed_run_ends_as_one_that_was_never_interrupted(built_cache, teacher, tmp_path, kind):
    spec = kind.format(size=vocabulary(teacher) - 8)

    def stop(progress: TrainProgress) -> None:
        if progress.phase == "train" and progress.step == 3:
            raise Stop

    settings = {"student": spec, "epochs": 2, "eval_every": 2, "lr": 0.01, "checkpoint_every": 2}
    whole = small_run(built_cache, tmp_path / "whole", **settings)
    with pytest.raises(Stop):
        small_run(built_cache, tmp_path / "cut", **settings, on_progress=stop)
    resumed = resume(tmp_path / "cut", threads=1)
    assert resumed.resumed > 0
    assert resumed.notes == whole.notes
    found, wanted = (load_file(run.best / "model.safetensors") for run in (resumed, whole))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("spec", ["compact:e=8", "narrow:h=8", "static:dim=8"])
def test_students_made_from_the_teacher_leave_a_recipes_pooling_out(spec):
    recipe = {"student": {"spec": "bert-tiny", "pooling": "cls"}}
    assert load_config(flags={"cache": "c", "student.spec": spec}, recipe=recipe).student.pooling is None
    other = load_config(flags={"cache": "c", "student.spec": "minilm-l3"}, recipe=recipe)
    assert other.student.pooling == "cls"


def test_the_card_names_the_teacher_as_what_a_student_began_with():
    facts = CardFacts(
        student="compact:e=8",
        teachers=[("org/teacher", {})],
        corpus={},
        loss="mse",
        parameters=9,
        dimension=4,
    )
    assert "base_model: org/teacher\n" in render_card(facts)
    assert "\n- one | two\n- three\n" in render_card(replace(facts, notes=["one | two", "three"]))


def test_a_note_stays_on_the_screen(capsys):
    note = TrainProgress("note", 0, 0, text="9.35 M parameters")
    assert describe(note, 0) == "9.35 M parameters"
    with train_progress() as tell:
        tell(note)
    assert capsys.readouterr().err == "9.35 M parameters\n"


def test_tokens_are_counted_in_the_training_rows_alone(built_cache: Path, tokenizer: FastTokenizer):
    cache = Cache(built_cache)
    few, all_rows = open_dataset(cache, limit=40, held_out=HELD_OUT // 6), open_dataset(cache)

    def expected(dataset: DistillDataset) -> np.ndarray:
        ids = [tokenizer([text]).ids for text in dataset.texts(dataset.rows)]
        return np.bincount(np.concatenate(ids), minlength=tokenizer.vocabulary_size)

    for dataset in (few, all_rows):
        counts = count_tokens(cache, dataset, "original", tokenizer)
        assert counts.dtype == np.int64
        np.testing.assert_array_equal(counts, expected(dataset))
    assert expected(few).sum() < expected(all_rows).sum()
    assert len(all_rows) == len(set(TEXTS))


def test_counting_goes_piece_by_piece(built_cache: Path, tokenizer: FastTokenizer, monkeypatch):
    cache = Cache(built_cache)
    dataset = open_dataset(cache, held_out=HELD_OUT)
    whole = count_tokens(cache, dataset, "original", tokenizer)
    monkeypatch.setattr("distill.data.tokens._COUNTED_AT_ONCE", 7)
    np.testing.assert_array_equal(count_tokens(cache, dataset, "original", tokenizer), whole)
