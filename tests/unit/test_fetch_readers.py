"""Conversions, on small made-up samples in the form of the sources."""

from __future__ import annotations

from collections import Counter

import pytest

from distill.errors import DataError
from distill.evaluation.fetch.registry import READERS
from distill.evaluation.fetch.table_file import EITHER, read_lines


def read(reader, part, *files: str):
    dropped: Counter[str] = Counter()
    lines = [file.removesuffix("\n").split("\n") for file in files]
    return [dict(row) for row in READERS[reader](part, lines, dropped)], dict(dropped)


def pair(subset, score, left, right, **more):
    return {"subset": subset, "score": score, "sentence1": left, "sentence2": right, **more}


def test_pairs_and_their_scores_in_two_files():
    pairs = "A dog  barks. \tThe dog is loud.\tpage 1\nIt rains.\tIt snows.\nUnjudged.\tLeft out.\n"
    rows, dropped = read("pairs-and-scores", "pets", pairs, "4.600\n0\n\n")
    assert rows == [
        pair("pets", "4.600", "A dog barks.", "The dog is loud."),
        pair("pets", "0", "It rains.", "It snows."),
    ]
    assert dropped == {"pairs without a score": 1}
    with pytest.raises(DataError, match="same number of lines"):
        read("pairs-and-scores", "pets", pairs, "4.600\n0\n")


def test_scored_pairs_and_those_nobody_scored():
    rows, dropped = read("scored-pairs", "talk", "3.25\tHow so?\tWhy?\n\tNot\tscored\n \tNor\tthis\n")
    assert rows == [pair("talk", "3.25", "How so?", "Why?")]
    assert dropped == {"pairs without a score": 2}
    with pytest.raises(DataError, match="'high' is no score"):
        read("scored-pairs", "talk", "high\ta\tb\n")


def test_pairs_as_json():
    line = '{"split": "test", "score": 2.4, "sentence1": "Ein\\tHund.", "sentence2": "A dog.", "lang": "x"}\n'
    assert read("json-pairs", "de-en", line)[0] == [pair("de-en", "2.4", "Ein Hund.", "A dog.")]
    with pytest.raises(DataError, match="line 2 is no JSON object"):
        read("json-pairs", "de-en", line + '{"score": 1}\n')


def test_the_sts_benchmark_with_and_without_origins():
    lines = (
        'talk\tforum\t2031\t0007\t3.5\tHe said "yes.\tHe agreed.\n'
        "talk\tnews\t2032\t0008\t0\tOne.\tTwo.\tX\tY\n"
    )
    assert read("sts-benchmark", "dev", lines)[0] == [
        pair(
            "forum", "3.5", 'He said "yes.', "He agreed.", genre="talk", year="2031", sid="0007", split="dev"
        ),
        pair("news", "0", "One.", "Two.", genre="talk", year="2032", sid="0008", split="dev"),
    ]


def test_translated_pairs_are_quoted_where_needed():
    lines = '"Ja, gern.","Er sagte ""nein"".",1.0\r\nEins,"Zwei\nDrei",2.5\r\n'
    assert read("translated-pairs", "test", lines)[0] == [
        pair("test", "1.0", "Ja, gern.", 'Er sagte "nein".', split="test"),
        pair("test", "2.5", "Eins", "Zwei Drei", split="test"),
    ]
    with pytest.raises(DataError, match="row 1 has 2 cells, expected 3"):
        read("translated-pairs", "test", "a,b\n")
    with pytest.raises(DataError, match="is no CSV"):
        read("translated-pairs", "test", '"never closed,b,1\n')


def test_sick():
    header = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    rows, _ = read("sick", "trial", header + "12\tA cat sleeps \tA cat is asleep\t4.9\tENTAILMENT\n")
    assert rows == [
        pair("trial", "4.9", "A cat sleeps", "A cat is asleep", entailment="ENTAILMENT", pair_id="12")
    ]
    with pytest.raises(DataError, match="the header is"):
        read("sick", "trial", "12\tA cat sleeps\tA cat is asleep\t4.9\tENTAILMENT\n")


def test_texts_of_a_class_and_labelled_texts():
    rows, dropped = read("text-lines", "1", "good stuff .\n\n  \nfine\n")
    assert rows == [{"label": "1", "text": "good stuff ."}, {"label": "1", "text": "fine"}]
    assert dropped == {"empty rows": 2}
    rows, dropped = read("labelled-lines", "dev", '0  bad " stuff . \n1 \n1 good\n')
    assert rows == [
        {"split": "dev", "label": "0", "text": 'bad " stuff .'},
        {"split": "dev", "label": "1", "text": "good"},
    ]
    assert dropped == {"empty rows": 1}
    with pytest.raises(DataError, match="line 1 does not begin with a label"):
        read("labelled-lines", "dev", "good stuff\n")


