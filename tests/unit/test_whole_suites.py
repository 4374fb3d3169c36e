"""Suites that measure a model as a whole: geometry, fidelity and latency."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from suite_helpers import Counted, model, vectors_of, write_pairs, write_tsv

from distill.errors import DataError
from distill.evaluation import fidelity, latency
from distill.evaluation.fidelity import compare_vectors
from distill.evaluation.geometry import measure_geometry
from distill.evaluation.task import NotThereError, SuiteOptions, get_suite
from distill.vectors import unit_rows

TEXTS = [f"sentence {i}" for i in range(40)]


def test_geometry_follows_its_definitions() -> None:
    vectors = vectors_of(TEXTS)
    unit = unit_rows(vectors)
    apart = np.array([np.sum((a - b) ** 2) for i, a in enumerate(unit) for b in unit[i + 1 :]])
    spectrum = np.linalg.svd(unit, compute_uv=False)
    shares = spectrum / spectrum.sum()
    found = measure_geometry(vectors, vectors[:5], vectors[5:10])
    expected = {
        "alignment": np.mean(np.sum((unit[:5] - unit[5:10]) ** 2, axis=1)),
        "uniformity": np.log(np.mean(np.exp(-2 * apart))),
        "anisotropy": np.mean(1 - apart / 2),
        "effective_rank": np.exp(-(shares * np.log(shares)).sum()),
    }
    assert {name: figure.value for name, figure in found.items()} == pytest.approx(expected)
    for figure in found.values():
        if figure.outcomes is not None:
            assert figure.outcomes.values.mean() == pytest.approx(figure.value)


def test_geometry_reads_stsb_test_or_dev_and_needs_two_sentences(tmp_path: Path) -> None:
    suite = get_suite("geometry")
    with pytest.raises(NotThereError):
        suite.run(Counted(), tmp_path, SuiteOptions())
    write_pairs(tmp_path / "stsb_dev.tsv")
    assert "alignment" in suite.run(Counted(), tmp_path, SuiteOptions()).figures
    write_tsv(tmp_path / "stsb_test.tsv", "subset score sentence1 sentence2", [("x", 1, "a", "a")])
    with pytest.raises(DataError, match="2 distinct"):
        suite.run(Counted(), tmp_path, SuiteOptions())


def test_fidelity_to_itself_is_full_at_any_length_and_similarities_survive_a_rotation() -> None:
    vectors = vectors_of(TEXTS)
    found = {name: figure.value for name, figure in compare_vectors(2 * vectors, vectors).items()}
    cosines = dict.fromkeys(("cosine_mean", "cosine_p05", "cosine_worst"), 1)
    assert found == pytest.approx({**cosines, "similarity_spearman": 100, "neighbour_overlap": 100})
    turned = vectors @ np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))[0]
    figures = compare_vectors(turned.astype(np.float32), vectors)
    assert figures["similarity_spearman"].value == pytest.approx(100, abs=1e-3)
    assert figures["cosine_mean"].value < 0.9


def test_fidelity_compares_similarities_and_neighbours_at_any_widths() -> None:
    student, teacher = vectors_of(TEXTS, 5), vectors_of(TEXTS, 8)
    found = compare_vectors(student, teacher)
    assert set(found) == {"similarity_spearman", "neighbour_overlap"}
    similar = [unit @ unit.T for unit in map(unit_rows, (student, teacher))]
    above = np.triu_indices(len(TEXTS), 1)
    figure = found["similarity_spearman"]
    assert figure.value == pytest.approx(100 * spearmanr(*(one[above] for one in similar)).statistic)
    # The first neighbour of a sentence is itself.
    nearest = [np.argsort(-one, axis=1)[:, 1:11] for one in similar]
    common = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(*nearest, strict=True)])
    assert found["neighbour_overlap"].value == pytest.approx(100 * common)
    assert "cosine_mean" not in compare_vectors(teacher, teacher, cosines=False)


def test_fidelity_samples_by_seed_and_refuses_incomparable_models(monkeypatch) -> None:
    monkeypatch.setattr(fidelity, "SAMPLE", 60)
    many, noise = np.random.default_rng(0).normal(size=(2, 90, 4)).astype(np.float32)
    figures = [compare_vectors(many + noise, many, seed=seed) for seed in (0, 0, 1)]
    first, second, third = (one["similarity_spearman"].value for one in figures)
    assert first == second != third
    with pytest.raises(DataError, match="at least 3"):
        compare_vectors(many[:2], many[:2])
    with pytest.raises(DataError, match="student"):
        compare_vectors(np.ones((9, 4), np.float32), many[:9])


def test_fidelity_reads_a_file_or_the_held_out_texts_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("".join(f"{text}\n" for text in (*TEXTS, TEXTS[0])))
    (tmp_path / "held_out.txt").write_text("".join(f"{json.dumps(text)}\n" for text in TEXTS))
    suite = get_suite("fidelity")
    for name in ("t.txt", "held_out.txt"):
        result = suite.run(Counted(), tmp_path / name, SuiteOptions(teacher=Counted(salt="teacher")))
        assert result.settings["sentences"] == len(TEXTS)


def test_latency_times_every_sentence_one_by_one_and_in_batches() -> None:
    calls: list[int] = []
    timing = latency.measure(lambda some, size: calls.append(len(some)), [f"t{i}" for i in range(70)])
    assert calls.count(1) == latency.WARM_UP + 3 * 70
    assert calls.count(70) == 3
    figures = latency.figures_of(timing | {"peak_megabytes": 12.5})
    assert figures[latency.SPEED].value == pytest.approx(70 / figures["batch_1_seconds"].value)
    assert figures["batch_1_ms_p50"].value <= figures["batch_1_ms_p95"].value
    assert figures["peak_memory_megabytes"].value == 12.5


def test_latency_times_a_model_in_memory_by_its_encoder(tmp_path: Path) -> None:
    write_pairs(tmp_path / "stsb_test.tsv", 4)
    timed = model()
    result = get_suite("latency").run(timed.encode, tmp_path, SuiteOptions(model=timed))
    assert result.settings["runtime"] == "encoder in memory"
    assert len(timed.encoder.seen) > 3 * 8
