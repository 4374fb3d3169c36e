"""The fidelity suite: its measures, its sentences, and where the teacher's vectors come from."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from distill.errors import DataError
from distill.evaluation import EvaluatedModel, evaluate, fidelity
from distill.evaluation.fidelity import score_fidelity
from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.errors import ContractMismatchError, InputError
from embedcache.keys import key_array
from embedcache.store.base import VectorBatch
from embedcache.testing import sentences


def random_vectors(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def vector(text: str, width: int = 8) -> np.ndarray:
    """A direction that depends on the text alone."""
    return np.random.default_rng(list(text.encode())).standard_normal(width).astype(np.float32)


class Encoder:
    """Text -> its own direction, plus noise; remembers what it was given."""

    def __init__(self, width: int = 8, noise: float = 0.0) -> None:
        self.width, self.noise = width, noise
        self.seen: Counter[str] = Counter()

    def __call__(self, texts) -> np.ndarray:
        self.seen.update(texts)
        own = np.stack([vector(text, self.width) for text in texts])
        return own + self.noise * np.stack([vector(text + "#", self.width) for text in texts])


def model(name: str, encoder: Encoder) -> EvaluatedModel:
    return EvaluatedModel(name, 10, 1.0, encoder.width, encoder)


def contract(pooling: str = "mean") -> Contract:
    return Contract(
        "w", "t", "a", pooling, modules="", prompt="", max_length=64, normalize=False, dimension=8
    )


def build_cache(folder: Path, texts, noise: float = 0.0) -> Path:
    """A cache that holds the vectors of ``texts`` under the name ``teacher``."""
    cache = Cache.create(folder)
    cache.register_teacher("teacher", contract(), {})
    rows = len(texts)
    if rows:
        batch = VectorBatch(
            key_array(texts), Encoder(noise=noise)(texts), np.ones(rows, np.int32), np.zeros(rows, np.bool_)
        )
        cache.store(contract(), "float32").put(batch)
    return folder


SENTENCES = [f"Sentence number {i} says something." for i in range(30)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return path


class TestMeasures:
    def test_the_teacher_itself_scores_full(self):
        teacher = random_vectors(50, 8)
        scores = score_fidelity(teacher, teacher)
        assert scores.cosine_mean == pytest.approx(1)
        assert scores.cosine_worst == pytest.approx(1)
        assert scores.similarity_spearman == pytest.approx(100)
        assert scores.neighbour_overlap == pytest.approx(100)

    def test_a_rotation_keeps_the_geometry_but_not_the_vectors(self):
        teacher = random_vectors(50, 8)
        rotation = np.linalg.qr(random_vectors(8, 8, seed=1))[0]
        scores = score_fidelity(teacher @ rotation, teacher)
        assert scores.similarity_spearman == pytest.approx(100, abs=0.01)
        assert scores.neighbour_overlap == pytest.approx(100)
        assert scores.cosine_mean is not None
        assert scores.cosine_mean < 0.5

    def test_unrelated_vectors_score_near_nothing(self):
        scores = score_fidelity(random_vectors(200, 16, seed=1), random_vectors(200, 16, seed=2))
        assert abs(scores.similarity_spearman) < 5
        assert scores.neighbour_overlap < 15
        assert scores.cosine_mean == pytest.approx(0, abs=0.1)

    def test_equals_a_plain_reference(self):
        student, teacher = random_vectors(40, 6, seed=1), random_vectors(40, 6, seed=2)
        student = teacher + 0.7 * student

        def cosine(a, b):
            return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

        own = [cosine(s, t) for s, t in zip(student, teacher, strict=True)]
        pairs = [(i, j) for i in range(40) for j in range(i + 1, 40)]
        similar = [[cosine(v[i], v[j]) for i, j in pairs] for v in (student, teacher)]
        common = 0
        for i in range(40):
            others = [j for j in range(40) if j != i]
            nearest = [
                set(sorted(others, key=lambda j: -cosine(v[i], v[j]))[:10]) for v in (student, teacher)
            ]
            common += len(nearest[0] & nearest[1])
        scores = score_fidelity(student, teacher)
        assert scores.cosine_mean == pytest.approx(np.mean(own), abs=1e-5)
        assert scores.cosine_p05 == pytest.approx(np.percentile(own, 5), abs=1e-5)
        assert scores.cosine_worst == pytest.approx(min(own), abs=1e-5)
        assert scores.similarity_spearman == pytest.approx(100 * spearmanr(*similar).statistic, abs=1e-3)
        assert scores.neighbour_overlap == pytest.approx(100 * common / 400)

    def test_other_widths_have_a_geometry_but_no_cosine(self):
        teacher = random_vectors(50, 8)
        student = np.hstack([teacher, np.zeros((50, 2), dtype=np.float32)])
        scores = score_fidelity(student, teacher)
        assert scores.cosine_mean is None
        assert scores.to_json()["cosine"] is None
        assert scores.similarity_spearman == pytest.approx(100, abs=0.01)

    def test_few_sentences_do_not_agree_by_necessity(self):
        scores = score_fidelity(random_vectors(8, 16, seed=1), random_vectors(8, 16, seed=2))
        assert scores.neighbour_overlap < 100

    def test_the_sample_is_chosen_by_seed(self, monkeypatch):
        monkeypatch.setattr(fidelity, "SAMPLE", 20)
        student, teacher = random_vectors(60, 6, seed=1), random_vectors(60, 6, seed=2)
        first, again, other = (score_fidelity(student, teacher, seed=s) for s in (0, 0, 1))
        assert first == again
        assert first.similarity_spearman != other.similarity_spearman
        assert first.cosine_mean == other.cosine_mean

    def test_a_collapsed_student_is_named(self):
        with pytest.raises(DataError, match="student's vectors are equal"):
            score_fidelity(np.ones((20, 4), dtype=np.float32), random_vectors(20, 4))

    @pytest.mark.parametrize(("student", "teacher"), [(2, 2), (5, 6)])
    def test_too_few_or_unequal_rows_are_refused(self, student, teacher):
        with pytest.raises(DataError, match="expected as many of each"):
            score_fidelity(random_vectors(student, 4), random_vectors(teacher, 4))


class TestSuite:
    def test_reports_each_model_on_the_sentences_of_a_file(self, data):
        near, far = model("near", Encoder(noise=0.1)), model("far", Encoder(noise=2.0))
        result = evaluate([near, far], suite="fidelity", data=data, teacher=model("teacher", Encoder()))
        report = result.to_json()
        assert report["sentences"] == 30
        assert (report["teacher_vectors_cached"], report["teacher_vectors_encoded"]) == (0, 30)
        assert [(m["name"], m["role"]) for m in report["models"]] == [
            ("teacher", "teacher"),
            ("near", "model"),
            ("far", "model"),
        ]
        assert report["models"][1]["cosine"]["mean"] > 0.98 > report["models"][2]["cosine"]["mean"]
        worst, p05, mean = (report["models"][2]["cosine"][key] for key in ("worst", "p05", "mean"))
        assert worst < p05 < mean

    def test_rows_are_matched_by_sentence_whatever_order_a_model_works_in(self, tmp_path):
        path = tmp_path / "uneven.txt"
        path.write_text("\n".join("word " * (7 * i % 11 + 1) + str(i) for i in range(11)), encoding="utf-8")
        teacher = model("teacher", Encoder())
        result = evaluate(model("same", Encoder()), suite="fidelity", data=path, teacher=teacher)
        assert result["same"].to_json()["cosine"]["worst"] == pytest.approx(1)

    def test_the_teacher_stands_beside_the_models_with_its_size_and_speed(self, data):
        encoder = Encoder()
        teacher = EvaluatedModel("big", 1000, 4.0, 8, encoder)
        row = evaluate(model("m", Encoder(noise=1)), suite="fidelity", data=data, teacher=teacher)["big"]
        report = row.to_json()
        assert (report["role"], report["parameters"], report["megabytes"]) == ("teacher", 1000, 4.0)
        assert report["cosine"] == {"mean": 1, "p05": 1, "worst": 1}
        assert (report["similarity_spearman"], report["neighbour_overlap"]) == (100, 100)
        assert report["sentences_per_second"] > 0
        # What had to be encoded anyway is what is timed.
        assert encoder.seen == Counter(SENTENCES)

    def test_a_teacher_among_the_models_has_one_row(self, data):
        teacher = model("big", Encoder())
        result = evaluate(
            [model("m", Encoder(noise=1)), teacher], suite="fidelity", data=data, teacher=teacher
        )
        assert [report.name for report in result.models] == ["big", "m"]

    def test_other_widths_are_noted(self, data):
        student = model("wide", Encoder(width=12))
        result = evaluate(student, suite="fidelity", data=data, teacher=model("teacher", Encoder()))
        assert result["wide"].to_json()["cosine"] is None
        assert any("wide: no cosine" in note and "12" in note for note in result.notes)

    def test_repeated_and_empty_rows_are_counted(self, tmp_path):
        path = tmp_path / "s.txt"
        path.write_text("\n".join([*SENTENCES, "", SENTENCES[0]]), encoding="utf-8")
        result = evaluate(model("m", Encoder()), suite="fidelity", data=path, teacher=model("t", Encoder()))
        assert result.to_json()["sentences"] == 30
        assert result.to_json()["duplicates"] == 1
        assert any("1 empty" in note for note in result.notes)

    @pytest.mark.parametrize(("count", "few"), [(8, True), (99, True), (100, False)])
    def test_figures_of_few_sentences_come_with_a_warning(self, tmp_path, count, few):
        path = tmp_path / "s.txt"
        path.write_text("\n".join(f"sentence {number}" for number in range(count)), encoding="utf-8")
        result = evaluate(model("m", Encoder()), suite="fidelity", data=path, teacher=model("t", Encoder()))
        warning = f"{count} sentences are few: another draw of as many would give other figures"
        assert any(warning in note for note in result.notes) == few

    def test_limit_and_text_column_are_obeyed(self, tmp_path):
        path = tmp_path / "s.tsv"
        path.write_text("a\tb\n" + "".join(f"{s}\tother\n" for s in SENTENCES), encoding="utf-8")
        encoder = Encoder()
        teacher = model("t", Encoder())
        evaluate(model("m", encoder), suite="fidelity", data=path, teacher=teacher, text_column="a", limit=12)
        assert encoder.seen == Counter(SENTENCES[:12])

    def test_without_a_teacher_it_is_refused(self, data):
        with pytest.raises(DataError, match="--teacher"):
            evaluate(model("m", Encoder()), suite="fidelity", data=data)

    def test_without_sentences_it_is_refused(self):
        with pytest.raises(DataError, match="--data FILE"):
            evaluate(model("m", Encoder()), suite="fidelity", teacher=model("t", Encoder()))

    def test_a_folder_and_two_sentences_are_refused(self, tmp_path):
        student, teacher = model("m", Encoder()), model("t", Encoder())
        with pytest.raises(DataError, match="is a folder"):
            evaluate(student, suite="fidelity", data=tmp_path, teacher=teacher)
        (tmp_path / "two.txt").write_text("one\ntwo\n", encoding="utf-8")
        with pytest.raises(DataError, match="2 distinct sentences"):
            evaluate(student, suite="fidelity", data=tmp_path / "two.txt", teacher=teacher)


class TestCache:
    def evaluate(self, data, encoder, cache, own_contract=None):
        teacher = EvaluatedModel("teacher", 10, 1.0, encoder.width, encoder, own_contract)
        student = model("m", Encoder(noise=0.1))
        return evaluate(student, suite="fidelity", data=data, teacher=teacher, cache=cache).to_json()

    def test_a_full_cache_needs_no_teacher(self, data, tmp_path):
        teacher = Encoder()
        report = self.evaluate(data, teacher, build_cache(tmp_path / "cache", SENTENCES))
        assert not teacher.seen
        # It has no contract, so nothing says that it is the one whose vectors are compared.
        assert [(m["role"], m["parameters"]) for m in report["models"]] == [("teacher", None), ("model", 10)]
        assert any("size is not known" in note for note in report["notes"])
        assert (report["teacher_vectors_cached"], report["teacher_vectors_encoded"]) == (30, 0)

    def test_it_is_the_cached_vectors_that_are_compared(self, data, tmp_path):
        exact = self.evaluate(data, Encoder(), build_cache(tmp_path / "exact", SENTENCES))
        noisy = self.evaluate(data, Encoder(), build_cache(tmp_path / "noisy", SENTENCES, noise=1.0))
        assert noisy["models"][1]["cosine"]["mean"] < 0.9 < exact["models"][1]["cosine"]["mean"]

    @pytest.mark.parametrize("held", [SENTENCES, SENTENCES[:1]], ids=len)
    def test_a_speed_is_told_only_where_the_teacher_encoded_everything(self, data, tmp_path, held):
        cache = build_cache(tmp_path / "cache", held)
        assert self.evaluate(data, Encoder(), cache, contract())["models"][0]["sentences_per_second"] is None
        assert self.evaluate(data, Encoder(), None)["models"][0]["sentences_per_second"] > 0

    @pytest.mark.parametrize("held", [[], SENTENCES[:1], SENTENCES[::3], SENTENCES[:29]], ids=len)
    def test_only_missing_vectors_are_taken_from_the_teacher(self, data, tmp_path, held):
        uncached = self.evaluate(data, Encoder(), None)
        teacher = Encoder()
        report = self.evaluate(data, teacher, build_cache(tmp_path / "cache", held), contract())
        assert teacher.seen == Counter(set(SENTENCES) - set(held))
        assert report["teacher_vectors_cached"] == len(held)
        assert report["models"][1]["cosine"] == uncached["models"][1]["cosine"]
        assert report["models"][1]["cosine"]["mean"] < 1

    def test_vectors_of_another_contract_are_never_mixed_in(self, data, tmp_path):
        cache = build_cache(tmp_path / "cache", SENTENCES[:10])
        with pytest.raises(ContractMismatchError, match="pooling 'mean' -> 'cls'"):
            self.evaluate(data, Encoder(), cache, contract(pooling="cls"))
        with pytest.raises(ContractMismatchError, match="has none"):
            self.evaluate(data, Encoder(), cache)

    def test_a_teacher_that_the_cache_lacks_is_refused(self, data, tmp_path):
        cache = build_cache(tmp_path / "cache", SENTENCES)
        with pytest.raises(InputError, match="no teacher 'other'"):
            evaluate(model("m", Encoder()), suite="fidelity", data=data, teacher="other", cache=cache)

    @pytest.mark.parametrize(
        ("spec", "name"),
        [("org/teacher@v1", "teacher"), ("org/teacher", "teacher"), ("teacher", "teacher")],
    )
    def test_the_name_in_the_cache_follows_from_the_spec(self, data, tmp_path, spec, name):
        cache = build_cache(tmp_path / "cache", SENTENCES)
        report = evaluate(
            model("m", Encoder()), suite="fidelity", data=data, teacher=spec, cache=cache
        ).to_json()
        assert report["teacher"] == name
        assert report["teacher_vectors_cached"] == 30


class TestHeldOut:
    def make_run(self, folder: Path, sentences) -> Path:
        (folder / "best").mkdir(parents=True)
        (folder / "run.json").write_text("{}", encoding="utf-8")
        lines = "".join(json.dumps(sentence) + "\n" for sentence in sentences)
        (folder / "held_out.txt").write_text(lines, encoding="utf-8")
        return folder

    @pytest.fixture
    def loaded(self, monkeypatch) -> Encoder:
        encoder = Encoder(noise=0.1)
        monkeypatch.setattr("distill.evaluation.model._load_torch", lambda *_: model("student", encoder))
        return encoder

    def test_a_run_is_evaluated_on_what_it_held_out(self, tmp_path, loaded):
        odd = [*SENTENCES, "one\nbroken line", 'a "quote"']
        run = self.make_run(tmp_path / "run", odd)
        result = evaluate(run, suite="fidelity", teacher=model("t", Encoder()))
        assert loaded.seen == Counter(odd)
        assert result.to_json()["data"] == str((run / "held_out.txt").resolve())

    def test_the_cache_is_asked_for_the_contract_the_run_names(self, tmp_path, loaded):
        run = self.make_run(tmp_path / "run", SENTENCES)
        cache = build_cache(tmp_path / "cache", SENTENCES)
        record = {"teacher": {"name": "old name", "spec": "gone", "contract_id": contract().id}}
        (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
        report = evaluate(run, suite="fidelity", cache=cache).to_json()
        assert report["teacher_vectors_cached"] == 30
        record["teacher"]["contract_id"] = contract(pooling="cls").id
        record["teacher"]["name"] = "teacher"
        (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
        with pytest.raises(InputError, match="no teacher"):
            evaluate(run, suite="fidelity", cache=cache)

    def test_the_cache_the_run_names_is_used_where_none_is_given(self, tmp_path, loaded):
        run = self.make_run(tmp_path / "run", SENTENCES)
        cache = build_cache(tmp_path / "cache", SENTENCES)
        teacher = {"name": "teacher", "spec": "gone", "contract_id": contract().id}
        record = {"teacher": teacher, "cache": str(cache)}
        (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
        assert evaluate(run, suite="fidelity").to_json()["teacher_vectors_cached"] == 30
        record["cache"] = str(tmp_path / "gone")
        (run / "run.json").write_text(json.dumps(record), encoding="utf-8")
        with pytest.raises(DataError, match="distilled from"):
            evaluate(run, suite="fidelity")

    def test_given_data_wins(self, tmp_path, loaded, data):
        run = self.make_run(tmp_path / "run", ["never", "seen", "here"])
        evaluate(run, suite="fidelity", data=data, teacher=model("t", Encoder()))
        assert loaded.seen == Counter(SENTENCES)

    def test_vectors_before_a_head_that_was_dropped_have_no_cosine(self, tmp_path, loaded):
        run = self.make_run(tmp_path / "run", SENTENCES)
        for alike in (True, False):
            (run / "run.json").write_text(json.dumps({"in_target_space": alike}), encoding="utf-8")
            result = evaluate(run, suite="fidelity", teacher=model("t", Encoder()))
            scores = result.models[-1].scores
            assert (scores.cosine_mean is not None) is (scores.cosine_worst is not None) is alike
            assert scores.summary()["cosine"] != "-" or not alike
            assert scores.similarity_spearman > 50
            assert any("behind a head" in note for note in result.notes) is not alike

    def test_runs_are_compared_on_what_all_of_them_held_out(self, tmp_path, loaded):
        common = sentences(12, seed=5)
        runs = [
            self.make_run(tmp_path / "a", [*common, "only here"]),
            self.make_run(tmp_path / "b", ["only there", *reversed(common), "nor this"]),
        ]
        result = evaluate(runs, suite="fidelity", teacher=model("t", Encoder()))
        assert result.facts["sentences"] == 12
        assert loaded.seen == Counter(common * 2)
        assert any("the 12 sentences that all runs held out (a 13, b 14)" in note for note in result.notes)

    def test_runs_that_held_out_too_few_of_the_same_need_data(self, tmp_path, loaded):
        texts = sentences(12, seed=5)
        runs = [self.make_run(tmp_path / "a", texts), self.make_run(tmp_path / "b", texts[3:])]
        with pytest.raises(DataError, match=r"held out different sentences, 9 in common.*give --data"):
            evaluate(runs, suite="fidelity", teacher=model("t", Encoder()))

    @pytest.mark.parametrize("content", ["plain text\n", "1\n2\n3\n"])
    def test_a_damaged_file_is_refused(self, tmp_path, loaded, content):
        run = self.make_run(tmp_path / "run", SENTENCES)
        (run / "held_out.txt").write_text(content, encoding="utf-8")
        with pytest.raises(DataError, match=r"held_out\.txt"):
            evaluate(run, suite="fidelity", teacher=model("t", Encoder()))

    def test_a_run_without_held_out_rows_needs_data(self, tmp_path, loaded):
        run = self.make_run(tmp_path / "run", SENTENCES)
        (run / "held_out.txt").unlink()
        with pytest.raises(DataError, match="held no sentences out"):
            evaluate(run, suite="fidelity", teacher=model("t", Encoder()))
