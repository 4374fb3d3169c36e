"""Pairs and triplets of one's own: any table, its usual columns, and figures against the libraries."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from suite_helpers import Counted, model, vectors_of

import distill
from distill.cli.main import cli
from distill.errors import DataError
from distill.evaluation import evaluate_suites, stats
from distill.evaluation.own_pairs import SCORES, SIDES, pairs_suite, read_pair_set, read_pair_sets
from distill.evaluation.pairs import measure
from distill.evaluation.runner import evaluate
from distill.evaluation.task import SuiteOptions
from distill.report.compare import compare
from distill.vectors import unit_rows
from embedcache.corpus.sources import MemoryRows
from embedcache.errors import InputError

COUNT = 40
A, B = [f"first {i}" for i in range(COUNT)], [f"second {i}" for i in range(COUNT)]
GOLD = [round(float(value), 3) for value in np.random.default_rng(0).uniform(0, 5, COUNT)]


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("home")))


def table(names: tuple[str, ...], *columns: list[Any]) -> pa.Table:
    return pa.table(dict(zip(names, columns, strict=True)))


def write(path: Path, rows: pa.Table) -> Path:
    """Write a table in the format of the path's ending."""
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        pq.write_table(rows, path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()), encoding="utf-8")
    else:
        mark = {".csv": ",", ".tsv": "\t"}[path.suffix]
        cells = [rows.column_names, *(map(str, row.values()) for row in rows.to_pylist())]
        path.write_text("".join(mark.join(row) + "\n" for row in cells), encoding="utf-8")
    return path


def cosines(left: list[str], right: list[str]) -> np.ndarray:
    a, b = (unit_rows(vectors_of(side, salt="model")) for side in (left, right))
    return (a * b).sum(axis=1)


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl", "parquet"])
def test_scores_of_every_format_give_spearman_and_pearson_with_their_intervals(
    tmp_path: Path, ending: str
) -> None:
    path = write(tmp_path / f"faq.{ending}", table(("text1", "text2", "similarity"), A, B, GOLD))
    found = evaluate(model(), pairs=path)
    figure = found["model"].figures["faq"]
    assert found.suite == "pairs"
    assert figure.measure == "spearman"
    assert figure.value == pytest.approx(100 * spearmanr(GOLD, cosines(A, B)).statistic)
    assert figure.others["pearson"] == pytest.approx(100 * pearsonr(GOLD, cosines(A, B)).statistic)
    for value, interval in (
        (figure.value, figure.interval),
        (figure.others["pearson"], figure.other_intervals["pearson"]),
    ):
        assert interval is not None
        assert interval[0] < value < interval[1]


def test_labels_give_average_precision_best_f1_and_auc(tmp_path: Path) -> None:
    labels = [i % 3 == 0 for i in range(COUNT)]
    path = write(tmp_path / "dup.jsonl", table(("question1", "question2", "is_duplicate"), A, B, labels))
    figure = evaluate(model(), pairs=path)["model"].figures["dup"]
    near = cosines(A, B)
    assert figure.measure == "average precision"
    assert figure.value == pytest.approx(100 * average_precision_score(labels, near))
    assert figure.others["auc"] == pytest.approx(100 * roc_auc_score(labels, near))
    assert figure.others["best_f1"] == pytest.approx(100 * max(f1_score(labels, near >= t) for t in near))
    assert figure.interval is not None
    assert figure.interval[0] < figure.value < figure.interval[1]


def test_triplets_give_the_share_whose_positive_is_nearer(tmp_path: Path) -> None:
    far = [f"third {i}" for i in range(COUNT)]
    path = write(tmp_path / "t.csv", table(("anchor", "positive", "negative"), A, B, far))
    figure = evaluate(model(), pairs=path)["model"].figures["t"]
    assert figure.measure == "accuracy"
    assert figure.value == pytest.approx(100 * np.mean(cosines(A, B) > cosines(A, far)))
    # As near is not nearer.
    assert measure("triplets", np.ones(3), np.zeros(3)) == 0.0


