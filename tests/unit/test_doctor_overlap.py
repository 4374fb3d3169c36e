"""Overlap with evaluation sets: every spelling that is the same text is met, and nothing else is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from doctor_helpers import TEXTS, add_corpus, make_cache, unit, verdict

from embedcache.cache import Cache
from embedcache.corpus.view_store import store_view
from embedcache.doctor import examine
from embedcache.doctor.evaluation_sets import EvaluationSets, fold, read_evaluation_sets
from embedcache.doctor.overlap import Overlap
from embedcache.doctor.progress import Meter
from embedcache.errors import InputError, MissingInputError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.views.kept import Made
from embedcache.views.recipe import Recipe

OTHERS = [f"nothing like it, number {number} of many" for number in range(100)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("overlap") / "c", unit(600))


def read(*against: Path) -> EvaluationSets:
    return read_evaluation_sets(against, Meter("evaluation sets", 0, None))


def tsv(path: Path, *rows: tuple[str, ...]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def overlap(cache: Cache, *against: Path) -> Overlap:
    (found,) = examine(cache, against=against, sample=50).overlaps
    return found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A man is here.", "a man is here"),
        ("do n't do it , please", "Don't do it, please!"),
        ("two\u00a0 blanks\there", "two blanks here"),
        ("Straße", "STRASSE"),
        ("ﬁne café", "fine cafe\u0301"),
        ("— “quoted” —", "'quoted'"),
    ],
)
def test_folding_brings_spellings_together(one: str, other: str) -> None:
    assert one != other
    assert fold(one) == fold(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("a man", "a woman"), ("cafe", "café"), ("किताब", "कताब"), ("1.5 and 2", "1.6 and 2"), ("!!!", "???")],
)
def test_folding_keeps_texts_apart(one: str, other: str) -> None:
    assert fold(one) != fold(other)


def test_matches_are_counted_letter_by_letter_and_folded(cache: Cache, tmp_path: Path) -> None:
    rows = [
        ("sentence1", "sentence2"),
        (TEXTS[0], OTHERS[0]),
        (TEXTS[1].upper() + " !", TEXTS[0]),
        (OTHERS[1], TEXTS[2] + " and more"),
        (TEXTS[3], OTHERS[2]),
    ]
    found = overlap(cache, tsv(tmp_path / "set.tsv", *rows))
    assert found.columns == ("sentence1", "sentence2")
    assert (found.texts, found.exact, found.folded) == (7, 2, 3)
    assert found.share == pytest.approx(3 / 7)
    assert found.examples == (TEXTS[0], TEXTS[1], TEXTS[3])


def test_what_a_view_says_counts_as_well(tmp_path: Path) -> None:
    opened = make_cache(tmp_path / "c", unit(600))
    against = tsv(tmp_path / "set.tsv", ("sentence1", "sentence2"), ("A translated text .", OTHERS[0]))
    assert overlap(opened, against).folded == 0
    corpus = opened.corpus()

    def translate(first_row: int, texts: list[str]) -> list[Made]:
        return ["a translated text", *texts[1:]] if first_row == 0 else list(texts)

    store_view(corpus, Recipe("column-de", "column", {"column": "de"}), translate)
    found = overlap(opened, against)
    assert (found.exact, found.folded, found.examples) == (0, 1, ("a translated text",))
    # Nobody trains on a view of other rows.
    recipe = corpus.folder / "views" / "column-de" / "recipe.json"
    write_sealed_json(recipe, {**read_sealed_json(recipe), "of": "0" * 64})
    assert overlap(opened, against).folded == 0


def test_a_contaminated_set_is_bad_and_named(cache: Cache, tmp_path: Path) -> None:
    folder = tmp_path / "sets"
    folder.mkdir()
    (folder / "clean.txt").write_text("\n".join(OTHERS))
    (folder / "spoilt.txt").write_text("\n".join([*OTHERS, *TEXTS[:2]]))
    diagnosis = examine(cache, against=[folder], sample=50)
    found = verdict(diagnosis, "overlap")
    assert (found.grade, found.figure) == ("bad", "contaminated: 1 of 2 sets")
    assert found.value == pytest.approx(2 / 102)
    assert "spoilt.txt" in found.advice
    assert "clean.txt" not in found.advice
    assert [(one.name, one.folded) for one in diagnosis.overlaps] == [("clean.txt", 0), ("spoilt.txt", 2)]


def test_a_single_text_among_many_is_worth_a_look(cache: Cache, tmp_path: Path) -> None:
    path = tmp_path / "set.txt"
    path.write_text("\n".join([TEXTS[7], *(f"{text} {number}" for text in OTHERS for number in range(3))]))
    found = verdict(examine(cache, against=[path], sample=50), "overlap")
    assert (found.grade, found.value) == ("look", pytest.approx(1 / 301))


def test_without_evaluation_sets_there_is_no_verdict_on_them(cache: Cache, tmp_path: Path) -> None:
    path = tmp_path / "set.txt"
    path.write_text("\n".join(OTHERS))
    assert verdict(examine(cache, against=[path], sample=50), "overlap").grade == "ok"
    diagnosis = examine(cache, sample=50)
    assert "overlap" not in {one.name for one in diagnosis.verdicts}
    assert diagnosis.overlaps == ()


@pytest.mark.parametrize(
    ("name", "header", "train"),
    [
        ("set.tsv", "split", "train"),
        ("set.tsv", "subset", "Train"),
        ("set.tsv", "split", "training"),
        ("stsb_train.tsv", "subset", "news"),
        ("train100k.tsv", "other", "x"),
    ],
)
def test_rows_to_train_on_are_counted_and_not_judged(
    cache: Cache, tmp_path: Path, name: str, header: str, train: str
) -> None:
    rows = [(header, "text"), (train, TEXTS[0]), (train, OTHERS[0])]
    diagnosis = examine(cache, against=[tsv(tmp_path / name, *rows)], sample=50)
    (found,) = diagnosis.overlaps
    assert found.training
    assert found.folded == 1
    assert verdict(diagnosis, "overlap").grade == "ok"


@pytest.mark.parametrize(
    ("name", "header", "value"),
    [
        ("set.tsv", "split", "test"),
        ("set.tsv", "subset", "trial"),
        ("retrained.tsv", "text2", "x"),
        ("trains_at_stations.tsv", "text2", "x"),
        ("test_and_train.tsv", "split", "dev"),
    ],
)
def test_rows_to_test_on_are_judged(cache: Cache, tmp_path: Path, name: str, header: str, value: str) -> None:
    rows = [(header, "text"), (value, TEXTS[0]), (value, OTHERS[0])]
    diagnosis = examine(cache, against=[tsv(tmp_path / name, *rows)], sample=50)
    assert [one.training for one in diagnosis.overlaps] == [False]
    assert verdict(diagnosis, "overlap").grade == "bad"


def test_a_file_of_both_parts_is_two_sets(cache: Cache, tmp_path: Path) -> None:
    rows = [("split", "text"), ("test", OTHERS[0]), ("train", TEXTS[0]), ("dev", OTHERS[1])]
    diagnosis = examine(cache, against=[tsv(tmp_path / "set.tsv", *rows)], sample=50)
    assert [(one.training, one.texts, one.folded) for one in diagnosis.overlaps] == [
        (False, 2, 0),
        (True, 1, 1),
    ]


def test_every_format_is_read(cache: Cache, tmp_path: Path) -> None:
    quoted = OTHERS[0].replace('"', "")
    (tmp_path / "a.txt").write_text(f"{TEXTS[0]}\n{quoted}\n")
    (tmp_path / "b.csv").write_text(f'id,text\n1,"{TEXTS[0]}"\n2,"{quoted}"\n')
    lines = [json.dumps({"score": 1, "question": text}) for text in (TEXTS[0], quoted)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines))
    with gzip.open(tmp_path / "d.tsv.gz", "wt") as file:
        file.write(f"label\tpremise\n0\t{TEXTS[0]}\n1\t{quoted}\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "e.txt").write_text(f"{TEXTS[0]}\n{quoted}\n")
    found = examine(cache, against=[tmp_path], sample=50).overlaps
    assert [(one.name, one.texts, one.exact, one.folded) for one in found] == [
        (name, 2, 1, 1) for name in ("a.txt", "b.csv", "below/e.txt", "c.jsonl", "d.tsv.gz")
    ]


def test_columns_of_texts_are_told_by_name_or_by_what_they_hold(tmp_path: Path) -> None:
    rows = [
        ("split", "score", "entailment", "utterance", "text2", "zh", "genre"),
        *[("test", "1.5", "NEUTRAL", f"several words {i}", "word", f"一只猫{i}", "news") for i in range(5)],
    ]
    (found,) = read(tsv(tmp_path / "set.tsv", *rows)).sets
    assert found.columns == ("utterance", "text2", "zh")
    assert len(found.keys) == 11
    rows[0] = (*rows[0][:2], "label", *rows[0][3:])
    rows[1:] = [(*row[:2], "a whole sentence", *row[3:]) for row in rows[1:]]
    (found,) = read(tsv(tmp_path / "set.tsv", *rows)).sets
    assert found.columns == ("label", "utterance", "text2", "zh")


def test_values_that_are_no_texts_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "set.tsv"
    path.write_bytes(b"text\tcs\ngood one\tdva slova\nanother\t\n\xff\xfe bad\t \n")
    (found,) = read(path).sets
    assert (len(found.keys), found.skipped) == (3, 3)


def test_what_is_no_set_in_a_folder_is_listed(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# data")
    (tmp_path / "vectors.parquet").write_bytes(b"PAR1")
    (tmp_path / ".hidden.txt").write_text("hidden words")
    tsv(tmp_path / "numbers.tsv", ("id", "score"), ("1", "2"))
    tsv(tmp_path / "set.tsv", ("text",), ("some words",))
    found = read(tmp_path)
    assert [one.name for one in found.sets] == ["set.tsv"]
    assert found.unread == {
        "README.md": "its ending says no format",
        "numbers.tsv": "no column of texts",
        "vectors.parquet": "parquet is not read here",
    }


def test_a_file_that_was_named_has_to_be_a_set(tmp_path: Path) -> None:
    for name, content, reason in (
        ("numbers.tsv", b"id\tscore\n1\t2\n", "no column of texts"),
        ("notes.md", b"words here", "its ending says no format"),
        ("rows.parquet", b"PAR1", "parquet is not read here"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match=f"{name} cannot be an evaluation set: {reason}; expected texts"):
            read(tmp_path / name)


def test_what_cannot_be_read_is_refused(cache: Cache, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"no evaluation set at .*gone"):
        examine(cache, against=[tmp_path / "gone"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"no evaluation set in .*empty: expected files"):
        read(tmp_path / "empty")
    (tmp_path / "lines.jsonl").write_text("no json\n")
    with pytest.raises(InputError, match=r"lines.jsonl:1: the first line is no JSON object"):
        read(tmp_path / "lines.jsonl")
    whole = gzip.compress(("text\n" + "words and more words\n" * 1000).encode())
    (tmp_path / "cut.tsv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"cut.tsv.gz"):
        read(tmp_path / "cut.tsv.gz")


def test_a_cache_without_a_corpus_has_nothing_to_compare(tmp_path: Path) -> None:
    import shutil

    cache = make_cache(tmp_path / "c", unit(60))
    shutil.rmtree(cache.corpora_folder)
    path = tmp_path / "set.txt"
    path.write_text("words here\n")
    with pytest.raises(InputError, match="holds no corpus to compare"):
        examine(cache, against=[path])
    assert examine(cache).scan.vectors == 60


def test_texts_of_several_corpora_are_met(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c", unit(600))
    add_corpus(cache, [*OTHERS[:5], TEXTS[9]], "second")
    path = tmp_path / "set.txt"
    path.write_text("\n".join([OTHERS[3].upper(), TEXTS[9], "unmet words"]))
    found = overlap(cache, path)
    assert (found.exact, found.folded) == (1, 2)
    assert set(found.examples) == {TEXTS[9], OTHERS[3]}
    (only,) = examine(cache, corpus="corpus", against=[path], sample=50).overlaps
    assert (only.exact, only.folded) == (1, 1)
