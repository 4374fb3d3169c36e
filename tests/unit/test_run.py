"""A run from its configuration to its folder: files it writes and never deletes, and refusals."""

from __future__ import annotations

import errno
import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from distill_helpers import HELD_OUT, TEXTS, build, small_run

import distill
from distill.config.models import RunConfig
from distill.config.sources import load_config
from distill.errors import CheckpointError, ConfigError, DataError, MissingExtraError, StudentError
from distill.record import find_runs
from distill.report.rows import rows
from distill.training import preparation as preparation
from distill.training import train as run_module
from distill.training.train import _refuse_other_data
from embedcache.cache import Cache
from embedcache.errors import (
    ContractMismatchError,
    InputError,
    StorageError,
    TeacherError,
)
from embedcache.testing import tiny_encoder

pytest_plugins = ["distill_fixtures"]


@pytest.fixture(scope="module")
def finished(built_cache, tmp_path_factory):
    """One run, its student as it was in memory, and its cache; not to be changed."""
    students = []
    original = preparation.build_student

    def remembered(spec, contract, live_teacher, options=None, **settings):
        students.append(original(spec, contract, live_teacher, options, **settings))
        return students[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preparation, "build_student", remembered)
        run = distill.run(
            cache=built_cache,
            student="layers:1",
            loss="mse",
            epochs=1,
            held_out=HELD_OUT,
            batch_size=64,
            mixed_precision="no",
            device="cpu",
            threads=1,
            log_with=["tensorboard"],
            eval_every=3,
            out=tmp_path_factory.mktemp("runs") / "finished",
        )
    return run, students[0].eval()


def test_the_run_folder_holds_everything_there_is_to_know(finished, built_cache):
    run, _ = finished
    names = {path.name for path in run.folder.iterdir()}
    assert names == {
        "best",
        "config.yaml",
        "held_out.txt",
        "metrics.jsonl",
        "run.json",
        "tensorboard",
        ".lock",
    }
    cache = Cache(built_cache)
    record = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    assert record["teacher"]["contract_id"] == cache.teacher().contract.id
    assert record["teacher"]["name"] == "tiny"
    assert record["corpus"] == {
        "name": "texts",
        "rows": len(TEXTS),
        "digest": cache.corpus().info.digest,
    }
    assert (record["rows"], record["held_out"]) == (len(TEXTS) - HELD_OUT, HELD_OUT)
    assert record["result"]["steps"] == run.result.steps == 3
    assert record["parameters"] == run.parameters > 0


def test_the_written_configuration_is_complete_and_runs_again_to_the_same_student(finished, tmp_path):
    run, _ = finished
    written = yaml.safe_load((run.folder / "config.yaml").read_text(encoding="utf-8"))
    assert (written["corpus"], written["teacher"]) == ("texts", "tiny")
    for group, key in (("optimizer", "lr"), ("training", "epochs"), ("evaluation", "every")):
        assert written[group][key] is not None
    config = load_config(RunConfig, run.folder / "config.yaml", [f"out={tmp_path / 'again'}"])
    again = run_module.train(config)
    name = "model.safetensors"
    assert (again.best / name).read_bytes() == (run.best / name).read_bytes()


def test_the_saved_student_gives_the_vectors_of_the_trained_one(finished):
    from sentence_transformers import SentenceTransformer

    run, trained = finished
    saved = SentenceTransformer(str(run.best), device="cpu")
    vectors = saved.encode(TEXTS[:20])
    np.testing.assert_allclose(vectors, trained.encode(TEXTS[:20]), atol=1e-6)
    untrained = preparation.build_student(
        "layers:1", Cache(run.config.cache).teacher().contract, lambda: run_teacher(run)
    )
    assert np.abs(vectors - untrained.encode(TEXTS[:20])).max() > 1e-3


def run_teacher(run):
    cache = Cache(run.config.cache)
    return preparation.load_live_teacher(cache, cache.teacher())


def test_nothing_that_is_shared_names_a_place_on_this_machine(finished, built_cache, teacher_folder):
    run, _ = finished
    for path in run.best.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert str(built_cache).encode() not in content, path
            assert str(teacher_folder).encode() not in content, path