def test_figures_of_drawn_items_are_those_of_the_libraries() -> None:
    rng = np.random.default_rng(1)
    labels, near = rng.integers(0, 2, COUNT).astype(float), rng.normal(size=COUNT).round(1)
    gold = np.array(GOLD)
    counts = rng.multinomial(COUNT, np.full(COUNT, 1 / COUNT), size=5).T.astype(float)
    for draw in range(5):
        drawn = np.repeat(np.arange(COUNT), counts[:, draw].astype(int))
        for ranking, right, library in (
            ("average precision", labels, average_precision_score),
            ("pearson", gold, lambda a, b: pearsonr(a, b).statistic),
            ("spearman", gold, lambda a, b: spearmanr(a, b).statistic),
        ):
            found = stats.RANKINGS[ranking](right, near)(counts)[draw]
            assert found == pytest.approx(100 * library(right[drawn], near[drawn])), ranking


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("score", SCORES)
def test_columns_are_found_by_their_usual_names_in_any_case_and_order(sides, score) -> None:
    for names in ((*sides, score), tuple(name.upper() for name in (*sides, score))):
        rows = table(("id", names[2], names[1], names[0]), list(range(COUNT)), GOLD, B, A)
        own = read_pair_set(MemoryRows(rows.to_reader))
        assert own.texts == (A, B)
        assert own.gold.tolist() == GOLD


def test_columns_are_named_and_the_subset_is_optional() -> None:
    rows = table(("l", "r", "s", "subset"), A, B, GOLD, [f"of {i % 2}" for i in range(COUNT)])
    own = read_pair_set(MemoryRows(rows.to_reader), ["l", "r", "s"])
    assert own.subsets[:2] == ("of 0", "of 1")
    figure = pairs_suite([own]).run(Counted(), Path(), SuiteOptions()).figures["pairs"]
    assert "spearman_mean_of_subsets" in figure.others
    with pytest.raises(InputError, match=r"cannot tell.*l, r, s, subset"):
        read_pair_set(MemoryRows(rows.to_reader))
    both = table(("text1", "text2", "sentence1", "sentence2", "score"), A, B, A, B, GOLD)
    with pytest.raises(InputError, match="cannot tell"):
        read_pair_set(MemoryRows(both.to_reader))


def test_rows_that_cannot_be_used_are_counted_and_words_for_labels_are_no_negatives() -> None:
    rows = [{"text1": a, "text2": b, "score": s} for a, b, s in zip(A, B, GOLD, strict=True)]
    rows += [{"text1": "", "text2": "b", "score": 1}, {"text1": "a", "text2": None, "score": 1}]
    rows += [{"text1": "a", "text2": "b", "score": "high"}, {"text1": "a", "text2": "b", "score": None}]
    (own,) = read_pair_sets(rows)
    assert len(own) == COUNT
    assert own.skipped.total() == 4
    for words, outcome in ((("yes", "no"), "labels"), (("high", "low"), "score")):
        rows = [
            {"text1": a, "text2": b, "label": words[n % 2]} for n, (a, b) in enumerate(zip(A, B, strict=True))
        ]
        if outcome == "labels":
            assert read_pair_sets(rows)[0].kind == "labels"
        else:
            with pytest.raises(DataError, match=r"'(high|low)'"):
                read_pair_sets(rows)
    with pytest.raises(DataError, match="equal"):
        read_pair_sets([{"text1": a, "text2": b, "score": 1} for a, b in zip(A, B, strict=True)])


@pytest.mark.parametrize("third", ["score", "label", "s"])
def test_decimal_commas_are_no_negatives_and_decimals_are_numbers(third: str) -> None:
    cells = [f"{score:.3f}".replace(".", ",") for score in GOLD]
    rows = [{"text1": a, "text2": b, third: s} for a, b, s in zip(A, B, cells, strict=True)]
    with pytest.raises(DataError, match=cells[0]):
        read_pair_sets(rows, columns=f"text1, text2,{third}")
    numbers = pa.array([Decimal(f"{score:.3f}") for score in GOLD])
    (own,) = read_pair_sets(pa.table({"text1": A, "text2": B, "score": numbers}))
    assert own.gold.tolist() == [float(f"{score:.3f}") for score in GOLD]


def test_columns_are_of_the_files_that_have_them_and_tables_in_memory_have_names(tmp_path: Path) -> None:
    named = write(tmp_path / "named.csv", table(("l", "r", "s"), A, B, GOLD))
    usual = write(tmp_path / "usual.csv", table(("anchor", "positive", "negative"), A, B, B[::-1]))
    with pytest.raises(InputError, match="'t'"):  # a word of three is mistyped
        read_pair_sets([named, usual], columns=["l", "r", "t"])
    with pytest.raises(InputError, match="'l'"):
        read_pair_sets(usual, columns=["l", "r", "s"])
    sets = read_pair_sets([named, usual], columns=["l", "r", "s"])
    assert [(own.name, own.kind) for own in sets] == [("named", "scores"), ("usual", "triplets")]
    rows = [{"text1": a, "text2": b, "score": s} for a, b, s in zip(A, B, GOLD, strict=True)]
    (own,) = read_pair_sets({"faq": rows})
    assert own.name == "faq"
    others = {"l": A, "r": B, "s": GOLD}
    sets = read_pair_sets({"faq": rows, "more": pa.table(others)}, columns=["l", "r", "s"])
    assert [own.name for own in sets] == ["faq", "more"]
    with pytest.raises(DataError, match="need names"):
        read_pair_sets([pa.table({"x": [1]}), pa.table({"x": [1]})])


