"""Evaluations of several models: encoding, stored results, comparison with the teacher, and notes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import flat_build
import numpy as np
import pytest
from click.testing import CliRunner
from distill_helpers import TEXTS, small_run
from embedding_server import embedding_server
from suite_helpers import Counted, model, vectors_of, write_pairs, write_tsv

import embedcache
from distill.cli.main import cli
from distill.errors import DataError
from distill.evaluation import cache, evaluate, evaluate_suites
from distill.evaluation.model_kinds import open_model
from distill.evaluation.models import Model, saved_parameters, weight_bytes
from distill.evaluation.result import Evaluation, Figure, ModelFacts, Outcomes, SuiteResult
from distill.evaluation.task import PAIRS, get_suite, suites
from distill.evaluation.teachers import with_cache
from distill.layout import HELD_OUT
from distill.record import CorpusRecord, RunRecord, TeacherRecord, read_record
from embedcache.errors import ContractMismatchError

pytest_plugins = ["distill_fixtures"]


@pytest.fixture(autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_pairs(folder / "stsb_test.tsv")
    write_pairs(folder / "sts12_test.tsv", 30)
    return folder


def run(folder: Path, weights: str = "w") -> Model:
    """Return the student of a run in memory."""
    folder.mkdir(exist_ok=True)
    found = model(folder.name)
    found.run, found.identity = folder, lambda: weights
    return found


def teacher(identity: str | None = "contract t") -> Model:
    found = model("teacher", 6)
    found.identity = lambda: identity
    return found


def test_students_stand_beside_their_teacher_with_retention_and_intervals(data: Path) -> None:
    found = evaluate([model("a", salt="3"), model("b")], data=data, teacher=Model("t", Counted(6, "3")))
    assert [(facts.name, facts.role) for facts, _ in found.models] == [
        ("t", "teacher"),
        ("a", "student"),
        ("b", "student"),
    ]
    for figure in found["a"].figures.values():
        assert figure.interval is not None
        assert figure.interval[0] <= figure.value <= figure.interval[1]


def evaluation() -> Evaluation:
    rng = np.random.default_rng(0)
    figures = {
        "b": Figure(50.0, "accuracy", None, 7, outcomes=Outcomes(rng.random(9), rng.random(9), "digest")),
        "a": Figure(200 / 3, "spearman", (1.5, 99.0), 9, {"pearson": 1 / 3}, label="A", skipped=2),
    }
    whole = SuiteResult(figures, settings={"seed": 0}, missing=("C",), notes=("two rows skipped",))
    own = SuiteResult({name: Figure(25.0, "x") for name in figures}, average_interval=(20.0, 30.0))
    return Evaluation(
        "sts",
        (
            (ModelFacts("t", "teacher", 10, 1.5, 4), whole),
            (ModelFacts("s", run="/runs/s", seed="0+1"), own),
        ),
        teacher="t",
        notes=("a note",),
        retention_intervals={"s": (40.0, 45.5)},
    )


def test_an_evaluation_survives_its_file_with_every_bit_of_its_outcomes(tmp_path: Path) -> None:
    before = evaluation()
    cache.write_kept(tmp_path, cache.Kept({"data": "d"}, before))
    kept = cache.read_kept(tmp_path, "sts")
    assert kept is not None
    assert kept.evaluation == before
    assert list(kept.evaluation["t"].figures) == ["b", "a"]
    one, other = (found["t"].figures["b"].outcomes for found in (before, kept.evaluation))
    assert np.array_equal(one.values, other.values)
    assert np.array_equal(one.gold, other.gold)
    assert one.texts == other.texts


def test_retention_is_the_share_of_the_teachers_average_with_its_interval() -> None:
    retention = evaluation().retention("s")
    assert retention is not None
    assert retention.value == pytest.approx(100 * 25 / ((200 / 3 + 50) / 2))
    assert retention.interval == (40.0, 45.5)


def test_no_sentence_is_encoded_twice_for_a_suite(data: Path) -> None:
    one = model()
    evaluate_suites(one, ["sts"], data=data)
    assert len(one.encoder.seen) == len(set(one.encoder.seen))


def test_all_suites_are_those_that_find_their_files(data: Path) -> None:
    found = evaluate_suites(model(), data=data)
    assert [one.suite for one in found] == ["sts", "geometry"]
    for left_out in ("fidelity", "latency", "nli"):
        assert any(left_out in note for note in found[0].notes)
    (data / "sick.tsv").write_text("broken\n")
    with pytest.raises(DataError, match=r"sick\.tsv"):
        evaluate_suites(model(), data=data)


def test_a_runs_evaluation_is_kept_beside_its_teachers_and_nothing_is_encoded_again(
    tmp_path: Path, data: Path
) -> None:
    first = evaluate(run(tmp_path / "r"), data=data, teacher=teacher(), keep=True)
    (data / "er_x_entities.tsv").write_text("of another suite")
    again, big = run(tmp_path / "r"), teacher()
    second = evaluate([again, run(tmp_path / "b")], data=data, teacher=big, keep=True, snli_pairs=9)
    assert again.encoder.seen == big.encoder.seen == []
    assert second["r"] == first["r"]
    # The teacher stays beside a student that is evaluated by itself.
    evaluate(run(tmp_path / "r"), data=data, keep=True)
    kept = cache.read_kept(tmp_path / "r", "sts")
    assert kept is not None
    assert kept.evaluation.teacher == "teacher"


@pytest.mark.parametrize("change", ["data", "weights", "dtype", "again", "damage"])
def test_a_kept_evaluation_is_used_only_while_all_that_decides_it_is_the_same(
    tmp_path: Path, data: Path, change: str
) -> None:
    evaluate(run(tmp_path / "r"), data=data, keep=True)
    if change == "data":
        write_pairs(data / "stsb_test.tsv", 25)
    if change == "damage":
        path = cache.kept_path(tmp_path / "r", "sts")
        path.write_text(path.read_text().replace("spearman", "spearmen", 1))
    student = run(tmp_path / "r", "other" if change == "weights" else "w")
    options = {"dtype": {"compute_dtype": "bfloat16"}, "again": {"again": True}}.get(change, {})
    evaluate(student, data=data, keep=True, **options)
    assert student.encoder.seen


def test_fidelity_reads_held_out_texts_of_runs_and_depends_on_the_teacher(tmp_path: Path) -> None:
    student = run(tmp_path / "r")
    (tmp_path / "r" / HELD_OUT).write_text("".join(f"{json.dumps(f's{i}')}\n" for i in range(20)))
    found = evaluate(student, "fidelity", teacher=teacher(), keep=True)
    assert found["r"].settings["sentences"] == 20
    again = run(tmp_path / "r")
    evaluate(again, "fidelity", teacher=teacher("contract other"), keep=True)
    assert again.encoder.seen
    with pytest.raises(DataError, match="teacher"):
        evaluate(student, "fidelity")


def test_without_keep_nothing_is_written_and_a_failed_write_is_a_note(tmp_path: Path, data: Path) -> None:
    student = run(tmp_path / "r")
    evaluate(student, data=data, teacher=teacher())
    assert list((tmp_path / "r").iterdir()) == []
    cache.kept_path(tmp_path / "r", "sts").mkdir()
    assert any("not kept" in note for note in evaluate(student, data=data, keep=True).notes)


def test_models_of_one_name_are_distinguished(data: Path) -> None:
    one, other = model("same", salt="a"), model("same", salt="b")
    found = evaluate([one, other], data=data, teacher=Model("same", Counted(4)))
    assert len({facts.name for facts, _ in found.models}) == 3


@pytest.mark.parametrize(("bad", "noun"), [(0.0, "zero"), (np.nan, "NaN")])
def test_vectors_without_a_direction_are_an_error_that_names_the_sentence(
    data: Path, bad: float, noun: str
) -> None:
    def encode(texts: list[str]) -> np.ndarray:
        vectors = vectors_of(texts)
        vectors[[text == "left 3" for text in texts]] = bad
        return vectors

    with pytest.raises(DataError, match=f"{noun}.*left 3"):
        evaluate(Model("m", encode), data=data)


@pytest.mark.parametrize(
    ("options", "noun"),
    [
        ({"suite": "stss"}, "did you mean sts"),
        ({"suite": "no_such_module:f"}, "no_such_module"),
        ({"data": "nowhere"}, "nowhere"),
        ({"limit": 3}, "limit"),
        ({"cache": "c"}, "give teacher"),
        ({"teacher": "nosuch"}, "no run or model 'nosuch': expected a run's folder"),
    ],
)
def test_invalid_arguments_are_an_error(data: Path, options: dict, noun: str) -> None:
    with pytest.raises(DataError, match=noun):
        evaluate(model(), **({"data": data} | options))


def test_every_suite_names_its_files() -> None:
    for suite in suites().values():
        assert suite.summary
        assert suite.files or suite.needs_teacher or suite.name == PAIRS
        assert (suite.items is not None) == (suite.name not in ("geometry", "latency", "fidelity", PAIRS))


OUTSIDE = """
from distill.evaluation.result import Figure, SuiteResult

