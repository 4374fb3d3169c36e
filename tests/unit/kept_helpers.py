"""What tests of kept evaluations share: a run with its teacher and data, and a count of who encoded what."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from evaluation_helpers import letters_model, write_rows

from distill.evaluation import model as model_module
from distill.evaluation.old_init import EvaluatedModel, evaluate

HEADER = "subset | score | sentence1 | sentence2"
PAIRS = (
    "a | 5.0 | a red apple | a red apple!",
    "a | 3.0 | a red apple | a green pear",
    "a | 0.0 | zzz qqq | a green pear",
    "b | 4.0 | a dog runs | a dog ran",
    "b | 1.0 | a dog runs | the sky",
    "b | 2.5 | men sing | men shout",
)
HELD_OUT = [f"{chr(97 + number) * (number + 1)} held out {chr(122 - number)}" for number in range(12)]


class Bench:
    """A run, its teacher and its data; says who encoded what."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.data = folder / "runs" / "first", folder / "data"
        self.seen: dict[str, Counter[str]] = {"first": Counter(), "big": Counter(), "other": Counter()}
        self.data.mkdir()
        (self.run / "best").mkdir(parents=True)
        (self.run / "best" / "model.safetensors").write_bytes(b"weights")
        record = {"teacher": {"name": "big", "spec": "org/big"}}
        (self.run / "run.json").write_text(json.dumps(record), encoding="utf-8")
        lines = "".join(json.dumps(text) + "\n" for text in HELD_OUT)
        (self.run / "held_out.txt").write_text(lines, encoding="utf-8")
        write_rows(self.data, "stsb_test", HEADER, *PAIRS)
        write_rows(self.data, "sts12_test", HEADER, *(row.replace("apple", "fruit") for row in PAIRS))
        monkeypatch.setattr(model_module, "_load_torch", self.load)

    def load(self, folder: object, name: str | None, *_: object) -> EvaluatedModel:
        who = name or str(folder).rpartition("/")[2]
        plain = letters_model(who)

        def encode(texts: list[str]) -> np.ndarray:
            self.seen[who].update(texts)
            noise = np.random.default_rng(len(who)).standard_normal((len(texts), 26))
            return plain.encode(texts) + (0.5 * noise if who == "first" else 0)

        return EvaluatedModel(who, 1000, 4.0, 26, encode)

    def evaluate(self, **settings):
        return evaluate(self.run, **{"data": self.data, "keep": True, "bootstrap": 20, **settings})

    def encoded(self) -> dict[str, int]:
        """How many sentences each has encoded since the last time this was asked."""
        counts = {name: seen.total() for name, seen in self.seen.items() if seen}
        for seen in self.seen.values():
            seen.clear()
        return counts
