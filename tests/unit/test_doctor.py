"""The doctor finds what is planted, counts it exactly, and leaves a healthy cache in peace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doctor_helpers import (
    TEXTS,
    WIDTH,
    add_corpus,
    batch_of,
    grades,
    make_cache,
    put,
    unit,
    verdict,
)
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.doctor import examine
from embedcache.doctor.scan import LONGEST_COUNTED, fingerprint
from embedcache.errors import InputError
from embedcache.testing import example_contract, sentences

CONTRACT = example_contract(WIDTH)


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_healthy_cache_is_ok_in_every_line(tmp_path: Path, kind: str) -> None:
    diagnosis = examine(make_cache(tmp_path / "c", unit(600), kind=kind))
    assert grades(diagnosis) == {}
    assert diagnosis.worst == "ok"
    assert diagnosis.scan.vectors == 600
    assert {one.name for one in diagnosis.verdicts} == {
        "coverage of corpus",
        "duplicate texts in corpus",
        "NaN or infinite",
        "zero vectors",
        "norms",
        "identical vectors",
        "near-duplicate vectors",
        "cosine of random pairs",
        "effective rank",
        "first component",
        "dead dimensions",
        "lengths",
        "truncated texts",
    }
    assert all(one.advice and one.figure for one in diagnosis.verdicts)


@pytest.mark.parametrize("codec", ["float32", "float16", "int8", "pq"])
def test_no_codec_makes_a_healthy_cache_look_ill(tmp_path: Path, codec: str) -> None:
    cache = Cache.create(tmp_path / "c")
    contract = example_contract(32)
    cache.register_teacher("teacher", contract, {})
    add_corpus(cache, TEXTS)
    cache.store(contract, codec).put(batch_of(TEXTS, unit(600, 32)))
    assert grades(examine(cache)) == {}


def test_nan_and_infinity_are_found_and_named(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[17, 3] = np.nan
    vectors[400] = -np.inf
    diagnosis = examine(make_cache(tmp_path / "c", vectors))
    found = verdict(diagnosis, "NaN or infinite")
    assert (found.grade, found.value) == ("bad", 2.0)
    assert set(found.examples) == {(TEXTS[17],), (TEXTS[400],)}
    # They spoil no other figure.
    assert grades(diagnosis) == {"NaN or infinite": "bad"}
    assert diagnosis.geometry is not None
    assert diagnosis.geometry.rows == 598


def test_zero_vectors_are_found_and_named(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[[5, 6, 599]] = 0
    diagnosis = examine(make_cache(tmp_path / "c", vectors))
    found = verdict(diagnosis, "zero vectors")
    assert (found.grade, found.value) == ("bad", 3.0)
    assert set(found.examples) == {(TEXTS[5],), (TEXTS[6],), (TEXTS[599],)}
    assert grades(diagnosis) == {"zero vectors": "bad"}


def test_equal_vectors_of_different_texts_are_counted_by_groups(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[100:180] = vectors[100]
    vectors[300] = vectors[301]
    diagnosis = examine(make_cache(tmp_path / "c", vectors))
    found = diagnosis.scan.identical
    assert (found.vectors, found.groups, found.largest) == (82, 2, 80)
    judged = verdict(diagnosis, "identical vectors")
    assert judged.grade == "bad"
    collapsed, equal = judged.examples
    assert set(collapsed) < set(TEXTS[100:180])
    assert len(set(collapsed)) == 2
    assert set(equal) == {TEXTS[300], TEXTS[301]}
    # Of equal vectors one stands for all, or each pair of them would be near.
    assert diagnosis.geometry is not None
    assert diagnosis.geometry.near_pairs == 0


def test_one_large_group_is_worth_a_look_where_a_few_pairs_are_not(tmp_path: Path) -> None:
    texts = sentences(2000, seed=4)
    pairs, group = unit(2000), unit(2000)
    pairs[:14:2] = pairs[1:14:2]
    group[:14] = group[0]
    scattered = examine(make_cache(tmp_path / "a", pairs, texts=texts), sample=300)
    collapsed = examine(make_cache(tmp_path / "b", group, texts=texts), sample=300)
    assert scattered.scan.identical.vectors == collapsed.scan.identical.vectors == 14
    assert verdict(scattered, "identical vectors").grade == "ok"
    assert verdict(collapsed, "identical vectors").grade == "look"


def test_a_key_in_two_shards_is_one_vector(tmp_path: Path) -> None:
    vectors = unit(600)
    cache = make_cache(tmp_path / "c", vectors)
    put(cache, CONTRACT, batch_of(TEXTS[:200], vectors[:200]))
    put(cache, CONTRACT, batch_of(TEXTS[100:300], vectors[100:300]))
    diagnosis = examine(cache)
    assert len(cache.store(CONTRACT).shards) == 3
    assert diagnosis.scan.vectors == 600
    assert diagnosis.scan.identical.vectors == 0
    assert int(diagnosis.scan.tokens.sum()) == 600


def test_near_duplicates_are_different_vectors_that_hardly_differ(tmp_path: Path) -> None:
    vectors = unit(600)
    nudge = unit(600, seed=9)
    for row, size in ((10, 0.02), (20, 0.02), (30, 0.1)):  # cosines about 0.9998, 0.9998, 0.995
        near = vectors[row] + size * nudge[row]
        vectors[row + 1] = near / np.linalg.norm(near)
    diagnosis = examine(make_cache(tmp_path / "c", vectors))
    assert diagnosis.geometry is not None
    assert (diagnosis.geometry.near_pairs, diagnosis.geometry.near_rows) == (2, 4)
    shown = verdict(diagnosis, "near-duplicate vectors").examples
    assert {frozenset(pair) for pair in shown} == {frozenset(TEXTS[10:12]), frozenset(TEXTS[20:22])}
    assert diagnosis.scan.identical.vectors == 0


def test_many_near_duplicates_are_bad(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[:200] = vectors[200:400] + 1e-3 * unit(200, seed=9)
    found = verdict(examine(make_cache(tmp_path / "c", vectors)), "near-duplicate vectors")
    assert found.grade == "bad"
    assert found.value == pytest.approx(400 / 600)


def test_norms_are_held_to_the_contract(tmp_path: Path) -> None:
    longer = np.float32(1.05) * unit(600)
    promised = verdict(examine(make_cache(tmp_path / "a", longer)), "norms")
    assert promised.grade == "bad"
    assert promised.value == pytest.approx(0.05, abs=1e-3)
    assert verdict(examine(make_cache(tmp_path / "b", longer, normalize=False)), "norms").grade == "ok"


def test_norms_may_be_off_by_what_storing_and_computing_round(tmp_path: Path) -> None:
    def judged(name: str, off: float, codec: str, compute: str) -> str:
        cache = Cache.create(tmp_path / name)
        cache.register_teacher("teacher", CONTRACT, {})
        add_corpus(cache, TEXTS)
        batch = batch_of(TEXTS, np.float32(1 + off) * unit(600))
        cache.store(CONTRACT, codec).put(replace(batch, provenance={"compute_dtype": compute}))
        return verdict(examine(cache), "norms").grade

    assert judged("a", 0.004, "float32", "bfloat16") == "ok"
    assert judged("b", 0.004, "float32", "float32") == "bad"
    assert judged("c", 0.015, "float16", "bfloat16") == "bad"
    assert judged("d", 0.0015, "float16", "float32") == "ok"
    assert judged("e", 0.0015, "float32", "float32") == "bad"


def test_one_vector_off_its_norm_is_enough(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[77] *= 0.9
    diagnosis = examine(make_cache(tmp_path / "c", vectors))
    assert grades(diagnosis) == {"norms": "bad"}
    assert diagnosis.scan.norms is not None
    assert diagnosis.scan.norms.least == pytest.approx(0.9, abs=1e-6)
    assert diagnosis.scan.norms.most == pytest.approx(1, abs=1e-6)


def test_free_norms_are_worth_a_look_where_one_rules(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[5] *= 1e20
    found = verdict(examine(make_cache(tmp_path / "c", vectors, normalize=False)), "norms")
    assert found.grade == "look"
    vectors[5] = 3 * unit(600)[5]
    assert verdict(examine(make_cache(tmp_path / "d", vectors, normalize=False)), "norms").grade == "ok"


def cone(share: float) -> NDArray[np.float32]:
    """Unit vectors whose random pairs have a mean cosine of about ``share``."""
    vectors = np.sqrt(1 - share) * unit(600)
    vectors[:, 0] += np.sqrt(share)
    return np.float32(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


@pytest.mark.parametrize(("share", "grade"), [(0.2, "ok"), (0.7, "look"), (0.96, "bad")])
def test_vectors_in_a_cone_are_told_by_their_mean_cosine(tmp_path: Path, share: float, grade: str) -> None:
    vectors = cone(share)
    found = verdict(examine(make_cache(tmp_path / "c", vectors)), "cosine of random pairs")
    every_pair = (vectors @ vectors.T)[~np.eye(600, dtype=bool)].mean()
    assert found.value == pytest.approx(every_pair, abs=0.01)
    assert found.grade == grade


def test_the_spectrum_is_that_of_the_singular_values(tmp_path: Path) -> None:
    scales = np.geomspace(1, 0.05, WIDTH)
    vectors = np.float32(unit(600) * scales + 0.3)
    geometry = examine(make_cache(tmp_path / "c", vectors, normalize=False)).geometry
    assert geometry is not None
    squares = np.linalg.svd(vectors.astype(np.float64) - vectors.mean(axis=0), compute_uv=False) ** 2
    shares = squares / squares.sum()
    np.testing.assert_allclose(geometry.spectrum, shares, rtol=1e-5)
    assert geometry.effective_rank == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    assert geometry.participation_ratio == pytest.approx(1 / (shares**2).sum())
    assert 1 < geometry.participation_ratio < geometry.effective_rank < WIDTH


def test_a_cloud_of_few_directions_has_a_low_effective_rank(tmp_path: Path) -> None:
    basis = np.linalg.qr(np.random.default_rng(2).normal(size=(64, 3)))[0].T
    flat = np.float32(unit(600, 3) @ basis)
    diagnosis = examine(make_cache(tmp_path / "c", flat))
    assert verdict(diagnosis, "effective rank").value == pytest.approx(3, abs=0.1)
    # So many texts do not fit side by side into three directions.
    assert grades(diagnosis).keys() == {"effective rank", "first component", "near-duplicate vectors"}


def test_one_direction_that_rules_is_bad(tmp_path: Path) -> None:
    vectors = unit(600, 64)
    vectors[:300, 0] += 3
    vectors[300:, 0] -= 3
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    diagnosis = examine(make_cache(tmp_path / "c", vectors))
    assert verdict(diagnosis, "first component").grade == "bad"
    assert verdict(diagnosis, "cosine of random pairs").grade == "ok"


def test_dead_dimensions_are_counted_and_listed(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[:, [2, 7]] = 0.1
    vectors[:, 11] = np.float32(1e-5) * unit(600)[:, 11]
    diagnosis = examine(make_cache(tmp_path / "c", vectors, normalize=False))
    assert diagnosis.geometry is not None
    assert diagnosis.geometry.dead == (2, 7, 11)
    assert grades(diagnosis) == {"dead dimensions": "bad"}


def test_vectors_that_are_all_the_same_are_bad_and_not_an_accident(tmp_path: Path) -> None:
    diagnosis = examine(make_cache(tmp_path / "c", np.repeat(unit(1), 600, axis=0)))
    assert verdict(diagnosis, "effective rank").value == 0
    for name in ("identical vectors", "effective rank", "cosine of random pairs", "dead dimensions"):
        assert verdict(diagnosis, name).grade == "bad", name
    json.dumps(diagnosis.to_json(), allow_nan=False)


def test_missing_vectors_are_counted_and_named(tmp_path: Path) -> None:
    diagnosis = examine(make_cache(tmp_path / "c", unit(590)))
    found = verdict(diagnosis, "coverage of corpus")
    assert (found.grade, found.figure) == ("bad", "590 of 600 texts")
    assert found.examples == tuple((text,) for text in TEXTS[590:595])
    assert "embedcache build" in found.advice


def test_a_corpus_of_another_teacher_is_only_worth_a_look(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c", unit(600))
    add_corpus(cache, sentences(50, seed=99, longest=20)[-20:], "foreign")
    assert grades(examine(cache)) == {"coverage of foreign": "look"}
    assert grades(examine(cache, corpus="corpus")) == {}
    assert verdict(examine(cache, corpus="foreign"), "coverage of foreign").grade == "bad"


def test_repeated_texts_are_counted_once(tmp_path: Path) -> None:
    vectors = unit(600)
    diagnosis = examine(make_cache(tmp_path / "c", vectors, texts=[*TEXTS, *TEXTS[:300], *TEXTS[:100]]))
    found = verdict(diagnosis, "duplicate texts in corpus")
    assert (found.grade, found.figure) == ("look", "400 of 1,000 rows (40.0%)")
    assert diagnosis.coverage[0].distinct == 600
    assert diagnosis.scan.vectors == 600


def test_lengths_are_counted_over_all_vectors(tmp_path: Path) -> None:
    tokens = [3] * 300 + [7] * 270 + [9] * 20 + [0] * 10
    diagnosis = examine(make_cache(tmp_path / "c", unit(600), tokens=tokens), sample=50)
    found = verdict(diagnosis, "lengths")
    assert "median 3, 95 % up to 7, longest 9 tokens, 10 unknown" in found.figure
    assert found.value == pytest.approx((3 * 300 + 7 * 270 + 9 * 20) / 590)
    assert sum(diagnosis.lengths.counts) == 590
    assert (diagnosis.lengths.edges[0], diagnosis.lengths.edges[-1]) == (3.0, 10.0)


def test_unknown_lengths_are_said_to_be_unknown(tmp_path: Path) -> None:
    diagnosis = examine(make_cache(tmp_path / "c", unit(600), tokens=[0] * 600))
    assert verdict(diagnosis, "lengths").figure == "unknown"
    assert grades(diagnosis) == {"lengths": "look"}


def test_absurd_lengths_do_not_fill_the_memory(tmp_path: Path) -> None:
    diagnosis = examine(make_cache(tmp_path / "c", unit(3), tokens=[2**31 - 1, -5, 4]))
    assert len(diagnosis.scan.tokens) == LONGEST_COUNTED + 1
    assert diagnosis.scan.tokens[[0, 4, LONGEST_COUNTED]].tolist() == [1, 1, 1]


@pytest.mark.parametrize(("cut", "grade"), [(20, "ok"), (60, "look"), (200, "bad")])
def test_truncated_texts_are_judged_by_their_share(tmp_path: Path, cut: int, grade: str) -> None:
    truncated = [row < cut for row in range(600)]
    found = verdict(examine(make_cache(tmp_path / "c", unit(600), truncated=truncated)), "truncated texts")
    assert (found.grade, found.value) == (grade, cut / 600)
    assert "at 64" in found.figure


def test_a_corpus_named_is_judged_by_its_own_vectors(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[550] = np.nan
    cache = make_cache(tmp_path / "c", vectors)
    add_corpus(cache, TEXTS[:500], "clean")
    add_corpus(cache, TEXTS[500:], "ill")
    assert verdict(examine(cache), "NaN or infinite").value == 1
    assert verdict(examine(cache, corpus="ill"), "NaN or infinite").value == 1
    clean = examine(cache, corpus="clean")
    assert verdict(clean, "NaN or infinite").value == 0
    assert (clean.scan.vectors, [one.corpus for one in clean.coverage]) == (500, ["clean"])


def test_vectors_of_no_corpus_are_judged_and_shown_by_their_keys(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c", unit(600))
    put(cache, CONTRACT, batch_of(["nobody's"], np.zeros((1, WIDTH), dtype=np.float32)))
    found = verdict(examine(cache), "zero vectors")
    assert found.value == 1
    assert found.examples[0][0].startswith("(key ")
    assert verdict(examine(cache, corpus="corpus"), "zero vectors").value == 0


def test_the_sample_depends_on_the_seed_and_not_on_the_shards(tmp_path: Path) -> None:
    vectors = unit(600)
    whole = make_cache(tmp_path / "a", vectors)
    parts = make_cache(tmp_path / "b", vectors[:100])
    for start in range(100, 600, 100):
        put(parts, CONTRACT, batch_of(TEXTS[start : start + 100], vectors[start : start + 100]))
    one, same = (examine(cache, sample=50) for cache in (whole, parts))
    other = examine(whole, sample=50, seed=1)
    assert one.scan.sample.tolist() == same.scan.sample.tolist()
    assert one.geometry is not None
    assert one.geometry.rows == 50
    assert one.to_json() | {"cache": ""} == same.to_json() | {"cache": ""}
    assert set(one.scan.sample.tolist()) != set(other.scan.sample.tolist())


@pytest.mark.parametrize("rows", [1, 2, 49])
def test_a_tiny_cache_is_judged_as_far_as_it_goes(tmp_path: Path, rows: int) -> None:
    diagnosis = examine(make_cache(tmp_path / "c", unit(rows), texts=TEXTS[:rows]))
    assert grades(diagnosis) == {"sample": "look"}
    assert (diagnosis.geometry is None) == (rows == 1)
    json.dumps(diagnosis.to_json(), allow_nan=False)


def test_a_cache_of_broken_vectors_alone_is_judged(tmp_path: Path) -> None:
    diagnosis = examine(make_cache(tmp_path / "c", np.full((600, WIDTH), np.nan, dtype=np.float32)))
    assert grades(diagnosis) == {"NaN or infinite": "bad", "norms": "bad", "sample": "look"}
    json.dumps(diagnosis.to_json(), allow_nan=False)


def test_json_holds_everything(tmp_path: Path) -> None:
    value = json.loads(json.dumps(examine(make_cache(tmp_path / "c", unit(600))).to_json(), allow_nan=False))
    assert value["worst"] == "ok"
    assert len(value["sample"]["spectrum"]) == WIDTH
    assert sum(value["sample"]["norms"]["counts"]) == 600
    assert sum(value["sample"]["cosines"]["counts"]) > 600
    assert value["vectors"]["lengths"] == {"edges": [5.0, 6.0], "counts": [600]}
    assert [one["grade"] for one in value["verdicts"]] == ["ok"] * 13


def test_progress_begins_and_ends_where_it_should(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c", unit(600))
    path = tmp_path / "set.txt"
    path.write_text("one text\nanother text\n")
    told: list[tuple[str, int, int]] = []
    examine(cache, against=[path], on_progress=lambda *step: told.append(step))
    # The beginning is told of as well: a rate needs to know when that was.
    assert {phase: done for phase, done, _ in reversed(told)} == dict.fromkeys(
        ("evaluation sets", "coverage", "vectors", "overlap"), 0
    )
    assert {phase: (done, total) for phase, done, total in told} == {
        "evaluation sets": (2, 0),
        "coverage": (600, 600),
        "vectors": (600, 600),
        "overlap": (600, 600),
    }


def test_what_cannot_be_examined_is_refused(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c", unit(600))
    with pytest.raises(InputError, match="at least 2"):
        examine(cache, sample=1)
    with pytest.raises(InputError, match="no corpus 'x'"):
        examine(cache, corpus="x")
    empty = Cache.create(tmp_path / "e")
    empty.register_teacher("teacher", CONTRACT, {})
    with pytest.raises(InputError, match="no vector of 'teacher' yet: run 'embedcache build'"):
        examine(tmp_path / "e")


@pytest.mark.parametrize("width", [1, 7, 8])
def test_fingerprints_tell_every_bit_apart(width: int) -> None:
    vectors = unit(50, width, seed=3)
    prints = fingerprint(vectors)
    assert prints.tolist() == fingerprint(vectors[:, ::-1][:, ::-1]).tolist()
    assert len(np.unique(prints)) == len(np.unique(vectors, axis=0))
    for column in range(width):
        flipped = vectors.copy()
        flipped.view(np.uint32)[:, column] ^= 1
        assert not (fingerprint(flipped) == prints).any()


def test_fingerprints_do_not_cancel_where_signs_or_places_change() -> None:
    vectors = unit(200, 8, seed=3)
    both = vectors.copy()
    both[:, [1, 5]] *= -1
    swapped = vectors[:, [1, 0, 2, 3, 4, 5, 6, 7]]
    rotated = np.roll(vectors, 2, axis=1)
    everything = np.concatenate([vectors, both, -vectors, swapped, rotated])
    assert len(np.unique(fingerprint(everything))) == 1000