def lengths(encode, data, options):
    '''Length of vectors.'''
    return SuiteResult({"length": Figure(float((encode(["a"]) ** 2).sum()), "length")})
"""


def test_a_suite_outside_the_package_is_named_by_module_or_file(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "outside_suite.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("outside_suite:lengths", f"{tmp_path}/outside_suite.py:lengths"):
        result = evaluate(Model("m", lambda texts: np.full((len(texts), 2), 3.0, np.float32)), name)
        assert (result.suite, result["m"].figures["length"].value) == ("lengths", 18.0)
        assert get_suite(name).summary == "Length of vectors."


def test_sizes_are_read_from_the_files(tiny_teacher: Path, loaded_teacher) -> None:
    from distill.students.build import count_parameters

    assert saved_parameters(tiny_teacher) == count_parameters(loaded_teacher.model)
    assert weight_bytes(tiny_teacher) == sum(
        path.stat().st_size for path in tiny_teacher.rglob("*.safetensors")
    )


def test_a_cached_teacher_stores_the_vectors_it_encodes(
    tmp_path: Path, tiny_teacher: Path, data: Path
) -> None:
    (tmp_path / "t.txt").write_text("a\nb\n")
    embedcache.build(tmp_path / "t.txt", teacher=tiny_teacher, cache=tmp_path / "c")
    first = open_model(f"cache:{tmp_path / 'c'}")
    figures = evaluate(first, data=data)
    assert first.encoded > 0
    second = open_model(f"cache:{tmp_path / 'c'}#tiny")
    assert evaluate(second, data=data)["tiny"] == figures["tiny"]
    assert (second.encoded, second.recalled) == (0, first.encoded)


def test_a_whitened_teacher_has_uncorrelated_components_of_unit_variance(
    built_cache: Path, tiny_teacher: Path, tmp_path: Path
) -> None:
    whitened, plain = (open_model(f"{kind}:{built_cache}#tiny") for kind in ("whitened", "cache"))
    vectors = whitened.encode(TEXTS).astype(np.float64)
    np.testing.assert_allclose(np.cov(vectors.T), np.eye(vectors.shape[1]), atol=0.05)
    np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=1e-3)
    # The last layer's norm leaves one direction without variance.
    assert (plain.encode(TEXTS).shape[1], vectors.shape[1]) == (16, 15)
    assert (whitened.identity(), whitened.size) == (None, plain.size)
    (tmp_path / "few.txt").write_text("a\nb\n")
    embedcache.build(tmp_path / "few.txt", teacher=tiny_teacher, cache=tmp_path / "few")
    with pytest.raises(DataError, match="do not determine"):
        open_model(f"whitened:{tmp_path / 'few'}").encode(["a"])


def test_vectors_of_a_lossy_codec_are_not_kept_as_the_teachers_own(
    tmp_path: Path, tiny_teacher: Path
) -> None:
    (tmp_path / "t.txt").write_text("a\nb\n")
    own = open_model(tiny_teacher).identity()
    for codec, expected in (("float16", own), ("int8", f"{own} int8")):
        flat_build.build(tmp_path / "t.txt", teacher=tiny_teacher, cache=tmp_path / codec, codec=codec)
        found = with_cache(open_model(tiny_teacher), tmp_path / codec)
        assert found.identity() == open_model(f"cache:{tmp_path / codec}").identity() == expected


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, built_cache: Path) -> Path:
    """A folder of two runs that differ by the seed alone."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        small_run(built_cache, folder / f"mse-seed{seed}", seed=seed)
    return folder


