"""The latency suite: what is timed, in which order, and how it is told."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import read_task, score_task, write_rows

from distill.errors import DataError
from distill.evaluation import EvaluatedModel, evaluate, evaluate_suites, stopwatch
from distill.evaluation import model as model_module
from distill.evaluation.stopwatch import Timing, measure
from distill.evaluation.suites import SUITES
from distill.evaluation.tasks import NotThereError, Request
from embedcache.teacher.load import load_teacher

TEXTS = ["one", "two", "three", "four"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    header = "subset | score | sentence1 | sentence2"
    write_rows(tmp_path, "stsb_test", header, "s | 1 | one | two", "s | 2 | three | one", "s |  | no | score")
    return tmp_path


class Clock:
    """A clock that tests turn: every encoded text takes its length in milliseconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[tuple[str, ...]] = []

    def perf_counter(self) -> float:
        return self.now

    def encode(self, texts: Sequence[str], batch_size: int) -> None:
        self.calls.append(tuple(texts))
        self.now += sum(len(text) for text in texts) / 1000


class TestMeasure:
    @pytest.fixture
    def clock(self, monkeypatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(stopwatch, "time", clock)
        return clock

    def test_passes_are_timed_text_by_text_and_neither_warm_up_nor_telling_is(self, clock, monkeypatch):
        monkeypatch.setattr(stopwatch, "WARM_UP", 2)
        monkeypatch.setattr(stopwatch, "TOLD_EVERY", 3)
        seen: list[int] = []

        def told(done: int) -> None:
            clock.now += 1.0
            seen.append(done)

        timing = measure(clock.encode, TEXTS, passes=3, batch_size=2, told=told)
        assert timing.single == pytest.approx([0.015] * 3)
        assert timing.batch == pytest.approx([0.015] * 3)
        assert timing.text_p50_ms == pytest.approx(3.5)
        assert timing.text_p95_ms == pytest.approx(np.percentile([3, 3, 5, 4] * 3, 95))
        assert timing.peak_megabytes is None
        assert seen == [3, 4, 7, 8, 11, 12, 16, 20, 24]
        single = [(text,) for text in TEXTS]
        assert clock.calls == [*single[:2], *single * 3, ("one", "two"), *[tuple(TEXTS)] * 3]


class TestTask:
    def test_both_sides_of_every_pair_in_order_repetitions_and_all(self, data):
        task = read_task("latency", data)
        assert task.sentences == ["one", "two", "three", "one"]
        assert list(task.texts()) == []
        assert (task.facts["sentences"], task.facts["passes"]) == (4, 3)
        assert any("1 rows skipped (no score 1)" in note for note in task.notes)

    @pytest.mark.parametrize(("asked", "threads"), [("3", 3), ("", None), ("0", None), ("many", None)])
    def test_threads_are_those_asked_for_else_all_cores(self, data, monkeypatch, asked, threads):
        monkeypatch.setenv("OMP_NUM_THREADS", asked)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        task = read_task("latency", data)
        assert task.facts["threads"] == (threads or cores)
        assert any(f"on a CPU with {threads or cores} threads" in note for note in task.notes)

    def test_a_model_in_memory_is_timed_by_its_own_encoder_and_it_is_said(self, data):
        sizes: list[int] = []

        def encode(texts) -> np.ndarray:
            sizes.append(len(texts))
            return np.ones((len(texts), 2), dtype=np.float32)

        model = EvaluatedModel("mine", 10, 1.0, 2, encode)
        result = evaluate(model, suite="latency", data=data)
        # Four of warm-up and three passes one by one, then one batch of warm-up and three passes.
        assert sizes == [1] * 16 + [4] * 4
        report = result.to_json()["models"][0]
        assert report["runtime"] == "encoder in memory"
        assert report["peak_memory_megabytes"] is None
        assert len(report["batch_1_passes"]) == 3
        assert report["retention"] is None
        assert any("mine is in memory only" in note for note in result.notes)
        assert set(result["mine"].summary()) == {
            *("s a pass", "ms p50", "ms p95", "1: sent./s", "32: sent./s", "peak MB")
        }

    def test_a_model_whose_vectors_are_cached_is_loaded_for_it(self, data):
        def forbidden(texts) -> np.ndarray:
            raise AssertionError("a cached vector is not a forward pass")

        live = EvaluatedModel("live", 10, 1.0, 2, lambda texts: np.ones((len(texts), 2), dtype=np.float32))
        cached = EvaluatedModel("cached", None, None, 2, forbidden, whole=lambda: live)
        assert score_task(read_task("latency", data), cached).seconds > 0

    def test_progress_is_told_in_sentences(self, data):
        told: list[tuple[str, int, int]] = []
        request = Request(models=(), data=data, progress=lambda *what: told.append(what))
        task = SUITES["latency"].read(request)
        score_task(task, EvaluatedModel("m", 1, 1.0, 1, lambda texts: np.ones((len(texts), 1))))
        assert told == [("time m", done, 24) for done in range(0, 25, 4)]

    def test_progress_comes_from_the_models_own_process_too(self, data, tiny_teacher, monkeypatch):
        told: list[tuple[str, int, int]] = []
        evaluate(tiny_teacher, suite="latency", data=data, progress=lambda *what: told.append(what))
        assert [what[1:] for what in told] == [(done, 24) for done in range(0, 25, 4)]

    def test_without_sts_benchmark_it_is_not_there(self, tmp_path):
        with pytest.raises(NotThereError, match=r"no stsb_test\.tsv"):
            read_task("latency", tmp_path)

    def test_it_runs_only_when_it_is_named(self, data):
        assert SUITES["latency"].on_request
        model = EvaluatedModel("m", 1, 1.0, 2, lambda texts: np.array([[len(t), 1] for t in texts]))
        assert "latency" not in [result.suite for result in evaluate_suites(model, data=data)]


def test_what_a_run_keeps_is_used_on_the_same_machine_only(data, tmp_path, monkeypatch):
    (tmp_path / "run" / "best").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}", encoding="utf-8")
    calls: list[int] = []

    def encode(texts) -> np.ndarray:
        calls.append(len(texts))
        return np.ones((len(texts), 2), dtype=np.float32)

    loaded = EvaluatedModel("mine", 10, 1.0, 2, encode)
    monkeypatch.setattr(model_module, "_load_torch", lambda *_: loaded)

    def timed_anew(threads: int) -> bool:
        calls.clear()
        monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
        result = evaluate(tmp_path / "run", suite="latency", data=data, keep=True)
        assert result.to_json()["models"][0]["batch_1_seconds"] >= 0
        return bool(calls)

    assert [timed_anew(threads) for threads in (1, 1, 2)] == [True, False, True]


