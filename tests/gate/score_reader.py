"""Scores for the gate: the one place to adapt when the interface of evaluation changes."""

from __future__ import annotations

from pathlib import Path


def read_scores(suite: str, models: list[Path], teacher: str | None, data: Path) -> dict[str, float]:
    """Return "model/set/measure" -> figure of one suite evaluated by itself."""
    from distill.evaluation import evaluate

    found = evaluate(
        models, suite=suite, data=data, teacher=teacher, device="cpu", bootstrap=0, contamination=False
    )
    scores: dict[str, float] = {}
    for facts, result in found.models:
        retention = found.retention(facts.name)
        averaged = result.headline == "average"
        if averaged:
            scores[f"{facts.name}/average"] = result.average
            scores[f"{facts.name}/sets_scored"] = len(result.figures)
            scores[f"{facts.name}/sets_of"] = len(result.figures) + len(result.missing)
        if retention is not None:
            scores[f"{facts.name}/retention"] = round(retention.value, 2)
        for name, figure in result.figures.items():
            place = f"{facts.name}/sets/{name}"
            if averaged:
                scores |= {f"{place}/score": figure.value, f"{place}/items": figure.items or 0}
                scores |= {f"{place}/{measure}": value for measure, value in figure.others.items()}
                scores[f"{place}/skipped"] = figure.skipped
            else:
                # "cosine_mean" was written down as "cosine/mean".
                scores[f"{facts.name}/{name.replace('cosine_', 'cosine/')}"] = figure.value
    return scores