def test_a_plain_model_is_evaluated_with_the_pooling_asked_for_and_a_run_with_its_own(
    runs: Path, built_cache: Path, tiny_teacher: Path
) -> None:
    plain, mean, cls = (open_model(tiny_teacher, pooling=one) for one in (None, "mean", "cls"))
    assert plain.identity() == mean.identity() != cls.identity()
    assert np.abs(cls.encode(["a", "b"]) - mean.encode(["a", "b"])).max() > 1e-3
    for spec in (runs / "mse-seed0", f"cache:{built_cache}"):
        with pytest.raises(DataError, match="pooling"):
            open_model(spec, pooling="cls")


@pytest.fixture
def texts_data(tmp_path: Path) -> Path:
    """Pairs of the texts that the runs' teacher has cached vectors of."""
    rows = [("s", i % 7, TEXTS[i], TEXTS[i + 40]) for i in range(40)]
    write_tsv(tmp_path / "stsb_test.tsv", "subset score sentence1 sentence2", rows)
    return tmp_path


def test_a_folder_of_runs_is_evaluated_beside_the_teacher_and_compared(runs: Path, texts_data: Path) -> None:
    def command(*words: object) -> str:
        done = CliRunner().invoke(cli, [*map(str, words), "--data", str(texts_data)])
        assert done.exit_code == 0, done.output
        return done.stdout

    found = json.loads(command("eval", runs, "--json"))
    big, *students = found["models"]
    assert (found["teacher"], big["role"], big["dimension"]) == ("tiny", "teacher", 16)
    assert [one["name"] for one in students] == ["mse-seed0", "mse-seed1"]
    for one in students:
        assert one["retention"] == pytest.approx(100 * one["average"] / big["average"])
        assert one["parameters"] < big["parameters"]
    # All of the teacher's vectors were cached.
    assert any("0 encoded now" in note for note in found["notes"])
    table = command("eval", runs)
    for shown in ("tiny (teacher)", "mse-seed1", "retention", "eval-sts.json"):
        assert shown in table
    pair = json.loads(command("compare", runs / "mse-seed0", runs / "mse-seed1", "--json"))
    (row,) = pair["suites"]["sts"]
    assert row["difference"] == pytest.approx(students[0]["average"] - students[1]["average"])
    assert command("compare", runs / "mse-seed0", runs / "mse-seed1").count(f"{row['a']:.2f}")