def test_tensorboard_files_are_written_on_request(finished, built_cache, tmp_path):
    run, _ = finished
    (events,) = (run.folder / "tensorboard" / "distill").iterdir()
    assert b"held_out_near_pairs_spearman" in events.read_bytes()
    assert not (small_run(built_cache, tmp_path / "plain").folder / "tensorboard").exists()


@pytest.mark.parametrize("name", ["thesis.txt", "run.json"])
@pytest.mark.parametrize("content", ["{}", "my results"])
def test_a_folder_that_holds_no_run_is_never_deleted(built_cache, tmp_path, name, content):
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / name).write_text(content)
    with pytest.raises(ConfigError, match="not empty and holds no run"):
        small_run(built_cache, folder, overwrite=True)
    assert [path.read_text() for path in folder.iterdir()] == [content]


@pytest.mark.parametrize(
    "bad",
    [
        {"student": "layers:9"},
        {"student": "nowhere"},
        {"warmup": 1000},
        {"dev": "stsb_test.tsv"},
        {"device": "abacus"},
        {"held_out": 150},
        {"corpus": "nothing"},
        {"held_out": 0, "patience": 2},
    ],
)
def test_an_impossible_run_is_refused_before_anything_is_deleted_or_written(
    finished, built_cache, tmp_path, bad
):
    run, _ = finished
    before = sorted((path, path.stat().st_mtime_ns) for path in run.folder.rglob("*"))
    with pytest.raises((ConfigError, StudentError, DataError, InputError)):
        small_run(built_cache, run.folder, overwrite=True, **bad)
    with pytest.raises((ConfigError, StudentError, DataError, InputError)):
        small_run(built_cache, tmp_path / "new", **bad)
    assert sorted((path, path.stat().st_mtime_ns) for path in run.folder.rglob("*")) == before
    assert not (tmp_path / "new").exists()


def test_without_tensorboard_the_run_does_not_begin(built_cache, tmp_path, monkeypatch):
    monkeypatch.setattr("distill.training.tracking.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install tensorboard"):
        small_run(built_cache, tmp_path / "run", log_with=["tensorboard"])
    assert not (tmp_path / "run").exists()


