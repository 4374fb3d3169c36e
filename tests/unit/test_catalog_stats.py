"""``embedcache stats``: figures against the same counted in plain Python."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from statistics import mean, median_low

import pytest
from catalog_helpers import KINDS, LABELS, ROWS, TEXTS, add_corpus, add_teacher, batch, make_cache
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from embedcache.cache import Cache
from embedcache.catalog.stats import SHOWN_LABELS, Spread, compute_stats
from embedcache.cli.query import stats_command
from embedcache.corpus.corpus import Corpus
from embedcache.errors import CorruptCacheError, InputError

WORDS = [len(text.split()) for text in TEXTS[:-1]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("stats") / "c")


def run(cache: Cache, *arguments: str) -> Result:
    return CliRunner().invoke(stats_command, [*arguments, "--cache", str(cache.folder)])


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=200))
def test_a_spread_is_that_of_the_numbers(numbers: list[int]) -> None:
    spread = Spread.of(Counter(numbers))
    assert (spread.least, spread.most) == (min(numbers), max(numbers))
    assert spread.median == median_low(numbers)
    assert spread.mean == pytest.approx(mean(numbers))
    assert sum(number <= spread.p95 for number in numbers) >= 0.95 * len(numbers)
    assert sum(number < spread.p95 for number in numbers) < 0.95 * len(numbers)
    for low, high, count in spread.bins:
        assert count == sum(low <= number <= high for number in numbers)
        assert high == max(2 * low - 1, 0)
    assert sum(count for _, _, count in spread.bins) == len(numbers)
    assert spread.bins[0][2]
    assert spread.bins[-1][2]


def test_corpora_are_counted(cache: Cache) -> None:
    news, plain = compute_stats(cache).corpora
    lengths = [len(text) for text in TEXTS]
    assert (news.name, news.rows, news.distinct, news.duplicates) == ("news", ROWS, ROWS - 1, 1)
    assert (news.characters.least, news.characters.most) == (min(lengths), max(lengths))
    assert news.characters.median == median_low(lengths)
    assert news.characters.mean == pytest.approx(mean(lengths))
    assert dict(news.labels or ()) == Counter(LABELS)
    assert news.distinct_labels == 3
    assert (plain.rows, plain.duplicates, plain.labels, plain.distinct_labels) == (5, 0, None, 0)


def test_teachers_are_counted(cache: Cache) -> None:
    found = {one.name: one for one in compute_stats(cache).teachers}
    assert found.keys() == KINDS.keys()
    for codec, kind in KINDS.items():
        one, store = found[codec], cache.store(cache.teacher(codec).contract)
        assert (one.contract, one.vectors, one.dimension) == (store.contract.id, ROWS - 1, 8)
        assert (one.codecs, one.store, one.shards) == ({codec: ROWS - 1}, kind, 2)
        assert one.bytes == store.bytes_on_disk
        assert one.tokens is not None
        assert (one.tokens.least, one.tokens.median) == (min(WORDS), median_low(WORDS))
        assert one.truncated == sum(words >= 9 for words in WORDS)
        assert one.covered == {"news": ROWS, "plain": 5}


def test_what_has_no_vector_is_not_covered_and_a_text_of_two_shards_counts_once(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "news", TEXTS)
    add_teacher(cache, "some", [batch(TEXTS[:10]), batch(TEXTS[5:20], seed=1)])
    (one,) = compute_stats(cache).teachers
    assert (one.vectors, one.codecs) == (20, {"float32": 25})
    assert one.covered == {"news": 21}
    assert one.tokens is not None
    assert one.tokens.mean == pytest.approx(mean(WORDS[:20]))
    assert one.truncated == sum(words >= 9 for words in WORDS[:20])


def test_only_the_commonest_labels_are_listed(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    labels = [f"label {min(number, 39)}" for number in range(50)]
    add_corpus(cache, "many", TEXTS[:50], labels=labels)
    (one,) = compute_stats(cache).corpora
    assert one.labels is not None
    assert len(one.labels) == SHOWN_LABELS
    assert one.labels[0] == ("label 39", 11)
    assert one.distinct_labels == 40
    printed = run(cache).stdout
    assert "the commonest of 40" in printed
    assert "22.00%" in printed


def test_labels_keep_their_type_whatever_other_corpora_have(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "numbers", TEXTS[:3], labels=[1, 1, 2])
    add_corpus(cache, "words", TEXTS[:3], labels=["a", "b", "b"])
    assert [one.labels for one in compute_stats(cache).corpora] == [((1, 2), (2, 1)), (("b", 2), ("a", 1))]


def test_a_text_of_unknown_length_is_not_one_of_no_tokens(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    unknown = batch(TEXTS[:4])
    unknown.tokens[:] = 0
    add_teacher(cache, "old", [unknown])
    assert compute_stats(cache).teachers[0].tokens is None
    add_teacher(cache, "old", [batch(TEXTS[4:9])])
    (one,) = compute_stats(cache).teachers
    assert (one.vectors, one.tokens) == (9, Spread.of(Counter(WORDS[4:9])))


def test_only_the_corpus_asked_for_is_read(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    column = Corpus.column
    monkeypatch.setattr(Corpus, "column", lambda self, *place: read.append(self.name) or column(self, *place))
    compute_stats(cache, corpus="plain")
    assert set(read) == {"plain"}


def test_only_the_teacher_asked_for_is_opened(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    add_corpus(cache, "news", TEXTS)
    whole, damaged = (add_teacher(cache, name, [batch(TEXTS[:10])]) for name in ("whole", "damaged"))
    (shard,) = cache.teacher_folder(damaged.contract).glob("shards/*")
    shard.write_bytes(b"nothing")
    (one,) = compute_stats(cache, teacher="whole").teachers
    assert (one.contract, one.covered) == (whole.contract.id, {"news": 11})
    with pytest.raises(CorruptCacheError, match="damaged"):
        compute_stats(cache)


def test_one_corpus_and_one_teacher_can_be_asked_for(cache: Cache) -> None:
    stats = compute_stats(cache, corpus="plain", teacher="pq")
    assert [one.name for one in stats.corpora] == ["plain"]
    assert [one.name for one in stats.teachers] == ["pq"]
    assert stats.teachers[0].covered == {"plain": 5}
    for wrong in ({"corpus": "none"}, {"teacher": "nobody"}):
        with pytest.raises(InputError, match=r"no (corpus|teacher) '(none|nobody)'"):
            compute_stats(cache, **wrong)


def test_views_are_counted(cache: Cache) -> None:
    news, plain = compute_stats(cache).corpora
    assert [(view.name, view.changed) for view in news.views] == [("crop", ROWS), ("other", ROWS)]
    assert news.views[1].recipe == "delete-words, share 0.5, seed 0"
    assert [view.name for view in plain.views] == ["crop"]
    printed = run(cache).stdout
    assert "delete-words, share 0.5" in printed


def test_an_empty_cache_has_no_figures(tmp_path: Path) -> None:
    cache = Cache.create(tmp_path / "c")
    assert compute_stats(cache).to_json() == {"corpora": [], "teachers": []}
    assert run(cache).exit_code == 0
    teacher = add_teacher(cache, "idle", [])
    (one,) = compute_stats(cache).teachers
    assert (one.contract, one.vectors, one.tokens, one.truncated) == (teacher.contract.id, 0, None, 0)
    assert "idle" in run(cache).stdout


def test_json_has_every_figure(cache: Cache) -> None:
    found = json.loads(run(cache, "--json").stdout)
    assert found == json.loads(json.dumps(compute_stats(cache).to_json()))
    assert found["corpora"][0]["duplicates"] == 1
    alone = json.loads(run(cache, "--json", "--corpus", "plain", "--teacher", "int8").stdout)
    assert [one["name"] for one in alone["corpora"] + alone["teachers"]] == ["plain", "int8"]


def test_the_tables_show_the_figures(cache: Cache) -> None:
    printed = run(cache).stdout
    for words in ("corpora, characters a text", "teachers, tokens a text", "coverage", "labels of news"):
        assert words in printed
    assert f"{ROWS} of {ROWS}" in printed
    assert "100.00%" in printed
    (low, high, count) = compute_stats(cache).corpora[0].characters.bins[-1]
    assert any(
        f"{low} to {high}" in line and line.rstrip().endswith(str(count)) for line in printed.splitlines()
    )


def test_progress_is_told(cache: Cache) -> None:
    told: list[tuple[str, int, int]] = []
    compute_stats(cache, on_step=lambda *step: told.append(step))
    what = "rows of news with a vector of pq"
    # Told of at its start as well: a rate needs to know when that was.
    assert [step for step in told if step[0] == what] == [(what, 0, ROWS), (what, ROWS, ROWS)]
    assert {"texts of news", "labels of news", "duplicates of plain"} <= {what for what, _, _ in told}
