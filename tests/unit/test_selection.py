"""Selection of the best checkpoint: scores, and test sets that are refused."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from distill_helpers import HELD_OUT, TEXTS, open_dataset, small_run
from scipy.stats import spearmanr

import distill
from distill.errors import ConfigError
from distill.evaluation.own_pairs import known_test_set, read_pair_set
from distill.students.layers import keep_layers
from distill.training.selection import (
    SCORES,
    StudentEncoder,
    describe_test_name,
    held_out_selector,
    pair_selector,
    read_dev_pairs,
)
from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.keys import key_array

DATA = Path(os.environ.get("DISTILL_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))

pytest_plugins = ["distill_fixtures"]


@pytest.fixture
def held_out_vectors(built_cache, dataset) -> np.ndarray:
    return Cache(built_cache).lookup(dataset.corpus.texts(dataset.held_out))


def write_pairs(path: Path, count: int = 40) -> tuple[list[float], list[str], list[str]]:
    scores = np.random.default_rng(0).uniform(0, 5, count).round(2).tolist()
    left, right = TEXTS[:count], [TEXTS[(7 * i + 1) % count] for i in range(count)]
    rows = [f"dev\t{s}\t{a}\t{b}" for s, a, b in zip(scores, left, right, strict=True)]
    path.write_text("subset\tscore\tsentence1\tsentence2\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return scores, left, right


def held_out_score(dataset, tokenizer, vectors: np.ndarray) -> float:
    selector = held_out_selector(dataset, tokenizer)
    assert selector is not None
    assert selector.name == "held_out_near_pairs_spearman"
    return selector.score(lambda texts: vectors)[selector.name]


def test_a_perfect_copy_scores_one_at_any_scale(dataset, tokenizer, held_out_vectors):
    assert held_out_score(dataset, tokenizer, held_out_vectors) == pytest.approx(1.0, abs=1e-6)
    assert held_out_score(dataset, tokenizer, 7 * held_out_vectors) == pytest.approx(1.0, abs=1e-6)


def test_the_order_of_the_vectors_matters(dataset, tokenizer, held_out_vectors):
    mixed = held_out_vectors[np.random.default_rng(0).permutation(HELD_OUT)]
    assert held_out_score(dataset, tokenizer, mixed) < 0.6


def test_a_collapsed_student_scores_nothing(dataset, tokenizer, held_out_vectors):
    collapsed = np.tile(held_out_vectors[:1], (HELD_OUT, 1))
    assert held_out_score(dataset, tokenizer, collapsed) == 0.0
    assert held_out_score(dataset, tokenizer, np.zeros_like(held_out_vectors)) == 0.0


def test_a_development_set_is_scored_by_spearman_of_cosines(tmp_path, tokenizer, teacher):
    scores, left, right = write_pairs(tmp_path / "dev.tsv")
    selector = pair_selector(read_dev_pairs(str(tmp_path / "dev.tsv")), tokenizer)
    assert selector.name == "dev_spearman"
    encoder = StudentEncoder(teacher.model, tokenizer, torch.device("cpu"), nullcontext)
    a, b = teacher.model.encode(left), teacher.model.encode(right)
    expected = spearmanr((a * b).sum(axis=1), scores).statistic
    assert selector.score(encoder) == {"dev_spearman": pytest.approx(expected, abs=1e-6)}
    backwards = spearmanr((a * np.roll(b, 1, axis=0)).sum(axis=1), scores).statistic
    assert abs(expected - backwards) > 0.01


def test_the_student_is_encoded_in_order_without_dropout_and_trains_on(teacher, tokenizer):
    student = keep_layers(teacher.model, "2").train()
    vectors = StudentEncoder(student, tokenizer, torch.device("cpu"), nullcontext)(tokenizer(TEXTS))
    assert student.training
    assert all(not p.requires_grad or p.grad is None for p in student.parameters())
    np.testing.assert_allclose(vectors, student.eval().encode(TEXTS), atol=1e-5)
    assert vectors.dtype == np.float32


@pytest.mark.parametrize("subset", ["test", "TEST"])
def test_a_file_that_holds_test_rows_among_others_is_refused(tmp_path, subset):
    path = tmp_path / "sick.tsv"
    write_pairs(path)
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[3] = lines[3].replace("dev\t", f"{subset}\t")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"1 of 40 pairs of sick\.tsv are of subset 'test'"):
        read_dev_pairs(str(path))
    path.write_text("\n".join(line for line in lines if not line.startswith(subset)) + "\n", encoding="utf-8")
    assert len(read_dev_pairs(str(path))) == 39


def test_held_out_rows_are_scored_by_combined_targets(two_teachers, tokenizer):
    cache = Cache(two_teachers)
    dataset = open_dataset(cache, teacher=["tiny", "other"], weights=[1, 3], held_out=HELD_OUT)
    texts = dataset.corpus.texts(dataset.held_out)
    combined = dataset.targets.lookup(key_array(texts))
    assert held_out_score(dataset, tokenizer, combined) == pytest.approx(1.0, abs=1e-6)
    for name in ("tiny", "other"):
        assert held_out_score(dataset, tokenizer, cache.lookup(texts, teacher=name)) < 0.999


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("stsb_test.tsv", True),
        ("STS-Test.tsv", True),
        ("latest_dev.tsv", False),
        ("my-testbed-dev.tsv", False),
        ("testimonials_dev.tsv", False),
    ],
)
def test_a_file_is_named_like_a_test_set_where_test_is_a_word_of_its_name(tmp_path, name, warned):
    write_pairs(tmp_path / name)
    assert bool(describe_test_name(tmp_path / name)) == warned
    assert len(read_dev_pairs(str(tmp_path / name))) == 40


def test_a_known_test_set_is_refused_by_content_whatever_it_is_called(tmp_path):
    if not (test := DATA / "stsb_test.tsv").is_file():
        pytest.skip("needs STS-B")
    header, *rows = test.read_text(encoding="utf-8").splitlines()
    names = header.split("\t")
    cells = [dict(zip(names, row.split("\t"), strict=True)) for row in rows]
    lines = [f"{row['sentence2'].upper()}\t{row['sentence1']}\t{row['score']}" for row in cells[::-1]]
    path = tmp_path / "my_dev.tsv"
    path.write_text("\n".join(["text1\ttext2\tsimilarity", *lines]) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="STS-B test"):
        read_dev_pairs(str(path))
    path.write_text("\n".join(["text1\ttext2\tsimilarity", *lines[:100]]) + "\n", encoding="utf-8")
    assert len(read_dev_pairs(str(path))) == 100
    assert known_test_set(read_pair_set(DATA / "stsb_dev.tsv")) is None


ROWS = list(zip(TEXTS[:30], TEXTS[30:60], strict=True))


@pytest.mark.parametrize(
    ("columns", "rows", "name"),
    [
        ("text1,text2,label", [(*pair, i % 2) for i, pair in enumerate(ROWS)], "dev_average_precision"),
        ("anchor,positive,negative", [(a, a, b) for a, b in ROWS], "dev_triplet_accuracy"),
    ],
)
def test_labels_and_triplets_choose_checkpoints_too(tmp_path, tokenizer, teacher, columns, rows, name):
    path = tmp_path / "dev.jsonl"
    lines = [json.dumps(dict(zip(columns.split(","), row, strict=True))) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    selector = pair_selector(read_dev_pairs(str(path)), tokenizer)
    score = selector.score(StudentEncoder(teacher.model, tokenizer, torch.device("cpu"), nullcontext))
    assert list(score) == [name] == [selector.name]
    assert name in SCORES
    if columns.startswith("anchor"):  # each is its own positive
        assert score[name] == 1.0


def test_a_development_file_is_read_before_the_cache_is_opened(tmp_path):
    (tmp_path / "dev.csv").write_text("a,b,c\nx,y,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="cannot tell which columns"):
        distill.run(cache=tmp_path / "nowhere", dev=tmp_path / "dev.csv")


def test_columns_of_a_development_file_can_be_named(built_cache, tmp_path):
    rows = [f"{TEXTS[i]}\t{TEXTS[-i - 1]}\t{i % 6}\t{'train' if i % 3 else 'dev'}" for i in range(60)]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(["left\tright\tcloseness\tpart", *rows]) + "\n", encoding="utf-8")
    columns = {"dev_text": "left", "dev_text2": "right", "dev_label": "closeness"}
    run = small_run(built_cache, tmp_path / "run", dev=path, dev_rows=["part=dev"], **columns)
    assert list(run.scores) == ["dev_spearman"]
    with pytest.raises(ConfigError, match="all three"):
        small_run(built_cache, tmp_path / "other", dev=path, dev_text="left")