def test_a_run_is_named_after_its_settings(built_cache, tmp_path, monkeypatch, teacher_folder):
    monkeypatch.chdir(tmp_path)
    assert str(small_run(built_cache, None, loss="ckd").folder) == "runs/texts-layers_1-ckd"
    run = small_run(built_cache, None, student=teacher_folder)
    assert str(run.folder) == "runs/texts-tiny-mse"
    assert (tmp_path / run.best / "model.safetensors").exists()
    assert "| made from | tiny |" in (run.best / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def local_teacher(tmp_path, teacher_folder):
    """A copy of the teacher and a cache that remembers it there."""
    folder = tmp_path / "models" / "local"
    shutil.copytree(teacher_folder, folder)
    (tmp_path / "few.txt").write_text("\n".join(TEXTS[:60]) + "\n", encoding="utf-8")
    build(tmp_path / "few.txt", folder, tmp_path / "cache")
    return folder, tmp_path / "cache"


def test_a_teacher_that_changed_since_the_build_is_refused(local_teacher, tmp_path):
    folder, cache = local_teacher
    shutil.rmtree(folder)
    tiny_encoder(folder, layers=4, seed=77)
    with pytest.raises(ContractMismatchError, match=r"weights .* -> .*teacher_model") as caught:
        small_run(cache, tmp_path / "run", held_out=0)
    assert set(caught.value.differences) == {"weights"}
    assert not (tmp_path / "run").exists()


def test_a_teacher_that_is_not_here_is_asked_for(local_teacher, tmp_path):
    folder, cache = local_teacher
    folder.rename(tmp_path / "moved")
    # As it is after a pull: a remote knows the folder's name alone.
    shutil.rmtree(cache / "derived")
    with pytest.raises(
        TeacherError,
        match=rf"needs the weights of .*'{folder.name}'.*teacher_model",
    ):
        small_run(cache, tmp_path / "run", held_out=0)
    assert not (tmp_path / "run").exists()
    assert small_run(cache, tmp_path / "run", held_out=0, teacher_model=tmp_path / "moved").result.steps > 0
    # Who has said where it is knows what it is for.
    with pytest.raises(TeacherError) as caught:
        small_run(cache, tmp_path / "other", held_out=0, teacher_model="nowhere")
    assert "needs the weights" not in str(caught.value)


def test_limit_and_development_set_are_used(built_cache, tmp_path):
    rows = [f"dev\t{i % 6}\t{TEXTS[i]}\t{TEXTS[-i - 1]}" for i in range(30)]
    (tmp_path / "dev.tsv").write_text("subset\tscore\tsentence1\tsentence2\n" + "\n".join(rows) + "\n")
    run = small_run(built_cache, tmp_path / "run", limit=40, held_out=5, dev=tmp_path / "dev.tsv")
    assert run.record.rows == 35
    assert "dev_spearman" in (run.folder / "metrics.jsonl").read_text()
    assert run.result.best_score is not None


def test_a_full_disk_is_one_clear_error_and_leaves_no_half_model(built_cache, tmp_path, monkeypatch):
    from sentence_transformers import SentenceTransformer

    save = SentenceTransformer.save_pretrained
    calls = []

    def full(model, path, **options):
        calls.append(path)
        save(model, path, **options)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(SentenceTransformer, "save_pretrained", full)
    with pytest.raises(StorageError, match="disk is full"):
        small_run(built_cache, tmp_path / "run", held_out=0, eval_every=1)
    assert len(calls) == 2
    assert not list((tmp_path / "run").glob(".tmp-*"))
    assert SentenceTransformer(str(tmp_path / "run" / "best"), device="cpu").encode(["a cat"]).shape == (
        1,
        16,
    )


def test_a_run_of_a_teacher_with_overrides_is_evaluated_against_that_teacher(tmp_path):
    plain = tiny_encoder(tmp_path / "plain", layers=2, plain=True)
    (tmp_path / "few.txt").write_text("\n".join(TEXTS[:60]) + "\n", encoding="utf-8")
    overrides = {"pooling": "cls", "prompt": "the ", "max_length": 20, "truncate_dim": 8, "normalize": True}
    build(tmp_path / "few.txt", plain, tmp_path / "cache", teacher_name="odd", **overrides)
    run = small_run(tmp_path / "cache", tmp_path / "run", held_out=20)
    record = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    contract = Cache(tmp_path / "cache").teacher().contract
    assert record["teacher"]["contract"] == contract.to_json()
    assert (contract.pooling, contract.prompt, contract.dimension) == ("cls", "the ", 8)

    kept = distill.evaluate(run.folder, suite="fidelity", device="cpu")
    assert [(facts.name, facts.role) for facts, _ in kept.models] == [("odd", "teacher"), ("run", "student")]

    # Without the cache the vectors come from the live teacher, and are the same.
    (tmp_path / "cache").rename(tmp_path / "gone")
    live = distill.evaluate(run.folder, suite="fidelity", device="cpu")
    means = [found.models[1][1].figures["cosine_mean"].value for found in (kept, live)]
    assert means[1] == pytest.approx(means[0], abs=1e-4)


def test_a_run_interrupted_before_its_first_checkpoint_starts_again_with_the_same_command(
    built_cache, tmp_path
):
    run = small_run(built_cache, tmp_path / "run")
    record = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    (run.folder / "run.json").write_text(json.dumps({**record, "result": None}), encoding="utf-8")
    (run.folder / "half.txt").write_text("half")
    again = small_run(built_cache, tmp_path / "run")
    assert not (again.folder / "half.txt").exists()
    assert json.loads((again.folder / "run.json").read_text(encoding="utf-8"))["result"] is not None


def test_a_finished_run_is_not_replaced_unasked_and_kept_until_the_new_one_is_finished(built_cache, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    first = (small_run(built_cache, out).best / "model.safetensors").read_bytes()
    (out / "old.txt").write_text("old")
    with pytest.raises(ConfigError, match="overwrite"):
        small_run(built_cache, out, seed=1)

    def stop(progress):
        if progress.phase == "train":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run(built_cache, out, overwrite=True, seed=1, on_progress=stop)
    kept, backup = out / ".replaced", tmp_path / "run.replaced"
    assert (kept / "best" / "model.safetensors").read_bytes() == first
    assert find_runs(tmp_path) == [out]
    backup.mkdir()

    second = small_run(built_cache, out, seed=1)
    assert (second.best / "model.safetensors").read_bytes() != first
    assert not kept.exists()
    assert backup.exists()
    assert not (out / "old.txt").exists()


def test_a_run_that_finished_while_another_prepared_is_not_replaced(built_cache, tmp_path, monkeypatch):
    make, finished = run_module.make_accelerator, []

    def after_another(config, trackers, logs):
        if not finished:
            finished.append("once")
            finished.append(small_run(built_cache, tmp_path / "run").best)
        return make(config, trackers, logs)

    monkeypatch.setattr(run_module, "make_accelerator", after_another)
    with pytest.raises(ConfigError, match="holds a run already"):
        small_run(built_cache, tmp_path / "run", seed=1)
    assert finished[1].is_dir()


def test_a_selection_is_trained_on_held_out_from_and_recorded(built_cache, tmp_path):
    run = small_run(built_cache, tmp_path / "run", where="row < 100")
    assert (run.record.selected, run.record.rows) == (100, 100 - HELD_OUT)
    record = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))
    assert (record["where"], record["selected"], record["rows"]) == ("row < 100", 100, 70)
    lines = (run.folder / "held_out.txt").read_text(encoding="utf-8").splitlines()
    assert {json.loads(line) for line in lines} <= set(TEXTS[:100])
    written = yaml.safe_load((run.folder / "config.yaml").read_text(encoding="utf-8"))
    assert written["training"]["where"] == "row < 100"
    whole = small_run(built_cache, tmp_path / "whole")
    assert whole.record.selected is None
    assert json.loads((whole.folder / "run.json").read_text(encoding="utf-8"))["selected"] is None


