"""Draw a sweep's scores over one of its keys: one line per loss, bars of one standard deviation over seeds.

    python benchmarks/plot_sweep.py sweeps/scale --over training.limit --out scale.svg
    python benchmarks/plot_sweep.py sweeps/losses sweeps/losses-l3 --over parameters --out sizes.svg

Reads ``runs.csv`` of the sweeps' folders. Over ``parameters`` it is ConGen's Figure 1.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from statistics import mean, stdev

from matplotlib import pyplot
from matplotlib.axes import Axes

# Distinguishable without colour: by marker, line and the name beside the last point.
STYLES = (("o", "-"), ("s", "--"), ("^", ":"), ("D", "-."))
NAMES = {
    "suite": "suite's average",
    "dev": "development set",
    "training.limit": "sentences",
    "loss.queue": "queue",
    "parameters": "parameters",
}

Series = dict[str, dict[float, list[float]]]


def read_series(folders: Sequence[Path], over: str, score: str) -> Series:
    """Return loss -> value of ``over`` -> scores of the seeds, of all finished runs of the sweeps.

    Raises:
        SystemExit: if there is no table, no such column, no finished run, or runs that differ in more than
            loss, seed and ``over``.
    """
    series: Series = defaultdict(lambda: defaultdict(list))
    seen = set()
    for row in (row for folder in folders for row in read_runs(folder / "runs.csv", over, score)):
        name, x = row.get("loss.name") or score, float(row[over])
        if (name, x, row.get("seed")) in seen:
            raise SystemExit(f"several runs of {name} have {over} {row[over]}: vary nothing else")
        seen.add((name, x, row.get("seed")))
        series[name][x].append(float(row[score]))
    return series


def read_runs(path: Path, over: str, score: str) -> list[dict[str, str]]:
    """Return the finished runs of a table; ends the program as ``read_series`` says."""
    if not path.is_file():
        raise SystemExit(f"no {path}: give the folder of a sweep")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if rows and not {over, score} <= set(rows[0]):
        raise SystemExit(f"{path} has the columns {', '.join(rows[0])}; no {over} or no {score}")
    rows = [row for row in rows if row["status"] == "finished" and row[score]]
    if not rows:
        raise SystemExit(f"{path} has no finished run with a score {score}")
    return rows


def draw(axes: Axes, series: Series) -> None:
    """Draw the lines, each with its name at the last point."""
    for (marker, line), (name, points) in zip(cycle(STYLES), series.items(), strict=False):
        places = sorted(points)
        spread = [stdev(points[x]) if len(points[x]) > 1 else 0.0 for x in places]
        heights = [mean(points[x]) for x in places]
        axes.errorbar(places, heights, spread, marker=marker, linestyle=line, capsize=3)
        axes.annotate(name, (places[-1], heights[-1]), (6, 0), textcoords="offset points", va="center")


def label(axes: Axes, over: str, score: str, places: Iterable[float]) -> None:
    """Name the axes, with a tick for every value of a logarithmic one."""
    ticks = sorted(set(places))
    if ticks[0] > 0 and ticks[-1] / ticks[0] >= 10:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(ticks, [f"{tick / 1e6:.3g} M" if tick >= 1e6 else f"{tick:,.6g}" for tick in ticks])
    axes.margins(x=0.12)
    axes.set_xlabel(NAMES.get(over, over))
    axes.set_ylabel(f"Spearman x 100, {NAMES.get(score, score)}")
    axes.grid(alpha=0.3)


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweeps", nargs="+", type=Path, help="folders of sweeps")
    parser.add_argument("--over", required=True, help="column of runs.csv for the horizontal axis")
    parser.add_argument("--score", default="suite", help="column for the vertical axis: suite, dev, stsb ...")
    parser.add_argument("--out", type=Path, required=True, help="picture to write: svg, png or pdf")
    given = parser.parse_args()
    series = read_series(given.sweeps, given.over, given.score)
    # The same sweep gives the same file.
    pyplot.rcParams["svg.hashsalt"] = "sweep"
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    draw(axes, series)
    label(axes, given.over, given.score, (x for points in series.values() for x in points))
    figure.savefig(given.out, metadata={"Date": None} if given.out.suffix == ".svg" else None, dpi=150)


if __name__ == "__main__":
    main()