def test_questions_keep_both_labels():
    assert read("questions", "test", "NUM:count How many legs has an ant ?\n")[0] == [
        {
            "split": "test",
            "label": "NUM",
            "text": "How many legs has an ant ?",
            "fine_label": "NUM:count",
        }
    ]
    with pytest.raises(DataError, match="COARSE:fine"):
        read("questions", "test", "NUM How many legs has an ant ?\n")


def test_paraphrases_are_not_unquoted():
    lines = 'Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t17\t18\t"So be it.\tSo "be" it.\n'
    assert read("paraphrases", "val", lines)[0] == [
        {
            "split": "val",
            "label": "1",
            "text": '"So be it.',
            "text2": 'So "be" it.',
            "id1": "17",
            "id2": "18",
        }
    ]
    with pytest.raises(DataError, match="row 3 has 4 cells, expected 5"):
        read("paraphrases", "val", lines + "1\t2\t3\tone sentence\n")


def test_labelled_sentences():
    rows, _ = read("labelled-sentences", "train", "sentence\tlabel\nwell done \t1\n")
    assert rows == [{"split": "train", "label": "1", "text": "well done"}]


def test_inferences_without_a_majority_are_left_out():
    lines = (
        "gold_label\tsentence1_parse\tsentence1\tsentence2\tpairID\n"
        "neutral\t( x )\tA man runs.\tA man is late.\t1\n"
        "-\t( x )\tA man runs.\tA man trains.\t2\n"
    )
    rows, dropped = read("inferences", "dev", lines)
    assert rows == [
        {"split": "dev", "label": "neutral", "premise": "A man runs.", "hypothesis": "A man is late."}
    ]
    assert dropped == {"pairs without a label of the majority": 1}


def test_captions_of_several_files():
    rows, _ = read("captions", "val", "A boat.\nA tree.\n", "A ship.\nA plant. \n")
    assert rows == [
        {"split": "val", "image_index": "0", "caption1": "A boat.", "caption2": "A ship."},
        {"split": "val", "image_index": "1", "caption1": "A tree.", "caption2": "A plant."},
    ]
    with pytest.raises(DataError, match="same number of lines"):
        read("captions", "val", "A boat.\n", "A ship.\nA plant.\n")


def test_matched_records_become_queries_and_a_catalogue():
    def record(name, place):
        return f"COL name VAL {name} COL place VAL {place} "

    inn, bar, cafe = record("Inn", "Rye"), record("Bar", ""), record("Café", "")
    files = (
        f"{inn}\t{record('The Inn', 'Rye')}\t1\n{bar}\t{cafe}\t0\n",
        f"{inn}\t{cafe}\t0\n",
        f"{inn}\t{record('Inn', 'Rye, UK')}\t1\n",
    )
    queries, dropped = read("matched-queries", "all", *files)
    assert queries == [
        {"split": "test,train", "query_id": "D0", "text": "Inn | Rye", "gold_entity_ids": "C0,C2"}
    ]
    assert dropped == {"records without a match": 1}
    entities, _ = read("matched-entities", "all", *files)
    assert entities == [
        {"entity_id": "C0", "text": "The Inn | Rye"},
        {"entity_id": "C1", "text": "Café |"},
        {"entity_id": "C2", "text": "Inn | Rye, UK"},
    ]
    with pytest.raises(DataError, match="line 1 is not two records"):
        read("matched-entities", "all", "COL name VAL Inn\tCOL name VAL Bar\tyes\n", "", "")
    with pytest.raises(DataError, match="COL name VAL value"):
        read("matched-entities", "all", "Inn\tCOL name VAL Bar\t1\n", "", "")


def test_lines_end_at_line_ends_alone(tmp_path):
    path = tmp_path / "x"
    path.write_bytes("a\u2028b\x0bc\r\nd\re\n\nlast".encode())
    assert list(read_lines(path, "", "utf-8")) == ["a\u2028b\x0bc", "d\re", "", "last"]


def test_a_copy_that_is_no_utf8_is_read_as_latin1(tmp_path):
    for name, data in (("new", "café\n".encode()), ("old", "café\n".encode("latin-1"))):
        (tmp_path / name).write_bytes(data)
        assert list(read_lines(tmp_path / name, "", EITHER)) == ["café"]
    with pytest.raises(DataError, match="is not utf-8"):
        list(read_lines(tmp_path / "old", "", "utf-8"))
