"""Codecs side by side: figures that rank them as they are, and a command that shows them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from scipy.stats import spearmanr

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.codecs import CODEC_NAMES, compare, pq
from embedcache.codecs.compare import CodecReport, compare_codecs, compare_stored
from embedcache.codecs.ranking import Ranking
from embedcache.errors import InputError
from embedcache.store import MemoryShards, ShardStore
from embedcache.testing import example_batch, example_contract

DIMENSION = 16
FIGURES = (
    "mean_cosine",
    "worst_cosine",
    "rank_agreement",
    "neighbours_kept",
    "decode_rows_per_second",
)


def normal(rows: int, *, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(rows, DIMENSION)).astype(np.float32)


def by_name(reports: list[CodecReport]) -> dict[str, CodecReport]:
    return {report.codec: report for report in reports}


def untimed(report: CodecReport) -> dict[str, object]:
    return {name: value for name, value in report.to_json().items() if name != "decode_rows_per_second"}


@pytest.fixture(scope="module")
def reports() -> dict[str, CodecReport]:
    return by_name(compare_codecs(normal(1200), CODEC_NAMES))


@pytest.mark.parametrize("figure", ["mean_cosine", "worst_cosine", "rank_agreement", "neighbours_kept"])
def test_finer_codecs_have_better_figures(reports: dict[str, CodecReport], figure: str) -> None:
    float32, float16, int8, product = (getattr(reports[name], figure) for name in CODEC_NAMES)
    assert float32 == pytest.approx(1.0)
    assert 1 >= float16 >= int8 > product > 0
    assert float16 > 0.999


def test_sizes(reports: dict[str, CodecReport]) -> None:
    assert [reports[name].bytes_per_vector for name in CODEC_NAMES] == [64, 32, 20, 4]
    assert [reports[name].times_smaller for name in CODEC_NAMES] == [1.0, 2.0, 3.2, 16.0]


def test_speed_is_of_reading_whole_shards(reports: dict[str, CodecReport]) -> None:
    assert all((report.decode_rows_per_second or 0) > 10_000 for report in reports.values())


def test_pq_is_scored_on_rows_it_has_not_learnt_from(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = normal(1201)
    seen: dict[str, NDArray[np.float32]] = {}
    train, score = pq.train, compare.measure

    def watched_train(training, **settings):
        seen["trained"] = training
        return train(training, **settings)

    def watched_measure(codec, scored, stored):
        seen[codec.name] = scored
        return score(codec, scored, stored)

    monkeypatch.setattr(pq, "train", watched_train)
    monkeypatch.setattr(compare, "measure", watched_measure)
    reports = compare_codecs(vectors, CODEC_NAMES)
    trained = {row.tobytes() for row in seen.pop("trained")}
    assert len(trained) == 600
    assert set(seen) == set(CODEC_NAMES)
    for scored in seen.values():
        rows = {row.tobytes() for row in scored}
        assert len(rows) == 601
        assert not rows & trained
        assert rows | trained == {row.tobytes() for row in vectors}
    assert [report.scored for report in reports] == [601] * 4


def test_too_few_rows_for_pq_leave_it_without_figures_and_score_all_rows_with_the_others() -> None:
    reports = compare_codecs(normal(511), CODEC_NAMES)
    *others, product = reports
    assert product.why_not == (
        "needs 512 rows, 256 to learn from and as many others to be scored on, found 511"
    )
    assert (product.bytes_per_vector, product.times_smaller, product.scored) == (4, 16.0, 0)
    assert all(getattr(product, figure) is None for figure in FIGURES)
    assert [report.scored for report in others] == [511] * 3
    assert all(report.why_not is None for report in others)
    assert compare_codecs(normal(512), ["pq"])[0].why_not is None
    assert compare_codecs(normal(512), ["int8"])[0].scored == 512


def test_a_codec_that_cannot_hold_the_vectors_says_so() -> None:
    vectors = normal(50)
    vectors[3, 3] = 1e6
    reports = by_name(compare_codecs(vectors, ["float32", "float16", "int8"]))
    assert "1e+06 does not fit the codec float16" in str(reports["float16"].why_not)
    assert reports["float16"].mean_cosine is None
    assert reports["float32"].mean_cosine == 1.0
    assert reports["int8"].why_not is None


def test_the_same_seed_gives_the_same_figures() -> None:
    vectors = normal(900)
    first, again, other = (compare_codecs(vectors, CODEC_NAMES, seed=seed) for seed in (3, 3, 4))
    assert list(map(untimed, first)) == list(map(untimed, again))
    assert list(map(untimed, first)) != list(map(untimed, other))


@pytest.mark.parametrize("rows", [1, 2, 3, 11, 12])
def test_a_few_rows_have_the_figures_there_can_be(rows: int) -> None:
    (report,) = compare_codecs(normal(rows), ["int8"])
    assert report.mean_cosine is not None
    assert (report.rank_agreement is None) == (rows < 3)
    assert (report.neighbours_kept is None) == (rows < 12)


def test_vectors_without_any_order_have_no_ranks() -> None:
    equal = np.tile(normal(1), (40, 1))
    (report,) = compare_codecs(equal, ["int8"])
    assert report.rank_agreement is None
    (nothing,) = compare_codecs(np.zeros((40, DIMENSION), np.float32), ["int8"])
    assert nothing.rank_agreement is None
    assert nothing.neighbours_kept is None
    assert nothing.mean_cosine == 1.0


def test_unusable_questions_are_refused() -> None:
    with pytest.raises(InputError, match="no vectors"):
        compare_codecs(normal(0), CODEC_NAMES)
    with pytest.raises(InputError, match="unknown codec 'int4'"):
        compare_codecs(normal(5), ["float32", "int4"])


def test_agreement_is_spearmans_over_pairs_and_neighbours_are_the_nearest() -> None:
    before, after = normal(60), normal(60) + 0.3 * normal(60, seed=1)

    def similarities(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        unit = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True)
        return unit @ unit.T

    one, other = similarities(before), similarities(after)
    upper = np.triu_indices(60, 1)
    ranking = Ranking(before, seed=0)
    # Of 100 000 draws no pair of 1 770 is left out.
    assert ranking.agreement(after) == pytest.approx(spearmanr(one[upper], other[upper]).statistic, abs=1e-4)
    np.fill_diagonal(one, -2)
    np.fill_diagonal(other, -2)
    nearest = [np.argsort(-matrix, axis=1)[:, :10] for matrix in (one, other)]
    kept = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(*nearest, strict=True)])
    assert ranking.kept(after) == pytest.approx(kept)
    assert 0.1 < kept < 1


def test_ranks_ignore_length_and_zeros_and_see_a_change_of_order() -> None:
    vectors = normal(80)
    vectors[::9] = 0
    ranking = Ranking(vectors, seed=0)
    longer = vectors * np.linspace(1, 1000, 80, dtype=np.float32)[:, None]
    assert ranking.agreement(longer) == pytest.approx(1.0, abs=1e-6)
    assert ranking.kept(longer) == 1.0
    unrelated = normal(80, seed=7)
    assert abs(ranking.agreement(unrelated) or 1) < 0.2
    assert (ranking.kept(unrelated) or 1) < 0.4


def test_copies_do_not_count_as_their_own_neighbours() -> None:
    vectors = np.repeat(normal(4), 15, axis=0)
    ranking = Ranking(vectors, seed=0)
    assert ranking.kept(vectors) == 1.0
    assert ranking._neighbours.shape == (60, 10)
    assert (ranking._neighbours // 15 == np.arange(60)[:, None] // 15).all()


def memory_store(rows: int, codec: str | None = None, shards: int = 3) -> ShardStore:
    store = ShardStore(MemoryShards(), example_contract(DIMENSION), codec)
    for number in range(shards):
        texts = [f"text {number} {i}" for i in range(rows // shards)]
        store.put(example_batch(texts, DIMENSION, seed=number))
    return store


def test_a_sample_is_drawn_from_all_shards() -> None:
    store = memory_store(1800, "float32")
    comparison = compare_stored(store, sample=600)
    assert (comparison.rows, comparison.sampled) == (1800, 600)
    assert [report.codec for report in comparison.reports] == list(CODEC_NAMES)
    assert {report.scored for report in comparison.reports} == {300}
    assert comparison.used == ("float32",)
    assert comparison.lossy == ()
    whole = compare_stored(store, sample=10_000)
    assert (whole.sampled, whole.reports[0].scored) == (1800, 900)
    other = compare_stored(store, sample=600, seed=1)
    assert untimed(other.reports[2]) != untimed(comparison.reports[2])
    assert list(map(untimed, compare_stored(store, sample=600).reports)) == list(
        map(untimed, comparison.reports)
    )


def test_a_lossy_cache_is_called_so() -> None:
    comparison = compare_stored(memory_store(60, "int8"), sample=60)
    assert comparison.used == comparison.lossy == ("int8",)
    # What int8 lost is lost: float32 shows nothing of it, and a second time int8 finds its own grid.
    assert comparison.reports[0].mean_cosine == 1.0
    assert comparison.reports[2].mean_cosine == pytest.approx(1.0, abs=1e-9)
    assert compare_stored(memory_store(60, "float16"), sample=60).lossy == ("float16",)


def test_steps_are_reported() -> None:
    steps: list[tuple[str, int, int]] = []
    compare_stored(
        memory_store(600), sample=600, on_step=lambda what, done, total: steps.append((what, done, total))
    )
    assert [step for step in steps if step[0] == "score"] == [("score", number, 4) for number in range(4)]
    trained = [step for step in steps if step[0] == "train pq"]
    assert trained == [("train pq", number, pq.PASSES) for number in range(1, len(trained) + 1)]
    assert trained


def test_an_empty_store_and_a_sample_of_one_are_refused() -> None:
    with pytest.raises(InputError, match="no vectors of this teacher"):
        compare_stored(memory_store(0))
    with pytest.raises(InputError, match="--sample 1: expected at least 2"):
        compare_stored(memory_store(9), sample=1)


def cache_with(folder: Path, rows: int, codec: str, *names: str) -> Path:
    """Make a cache whose teachers, of different widths, hold random vectors."""
    cache = Cache.create(folder)
    for number, name in enumerate(names):
        contract = example_contract(DIMENSION * (number + 1))
        cache.register_teacher(name, contract, {})
        texts = [f"text {i}" for i in range(rows)]
        cache.store(contract, codec).put(example_batch(texts, contract.dimension))
    return folder


def codecs(cache: Path, *arguments: str, columns: int = 200) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(cli, ["codecs", "--cache", str(cache), *arguments])


def test_the_command_prints_a_table(tmp_path: Path) -> None:
    result = codecs(cache_with(tmp_path / "c", 700, "float32", "one"))
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "one: 700 of 700 vectors" in result.stdout
    headings, *rows = (line.split() for line in result.stdout.splitlines() if line[:1] in "┃│")
    assert [word for word in headings if word not in "┃"] == ["float32", "*", "float16", "int8", "pq"]
    figures = {" ".join(row[1 : row.index("│", 1)]): row[row.index("│", 1) + 1 :: 2] for row in rows}
    assert list(figures) == [
        "bytes a vector",
        "times smaller",
        "mean cosine",
        "worst cosine",
        "rank agreement",
        "top 10 kept",
        "rows/s read",
    ]
    assert figures["bytes a vector"] == ["64", "32", "20", "4"]
    assert figures["times smaller"] == ["1", "2", "3.2", "16"]
    assert figures["mean cosine"][0] == "1.00000000"
    assert figures["mean cosine"][2].startswith("0.9999")
    assert figures["top 10 kept"][0] == "100.0%"
    assert "Scored on 350 vectors" in result.stdout
    assert "from the other 350" in result.stdout
    assert "what that lost" not in result.stdout
    assert "needs 512" not in result.stdout


def test_the_table_fits_eighty_columns(tmp_path: Path) -> None:
    result = codecs(cache_with(tmp_path / "c", 700, "float32", "one"), columns=80)
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "…" not in result.stdout


def test_the_table_says_what_it_cannot_show(tmp_path: Path) -> None:
    result = codecs(cache_with(tmp_path / "c", 40, "float16", "one"))
    assert result.exit_code == 0
    assert "The cache holds these vectors as float16: what that lost cannot be seen here" in result.stdout
    assert "pq: needs 512 rows, 256 to learn from" in result.stdout
    (row,) = (line for line in result.stdout.splitlines() if line.startswith("│ mean cosine"))
    assert row.split()[-2] == "-"
    assert "Scored on 40 vectors" in result.stdout
    assert "from the other" not in result.stdout


def test_json_holds_every_figure(tmp_path: Path) -> None:
    result = codecs(cache_with(tmp_path / "c", 700, "int8", "one"), "--json", "--sample", "600")
    found = json.loads(result.stdout)
    assert {name: found[name] for name in ("teacher", "used", "lossy", "rows", "sampled")} == {
        "teacher": "one",
        "used": ["int8"],
        "lossy": ["int8"],
        "rows": 700,
        "sampled": 600,
    }
    assert [codec["codec"] for codec in found["codecs"]] == list(CODEC_NAMES)
    for codec in found["codecs"]:
        assert set(codec) == {"codec", "bytes_per_vector", "times_smaller", "scored", "why_not", *FIGURES}
        assert codec["scored"] == 300
        assert None not in [codec[figure] for figure in FIGURES]


def test_sample_and_seed_choose_the_rows(tmp_path: Path) -> None:
    cache = cache_with(tmp_path / "c", 300, "float32", "one")

    def int8(*arguments: str) -> tuple[int, float]:
        found = json.loads(codecs(cache, "--json", *arguments).stdout)["codecs"][2]
        return found["scored"], found["mean_cosine"]

    assert int8("--sample", "100")[0] == 100
    assert int8("--sample", "100") == int8("--sample", "100", "--seed", "0")
    assert int8("--sample", "100") != int8("--sample", "100", "--seed", "1")
    assert codecs(cache, "--sample", "1").exit_code == 2


def test_the_teacher_is_chosen_by_name(tmp_path: Path) -> None:
    cache = cache_with(tmp_path / "c", 30, "float16", "one", "two")
    sizes = {
        name: json.loads(codecs(cache, "--json", "--teacher", name).stdout)["codecs"][0]["bytes_per_vector"]
        for name in ("one", "two")
    }
    assert sizes == {"one": 64, "two": 128}
    for arguments, reason in (((), "several teachers"), (("--teacher", "three"), "no teacher 'three'")):
        result = codecs(cache, *arguments)
        assert isinstance(result.exception, InputError)
        assert reason in str(result.exception)
