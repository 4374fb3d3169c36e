"""A tiny teacher with a classifier, and files of pairs of texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from embedcache.pairs import join_pair
from embedcache.teacher.classifier import ClassifierHead
from embedcache.testing import sentences, tiny_encoder

LABELS = ("no", "yes")


def classifier_folder(folder: Path, *, seed: int = 0, labels: tuple[str, ...] = LABELS) -> Path:
    """A tiny teacher's folder with a random classifier in it."""
    tiny_encoder(folder, normalize=False)
    return add_classifier(folder, seed=seed, labels=labels)


def add_classifier(folder: Path, *, seed: int = 0, labels: tuple[str, ...] = LABELS, width: int = 16) -> Path:
    """Put a random classifier into a model's folder."""
    random = np.random.default_rng(seed)
    weight = random.normal(size=(len(labels), width)).astype(np.float32)
    ClassifierHead(labels, weight, random.normal(size=len(labels)).astype(np.float32)).write(folder)
    return folder


def pairs(count: int) -> list[tuple[str, str]]:
    """Return distinct pairs of sentences."""
    texts = sentences(2 * count)
    return list(zip(texts[:count], texts[count:], strict=True))


def joined(count: int) -> list[str]:
    """Return the same pairs, each as one text."""
    return [join_pair(*pair) for pair in pairs(count)]


def pair_file(path: Path, count: int) -> Path:
    """Write pairs with labels, every third of them of the split ``dev``."""
    lines = ["premise\thypothesis\tlabel\tsplit"]
    for number, (first, second) in enumerate(pairs(count)):
        lines.append(f"{first}\t{second}\t{number % 2}\t{'train' if number % 3 else 'dev'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
