"""The sts suite: reading its files, scoring them, and the report beside the teacher."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console
from scipy.stats import pearsonr, spearmanr

from distill.cli.evaluate import evaluate_command
from distill.errors import DataError
from distill.evaluation import SUITES, EvaluatedModel, evaluate
from distill.evaluation import model as model_module
from distill.evaluation.sts import STS_SETS, load_sts, read_pairs, score_sts
from embedcache.contract import Contract
from embedcache.errors import TeacherError

HEADER = "subset\tscore\tsentence1\tsentence2\n"


def letters(text: str) -> np.ndarray:
    """A vector that can be worked out by hand: how often each letter occurs."""
    return np.array([1 + text.lower().count(chr(97 + i)) for i in range(26)], dtype=np.float32)


class Recorder:
    """An encoder of letter counts, or of noise, that remembers what it was given."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise
        self.seen: list[str] = []

    def __call__(self, texts) -> np.ndarray:
        self.seen.extend(texts)
        vectors = np.stack([letters(text) for text in texts])
        rng = np.random.default_rng(0)
        return vectors + self.noise * rng.standard_normal(vectors.shape).astype(np.float32)


def contract(pooling: str = "mean") -> Contract:
    return Contract(
        "w", "t", "a", pooling, modules="", prompt="", max_length=64, normalize=False, dimension=26
    )


def model(name="student", encoder=None, dimension=26, **keys) -> EvaluatedModel:
    return EvaluatedModel(name, 1000, 4.0, dimension, encoder or Recorder(), **keys)


def write(folder: Path, name: str, rows: str) -> Path:
    path = folder / f"{name}.tsv"
    path.write_text(HEADER + rows, encoding="utf-8", newline="")
    return path


PAIRS = (
    "news\t5.0\ta red apple\ta red apple!\n"
    "news\t3.0\ta red apple\ta green pear\n"
    "news\t0.0\tzzz qqq\ta green pear\n"
    "video\t4.0\ta dog runs\ta dog ran\n"
    "video\t1.0\ta dog runs\tthe sky\n"
    "video\t2.5\tmen sing\tmen shout\n"
)

FIRST = {"a red apple", "a red fruit", "a dog runs", "zzz qqq", "men sing"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path, "sts12_test", PAIRS)
    write(tmp_path, "stsb_test", PAIRS.replace("apple", "fruit"))
    return tmp_path