@pytest.mark.parametrize(("every", "advice"), [(1, "resume with 'distill run --resume "), (100, "")])
def test_ctrl_c_says_how_to_go_on_where_there_is_a_checkpoint(built_cache, tmp_path, every, advice):
    def stop(progress):
        if progress.step == 3 and progress.phase == "train":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stopped:
        small_run(built_cache, tmp_path / "run", checkpoint_every=every, on_progress=stop)
    assert str(stopped.value) == (advice and f"{advice}{tmp_path / 'run'}'")


def test_the_precision_is_resolved_and_recorded_and_runs_of_another_are_no_seeds_of_one_setting(
    built_cache, tmp_path, monkeypatch
):
    runs = {}
    for fast in (False, True):
        monkeypatch.setattr("distill.device.has_fast_bfloat16", lambda fast=fast: fast)
        runs[fast] = small_run(built_cache, tmp_path / str(fast), mixed_precision="auto")
    for fast, run in runs.items():
        expected = "bf16" if fast else "no"
        assert (
            yaml.safe_load((run.folder / "config.yaml").read_text())["training"]["mixed_precision"]
            == expected
        )
        machine = run.record.machine
        assert (machine.precision, machine.device, machine.torch) == (expected, "cpu", torch.__version__)
        assert machine.transformers
    assert runs[True].record.setting != runs[False].record.setting
    assert len(rows(tmp_path)) == len(runs) + 1  # and the teacher


def test_a_run_is_not_resumed_in_another_precision(built_cache, tmp_path):
    run = small_run(built_cache, tmp_path / "run")
    other = run.record.machine.model_copy(update={"precision": "bf16"})
    with pytest.raises(CheckpointError, match="precision bf16, and would go on in no"):
        _refuse_other_data(run.record.model_copy(update={"machine": other}), run.record)
    _refuse_other_data(run.record.model_copy(update={"machine": None}), run.record)


def test_a_run_that_is_there_twice_counts_once(built_cache, tmp_path):
    small_run(built_cache, tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert rows(tmp_path)[-1].seeds == (0,)


def test_the_card_says_how_close_the_student_is(built_cache, tmp_path):
    run = small_run(built_cache, tmp_path / "run")
    card = " ".join((run.best / "README.md").read_text().split())
    assert f"Spearman correlation of {run.scores['held_out_near_pairs_spearman']:.2f}" in card
    assert "close to the teacher" not in card
