"""Comparing caches: what only one of them has, what both have but differently, and what is only noise."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from check_helpers import run

import embedcache
from embedcache.cache import Cache
from embedcache.cli.main import main
from embedcache.compare import CacheComparison, compare_caches
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.corpus.view_store import store_view
from embedcache.errors import InputError
from embedcache.keys import key_array
from embedcache.store import VectorBatch
from embedcache.teacher.load import Teacher
from embedcache.testing import example_batch, example_contract, sentences
from embedcache.views.edits import edit_maker
from embedcache.views.kept import Kept, Made
from embedcache.views.recipe import Recipe, parse_views

TEXTS = sentences(40)
MEAN = example_contract()


class Shelf:
    """A cache filled by hand."""

    def __init__(self, folder: Path) -> None:
        self.cache = Cache.create(folder)

    def corpus(self, name: str, texts: list[str], labels: list[int] | None = None) -> None:
        batch = RowBatch(texts, None, labels)
        store_corpus(self.cache.corpora_folder, name, [batch], ReadReport(), replace=True)

    def teacher(self, name: str, texts: list[str], *, codec: str = "float32", **changes: object) -> None:
        self.put(name, batch_of(texts), codec=codec, **changes)

    def put(self, name: str, batch: VectorBatch, *, codec: str = "float32", **changes: object) -> None:
        contract = example_contract(**changes)
        self.cache.register_teacher(name, contract, {"spec": name})
        self.cache.store(contract, codec).put(batch)


def batch_of(texts: list[str]) -> VectorBatch:
    """Return a batch in which a text has the same vector wherever it stands."""
    whole = example_batch(TEXTS)
    rows = [TEXTS.index(text) for text in texts]
    return replace(whole, keys=whole.keys[rows], vectors=whole.vectors[rows], tokens=whole.tokens[rows],
                   truncated=whole.truncated[rows])  # fmt: skip


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Shelf, Shelf]:
    """Return two caches of the same content."""
    shelves = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
    for shelf in shelves:
        shelf.corpus("news", TEXTS[:30])
        shelf.teacher("mean", TEXTS[:30])
    return shelves


def compared(pair: tuple[Shelf, Shelf], **settings: Any) -> CacheComparison:
    return compare_caches(pair[0].cache, pair[1].cache, **settings)


def test_a_copy_is_the_same(pair: tuple[Shelf, Shelf], tmp_path: Path) -> None:
    copy = Cache(shutil.copytree(pair[0].cache.folder, tmp_path / "copy"))
    for found in (compared(pair), compare_caches(pair[0].cache, copy)):
        assert found.same
        assert found.corpora_same == ("news",)
        (vectors,) = found.vectors
        assert (vectors.only, vectors.both, vectors.sampled) == ((0, 0), 30, 30)
        assert vectors.worst_cosine == pytest.approx(1)
        assert vectors.largest_difference == 0


def test_the_same_rows_cut_into_other_shards_are_the_same(tmp_path: Path) -> None:
    one, other = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
    one.teacher("mean", TEXTS)
    for start in (30, 20, 10, 0, 0):
        other.teacher("mean", TEXTS[start : start + 10])
    other.teacher("mean", TEXTS[3:17])
    found = compared((one, other))
    assert found.same
    assert (found.vectors[0].only, found.vectors[0].both) == ((0, 0), 40)
    backwards = compared((other, one))
    assert (backwards.vectors[0].only, backwards.vectors[0].both) == ((0, 0), 40)


def with_view(shelf: Shelf, spec: str, *, change: Callable[[str], str] = str) -> None:
    """Add a view to the corpus ``news``; ``change`` stands for a machine that makes other texts."""
    (recipe,) = parse_views([spec])
    make = edit_maker(recipe)

    def rows(first_row: int, texts: list[str]) -> list[Made]:
        return [made if isinstance(made, Kept) else change(made) for made in make(texts)]

    store_view(shelf.cache.corpus("news"), recipe, rows)


def test_views_are_compared(pair: tuple[Shelf, Shelf]) -> None:
    for shelf in pair:
        with_view(shelf, "crop")
        shelf.corpus("other", TEXTS[: 3 if shelf is pair[0] else 4])
    assert compared(pair).views_other == ()
    assert compared(pair).views_only == ((), ())
    with_view(pair[0], "left=crop")
    with_view(pair[1], "right=crop")
    with_view(pair[0], "shared=crop:0.2")
    with_view(pair[1], "shared=crop:0.3")
    with_view(pair[0], "machine=delete-words")
    with_view(pair[1], "machine=delete-words", change=lambda text: text + "!")
    found = compared(pair)
    assert found.views_only == ((("news", "left"),), (("news", "right"),))
    machine, shared = found.views_other
    assert (machine.corpus, machine.name, machine.recipes, machine.first_row) == ("news", "machine", "", 0)
    assert machine.texts[1] == f"{machine.texts[0]}!"
    assert (shared.name, shared.recipes) == ("shared", "share 0.2, not 0.3")
    assert shared.first_row is not None


def test_one_view_sets_caches_apart(pair: tuple[Shelf, Shelf]) -> None:
    for shelf, seed in zip(pair, (0, 1), strict=True):
        # Another seed of a recipe that leaves nothing to chance gives the same texts.
        recipe = Recipe("v", "crop", {"share": 0.1}, seed)
        store_view(shelf.cache.corpus("news"), recipe, lambda first_row, texts: list(texts))
    found = compared(pair)
    assert not found.same
    (one,) = found.views_other
    assert (one.recipes, one.first_row, one.texts) == ("seed 0, not 1", None, (None, None))
    assert json.loads(json.dumps(found.to_json()))["views_other"][0]["name"] == "v"
    code, shown = run("diff", pair[0].cache.folder, pair[1].cache.folder)
    assert code == 1
    assert "view v of corpus news: made another way, seed 0, not 1; the texts are the same" in shown


def test_corpora_are_compared(pair: tuple[Shelf, Shelf]) -> None:
    pair[0].corpus("left", ["a"])
    pair[1].corpus("right", ["b"])
    found = compared(pair)
    assert not found.same
    assert found.corpora_only == (("left",), ("right",))
    assert found.corpora_same == ("news",)


@pytest.mark.parametrize(
    ("other", "row", "texts"),
    [
        ([*TEXTS[:7], "changed", *TEXTS[8:30]], 7, (TEXTS[7], "changed")),
        (TEXTS[:31], 30, (None, TEXTS[30])),
        (TEXTS[:29], 29, (TEXTS[29], None)),
        (TEXTS[1:30], 0, (TEXTS[0], TEXTS[1])),
    ],
)
def test_the_first_row_that_differs_is_named(
    pair: tuple[Shelf, Shelf], other: list[str], row: int, texts: tuple[str | None, str | None]
) -> None:
    pair[1].corpus("news", other)
    found = compared(pair)
    assert not found.same
    (one,) = found.corpora_other
    assert (one.name, one.rows, one.first_row, one.texts) == ("news", (30, len(other)), row, texts)
    assert "original" in one.columns


def test_a_row_in_a_later_part_is_found(pair: tuple[Shelf, Shelf], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.corpus.part.PART_ROWS", 8)
    pair[0].corpus("long", TEXTS)
    pair[1].corpus("long", [*TEXTS[:21], "changed", *TEXTS[22:]])
    pair[0].corpus("longer", TEXTS[:16])
    pair[1].corpus("longer", TEXTS[:24])
    assert len(pair[0].cache.corpus("long").parts) == 5
    rows = {one.name: (one.first_row, one.texts) for one in compared(pair).corpora_other}
    assert rows == {"long": (21, (TEXTS[21], "changed")), "longer": (16, (None, TEXTS[16]))}


def test_other_labels_are_another_corpus(pair: tuple[Shelf, Shelf]) -> None:
    pair[0].corpus("news", TEXTS[:3], [0, 1, 0])
    pair[1].corpus("news", TEXTS[:3], [0, 1, 1])
    (one,) = compared(pair).corpora_other
    assert (one.columns, one.first_row) == (("label",), 2)
    pair[1].corpus("news", TEXTS[:3])
    (one,) = compared(pair).corpora_other
    assert (one.columns, one.first_row, one.texts) == (("label",), None, (None, None))


def test_teachers_are_compared(pair: tuple[Shelf, Shelf]) -> None:
    pair[0].teacher("left", TEXTS[:2], pooling="cls")
    pair[1].teacher("right", TEXTS[:2], pooling="pooler")
    pair[0].teacher("clash", TEXTS[:2], max_length=16)
    pair[1].teacher("clash", TEXTS[:2], max_length=32)
    found = compared(pair)
    assert not found.same
    assert sorted(found.teachers_only[0].values()) == [("clash",), ("left",)]
    assert sorted(found.teachers_only[1].values()) == [("clash",), ("right",)]
    (clash,) = found.clashes
    assert (clash.name, clash.differences) == ("clash", {"max_length": (16, 32)})


def test_the_same_contract_under_other_names_is_told(tmp_path: Path) -> None:
    one, other = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
    one.teacher("mine", TEXTS[:5])
    other.teacher("yours", TEXTS[:5])
    found = compared((one, other))
    assert found.vectors[0].names == (("mine",), ("yours",))
    assert found.clashes == ()
    assert not found.same


def test_keys_of_one_side_are_counted(tmp_path: Path) -> None:
    one, other = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
    one.teacher("mean", TEXTS[:30])
    other.teacher("mean", TEXTS[20:])
    found = compared((one, other))
    assert (found.vectors[0].only, found.vectors[0].both) == ((20, 10), 10)
    assert not found.vectors[0].beyond_noise
    assert not found.same


@pytest.mark.parametrize("codec", ["float16", "int8"])
def test_what_a_codec_lost_is_noise(tmp_path: Path, codec: str) -> None:
    one, other = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
    one.teacher("mean", TEXTS, codec="float32")
    other.teacher("mean", TEXTS, codec=codec)
    found = compared((one, other))
    (vectors,) = found.vectors
    assert vectors.codecs == (("float32",), (codec,))
    assert vectors.largest_difference is not None
    assert vectors.largest_difference > 0
    assert not vectors.beyond_noise
    assert found.same


def test_what_explains_a_difference_is_that_of_the_worst_shard(tmp_path: Path) -> None:
    # Two things that no row has both of do not add up.
    shelves = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
    for shelf in shelves:
        shelf.teacher("mean", TEXTS[:20])
    shelves[0].put("mean", replace(batch_of(TEXTS[20:]), provenance={"compute_dtype": "bfloat16"}))
    alone = compare_caches(shelves[0].cache, shelves[1].cache).vectors[0].expected_cosine
    other = Shelf(tmp_path / "c")
    other.teacher("mean", TEXTS[20:], codec="float16")
    for name in other.cache.container(MEAN).names():
        shelves[0].cache.container(MEAN).add(name, other.cache.container(MEAN).open(name))
    assert compare_caches(shelves[0].cache, shelves[1].cache).vectors[0].expected_cosine == alone


@pytest.mark.parametrize(
    ("compute_dtype", "noise", "real"), [("float32", 1e-6, 1e-2), ("bfloat16", 1e-3, 0.1), (None, 1e-6, 1e-2)]
)
def test_a_difference_beyond_noise_is_real(
    tmp_path: Path, compute_dtype: str | None, noise: float, real: float
) -> None:
    provenance = {} if compute_dtype is None else {"compute_dtype": compute_dtype}
    for name, size, beyond in (("noise", noise, False), ("real", real, True)):
        one, other = Shelf(tmp_path / name / "a"), Shelf(tmp_path / name / "b")
        batch = replace(batch_of(TEXTS), provenance=provenance)
        moved = batch.vectors.copy()
        moved[17] += np.float32(size) * np.array([1, -1] * 4, np.float32)
        one.put("mean", batch)
        other.put("mean", replace(batch, vectors=moved))
        found = compared((one, other))
        (vectors,) = found.vectors
        assert vectors.beyond_noise is beyond
        assert found.same is not beyond
        assert vectors.provenance == ((provenance,), (provenance,))
        assert vectors.largest_difference == pytest.approx(size, rel=0.2)


def test_vectors_of_zeros_are_like_each_other_alone(tmp_path: Path) -> None:
    one, other = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
    batch = batch_of(TEXTS[:3])
    zero = batch.vectors.copy()
    zero[1] = 0
    one.put("mean", replace(batch, vectors=zero))
    other.put("mean", replace(batch, vectors=zero))
    assert compared((one, other)).same
    third = Shelf(one.cache.folder.with_name("c"))
    third.put("mean", batch)
    assert compared((one, third)).vectors[0].worst_cosine == 0


def test_the_sample_is_of_the_keys_in_both(pair: tuple[Shelf, Shelf]) -> None:
    (vectors,) = compared(pair, sample=7).vectors
    assert (vectors.both, vectors.sampled) == (30, 7)
    (vectors,) = compared(pair, sample=0).vectors
    assert (vectors.both, vectors.sampled, vectors.worst_cosine) == (30, 0, None)
    assert not vectors.beyond_noise
    with pytest.raises(InputError, match="--sample -1"):
        compared(pair, sample=-1)


def test_the_seed_chooses_the_sample(tmp_path: Path) -> None:
    one, other = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
    batch = batch_of(TEXTS)
    noise = np.random.default_rng(0).normal(scale=0.01, size=batch.vectors.shape).astype(np.float32)
    one.put("mean", batch)
    other.put("mean", replace(batch, vectors=batch.vectors + noise))
    worst = [compared((one, other), sample=3, seed=seed).vectors[0].worst_cosine for seed in (0, 0, 1, 2)]
    assert worst[0] == worst[1]
    assert len(set(worst)) > 1


def test_two_builds_of_one_teacher_are_the_same(tmp_path: Path, loaded_teacher: Teacher) -> None:
    source = tmp_path / "corpus.txt"
    source.write_text("".join(f"{text}\n" for text in TEXTS))
    settings: dict[str, Any] = {"teacher": loaded_teacher, "compute_dtype": "float32"}
    one = embedcache.build(source, cache=tmp_path / "a", shard_rows=16, **settings)
    other = embedcache.build(source, cache=tmp_path / "b", batch_tokens=32, **settings)
    found = compare_caches(one, other)
    assert found.same
    assert found.vectors[0].both == 40


def test_progress_counts_every_key(pair: tuple[Shelf, Shelf]) -> None:
    seen: list[tuple[str, int, int]] = []
    compared(pair, on_progress=lambda name, done, total: seen.append((name, done, total)))
    # Told of at its start as well: a rate needs to know when that was.
    assert (seen[0], seen[-1]) == (("compare mean", 0, 30), ("compare mean", 30, 30))


@pytest.fixture
def shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., SimpleNamespace]:
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> SimpleNamespace:
        monkeypatch.setattr(sys, "argv", ["embedcache", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def test_the_command_says_where_codecs_lose(tmp_path: Path, shell: Callable[..., SimpleNamespace]) -> None:
    shelves = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
    for shelf, codec in zip(shelves, ("float32", "int8"), strict=True):
        shelf.corpus("news", TEXTS)
        shelf.teacher("mean", TEXTS, codec=codec)
    found = shell("diff", *(shelf.cache.folder for shelf in shelves))
    assert found.code == 0
    assert found.out.endswith("the caches are the same, but for what their codecs lose\n")


def test_the_command_ends_like_diff(
    pair: tuple[Shelf, Shelf], shell: Callable[..., SimpleNamespace], tmp_path: Path
) -> None:
    folders = [shelf.cache.folder for shelf in pair]
    same = shell("diff", *folders)
    assert same.code == 0
    assert "corpus news: the same" in same.out
    assert same.out.endswith("the caches are the same\n")
    assert "1.0000000, expected at least 0.99" in same.out
    assert "none: --sample 0" not in same.out
    assert "none: --sample 0" in shell("diff", *folders, "--sample", 0).out
    pair[1].corpus("news", ["changed", *TEXTS[1:30]])
    pair[1].corpus("more", ["x"])
    pair[0].teacher("left", TEXTS[:2], pooling="cls")
    pair[0].teacher("clash", TEXTS[:2], max_length=16)
    pair[1].teacher("clash", TEXTS[:2], max_length=32)
    other = shell("diff", *folders)
    assert other.code == 1
    for part in (
        "corpus more: only in B",
        "corpus news: A has 30 rows, B 30; they differ in original, first in row 0 (counted from 0): ",
        f"{TEXTS[0]!r} / 'changed'",
        "teacher left (",
        "teacher clash: A and B mean different contracts by it, max_length 16 -> 32",
        "the caches differ",
    ):
        assert part in other.out
    found = json.loads(shell("diff", *folders, "--json", "--sample", 5, "--seed", 1).out)
    assert found["same"] is False
    assert found["vectors"][0]["sampled"] == 5
    assert found["corpora_only"] == [[], ["more"]]
    missing = shell("diff", folders[0], tmp_path / "none")
    assert missing.code == 2
    assert "no cache at" in missing.err


def test_a_damaged_cache_is_trouble_not_a_difference(
    pair: tuple[Shelf, Shelf], shell: Callable[..., SimpleNamespace]
) -> None:
    (shard,) = pair[1].cache.folder.glob("teachers/*/shards/*")
    shard.write_bytes(b"nothing")
    outcome = shell("diff", *(shelf.cache.folder for shelf in pair))
    assert outcome.code == 2
    assert "damaged" in outcome.err


def test_the_command_says_by_what_vectors_were_computed(
    tmp_path: Path, shell: Callable[..., SimpleNamespace]
) -> None:
    one, other = Shelf(tmp_path / "a"), Shelf(tmp_path / "b")
    one.put("mean", replace(batch_of(TEXTS), provenance={"compute_dtype": "float32"}))
    other.put("mean", replace(batch_of(TEXTS[::-1]), provenance={"compute_dtype": "bfloat16"}), codec="int8")
    out = shell("diff", one.cache.folder, other.cache.folder).out
    assert "computed in A by" in out
    assert "compute_dtype bfloat16" in out
    assert "float32 / int8" in out
    assert "no more than codecs and compute dtypes explain" in out
    third = Shelf(tmp_path / "c")
    third.put("mean", replace(batch_of(TEXTS), vectors=example_batch(TEXTS, seed=9).vectors))
    out = shell("diff", one.cache.folder, third.cache.folder).out
    assert "a real difference" in out


def test_the_batches_here_give_a_text_one_vector() -> None:
    assert batch_of(TEXTS[5:7]).keys.tobytes() == key_array(TEXTS[5:7]).tobytes()
    np.testing.assert_array_equal(batch_of(TEXTS[5:7]).vectors, batch_of(TEXTS).vectors[5:7])
