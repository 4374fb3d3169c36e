"""Tasks of MTEB as suites, on tasks whose data lies in a local file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from distill.errors import DataError, MissingExtraError
from distill.evaluation.task import SuiteOptions, get_suite


@pytest.fixture(scope="module", autouse=True)
def mteb() -> Any:
    """The library, which takes seconds to import; without it there is nothing to test."""
    return pytest.importorskip("mteb")


TASKS = """
import csv
from pathlib import Path

from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskRetrieval, AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata

FOLDER = Path(__file__).parent


def metadata(name, kind, main_score):
    return TaskMetadata(
        name=name, description="A task of a local file.", dataset={"path": "local", "revision": "1"},
        type=kind, category="t2t", modalities=["text"], eval_splits=["test"], eval_langs=["eng-Latn"],
        main_score=main_score, reference=None, date=None, domains=None, task_subtypes=None, license=None,
        annotations_creators=None, dialect=None, sample_creation=None, bibtex_citation="",
    )


def rows(name):
    with (FOLDER / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\\t"))


class Pairs(AbsTaskSTS):
    metadata = metadata("LocalPairs", "STS", "cosine_spearman")

    def load_data(self, **_):
        found = [{**row, "score": float(row["score"])} for row in rows("pairs.tsv")]
        self.dataset = DatasetDict(test=Dataset.from_list(found))
        self.data_loaded = True


class Gone(Pairs):
    metadata = metadata("Gone", "STS", "cosine_spearman")

    def load_data(self, **_):
        rows("gone.tsv")


class Search(AbsTaskRetrieval):
    metadata = metadata("LocalSearch", "Retrieval", "ndcg_at_10")

    def load_data(self, **_):
        found = rows("pairs.tsv")
        queries = [{"id": f"q{n}", "text": row["sentence1"]} for n, row in enumerate(found)]
        corpus = [{"id": f"d{n}", "text": row["sentence1"]} for n, row in enumerate(found)]
        self.dataset = {
            "default": {
                "test": {
                    "queries": Dataset.from_list(queries),
                    "corpus": Dataset.from_list(corpus),
                    "relevant_docs": {f"q{n}": {f"d{n}": 1} for n in range(len(found))},
                    "top_ranked": None,
                }
            }
        }
        self.data_loaded = True
"""


def encode(sentences: list[str]) -> NDArray[np.float32]:
    """Counts of letters."""
    return np.array([[1 + text.count(one) for one in "abcdefghij"] for text in sentences], np.float32)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdefghij "), 20)).strip() for _ in range(80)]
    pairs = zip(range(40), texts[:40], texts[40:], strict=True)
    lines = ["score\tsentence1\tsentence2", *("\t".join(map(str, pair)) for pair in pairs)]
    (folder / "pairs.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "local_tasks.py").write_text(TASKS, encoding="utf-8")
    return folder


def score(tasks: Path, name: str):
    suite = get_suite(f"mteb:{tasks / 'local_tasks.py'}:{name}")
    return suite, suite.run(encode, tasks, SuiteOptions())


def test_the_figure_is_the_main_score_of_the_task(tasks):
    suite, result = score(tasks, "Pairs")
    assert (suite.name, suite.version()) == ("mteb:LocalPairs", None)
    rows = [line.split("\t") for line in (tasks / "pairs.tsv").read_text().splitlines()[1:]]
    left, right = (encode([row[column] for row in rows]) for column in (1, 2))
    cosines = (left * right).sum(axis=1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    expected = 100 * spearmanr([float(row[0]) for row in rows], cosines).statistic
    (figure,) = result.figures.values()
    assert (list(result.figures), figure.measure) == (["LocalPairs"], "cosine_spearman")
    assert figure.value == pytest.approx(expected, abs=1e-3)
    assert result.average == figure.value
    assert "cosine_pearson" in figure.others
    assert result.settings["task"] == "LocalPairs"


def test_a_search_is_scored_too(tasks):
    (figure,) = score(tasks, "Search")[1].figures.values()
    assert figure.measure == "ndcg_at_10"
    assert 95 <= figure.value <= 100.001


def test_a_task_of_mteb_is_found_by_name():
    suite = get_suite("mteb:STSBenchmark")
    assert suite.name == "mteb:STSBenchmark"
    # Results are kept by the revision of the data; those of a local file have none and are not kept.
    assert suite.version()
    with pytest.raises(DataError, match="STSBenchmark"):
        get_suite("mteb:STSBenchmrk")


def test_data_that_cannot_be_loaded_is_one_error(tasks):
    with pytest.raises(DataError, match="mteb:Gone"):
        score(tasks, "Gone")


def test_without_the_extra_the_install_line_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mteb", None)
    with pytest.raises(MissingExtraError, match=r"embedcache-distill\[mteb\]"):
        get_suite("mteb:STSBenchmark")