class TestLoad:
    def test_reads_pairs_in_file_order(self, data):
        sts = load_sts(data, "sts12")
        assert sts is not None
        assert sts.scores == (5.0, 3.0, 0.0, 4.0, 1.0, 2.5)
        assert sts.subsets == ("news",) * 3 + ("video",) * 3
        assert (sts.left[3], sts.right[3]) == ("a dog runs", "a dog ran")

    def test_a_set_whose_file_is_missing_is_none(self, data):
        assert load_sts(data, "sts15") is None

    def test_gzip_reads_the_same(self, data):
        plain = load_sts(data, "sts12")
        path = data / "sts12_test.tsv"
        (data / "sts12_test.tsv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
        assert load_sts(data, "sts12") == plain

    def test_only_the_test_subset_of_sick_is_scored(self, tmp_path):
        write(tmp_path, "sick", "train\t5\ta\tb\ntest\t1\tc\td\ntrial\t2\te\tf\ntest\t4\tg\th\n")
        sts = load_sts(tmp_path, "sickr")
        assert sts is not None
        assert sts.left == ("c", "g")
        assert not sts.skipped

    def test_columns_are_found_by_name_not_by_place(self, tmp_path):
        (tmp_path / "sts13_test.tsv").write_text(
            "sid\tsentence2\tsentence1\tscore\tsubset\n7\tright\tleft\t2\ts\n", encoding="utf-8"
        )
        sts = load_sts(tmp_path, "sts13")
        assert sts is not None
        assert (sts.left, sts.right, sts.scores, sts.subsets) == (("left",), ("right",), (2.0,), ("s",))

    def test_quotes_are_text_and_crlf_and_byte_order_mark_are_not(self, tmp_path):
        body = (HEADER + 's\t1\tHe said "no\tyes"\ns\t2\tone\u2028line\ttwo\n').replace("\n", "\r\n")
        (tmp_path / "sts13_test.tsv").write_bytes(b"\xef\xbb\xbf" + body.encode())
        sts = load_sts(tmp_path, "sts13")
        assert sts is not None
        assert sts.left == ('He said "no', "one\u2028line")
        assert sts.right == ('yes"', "two")

    def test_unusable_rows_are_skipped_and_counted_by_reason(self, tmp_path):
        write(
            tmp_path,
            "sts14_test",
            "s\t1\ta\tb\ns\t\ta\tb\ns\tnan\ta\tb\ns\thigh\ta\tb\n"
            "s\tinf\ta\tb\ns\t2\t \tb\ns\t2\ta\ns\t3\tc\td\n",
        )
        sts = load_sts(tmp_path, "sts14")
        assert sts is not None
        assert sts.scores == (1.0, 3.0)
        assert sts.skipped == {
            "no score": 2,
            "score is not a number": 1,
            "score is not finite": 1,
            "empty sentence": 1,
            "wrong number of columns": 1,
        }

    def test_a_missing_column_names_found_and_expected(self, tmp_path):
        (tmp_path / "stsb_test.tsv").write_text("subset\tgold\tsentence1\tsentence2\n", encoding="utf-8")
        with pytest.raises(DataError, match=r"columns subset, gold.*score not found, expected subset, score"):
            load_sts(tmp_path, "stsb")

    @pytest.mark.parametrize(
        ("stem", "name", "body"),
        [
            ("stsb_test", "stsb", ""),
            ("stsb_test", "stsb", "s\t\ta\tb\n"),
            ("sick", "sickr", "train\t5\ta\tb\n"),
        ],
        ids=["header only", "no score anywhere", "no test row"],
    )
    def test_a_file_without_a_scored_pair_is_refused(self, tmp_path, stem, name, body):
        write(tmp_path, stem, body)
        with pytest.raises(DataError, match="no scored pair"):
            load_sts(tmp_path, name)

    def test_a_truncated_gzip_file_is_refused(self, tmp_path):
        whole = gzip.compress((HEADER + PAIRS).encode())
        (tmp_path / "stsb_test.tsv.gz").write_bytes(whole[:-9])
        with pytest.raises(DataError, match="not a whole gzip file"):
            load_sts(tmp_path, "stsb")

    def test_invalid_utf8_names_the_line(self, tmp_path):
        (tmp_path / "stsb_test.tsv").write_bytes((HEADER + "s\t1\ta\tb\ns\t1\t").encode() + b"\xff\tb\n")
        with pytest.raises(DataError, match="line 3 is not UTF-8"):
            load_sts(tmp_path, "stsb")

    def test_an_unknown_set_and_a_missing_file_are_refused(self, tmp_path):
        with pytest.raises(DataError, match="'sts99'"):
            load_sts(tmp_path, "sts99")
        with pytest.raises(DataError, match=r"dev\.tsv cannot be read"):
            read_pairs(tmp_path / "dev.tsv", "dev")


class TestScore:
    def score(self, data: Path, left: np.ndarray, right: np.ndarray):
        sts = load_sts(data, "sts12")
        assert sts is not None
        return score_sts(sts, left, right)

    def test_equals_scipy_over_all_pairs_at_once(self, data):
        rng = np.random.default_rng(3)
        left, right = rng.standard_normal((2, 6, 8)).astype(np.float32)
        cosines = [
            float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in zip(left, right, strict=True)
        ]
        gold = [5.0, 3.0, 0.0, 4.0, 1.0, 2.5]
        score = self.score(data, left, right)
        assert score.value == pytest.approx(100 * spearmanr(gold, cosines).statistic)
        assert score.others["pearson"] == pytest.approx(100 * pearsonr(gold, cosines).statistic, abs=1e-4)
        halves = [100 * spearmanr(gold[s], cosines[s]).statistic for s in (slice(3), slice(3, 6))]
        assert score.others["spearman_mean_of_subsets"] == pytest.approx(np.mean(halves))
        assert score.items == 6

    def test_all_and_mean_of_subsets_differ_where_subsets_have_different_levels(self, tmp_path):
        write(tmp_path, "sts12_test", "a\t1\tx\ty\na\t2\tx\ty\nb\t1\tx\ty\nb\t2\tx\ty\n")
        angles = np.array([0.1, 0.0, 1.1, 1.0])
        left = np.tile(np.array([1.0, 0.0], dtype=np.float32), (4, 1))
        right = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        score = self.score(tmp_path, left, right)
        assert score.others["spearman_mean_of_subsets"] == pytest.approx(100)
        assert score.value < 50

    def test_a_subset_of_one_pair_has_no_mean(self, tmp_path):
        write(tmp_path, "sts12_test", "a\t1\tx\ty\na\t2\tx\ty\nb\t3\tx\ty\n")
        rng = np.random.default_rng(6)
        left, right = rng.standard_normal((2, 3, 4)).astype(np.float32)
        assert self.score(tmp_path, left, right).others["spearman_mean_of_subsets"] is None

    def test_a_collapsed_model_is_named(self, data):
        rng = np.random.default_rng(7)
        same = np.ones((6, 4), dtype=np.float32)
        noisy = same + 1e-7 * rng.standard_normal((6, 4)).astype(np.float32)
        with pytest.raises(DataError, match="collapsed to one vector"):
            self.score(data, same, noisy)

    def test_equal_scores_cannot_be_ranked(self, tmp_path):
        write(tmp_path, "sts12_test", "a\t1\tx\ty\na\t1\tx\ty\n")
        vectors = np.eye(2, dtype=np.float32)
        with pytest.raises(DataError, match="scores are all equal"):
            self.score(tmp_path, vectors, vectors)


class TestEvaluate:
    def test_each_distinct_sentence_is_encoded_once_for_the_whole_suite(self, data):
        encoder = Recorder()
        evaluate(model(encoder=encoder), data=data)
        assert len(encoder.seen) == len(set(encoder.seen))
        assert {"a red apple", "a red fruit", "a dog ran"} <= set(encoder.seen)

    def test_missing_sets_are_named_and_the_average_says_over_how_many(self, data):
        result = evaluate(model(), data=data)
        report = result.to_json()
        scores = report["models"][0]
        assert list(scores["sets"]) == ["sts12", "stsb"]
        assert (scores["sets_scored"], scores["sets_of"]) == (2, 7)
        assert scores["average"] == pytest.approx(
            (scores["sets"]["sts12"]["score"] + scores["sets"]["stsb"]["score"]) / 2, abs=1e-3
        )
        assert report["missing"] == ["sts13", "sts14", "sts15", "sts16", "sickr"]
        note = next(note for note in result.notes if "2 of 7" in note)
        assert all(STS_SETS[name].label in note for name in report["missing"])
        assert STS_SETS["stsb"].label not in note

    def test_skipped_rows_reach_the_notes(self, data):
        write(data, "sts12_test", PAIRS + "news\t\ta\tb\n")
        result = evaluate(model(), data=data)
        assert result.to_json()["models"][0]["sets"]["sts12"]["skipped"] == 1
        assert any("STS12: 1 rows skipped (no score 1)" in note for note in result.notes)

    def test_repeated_pairs_are_told_and_count(self, data):
        write(data, "sts12_test", PAIRS + "news\t4.0\ta red apple\ta red apple!\n")
        result = evaluate(model(), data=data)
        assert result.to_json()["models"][0]["sets"]["sts12"]["items"] == 7
        assert "STS12: pairs that occur before in the file, each counts: 1 (1 the same)" in result.notes

    def test_pairs_that_are_repeated_in_another_way_are_told_by_kind_and_change_no_figure(self, data):
        before = evaluate(model(), data=data).to_json()["models"][0]["sets"]["sts12"]
        rows = (
            "news\t4.0\ta red apple\ta red apple!\n"  # the same
            "news\t4.0\tA red  apple\ta RED apple!\n"
            "news\t4.0\ta red apple!\ta red apple\n"  # the sides swapped
            "news\t4.0\ta Red apple!\t a red apple\n"  # ... in other capitals: as the one before
            "news\t4.0\ta red apple\ta red pear!\n"  # another pair
            "news\t4.0\tsame same\tsame same\n"  # its own mirror image, but there once only
        )
        write(data, "sts12_test", PAIRS + rows)
        result = evaluate(model(), data=data)
        after = result.to_json()["models"][0]["sets"]["sts12"]
        assert after["items"] == before["items"] + 6
        (note,) = [note for note in result.notes if "occur before" in note]
        assert note == (
            "STS12: pairs that occur before in the file, each counts: 4 (1 the same, 2 in other capitals or "
            "blanks, 1 with the sides swapped)"
        )

    @pytest.mark.parametrize("kind", ["a broken link", "a folder"])
    def test_what_is_no_file_is_refused_and_not_passed_over(self, data, kind):
        place = data / "sts13_test.tsv"
        place.unlink(missing_ok=True)
        if kind == "a folder":
            place.mkdir()
        else:
            place.symlink_to(data / "gone.tsv")
        with pytest.raises(DataError, match=r"sts13_test\.tsv cannot be read"):
            evaluate(model(), data=data)

    def test_retention_is_per_cent_of_the_teacher(self, data):
        result = evaluate(model(encoder=Recorder(noise=0.8)), data=data, teacher=model("teacher"))
        teacher, student = result.to_json()["models"]
        assert (teacher["role"], student["role"]) == ("teacher", "model")
        assert teacher["retention"] == 100
        assert student["average"] != teacher["average"]
        assert student["retention"] == pytest.approx(100 * student["average"] / teacher["average"], abs=0.01)

    def test_without_a_teacher_there_is_no_retention(self, data):
        assert evaluate(model(), data=data).to_json()["models"][0]["retention"] is None

    def test_a_teacher_worse_than_chance_gives_no_retention_and_says_so(self, data):
        def backwards(texts):
            # Alike sentences get opposite directions: the order of the cosines is turned round.
            return np.stack([letters(text) * (-1) ** (text in FIRST) for text in texts])

        result = evaluate(model(), data=data, teacher=model("teacher", backwards))
        assert result.to_json()["models"][0]["average"] < 0
        assert result.to_json()["models"][1]["retention"] is None
        assert any("not above zero" in note for note in result.notes)

    def test_a_teacher_that_is_also_a_model_is_encoded_once(self, data):
        encoder = Recorder()
        teacher = model("teacher", encoder)
        result = evaluate([teacher, model()], data=data, teacher=teacher)
        assert [report.name for report in result.models] == ["teacher", "student"]
        assert len(encoder.seen) == len(set(encoder.seen))

    def test_a_result_is_looked_up_by_name(self, data):
        result = evaluate(model("mine"), data=data)
        assert result["mine"].parameters == 1000
        with pytest.raises(KeyError, match="mine"):
            result["other"]

    @pytest.mark.parametrize(("value", "fault"), [(0.0, "zero vector"), (np.nan, "NaN")])
    def test_unusable_vectors_name_the_sentence(self, data, value, fault):
        def broken(texts):
            vectors = np.ones((len(texts), 26), dtype=np.float32)
            vectors[[i for i, text in enumerate(texts) if text == "the sky"]] = value
            return vectors

        with pytest.raises(DataError, match=f"{fault}.*'the sky'"):
            evaluate(model(encoder=broken), data=data)

    def test_an_encoder_of_another_width_is_refused(self, data):
        with pytest.raises(DataError, match="26"):
            evaluate(model(dimension=27), data=data)

    def test_a_folder_without_any_set_names_what_was_looked_for(self, tmp_path):
        with pytest.raises(DataError, match=r"sts12_test\.tsv.*sick\.tsv"):
            evaluate(model(), data=tmp_path)

    @pytest.mark.parametrize("keys", [{}, {"data": "nowhere"}], ids=["none given", "not there"])
    def test_data_that_is_not_there_is_refused(self, keys):
        with pytest.raises(DataError, match="--data"):
            evaluate(model(), **keys)

    @pytest.mark.parametrize("keys", [{"limit": 3}, {"text_column": "x"}, {"cache": "c"}])
    def test_settings_of_another_suite_are_refused_not_ignored(self, data, keys):
        with pytest.raises(DataError, match="leave out"):
            evaluate(model(), data=data, **keys)

    def test_unknown_suite_and_no_model_are_refused(self, data):
        with pytest.raises(DataError, match=r"'stss'.*sts, .*fidelity"):
            evaluate(model(), suite="stss", data=data)
        with pytest.raises(TypeError, match=r"no option of an evaluation is called dta; there are data, "):
            evaluate(model(), dta=data)
        with pytest.raises(DataError, match="no model"):
            evaluate([], data=data)


class TestRuns:
    """Run folders: the teacher is read from the run's record; loading is stubbed, no weights are needed."""

    @pytest.fixture
    def run(self, tmp_path, monkeypatch) -> Path:
        run = tmp_path / "runs" / "first"
        (run / "best").mkdir(parents=True)
        record = {"teacher": {"name": "big", "spec": "org/big", "contract_id": contract().id}}
        (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
        self.loaded: list[str] = []

        def load(folder, name, device, compute_dtype, wanted):
            self.loaded.append(str(folder))
            if str(folder) == "org/big":
                if self.teacher_contract is None:
                    raise TeacherError("cannot get org/big: no network")
                return model("big", contract=self.teacher_contract)
            return model(name or "folder", Recorder(noise=0.8))

        self.teacher_contract: Contract | None = contract()
        monkeypatch.setattr(model_module, "_load_torch", load)
        return run

    @pytest.mark.parametrize("tail", ["", "best"])
    def test_run_and_its_best_folder_mean_the_same(self, run, data, tail):
        result = evaluate(run / tail, data=data)
        assert self.loaded == ["org/big", str(run / "best")]
        assert [report.name for report in result.models] == ["big", "first"]
        assert result.to_json()["models"][1]["retention"] is not None

    def test_a_teacher_that_changed_since_costs_the_retention_only(self, run, data):
        self.teacher_contract = contract(pooling="cls")
        result = evaluate(run, data=data)
        assert [report.name for report in result.models] == ["first"]
        assert result.to_json()["models"][0]["retention"] is None
        assert any(
            contract().id[:12] in note and self.teacher_contract.id[:12] in note for note in result.notes
        )

    def test_a_teacher_that_is_gone_costs_the_retention_only(self, run, data):
        self.teacher_contract = None
        result = evaluate(run, data=data)
        assert [report.name for report in result.models] == ["first"]
        assert any("no retention" in note and "cannot get org/big" in note for note in result.notes)

    def test_a_teacher_that_was_asked_for_must_load(self, run, data):
        self.teacher_contract = None
        with pytest.raises(TeacherError, match="cannot get org/big"):
            evaluate(run, data=data, teacher="org/big")

    def test_runs_of_different_teachers_are_not_compared_with_one_of_them(self, run, data):
        other = run.parent / "second"
        (other / "best").mkdir(parents=True)
        (other / "run.json").write_text(json.dumps({"teacher": {"name": "small"}}), encoding="utf-8")
        result = evaluate([run, other], data=data)
        assert [report.role for report in result.models] == ["model", "model"]
        assert any("different teachers" in note for note in result.notes)

    def test_equal_names_are_told_apart_by_what_was_typed(self, run, data):
        twin = run.parent.parent / "others" / "first"
        (twin / "best").mkdir(parents=True)
        (twin / "run.json").write_text("{}", encoding="utf-8")
        names = [report.name for report in evaluate([run, twin], data=data).models]
        assert names == ["big", "first", str(twin)]

    def test_an_unfinished_run_is_refused(self, run, data):
        (run / "best").rmdir()
        with pytest.raises(DataError, match=r"no best/ folder.*no checkpoint was written yet"):
            evaluate(run, data=data, teacher=model("t"))
        (run / "checkpoint.safetensors").touch()
        with pytest.raises(DataError, match=r"go on with it by 'distill run --resume .*first'"):
            evaluate(run, data=data, teacher=model("t"))
        (run / "run.json").write_text('{"kind": "teach"}', encoding="utf-8")
        with pytest.raises(DataError, match=r"go on with it by 'distill teach --resume .*first'"):
            evaluate(run, data=data, teacher=model("t"))

    def test_a_damaged_record_is_refused(self, run, data):
        (run / "run.json").write_text("{", encoding="utf-8")
        with pytest.raises(DataError, match=r"run\.json cannot be read as JSON"):
            evaluate(run, data=data)


class TestRendering:
    def test_the_table_shows_every_set_at_two_decimals(self, data):
        result = evaluate([model("one"), model("two", Recorder(noise=0.8))], data=data, teacher=model("t"))
        console = Console(width=160, record=True, file=io.StringIO())
        console.print(result.table())
        text = console.export_text()
        for report in result.to_json()["models"]:
            assert report["name"] in text
            assert f"{report['sets']['stsb']['score']:.2f}" in text
            assert f"{report['retention']:.2f} %" in text
        assert "average of 2/7" in text
        assert "not found: STS13" in text

    def test_json_on_standard_output_is_the_result(self, data, monkeypatch, tmp_path):
        monkeypatch.setattr(model_module, "_load_torch", lambda *_: model("stub"))
        out = tmp_path / "scores.json"
        arguments = ["org/some-model", "--data", str(data), "--json", "--out", str(out)]
        finished = CliRunner().invoke(evaluate_command, arguments, catch_exceptions=False)
        assert finished.exit_code == 0
        printed = json.loads(finished.stdout)
        assert printed == json.loads(out.read_text(encoding="utf-8"))
        assert printed["suite"] == "sts"
        assert printed["models"][0]["name"] == "stub"

    def test_the_command_prints_the_table(self, data, monkeypatch):
        monkeypatch.setattr(model_module, "_load_torch", lambda *_: model("stub"))
        finished = CliRunner().invoke(
            evaluate_command, ["org/m", "--data", str(data)], catch_exceptions=False
        )
        assert finished.exit_code == 0
        assert "STS12" in finished.stdout
        assert "note: average over 2 of 7 sets" in finished.stdout

    def test_suite_choices_come_from_the_registry(self):
        text = CliRunner().invoke(evaluate_command, ["--help"]).stdout
        assert f"[{'|'.join([*SUITES, 'all'])}]" in "".join(text.split())
        refused = CliRunner().invoke(evaluate_command, ["m", "--suite", "nonsense"])
        assert refused.exit_code == 2
