"""Draw sentence pairs as points: cosines and edit distances (ConGen, Figure 5), or cosines and gold scores.

    python benchmarks/plot_pairs.py stsb_dev.tsv unsup-simcse-bert-base runs/congen --out edits.svg
    python benchmarks/plot_pairs.py stsb_dev.tsv minilm-l6 runs/small --over gold --out gold.svg

A panel for each model, the gold scores first; red points are pairs of five edits or less. The title has
Spearman's correlation times 100. With ``--over gold`` it is ConGen's Figure 3.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import pyplot
from numpy.typing import NDArray
from scipy.stats import spearmanr

from distill.evaluation.model_kinds import open_model
from distill.evaluation.pairs import read_pairs
from distill.vectors import unit_rows

NEAR = 5
LABELS = {"edits": "edit distance of words", "gold": "gold score"}


def edits(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the number of words to insert, delete or replace."""
    row = list(range(len(right) + 1))
    for count, word in enumerate(left, 1):
        before, row[0] = row[0], count
        for place, other in enumerate(right, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return row[-1]


def draw(
    panels: dict[str, NDArray[np.float64]],
    over: NDArray[np.float64],
    near: NDArray[np.bool_],
    label: str,
    out: Path,
) -> None:
    """Draw a panel for each name -> similarity of the pairs, and print the correlations."""
    pyplot.rcParams["svg.hashsalt"] = "pairs"
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(3.1 * len(panels), 3.1), layout="constrained", squeeze=False
    )
    for place, (name, similarity) in zip(axes[0], panels.items(), strict=True):
        rho = 100 * spearmanr(over, similarity).statistic
        print(f"{name}: {rho:.2f}")
        for mask, colour in ((~near, "#0b63b0"), (near, "#a52a2a")):
            place.scatter(similarity[mask], over[mask], s=4, alpha=0.4, color=colour, linewidths=0)
        place.set_title(f"{name}\nSpearman {rho:.2f}", fontsize=9)
        place.set_xlabel("gold score" if name == "gold scores" else "cosine")
    axes[0, 0].set_ylabel(label)
    figure.savefig(out, metadata={"Date": None} if out.suffix == ".svg" else None, dpi=150)


def main() -> None:
    """Draw what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pairs", type=Path, help="file of scored pairs, such as stsb_dev.tsv")
    parser.add_argument("models", nargs="+", help="runs, folders, aliases or hub ids")
    parser.add_argument("--over", choices=LABELS, default="edits", help="what the cosines are compared with")
    parser.add_argument("--out", type=Path, required=True, help="picture to write: svg, png or pdf")
    given = parser.parse_args()
    sts = read_pairs(given.pairs, given.pairs.stem)
    gold = sts.gold
    words = [[text.lower().split() for text in pair] for pair in sts.items]
    distances = np.array([edits(*pair) for pair in words], np.float64)
    panels = {"gold scores": gold} if given.over == "edits" else {}
    for model in map(open_model, given.models):
        left, right = (unit_rows(model.encode(texts)) for texts in sts.texts)
        panels[model.name] = np.einsum("ij,ij->i", left, right).astype(np.float64)
    over = distances if given.over == "edits" else gold
    draw(panels, over, distances <= NEAR, LABELS[given.over], given.out)


if __name__ == "__main__":
    main()