def test_an_unfinished_run_is_left_out_of_a_folder_and_marked_if_it_is_named(
    runs: Path, texts_data: Path, tmp_path: Path
) -> None:
    for name in ("mse-seed0", "cut"):
        shutil.copytree(runs / "mse-seed0", tmp_path / "all" / name)
    record = read_record(tmp_path / "all" / "cut")
    record.model_copy(update={"result": None}).write(tmp_path / "all" / "cut")
    found = evaluate(tmp_path / "all", data=texts_data, beside_teacher=False)
    assert [facts.name for facts, _ in found.models] == ["mse-seed0"]
    assert any("cut left out: not finished" in note for note in found.notes)
    named = evaluate(tmp_path / "all" / "cut", data=texts_data, beside_teacher=False)
    assert any("cut is not finished" in note for note in named.notes)
    shutil.rmtree(tmp_path / "all" / "mse-seed0")
    with pytest.raises(DataError, match=r"no model to evaluate; .*cut left out"):
        evaluate(tmp_path / "all", data=texts_data)


def test_an_export_is_evaluated_as_the_model_it_was_made_of(
    runs: Path, texts_data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from distill.export import export_onnx

    export_onnx(runs / "mse-seed0", tmp_path / "export")
    found = evaluate([tmp_path / "export", runs / "mse-seed0"], data=texts_data, beside_teacher=False)
    (graph, exported), (_, result) = found.models
    assert exported.average == pytest.approx(result.average, abs=0.1)
    assert graph.name == "export/model.onnx"
    assert graph.megabytes == (tmp_path / "export" / "onnx" / "model.onnx").stat().st_size / 1e6


@pytest.mark.slow
def test_the_suite_latency_times_a_folder_in_a_process_of_its_own(
    teacher_folder: Path, tmp_path: Path
) -> None:
    write_tsv(tmp_path / "stsb_test.tsv", "subset score sentence1 sentence2", [("s", 1, "a cat", "dogs")])
    result = evaluate(teacher_folder, "latency", data=tmp_path)[teacher_folder.name]
    assert result.settings["runtime"] == "sentence-transformers"
    assert result.main is not None
    assert result.main.value > 0
    assert result.figures["peak_memory_megabytes"].value > 0


@pytest.fixture
def served_run(tmp_path: Path, teacher_folder: Path) -> Iterator[tuple[Path, object]]:
    """A run that learnt from a served teacher, and the server."""
    with embedding_server() as server:
        spec = f"openai:m@{server.url}"
        (tmp_path / "t.txt").write_text("a\nb\n")
        embedcache.build(tmp_path / "t.txt", teacher=spec, cache=tmp_path / "c")
        contract = embedcache.open(tmp_path / "c").teacher().contract
        shutil.copytree(teacher_folder, tmp_path / "run" / "best")
        taught = TeacherRecord(name="m", spec=spec, contract_id=contract.id, contract=contract.to_json())
        RunRecord(
            identity="i",
            seeds=[0],
            setting="s",
            teachers=[taught],
            cache=str(tmp_path / "c"),
            corpus=CorpusRecord(name="c", rows=1, digest="d"),
            rows=1,
            student="x",
            parameters=1,
            loss="mse",
        ).write(tmp_path / "run")
        yield tmp_path / "run", server


def test_a_served_teacher_is_asked_again_and_has_to_be_the_same(
    served_run: tuple[Path, object], data: Path
) -> None:
    folder, server = served_run
    found = evaluate(folder, data=data, device="cpu")
    expected = evaluate(Model("m", server.vectors), data=data)
    assert found["m"].average == pytest.approx(expected["m"].average)
    server.seed = 1
    (folder / HELD_OUT).write_text("".join(f"{json.dumps(text)}\n" for text in "cdefg"))
    refused = evaluate_suites(folder, data=data, device="cpu")
    assert [(one.suite, one.teacher) for one in refused] == [("sts", None), ("geometry", None)]
    assert any("m cannot be used" in note for note in refused[0].notes)
    with pytest.raises(ContractMismatchError):
        evaluate(folder, "fidelity", device="cpu")
