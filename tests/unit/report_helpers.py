"""Made-up run folders with stored evaluations: the input of a report, without any training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from distill.evaluation.cache import Kept, write_kept
from distill.evaluation.contamination import CONTAMINATION, Seen
from distill.evaluation.latency import SPEED, figures_of
from distill.evaluation.model_kinds import open_model
from distill.evaluation.result import AVERAGE, Evaluation, Figure, ModelFacts, Outcomes, SuiteResult
from distill.record import CorpusRecord, RunRecord, TeacherRecord, TrainResult, digest_of

CONTRACT = {"architecture": "a1b2", "dimension": 384, "pooling": "mean", "prompt": "", "weights": "c3d4"}
TEACHER_SETS = {"sts12": 72.4, "stsb": 82.0, "sickr": 77.2}


def make_run(
    folder: Path,
    *,
    loss: str = "l2",
    seed: int = 0,
    sets: Mapping[str, float] | None = None,
    teacher_sets: Mapping[str, float] | None = TEACHER_SETS,
    facts: Mapping[str, object] | None = None,
    student: str = "nreimers/BERT-Tiny_L-2_H-128_A-2",
    finished: bool = True,
    parameters: int = 4_435_456,
    recipe: str | None = None,
    size: int = 120_000,
    draws: int = 1000,
    **settings: Any,
) -> Path:
    """A run of ten steps, evaluated on the STS sets given."""
    (folder / "best").mkdir(parents=True)
    (folder / "best" / "model.safetensors").write_bytes(bytes([seed]) * size)
    config: dict[str, Any] = {
        "cache": str(folder.parent / "cache"),
        "seed": seed,
        "student": {"spec": student, "head": "tanh", "pooling": "mean", "max_length": 128, "dropout": 0.1},
        "loss": {"name": loss, "tau": settings.pop("tau", None)},
        "training": {"epochs": 1, "batch_size": 128},
        **settings,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    start = TeacherRecord(name="minilm-l6", spec="minilm-l6", contract_id="4fb0", contract=CONTRACT)
    result = TrainResult(
        steps=10,
        total_steps=10,
        best_step=8,
        best_score=0.71 + seed / 100,
        selected_by="dev_spearman",
        final_loss=1.2,
        seconds=71.2,
        rows_per_second=1333.1,
    )
    RunRecord(
        identity="i",
        seeds=[seed],
        setting=digest_of({key: value for key, value in config.items() if key not in ("seed", "cache")}),
        recipe=recipe,
        teachers=[start],
        corpus=CorpusRecord(name="mix", rows=400_000, digest="9725"),
        rows=59_000,
        held_out=4,
        student=student,
        parameters=parameters,
        loss=loss,
        result=result if finished else None,
    ).write(folder)
    lines = []
    for step in range(1, 11):
        lines.append({"step": step, "dev_spearman": 0.7 - 0.4 / step + seed / 100})
        lines.append(
            {"step": step, "epoch": 0, "loss": 2.0 / step + 1, "lr": 1e-4, "rows_per_second": 1000.0}
        )
    (folder / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8"
    )
    if sets is not None:
        teacher = None if teacher_sets is None else sts(teacher_sets)
        keep(folder, "sts", sts(sets, facts), teacher, parameters, draws)
    return folder


def sts(sets: Mapping[str, float], marks: Mapping[str, Any] | None = None, pairs: int = 60) -> SuiteResult:
    """Sets of made-up pairs; the better the figure, the closer the cosines to the scores."""
    figures = {}
    for place, (name, figure) in enumerate(sets.items()):
        rng = np.random.default_rng(place)
        gold = rng.uniform(0, 5, pairs).round(1)
        cosines = np.clip(gold / 5 * 0.7 + 0.2 + rng.normal(0, (100 - figure) / 150, pairs), -1, 1)
        figures[name] = Figure(
            *(figure, "spearman", (figure - 1.5, figure + 1.25), pairs, {"pearson": figure - 2.0}),
            outcomes=Outcomes(cosines, gold),
        )
    average = sum(sets.values()) / len(sets)
    return SuiteResult(figures, average_interval=(average - 1.1, average + 0.9), marks=marks or {})


def keep(
    folder: Path,
    suite: str,
    model: SuiteResult,
    teacher: SuiteResult | None,
    parameters: int = 4_435_456,
    draws: int = 1000,
) -> None:
    """Keep an evaluation in the run's folder, as ``distill eval`` does."""
    models = [(ModelFacts(folder.name, "student", parameters, parameters * 4e-6, 128), model)]
    intervals = {}
    if teacher is not None:
        models.insert(0, (ModelFacts("minilm-l6", "teacher", 22_713_216, 90.9, 384), teacher))
        if model.headline == AVERAGE:
            share = 100 * model.average / teacher.average
            intervals[folder.name] = (share - 0.2, share + 0.2)
    evaluation = Evaluation(suite, tuple(models), "minilm-l6" if teacher else None, (), intervals)
    settings = json.dumps({"compute_dtype": "float32", "draws": draws})
    key = {"data": "d", "model": str(open_model(folder).identity()), "settings": settings, "version": "1"}
    write_kept(folder, Kept(key, evaluation))


def keep_geometry(folder: Path, alignment: float, uniformity: float) -> None:
    def result(by: float) -> SuiteResult:
        value = alignment + by
        near = Figure(value, "alignment", (value - 0.01, value + 0.02))
        return SuiteResult({"alignment": near, "uniformity": Figure(uniformity + by, "uniformity")}, None)

    keep(folder, "geometry", result(0.0), result(-0.02))


def keep_latency(folder: Path, seconds: float, threads: int = 2) -> None:
    """Keep a timing of a thousand sentences a pass; the teacher takes four times as long."""

    def result(factor: float) -> SuiteResult:
        timing = {"calls": [[seconds * factor / 1000] * 1000] * 3, "batch": [seconds * factor] * 3}
        figures = figures_of({**timing, "peak_megabytes": None})
        return SuiteResult(figures, SPEED, settings={"processor": "some CPU", "threads": threads})

    keep(folder, "latency", result(1), result(4))


def keep_fidelity(folder: Path) -> None:
    figures = {"cosine_mean": Figure(0.91, "cosine"), "cosine_p05": Figure(0.8, "cosine", (0.79, 0.81))}
    keep(folder, "fidelity", SuiteResult(figures, None), None)


def some_runs(place: Path) -> list[Path]:
    """Two seeds of one student, another loss, and a run that is not finished."""
    seen = {
        "stsb": Seen(120, 12, 60, 3, selected_on=50),
        "sickr": Seen(90, 0, 45, 0, selected_on=0),
    }
    facts = {CONTAMINATION: {name: asdict(one) for name, one in seen.items()}}
    recipe = "congen/bert-tiny"
    runs = [
        make_run(place / "l2-seed0", sets={"sts12": 59.4, "stsb": 59.9, "sickr": 59.0}, recipe=recipe),
        make_run(
            place / "l2-seed1", seed=1, sets={"sts12": 60.4, "stsb": 61.9, "sickr": 58.0}, recipe=recipe
        ),
        make_run(
            place / "ckd-tau",
            loss="ckd",
            tau=0.05,
            sets={"sts12": 64.1, "stsb": 70.2, "sickr": 63.3},
            facts=facts,
            parameters=17_389_824,
        ),
        make_run(place / "mse-cut", loss="mse", finished=False, recipe=recipe),
    ]
    for run, where in zip(runs, ((0.30, -2.4), (0.31, -2.45), (0.22, -2.1)), strict=False):
        keep_geometry(run, *where)
    keep_fidelity(runs[2])
    return runs
