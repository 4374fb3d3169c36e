"""STS, English and in other languages: figures against scipy, files as people have them."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from suite_helpers import Counted, vectors_of, write_pairs, write_tsv

from distill.errors import DataError
from distill.evaluation.files import count_repeats
from distill.evaluation.pairs import read_pairs
from distill.evaluation.sts import STS_SETS, read_multilingual, read_sts
from distill.evaluation.task import NotThereError, SuiteOptions, get_suite
from distill.vectors import unit_rows

HEADER = "subset score sentence1 sentence2"


def test_a_set_is_one_correlation_over_all_subsets_with_pearson_and_the_mean_of_subsets_beside_it(
    tmp_path: Path,
) -> None:
    rows = [(f"s{i % 3}", i % 6, f"a {i}", f"b {i}") for i in range(30)]
    write_tsv(tmp_path / "sts12_test.tsv", HEADER, rows)
    encode = Counted()
    figure = get_suite("sts").run(encode, tmp_path, SuiteOptions()).figures["sts12"]
    left, right = (unit_rows(vectors_of([row[side] for row in rows])) for side in (2, 3))
    gold, cosines = np.array([row[1] for row in rows], float), (left * right).sum(axis=1)
    subsets = [spearmanr(gold[i::3], cosines[i::3]).statistic for i in range(3)]
    assert figure.value == pytest.approx(100 * spearmanr(gold, cosines).statistic)
    assert figure.others["pearson"] == pytest.approx(100 * pearsonr(gold, cosines).statistic)
    assert figure.others["spearman_mean_of_subsets"] == pytest.approx(100 * np.mean(subsets))
    assert figure.outcomes is not None
    assert np.array_equal(figure.outcomes.gold, gold)
    assert len(encode.seen) == len(set(encode.seen))


def test_rows_without_a_usable_score_or_sentence_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = [("x", 1, "a", "b"), ("x", 2, "c", "d"), ("x", "", "e", "f"), ("x", "nan", "g", "h")]
    rows += [("x", "high", "i", "j"), ("x", "inf", "k", "l"), ("x", 3, " ", "m"), ("x", 4)]
    pairs = read_pairs(write_tsv(tmp_path / "p.tsv", HEADER, rows), "p")
    assert len(pairs) == 2
    assert sum(pairs.skipped.values()) == 6


def test_missing_sets_are_named_and_repeated_pairs_counted(tmp_path: Path) -> None:
    write_tsv(tmp_path / "stsb_test.tsv", HEADER, [("x", i % 3, f"a{i % 4}", "b") for i in range(8)])
    result = get_suite("sts").run(Counted(), tmp_path, SuiteOptions())
    assert set(result.missing) == set(STS_SETS) - {"stsb"}
    assert any("4" in note and "repeated" in note for note in result.notes)
    assert count_repeats([("A  b", "c"), ("c", "a B"), ("a", "c")]) == 1


def test_only_the_test_subset_of_sick_is_read(tmp_path: Path) -> None:
    rows = [("train", 1, "a", "b"), ("test", 2, "c", "d"), ("test", 3, "e", "f")]
    write_tsv(tmp_path / "sick.tsv", HEADER, rows)
    (one,) = read_sts(tmp_path)
    assert (one.name, len(one)) == ("sickr", 2)


@pytest.mark.parametrize(
    ("scores", "vector", "noun"), [([1, 1, 1], None, "equal scores"), ([1, 2, 3], [1.0, 2.0], "collapsed")]
)
def test_unrankable_scores_are_an_error(
    tmp_path: Path, scores: list[int], vector: list[float], noun: str
) -> None:
    write_tsv(tmp_path / "stsb_test.tsv", HEADER, [("x", s, f"a{i}", f"b{i}") for i, s in enumerate(scores)])
    encode = (lambda texts: np.array([vector] * len(texts), np.float32)) if vector else Counted()
    with pytest.raises(DataError, match=noun):
        get_suite("sts").run(encode, tmp_path, SuiteOptions())


@pytest.mark.parametrize(
    ("name", "content", "noun"),
    [
        ("stsb_test.tsv.gz", gzip.compress(b"subset\tscore\n" * 99, mtime=0)[:-9], "stsb_test"),
        ("stsb_test.tsv", "\t".join(HEADER.split()).encode() + b"\nx\t1\tcaf\xe9\tb\n", "line 2"),
        ("stsb_test.tsv", b"score\tsentence1\tsentence2\n1\ta\tb\n", "subset"),
        ("stsb_test.tsv", "\t".join(HEADER.split()).encode(), "no scored pair"),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(
    tmp_path: Path, name: str, content: bytes, noun: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=noun) as error:
        read_sts(tmp_path)
    assert not isinstance(error.value, NotThereError)
    assert "stsb" in str(error.value)


def test_plain_compressed_and_windows_files_read_alike(tmp_path: Path) -> None:
    plain = write_pairs(tmp_path / "a.tsv")
    (tmp_path / "b.tsv.gz").write_bytes(gzip.compress(plain.read_bytes()))
    (tmp_path / "c.tsv").write_bytes(b"\xef\xbb\xbf" + plain.read_bytes().replace(b"\n", b"\r\n"))
    read = {tuple(read_pairs(tmp_path / name, "x").items) for name in ("a.tsv", "b.tsv.gz", "c.tsv")}
    assert len(read) == 1


def translated(folder: Path, language: str, scores: list[float]) -> None:
    rows = [("test", s, f"{language} {i}", f"{language}' {i}") for i, s in enumerate(scores)]
    write_tsv(folder / f"stsb_mt_{language}.tsv", "split score sentence1 sentence2", rows)


def test_pairs_across_languages_are_made_of_aligned_rows(tmp_path: Path) -> None:
    write_tsv(tmp_path / "stsb_test.tsv", HEADER, [("x", s, f"en {s}", f"en' {s}") for s in (1, 2, 3)])
    translated(tmp_path, "de", [1, 2, 3])
    translated(tmp_path, "es", [1, 2, 3])
    write_tsv(tmp_path / "sts17_en-de.tsv", "score sentence1 sentence2", [(1, "a", "b"), (2, "c", "d")])
    sets, notes = read_multilingual(tmp_path)
    names = ["sts17_en-de", *(f"stsb_mt_{pair}" for pair in ("de-de", "es-es", "en-de", "en-es", "de-es"))]
    assert [one.name for one in sets] == names
    assert sets[-1].items[0] == ("de 0", "es' 0")
    assert notes == []
    result = get_suite("sts-multilingual").run(Counted(), tmp_path, SuiteOptions())
    assert list(result.figures["stsb_mt_de-de"].others) == ["pearson"]
    assert "en-en" in result.missing
    assert "1 sets of STS 2017" in result.notes[-1]


@pytest.mark.parametrize("scores", [[1, 2], [1, 2, 4]])
def test_languages_whose_rows_are_not_aligned_are_not_paired(tmp_path: Path, scores: list[float]) -> None:
    translated(tmp_path, "de", [1, 2, 3])
    translated(tmp_path, "es", scores)
    sets, notes = read_multilingual(tmp_path)
    assert [one.name for one in sets] == ["stsb_mt_de-de", "stsb_mt_es-es"]
    assert "not aligned" in notes[0]