class TestOwnProcess:
    def test_a_folder_is_timed_as_its_user_runs_it(self, data, tiny_teacher):
        result = evaluate(tiny_teacher, suite="latency", data=data, device="cpu")
        report = result.to_json()["models"][0]
        assert report["runtime"] == "sentence-transformers"
        assert all(seconds > 0 for seconds in report["batch_1_passes"])
        assert report["batch_1_ms_p50"] <= report["batch_1_ms_p95"]
        if sys.platform == "linux":
            assert 0 < report["peak_memory_megabytes"] < 2000

    def test_a_folder_that_was_changed_is_refused_with_the_reason(self, tiny_teacher, monkeypatch, capsys):
        contract = load_teacher(tiny_teacher, device="cpu").contract
        job = {
            "source": str(tiny_teacher),
            "contract": replace(contract, weights="0" * 64).to_json(),
            "texts": TEXTS,
            "passes": 1,
            "batch_size": 2,
            "threads": 1,
        }
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(job)))
        stopwatch.main()
        assert re.search("weights.*changed meanwhile", json.loads(capsys.readouterr().out)["error"])

    @pytest.mark.parametrize(
        ("script", "told"),
        [
            ('cat > /dev/null; echo noise; echo \'{"error": "no such graph"}\'', "timed: no such graph"),
            ("echo 'out of luck' >&2; exit 3", "broke off: out of luck"),
            ("exit 3", "broke off: no message"),
        ],
    )
    def test_what_goes_wrong_there_is_told(self, data, monkeypatch, tmp_path, script, told):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        model = EvaluatedModel("m", 1, 1.0, 2, lambda texts: texts, source=tmp_path)
        with pytest.raises(DataError, match=f"m cannot be timed.*{told}|m cannot be {told}"):
            score_task(read_task("latency", data), model)


def test_a_timing_survives_the_way_between_processes():
    timing = Timing([1.0, 2.0], 3.0, 4.0, [5.0], 6.0)
    assert Timing(**json.loads(json.dumps(asdict(timing)))) == timing
