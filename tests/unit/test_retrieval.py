"""The retrieval suite: judged sets and groups of captions, and what is left out of them."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import letters_model, model_of, read_task, score_task, write_rows

from distill.errors import DataError
from distill.evaluation import evaluate, evaluate_suites
from distill.evaluation.tasks import NothingToScoreError, NotThereError

VECTORS = {
    "ask east": [1.0, 0.0],
    "ask north": [0.0, 1.0],
    "east": [1.0, 0.1],
    "east by north": [1.0, 0.5],
    "north": [0.1, 1.0],
    "west": [-1.0, 0.0],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_rows(tmp_path, "sky_queries", "query_id | text", "q1 | ask east", "q2 | ask north")
    write_rows(
        tmp_path, "sky_corpus", "doc_id | text", "d1 | west", "d2 | east", "d3 | north", "d4 | east by north"
    )
    # q1 finds one of its two at rank 1 and one at rank 4; q2 finds its only one at rank 2.
    write_rows(
        tmp_path, "sky_qrels", "query_id | doc_id | score", "q1 | d2 | 1", "q1 | d1 | 1", "q2 | d4 | 1"
    )
    return tmp_path


def test_figures_of_a_case_worked_out_by_hand(data):
    score = score_task(read_task("retrieval", data), model_of(VECTORS)).sets["sky"]
    assert (score.measure, score.items, score.skipped) == ("ndcg@10", 2, 0)
    second = 1 / np.log2(3)
    expected = [(1 + 1 / np.log2(5)) / (1 + second), second]
    assert score.value == pytest.approx(100 * np.mean(expected))
    assert score.outcomes.values == pytest.approx(expected)
    assert score.others == pytest.approx(
        {
            "recall@1": 100 * np.mean([0.5, 0]),
            "recall@5": 100,
            "recall@10": 100,
            "success@1": 50,
            "mrr": 100 * np.mean([1, 0.5]),
        }
    )


def test_the_suite_runs_beside_a_teacher(data):
    result = evaluate(model_of(VECTORS), suite="retrieval", data=data, teacher=letters_model("teacher"))
    assert [report.name for report in result.models] == ["teacher", "student"]
    assert result["student"].retention is not None
    assert result.to_json()["sets"] == {"sky": {"queries": 2, "documents": 4}}
    assert any("2 queries, 4 documents" in note for note in result.notes)


def test_a_judgement_of_zero_is_not_relevant_and_not_a_fault(data):
    write_rows(data, "sky_qrels", "query_id | doc_id | score", "q1 | d2 | 2", "q1 | d3 | 0", "q2 | d3 | 1")
    score = score_task(read_task("retrieval", data), model_of(VECTORS)).sets["sky"]
    assert (score.value, score.skipped) == (pytest.approx(100), 0)


def test_what_cannot_be_used_is_left_out_and_counted_by_reason(data):
    write_rows(
        data,
        "sky_queries",
        "query_id | text",
        *("q1 | ask east", "q2 | ask north", "q2 | other", "q3 |  ", "q4 | lost", "q5 | never judged"),
    )
    write_rows(
        data,
        "sky_corpus",
        "doc_id | text",
        *("d1 | west", "d2 | east", "d2 | east again", "d3 | north", "d9 | "),
    )
    write_rows(
        data,
        "sky_qrels",
        "query_id | doc_id | score",
        *("q1 | d2 | 1", "q1 | d2 | 1", "q1 | d7 | 1", "q2 | d3 | nan", "q2 | d3 | much", "q2 | d3 | 1"),
        *("q4 | d8 | 1", "q9 | d1 | 1", "q2 | d1"),
    )
    task = read_task("retrieval", data)
    (one,) = task.sets
    assert one.queries == ["ask east", "ask north"]
    assert one.documents == ["west", "east", "north"]
    assert one.skipped == {
        "repeated id of a query": 1,
        "empty query": 1,
        "query without a relevant document": 1,
        "query whose relevant documents are all absent": 1,
        "relevant document that is absent": 1,
        "repeated id of a document": 1,
        "empty document": 1,
        "repeated judgement": 1,
        "no score": 1,
        "score is not a number": 1,
        "judgement of a query that is absent": 1,
        "wrong number of columns": 1,
    }
    assert any("sky: 12 rows skipped" in note and "empty query 1" in note for note in task.notes)
    assert score_task(task, model_of(VECTORS)).sets["sky"].skipped == 12


def test_documents_with_the_same_text_are_told_and_tied(data):
    write_rows(data, "sky_corpus", "doc_id | text", "d1 | west", "d2 | east", "d3 | east", "d4 | north")
    write_rows(data, "sky_qrels", "query_id | doc_id | score", "q1 | d2 | 1")
    task = read_task("retrieval", data)
    assert any("1 documents with the text of an earlier one" in note for note in task.notes)
    assert score_task(task, model_of(VECTORS)).sets["sky"].others["success@1"] == pytest.approx(50)


class TestOwnIds:
    """A document that has the id of a query."""

    def read(self, folder: Path, *judgements: str):
        # What is nearest to the second query stands for that query itself.
        rows = ("d1 | west", "d2 | east", "q2 | north", "d4 | east by north")
        write_rows(folder, "sky_corpus", "doc_id | text", *rows)
        write_rows(folder, "sky_qrels", "query_id | doc_id | score", *judgements)
        return read_task("retrieval", folder)

    def test_it_is_not_ranked_for_that_query_but_for_all_others(self, data):
        task = self.read(data, "q1 | q2 | 1", "q2 | d4 | 1")
        assert "sky: 1 queries have a document of their own id: not ranked for them" in task.notes
        assert task.sets[0].left_out == {1: 2}
        # q1 finds it in the third place; q2 finds what it seeks in the first.
        score = score_task(task, model_of(VECTORS)).sets["sky"]
        assert score.others["mrr"] == pytest.approx(100 * np.mean([1 / 3, 1]))
        assert score.skipped == 0

    def test_a_judgement_of_zero_does_not_bring_it_back(self, data):
        task = self.read(data, "q1 | q2 | 1", "q2 | d4 | 1", "q2 | q2 | 0")
        score = score_task(task, model_of(VECTORS)).sets["sky"]
        assert score.others["mrr"] == pytest.approx(100 * np.mean([1 / 3, 1]))

    def test_one_that_is_relevant_is_another_text_and_stays(self, data):
        task = self.read(data, "q1 | d2 | 1", "q2 | q2 | 1")
        assert "sky: 1 queries have a document of their own id that is relevant: ranked" in task.notes
        assert task.sets[0].left_out == {}
        assert score_task(task, model_of(VECTORS)).sets["sky"].value == pytest.approx(100)

    def test_of_a_query_that_is_left_out_nothing_is_told(self, data):
        task = self.read(data, "q1 | d2 | 1")
        assert task.sets[0].left_out == {}
        assert not any("own id" in note for note in task.notes)


@pytest.mark.parametrize("part", ["corpus", "queries", "qrels"])
def test_a_part_that_is_not_there_is_named(data, part):
    (data / f"sky_{part}.tsv").unlink()
    with pytest.raises(DataError, match=rf"but not sky_{part}\.tsv,"):
        read_task("retrieval", data)


def test_a_missing_column_names_found_and_expected(data):
    write_rows(data, "sky_qrels", "query | doc_id | score", "q1 | d2 | 1")
    with pytest.raises(DataError, match=r"has the columns query, doc_id, score; query_id not found"):
        read_task("retrieval", data)


def test_a_set_in_which_nothing_is_relevant_is_refused(data):
    write_rows(data, "sky_qrels", "query_id | doc_id | score", "q1 | d2 | 0")
    with pytest.raises(DataError, match=r"no query with a relevant document .*ids belong together"):
        read_task("retrieval", data)


def test_a_folder_without_sets_is_not_there(tmp_path):
    with pytest.raises(NotThereError, match=r"NAME_corpus\.tsv.*NAME_captionsN\.tsv"):
        read_task("retrieval", tmp_path)


class TestCaptions:
    HEADER = "split | image_index | caption1 | caption2 | caption3"

    def read(self, folder: Path, *rows: str):
        write_rows(folder, "pictures_captions3", self.HEADER, *rows)
        return read_task("retrieval", folder)

    def test_the_first_caption_asks_for_the_others_of_its_image(self, tmp_path):
        task = self.read(
            tmp_path,
            "train | 0 | not | of | interest",
            "test_2016 | 0 | ask east | east | west",
            "test_2016 | 1 | ask north | north | east by north",
        )
        (one,) = task.sets
        assert one.queries == ["ask east", "ask north"]
        assert one.documents == ["east", "west", "north", "east by north"]
        assert "train" not in task.texts()
        score = score_task(task, model_of(VECTORS)).sets["pictures_captions3"]
        # "ask east" ranks: east, east by north, north, west. "ask north": north, east by north, east, west.
        assert score.others["recall@1"] == pytest.approx(50)
        assert score.others["mrr"] == pytest.approx(100)
        assert score.outcomes.values == pytest.approx([(1 + 1 / np.log2(5)) / (1 + 1 / np.log2(3)), 1])
        assert any("of split test_2016" in note for note in task.notes)

    def test_empty_captions_and_repeated_images_are_counted(self, tmp_path):
        task = self.read(
            tmp_path,
            "test | 0 | ask east | east | ",
            "test | 0 | ask east | west | west",
            "test | 1 |  | north | west",
            "test | 2 | ask north |  | ",
        )
        (one,) = task.sets
        assert (one.queries, one.documents) == (["ask east"], ["east"])
        assert one.skipped == {
            "empty caption": 3,
            "repeated image": 1,
            "image without a first caption": 1,
            "query without a relevant document": 1,
        }

    def test_the_number_of_captions_is_in_the_name(self, tmp_path):
        path = write_rows(tmp_path, "pictures_captions4", self.HEADER, "test | 0 | a | b | c")
        with pytest.raises(DataError, match="caption4 not found"):
            read_task("retrieval", tmp_path)
        path.rename(tmp_path / "pictures_captions1.tsv")
        with pytest.raises(DataError, match="at least two captions"):
            read_task("retrieval", tmp_path)

    def test_a_file_without_a_test_split_is_refused_as_one_with_nothing_to_score(self, tmp_path):
        with pytest.raises(NothingToScoreError, match="no row of a test split in 1 rows"):
            self.read(tmp_path, "train | 0 | a | b | c")

    @pytest.mark.parametrize("rows", [[], ["train | 0 | a | b | c", "te"]], ids=["no rows", "half a row"])
    def test_where_a_test_split_may_have_been_lost_it_is_damaged(self, tmp_path, rows):
        with pytest.raises(
            DataError, match=r"pictures_captions3\.tsv holds no row of a test split"
        ) as refused:
            self.read(tmp_path, *rows)
        assert not isinstance(refused.value, NotThereError)

    def test_sets_beside_it_are_scored_and_the_notes_name_it(self, tmp_path):
        write_rows(tmp_path, "pictures_captions3", self.HEADER, "train | 0 | a | b | c")
        write_rows(tmp_path, "others_captions3", self.HEADER, "test | 0 | a | b | c", "test | 1 | d | e | f")
        task = read_task("retrieval", tmp_path)
        assert [one.name for one in task.sets] == ["others_captions3"]
        assert any("not scored" in note and "pictures_captions3" in note for note in task.notes)

    def test_all_suites_go_on_without_it_and_say_why(self, tmp_path):
        write_rows(tmp_path, "pictures_captions3", self.HEADER, "train | 0 | a | b | c")
        pairs = ("x | 1 | a cat | a dog", "x | 5 | a cat | a cat!")
        write_rows(tmp_path, "sts12_test", "subset | score | sentence1 | sentence2", *pairs)
        results = evaluate_suites(letters_model(), data=tmp_path, bootstrap=0)
        assert [result.suite for result in results] == ["sts"]
        (note,) = [note for note in results[0].notes if "left out" in note]
        assert "retrieval (" in note
        assert "pictures_captions3.tsv holds no row of a test split" in note
        with pytest.raises(DataError, match=r"pictures_captions3\.tsv"):
            evaluate_suites(letters_model(), suites=["sts", "retrieval"], data=tmp_path, bootstrap=0)

    def test_a_damaged_file_beside_it_stops_all_suites(self, tmp_path):
        write_rows(tmp_path, "a_captions3", self.HEADER, "train | 0 | a | b | c")
        (tmp_path / "b_captions3.tsv.gz").write_bytes(b"\x1f\x8bhalf")
        pairs = ("x | 1 | a cat | a dog", "x | 5 | a cat | a cat!")
        write_rows(tmp_path, "sts12_test", "subset | score | sentence1 | sentence2", *pairs)
        with pytest.raises(DataError, match=r"b_captions3\.tsv\.gz is not a whole gzip file"):
            evaluate_suites(letters_model(), data=tmp_path, bootstrap=0)

    def test_gzip_reads_the_same(self, tmp_path):
        plain = self.read(tmp_path, "test | 0 | ask east | east | west").texts()
        path = tmp_path / "pictures_captions3.tsv"
        path.with_suffix(".tsv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        assert read_task("retrieval", tmp_path).texts() == plain
