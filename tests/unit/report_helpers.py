"""Run folders with kept evaluations, made up: what a report reads, without any training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from distill.digests import model_digest
from distill.evaluation.kept import Noted, new_kept, write_kept
from distill.evaluation.old_fidelity import FidelityScores
from distill.evaluation.old_geometry import GeometryScores
from distill.evaluation.old_latency import LatencyScores
from distill.evaluation.options import BOOTSTRAP
from distill.evaluation.result import ModelReport
from distill.evaluation.scores import Draws, PairOutcomes, Scores, SetScore, SetScores
from distill.evaluation.stopwatch import Timing
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
    speed: float = 4431.9,
    size: int = 120_000,
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
        beside = None if teacher_sets is None else report("minilm-l6", "teacher", set_scores(teacher_sets))
        own = set_scores(sets)
        # What is kept has no retention: who the teacher is may change.
        keep(folder, "sts", report(folder.name, "model", own, None, facts, parameters, speed), beside)
    return folder


def set_scores(figures: Mapping[str, float], pairs: int = 60) -> SetScores:
    """Sets of made-up pairs; the better the figure, the closer the cosines to the scores."""
    scores = {}
    for place, (name, figure) in enumerate(figures.items()):
        rng = np.random.default_rng(place)
        gold = rng.uniform(0, 5, pairs).round(1)
        cosines = np.clip(gold / 5 * 0.7 + 0.2 + rng.normal(0, (100 - figure) / 150, pairs), -1, 1)
        interval = (figure - 1.5, figure + 1.25)
        pearson, beside = figure - 2.0, (figure - 3.5, figure - 0.75)
        label = {"stsb": "STS-B", "sickr": "SICK-R"}.get(name, name.upper())
        scores[name] = SetScore(
            label,
            "spearman",
            figure,
            pairs,
            0,
            {"pearson": pearson},
            PairOutcomes(gold, cosines),
            interval,
            {"pearson": beside},
        )
    average = sum(figures.values()) / len(figures)
    averages = average + np.random.default_rng(1).normal(0, 0.5, BOOTSTRAP)
    return SetScores(scores, 7, (average - 1.1, average + 0.9), Draws(BOOTSTRAP, 0, averages))


def report(
    name: str,
    role: str,
    scores: Scores,
    retention: float | None = None,
    facts: Mapping[str, object] | None = None,
    parameters: int = 22_713_216,
    speed: float | None = 300.4,
) -> ModelReport:
    return ModelReport(name, role, parameters, parameters * 4e-6, 384, speed, scores, retention, facts or {})


def keep(
    folder: Path, suite: str, model: ModelReport, teacher: ModelReport | None, *notes: str, **facts: Any
) -> None:
    """Keep an evaluation in the run's folder, as ``distill eval`` does."""
    models = [one.to_json() for one in (teacher, model) if one is not None]
    settings = json.dumps(facts, sort_keys=True)
    digest = {"student": str(model_digest(str(folder))), "sentences": "s", "settings": settings}
    result = {**facts, "suite": suite, "models": models, "notes": list(notes)}
    beside = None if teacher is None else Noted(teacher)
    write_kept(folder, new_kept(suite, digest, None, result, Noted(model), beside))


def keep_geometry(folder: Path, alignment: float, uniformity: float) -> None:
    def scores(by: float) -> GeometryScores:
        ends = {"alignment": (alignment + by - 0.01, alignment + by + 0.02)}
        lying = (alignment + by, uniformity + by, 0.1, 90.5, 384)
        return GeometryScores(*lying, intervals=ends, drawn=Draws(BOOTSTRAP, 0))

    keep(
        folder,
        "geometry",
        report(folder.name, "model", scores(0.0)),
        report("minilm-l6", "teacher", scores(-0.02)),
        "600 distinct sentences",
    )


def keep_latency(
    folder: Path, seconds: float, threads: int = 2, teacher: bool = True, in_batches: float | None = None
) -> None:
    """Keep a timing of a thousand sentences a pass; the teacher takes four times as long."""

    def scores(factor: float) -> LatencyScores:
        single, batch = ([one * factor] * 3 for one in (seconds, in_batches or seconds))
        return LatencyScores(Timing(single, 1.0, 2.0, batch), 1000, "sentence-transformers")

    beside = report("minilm-l6", "teacher", scores(4), speed=None) if teacher else None
    own = report(folder.name, "model", scores(1), speed=None)
    keep(folder, "latency", own, beside, processor="some CPU", threads=threads)


def keep_fidelity(folder: Path) -> None:
    ends = {"cosine_p05": (0.79, 0.81)}
    scores = FidelityScores(0.91, 0.8, 0.5, 88.0, 61.0, intervals=ends, drawn=Draws(BOOTSTRAP, 0))
    keep(folder, "fidelity", report(folder.name, "model", scores), None)


def some_runs(place: Path) -> list[Path]:
    """Two seeds of one student, another loss, and a run that is not finished."""
    facts = {
        "selected_on": [{"set": "stsb", "file": "pairs.tsv", "pairs": 50, "of": 60}],
        "contamination": {
            "stsb": {"sentences": 120, "sentences_seen": 12, "pairs": 60, "pairs_seen": 3},
            "sickr": {"sentences": 90, "sentences_seen": 0, "pairs": 45, "pairs_seen": 0},
        },
    }
    runs = [
        make_run(place / "l2-seed0", seed=0, sets={"sts12": 59.4, "stsb": 59.9, "sickr": 59.0}),
        make_run(place / "l2-seed1", seed=1, sets={"sts12": 60.4, "stsb": 61.9, "sickr": 58.0}),
        make_run(
            place / "ckd-tau",
            loss="ckd",
            tau=0.05,
            sets={"sts12": 64.1, "stsb": 70.2, "sickr": 63.3},
            facts=facts,
            parameters=17_389_824,
            speed=1900.2,
        ),
        make_run(place / "mse-cut", loss="mse", finished=False),
    ]
    for run, where in zip(runs, ((0.30, -2.4), (0.31, -2.45), (0.22, -2.1)), strict=False):
        keep_geometry(run, *where)
    keep_fidelity(runs[2])
    return runs