def test_two_models_are_compared_on_a_table_in_memory() -> None:
    rows = [{"text1": a, "text2": b, "score": s} for a, b, s in zip(A, B, GOLD, strict=True)]
    found = distill.compare(model(salt="one"), model(salt="two"), pairs={"faq": rows})
    assert "faq" in repr(found)
    assert found.to_frame()["items"].tolist() == [COUNT]
    assert "<table>" in found._repr_html_()


def test_files_stand_in_one_table_beside_each_other_and_other_suites(tmp_path: Path) -> None:
    one = write(tmp_path / "one.tsv", table(("sentence1", "sentence2", "score"), A, B, GOLD))
    two = write(tmp_path / "two.csv", table(("text1", "text2", "label"), A, B, [i % 2 for i in range(COUNT)]))
    data = tmp_path / "data"
    data.mkdir()
    write(data / "stsb_test.tsv", table(("subset", "score", "sentence1", "sentence2"), A, GOLD, A, B))
    sts, own = evaluate_suites(model(), ["sts"], data=data, pairs=[one, two])
    assert (sts.suite, own.suite) == ("sts", "pairs")
    assert list(own["model"].figures) == ["one", "two"]
    compared = compare(model("x"), model("y", salt="y"), [], pairs=[one, two])
    assert [row.label for row in compared.suites["pairs"]] == ["one", "two", "average"]
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(DataError, match="called 'one'"):
        evaluate(
            model(), pairs=[one, write(other / "one.csv", table(("text1", "text2", "score"), A, B, GOLD))]
        )


def test_an_evaluation_on_own_pairs_is_kept_and_used_while_the_file_is_the_same(tmp_path: Path) -> None:
    from test_evaluation import run

    rows = table(("sentence1", "sentence2", "score"), A, B, GOLD)
    path = write(tmp_path / "mine.tsv", rows)
    first = run(tmp_path / "run")
    found = evaluate(first, pairs=path, keep=True)
    again = run(tmp_path / "run")
    assert evaluate(again, pairs=path, keep=True).models == found.models
    assert again.encoded == 0
    write(path, rows.slice(1))
    changed = run(tmp_path / "run")
    assert evaluate(changed, pairs=path, keep=True).models != found.models


def test_the_command_takes_files_and_columns_and_says_what_is_wrong_before_a_model_is_loaded(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "mine.csv", table(("l", "r", "s"), A, B, GOLD))
    run = CliRunner().invoke
    result = run(cli, ["eval", str(tmp_path / "no-model"), "--pairs", str(path)])
    assert "cannot tell which columns" in str(result.exception)
    assert "columns=A,B,SCORE" in str(result.exception)
    result = run(cli, ["eval", str(tmp_path / "no-model"), "--columns", "l,r,s"])
    assert "give pairs" in str(result.exception)
    result = run(cli, ["eval", str(tmp_path / "no-model"), "--pairs", str(path), "--columns", "l,r,s"])
    assert "no-model" in str(result.exception)


def test_scores_at_leading_dimensions_and_in_fewer_bits_are_of_vectors_encoded_once(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.tsv", table(("sentence1", "sentence2", "score"), A, B, GOLD))
    whole = model()
    found = evaluate(whole, pairs=path, dims=[2, 4])
    assert whole.encoded == 2 * COUNT
    forms = ["", " int8", " binary"]
    names = [facts.name for facts, _ in found.models]
    assert names == [f"model{cut}{form}" for cut in ("", "@2", "@4") for form in forms]
    assert [facts.dimension for facts, _ in found.models] == [8, 8, 8, 2, 2, 2, 4, 4, 4]
    left, right = (vectors_of(side, salt="model") for side in (A, B))
    expected = {
        "model@4": (unit_rows(left[:, :4]) * unit_rows(right[:, :4])).sum(axis=1),
        "model binary": ((left > 0) == (right > 0)).sum(axis=1),
    }
    for name, near in expected.items():
        assert found[name].average == pytest.approx(100 * spearmanr(GOLD, near).statistic)
    assert found["model int8"].average == pytest.approx(found["model"].average, abs=3)
    for dims, word in (([8], "8"), ([0], "at least 1")):
        with pytest.raises(DataError, match=word):
            evaluate(model(), pairs=path, dims=dims)
