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
from distill.evaluation.task import NotThereError, SuiteOptions, get_suite, suites
from distill.vectors import unit_rows

TEXTS = [f"sentence {i}" for i in range(40)]


def test_geometry_is_what_its_definitions_say() -> None:
    vectors = vectors_of(TEXTS)
    left, right = vectors[:5], vectors[5:10]
    unit = unit_rows(vectors)
    apart = np.array([np.sum((a - b) ** 2) for i, a in enumerate(unit) for b in unit[i + 1 :]])
    spectrum = np.linalg.svd(unit, compute_uv=False)
    shares = spectrum / spectrum.sum()
    found = {name: figure.value for name, figure in measure_geometry(vectors, left, right).items()}
    assert found["alignment"] == pytest.approx(np.mean(np.sum((unit[:5] - unit[5:10]) ** 2, axis=1)))
    assert found["uniformity"] == pytest.approx(np.log(np.mean(np.exp(-2 * apart))))
    assert found["anisotropy"] == pytest.approx(np.mean(1 - apart / 2))
    assert found["effective_rank"] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    for figure in measure_geometry(vectors, left, right).values():
        if figure.outcomes is not None:
            assert figure.outcomes.values.mean() == pytest.approx(figure.value)


def test_geometry_reads_stsb_test_or_dev_and_needs_two_sentences(tmp_path: Path) -> None:
    with pytest.raises(NotThereError):
        get_suite("geometry").run(Counted(), tmp_path, SuiteOptions())
    write_pairs(tmp_path / "stsb_dev.tsv")
    result = get_suite("geometry").run(Counted(), tmp_path, SuiteOptions())
    assert "alignment" in result.figures
    write_tsv(tmp_path / "stsb_test.tsv", "subset score sentence1 sentence2", [("x", 1, "a", "a")])
    with pytest.raises(DataError, match="2 distinct"):
        get_suite("geometry").run(Counted(), tmp_path, SuiteOptions())


def test_fidelity_to_itself_is_full_and_does_not_depend_on_length_or_rotation() -> None:
    vectors = vectors_of(TEXTS)
    rotated = 3 * vectors @ np.linalg.qr(np.random.default_rng(0).normal(size=(8, 8)))[0]
    for other in (vectors, 2 * vectors):
        found = {name: figure.value for name, figure in compare_vectors(other, vectors).items()}
        assert found == pytest.approx(
            {
                "cosine_mean": 1,
                "cosine_p05": 1,
                "cosine_worst": 1,
                "similarity_spearman": 100,
                "neighbour_overlap": 100,
            }
        )
    turned = compare_vectors(rotated.astype(np.float32), vectors)
    assert turned["similarity_spearman"].value == pytest.approx(100, abs=1e-3)
    assert turned["cosine_mean"].value < 0.9


def test_fidelity_compares_similarities_and_neighbours_whatever_the_widths() -> None:
    student, teacher = vectors_of(TEXTS, 5), vectors_of(TEXTS, 8)
    found = compare_vectors(student, teacher)
    assert set(found) == {"similarity_spearman", "neighbour_overlap"}
    above = np.triu_indices(len(TEXTS), 1)
    pairs = [(unit @ unit.T)[above] for unit in map(unit_rows, (student, teacher))]
    figure = found["similarity_spearman"]
    assert figure.value == pytest.approx(100 * spearmanr(*pairs).statistic)
    assert figure.outcomes is not None
    assert figure.outcomes.values.mean() == pytest.approx(figure.value)
    assert "cosine_mean" not in compare_vectors(teacher, teacher, cosines=False)


def test_fidelity_samples_by_seed_and_refuses_what_cannot_be_compared(monkeypatch) -> None:
    monkeypatch.setattr(fidelity, "SAMPLE", 60)
    rng = np.random.default_rng(0)
    many = rng.normal(size=(90, 4)).astype(np.float32)
    other = (many + rng.normal(size=many.shape)).astype(np.float32)
    figures = [compare_vectors(other, many, seed=seed)["similarity_spearman"].value for seed in (0, 0, 1)]
    assert figures[0] == figures[1] != figures[2]
    with pytest.raises(DataError, match="at least 3"):
        compare_vectors(many[:2], many[:2])
    with pytest.raises(DataError, match="student"):
        compare_vectors(np.ones((9, 4), np.float32), many[:9])


def test_fidelity_reads_a_file_or_what_a_run_held_out(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("".join(f"{text}\n" for text in (*TEXTS, TEXTS[0])))
    (tmp_path / "held_out.txt").write_text("".join(f"{json.dumps(text)}\n" for text in TEXTS))
    suite = get_suite("fidelity")
    for name in ("t.txt", "held_out.txt"):
        result = suite.run(Counted(), tmp_path / name, SuiteOptions(teacher=Counted(salt="teacher")))
        assert result.settings["sentences"] == len(TEXTS)
    with pytest.raises(NotThereError, match="teacher"):
        suite.run(Counted(), tmp_path / "t.txt", SuiteOptions())


def test_latency_times_every_sentence_one_by_one_and_in_batches() -> None:
    calls: list[int] = []
    texts = [f"t{i}" for i in range(70)]
    timing = latency.measure(lambda some, size: calls.append(len(some)), texts)
    assert calls.count(1) == latency.WARM_UP + 3 * 70
    assert calls.count(70) == 3
    figures = latency.figures_of(timing | {"peak_megabytes": 12.5})
    assert figures[latency.SPEED].value == pytest.approx(70 / figures["batch_1_seconds"].value)
    assert figures["batch_1_ms_p50"].value <= figures["batch_1_ms_p95"].value
    assert figures["peak_memory_megabytes"].value == 12.5


def test_latency_runs_only_if_it_is_named_and_times_a_model_in_memory_by_its_encoder(tmp_path: Path) -> None:
    assert [name for name, suite in suites().items() if suite.on_request] == ["latency"]
    write_pairs(tmp_path / "stsb_test.tsv", 4)
    timed = model()
    result = get_suite("latency").run(timed.encode, tmp_path, SuiteOptions(model=timed))
    assert result.settings["runtime"] == "encoder in memory"
    assert len(timed.encoder.seen) > 3 * 8
