"""A knowledge base: what goes in, how it lies on disk, and which student may ask it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from knowledge_base_helpers import (
    HELD,
    LABELS,
    TEXTS,
    contracts,
    head,
    make_cache,
    make_run,
    sentiment,
    teacher_logits,
    teacher_vectors,
)

from distill.cli.main import cli
from distill.errors import ConfigError, DataError
from distill.knowledge_base import base as base_module
from distill.knowledge_base.base import read_base
from distill.knowledge_base.build import add_rows, build_base, require_base, require_header
from distill.knowledge_base.choose import choose, held_out_rows
from distill.knowledge_base.effort import EFFORTS
from distill.knowledge_base.header import CHOSEN, HEADER, INDEX, ROWS, Chosen, index_bytes, read_header
from distill.knowledge_base.header import TEXTS as TEXTS_FILE
from distill.knowledge_base.index import IndexSettings
from distill.knowledge_base.student import DEFAULT_TAU, open_folder
from distill.knowledge_base.vote import softmax
from distill.layout import BEST, KNOWLEDGE_BASE, RECORD
from distill.reaugkd.soft_labels import encoder_of
from embedcache.cache import Cache
from embedcache.corpus.readers import ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.errors import CorruptCacheError, InputError, StorageError
from embedcache.folders import locked_folder
from embedcache.fsio import read_sealed_json
from embedcache.keys import key_array
from embedcache.testing import sentences

MORE = sentences(25, seed=77, longest=9)
PARTS = {"first": MORE[:15], "second": MORE[15:]}
EXACT = IndexSettings(codec="float32", ef_search=64)
MODEL_FILES = ["classifier.json", "classifier.safetensors", KNOWLEDGE_BASE]


@pytest.fixture
def cache(tmp_path):
    return make_cache(tmp_path / "cache")


@pytest.fixture
def run(tmp_path, cache):
    return make_run(tmp_path / "run", cache, contracts()[1])


def built(run, cache, **options):
    return build_base(run, cache.folder, settings=EXACT, **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_it_holds_vectors_and_soft_labels_of_all_but_the_held_out_rows(run, cache):
    made = built(run, cache)
    kept = [text for text in TEXTS if text not in HELD]
    assert (made.added, made.held_out, made.repeated) == (len(kept), len(HELD), 0)
    base = require_base(open_folder(run))
    assert np.array_equal(base.keys, key_array(kept))
    assert np.allclose(base.index.vectors(), teacher_vectors(kept), atol=1e-6)
    assert np.allclose(base.soft_labels, softmax(teacher_logits(kept)), atol=1e-6)
    assert base.origin.labels == LABELS
    assert base.texts is None
    assert base.tau == 0.2
    assert not base.holds(key_array(HELD)).any()


def test_a_text_that_stands_twice_is_in_it_once(tmp_path, run):
    cache = make_cache(tmp_path / "twice", [*TEXTS, *TEXTS[20:25]])
    made = built(run, cache)
    assert (made.added, made.repeated, made.held_out) == (len(TEXTS) - len(HELD), 5, len(HELD))


def test_texts_are_kept_where_asked_for(run, cache):
    base = built(run, cache, texts=True).base
    assert base.texts == tuple(text for text in TEXTS if text not in HELD)
    assert read_base(run / BEST).texts == base.texts


def test_the_same_input_gives_the_same_bytes(tmp_path, run, cache):
    first = contents(built(run, cache, texts=True).folder)
    again = contents(built(run, cache, texts=True, overwrite=True).folder)
    assert first == again
    assert set(first) == {HEADER, INDEX, ROWS, TEXTS_FILE}
    other = contents(build_base(run, cache.folder, texts=True, overwrite=True).folder)
    assert other[INDEX] != first[INDEX]
    assert other[ROWS] == first[ROWS]


def test_a_base_is_not_replaced_unasked(run, cache):
    built(run, cache)
    with pytest.raises(ConfigError, match="kb add"):
        built(run, cache)


def test_nothing_is_left_behind_by_a_base_that_is_replaced(run, cache):
    built(run, cache, texts=True)
    built(run, cache, overwrite=True)
    assert sorted(path.name for path in (run / BEST).iterdir()) == MODEL_FILES
    assert read_base(run / BEST).texts is None


@pytest.mark.parametrize("name", [HEADER, INDEX, ROWS, TEXTS_FILE])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_damage_of_any_file_is_found(run, cache, name, how):
    path = built(run, cache, texts=True).folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes(data if how == "flipped" else data[: len(data) // 2])
    with pytest.raises(CorruptCacheError, match=r"knowledge base .* is damaged"):
        read_base(run / BEST)


def test_files_of_another_base_are_no_part_of_it(tmp_path, run, cache):
    folder = built(run, cache).folder
    other = build_base(run, cache.folder, settings=IndexSettings(m=4), overwrite=True)
    old = contents(other.folder)
    built(run, cache, overwrite=True)
    (folder / INDEX).write_bytes(old[INDEX])
    with pytest.raises(CorruptCacheError, match=r"index\.faiss is not the file"):
        read_base(run / BEST)


def test_rows_of_another_corpus_are_added_without_training(tmp_path, run, cache):
    before = built(run, cache, texts=True).base
    more = make_cache(tmp_path / "more", [*MORE, *TEXTS[20:23], *HELD[:2]], name="more")
    added = add_rows(run, more.folder)
    assert (added.added, added.known, added.held_out) == (len(MORE), 3, 2)
    base = require_base(open_folder(run))
    assert len(base) == len(before) + len(MORE)
    assert base.texts == (*before.texts, *MORE)
    assert np.array_equal(base.keys[: len(before)], before.keys)
    assert [corpus["name"] for corpus in base.corpora] == ["films", "more"]
    # What came later is found like what was there.
    rows, _ = base.index.search(teacher_vectors(MORE), 1)
    assert rows[:, 0].tolist() == list(range(len(before), len(base)))
    assert np.array_equal(base.soft_labels[rows[:, 0]].argmax(axis=1), sentiment(MORE))
    with pytest.raises(DataError, match="has no row for the knowledge base"):
        add_rows(run, more.folder)


def test_rows_of_another_classifier_are_not_added(tmp_path, run, cache):
    built(run, cache)
    more = make_cache(tmp_path / "more", MORE, name="more")
    logits = contracts()[2]
    shutil.rmtree(more.teacher_folder(logits))
    other = json.loads(logits.modules)
    other[0]["weights"] = "d" * 64
    changed = replace(logits, modules=json.dumps(other))
    more.register_teacher("tiny.logits", changed, {})
    with pytest.raises(DataError, match="another classifier"):
        add_rows(run, more.folder)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({"weights": "b"}, "another teacher"),
        ({"projection": "q"}, "another projection of the same teacher"),
        ({"labels": ("good", "bad")}, "another label set"),
        ({"labels": ("bad", "good", "so-so")}, "another label set"),
    ],
)
def test_what_the_student_was_not_trained_with_is_refused_by_name(tmp_path, run, of, said):
    others = make_cache(tmp_path / "others", **of)
    with pytest.raises(DataError, match=f"^{said}: .*tiny.projected"):
        build_base(run, others.folder, teacher="tiny.projected")
    assert not (run / BEST / KNOWLEDGE_BASE).exists()


@pytest.mark.parametrize(
    ("of", "said"), [({"weights": "b"}, "another teacher"), ({"projection": "q"}, "another projection")]
)
def test_a_base_that_was_moved_to_another_student_is_refused_by_name(tmp_path, run, cache, of, said):
    built(run, cache)
    stranger = make_run(tmp_path / "stranger", cache, contracts(**of)[1])
    shutil.copytree(run / BEST / KNOWLEDGE_BASE, stranger / BEST / KNOWLEDGE_BASE)
    with pytest.raises(DataError, match=f"^{said}.*the knowledge base in .*stranger"):
        require_base(open_folder(stranger))


def test_the_same_teacher_without_its_projection_is_called_so(tmp_path, cache):
    base, projected, _ = contracts()
    student = make_run(tmp_path / "of-projected", cache, projected)
    with pytest.raises(DataError, match=r"^the same teacher without its projection: .*'tiny' "):
        build_base(student, cache.folder, teacher="tiny")
    student = make_run(tmp_path / "of-base", cache, base)
    with pytest.raises(DataError, match=r"^a projection of the same teacher: .*'tiny\.projected' "):
        build_base(student, cache.folder, teacher="tiny.projected")


@pytest.mark.parametrize(
    ("loss", "why"), [("kd", "compares no vectors"), ("rkd-kd", "the same wherever the rows lie")]
)
def test_a_student_whose_loss_brings_it_near_no_teacher_has_no_neighbours(tmp_path, cache, loss, why):
    student = make_run(tmp_path / loss, cache, contracts()[1], loss=loss)
    with pytest.raises(
        DataError, match=rf"^no loss for neighbours: .* trained with {loss}, .*{why}.*reaugkd"
    ):
        build_base(student, cache.folder)
    assert not (student / BEST / KNOWLEDGE_BASE).exists()
    # Nor may it ask the base of a student that has one.
    other = make_run(tmp_path / "other", cache, contracts()[1])
    built(other, cache)
    shutil.copytree(other / BEST / KNOWLEDGE_BASE, student / BEST / KNOWLEDGE_BASE)
    with pytest.raises(DataError, match="no loss for neighbours"):
        require_base(open_folder(student))


def test_a_base_of_other_labels_or_another_width_is_refused(tmp_path, run, cache):
    built(run, cache)
    copy = tmp_path / "copy"
    shutil.copytree(run / BEST, copy)
    assert len(require_base(open_folder(copy))) > 0
    head(("no", "yes")).write(copy)
    with pytest.raises(DataError, match=r"^another label set: .*'bad', 'good'.*'no', 'yes'"):
        require_base(open_folder(copy))
    head(width=16).write(copy)
    with pytest.raises(DataError, match=r"^another width: .* of 8 numbers.* gives 16"):
        require_base(open_folder(copy))


def test_the_run_names_the_teacher_by_its_contract(tmp_path, run):
    other = make_cache(tmp_path / "others", weights="b")
    with pytest.raises(DataError, match=r"does not hold the teacher 'tiny\.projected'"):
        build_base(run, other.folder)


def test_a_folder_of_its_own_needs_its_teacher_named(tmp_path, cache):
    head().write(tmp_path / "model")
    with pytest.raises(ConfigError, match="name it with --teacher"):
        build_base(tmp_path / "model", cache.folder)
    base = build_base(tmp_path / "model", cache.folder, teacher="tiny.projected").base
    assert len(base) == len(TEXTS)
    assert base.tau == DEFAULT_TAU


def test_the_tau_of_another_loss_is_no_temperature_of_neighbours(tmp_path, cache):
    run = make_run(tmp_path / "kd", cache, contracts()[1], loss="kd")
    assert open_folder(run).tau == DEFAULT_TAU


@pytest.mark.parametrize("tau", [0.0, -0.1, float("nan"), float("inf")])
def test_a_temperature_is_above_zero(run, cache, tau):
    with pytest.raises(ConfigError, match=r"--tau .*expected a number above 0"):
        built(run, cache, tau=tau)
    assert not (run / BEST / KNOWLEDGE_BASE).exists()


def test_a_temperature_given_goes_before_that_of_the_run(run, cache):
    assert built(run, cache, tau=0.5).base.tau == 0.5


def test_missing_vectors_are_told_with_what_to_run(tmp_path, run, cache):
    store_corpus(cache.corpora_folder, "new", [RowBatch(MORE, None, None)], ReadReport())
    with pytest.raises(DataError, match=r"25 of 25 .*distill project --apply"):
        build_base(run, cache.folder, corpus="new")


def test_without_logits_there_are_no_soft_labels(run, cache):
    shutil.rmtree(cache.teacher_folder(contracts()[2]))
    with pytest.raises(DataError, match="--output embedding,logits"):
        built(run, Cache(cache.folder))


def test_no_classifier_no_base(tmp_path, cache):
    (tmp_path / "plain").mkdir()
    with pytest.raises(DataError, match="holds no classifier"):
        build_base(tmp_path / "plain", cache.folder)
    with pytest.raises(ConfigError, match="there is no folder"):
        build_base(tmp_path / "missing", cache.folder)


def test_a_student_without_a_base_is_told_how_to_get_one(run):
    with pytest.raises(DataError, match="distill kb build"):
        require_base(open_folder(run))


def test_held_out_rows_come_with_the_labels_of_the_corpus(run, cache):
    rows = held_out_rows(open_folder(run), None)
    assert rows.texts == HELD
    assert rows.labels == [LABELS[number] for number in sentiment(HELD)]


def test_held_out_rows_that_the_corpus_lost_are_counted(tmp_path, run):
    fewer = make_cache(tmp_path / "fewer", TEXTS[3:])
    rows = held_out_rows(open_folder(run), fewer.folder)
    assert rows.texts == HELD[3:]
    assert sum(rows.skipped.values()) == 3
    assert rows.described == "3 of 14 texts held out by the run, which corpus 'films' does not hold"
    # Nothing is said where nothing is left out.
    assert held_out_rows(open_folder(run), None).described == ""


def found_as(run, digest):
    """Let a run's record say what digest its corpus had."""
    record = json.loads((run / RECORD).read_text(encoding="utf-8"))
    record["corpus"]["digest"] = digest
    (run / RECORD).write_text(json.dumps(record), encoding="utf-8")


def test_the_corpus_of_a_run_is_known_by_its_digest(tmp_path, run, cache):
    found_as(run, cache.corpus("films").info.digest)
    student = open_folder(run)
    assert student.find_corpus(cache).name == "films"
    # It may have another name by now, and its name another corpus.
    moved = make_cache(tmp_path / "moved", name="movies")
    store_corpus(moved.corpora_folder, "films", [RowBatch(MORE, None, ["bad"] * len(MORE))], ReadReport())
    assert student.find_corpus(moved).name == "movies"
    assert held_out_rows(student, moved.folder).texts == HELD
    built(run, moved)
    assert [corpus["name"] for corpus in require_base(student).corpora] == ["movies"]
    # Where none is as it was, the name has to do, and what is missing says so.
    changed = make_cache(tmp_path / "changed", TEXTS[1:])
    rows = held_out_rows(student, changed.folder)
    assert rows.texts == HELD[1:]
    assert rows.described.endswith("does not hold (it is not as the run found it)")


def test_where_no_row_was_held_out_a_file_is_asked_for(tmp_path, cache):
    run = make_run(tmp_path / "all", cache, contracts()[1], held=())
    for place in (None, cache.folder):
        with pytest.raises(DataError, match=r"nobody says which rows were held out.*--data FILE$"):
            held_out_rows(open_folder(run), place)


def test_where_no_cache_is_named_it_is_asked_for(run, cache):
    record = json.loads((run / RECORD).read_text(encoding="utf-8"))
    del record["cache"]
    (run / RECORD).write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(DataError, match=r"14 rows were held out .*name it with --cache, or .*--data FILE$"):
        held_out_rows(open_folder(run), None)
    assert held_out_rows(open_folder(run), cache.folder).texts == HELD
    (run / RECORD).write_text(json.dumps({**record, "cache": "/moved/away"}), encoding="utf-8")
    with pytest.raises(DataError, match=r"/moved/away, where their labels were, is not there: name it with"):
        held_out_rows(open_folder(run), None)


def test_what_a_new_base_takes_the_place_of_is_told(run, cache):
    ask = ["kb", "build", str(run), "--cache", str(cache.folder), "--texts"]
    assert "is gone" not in CliRunner().invoke(cli, ask, catch_exceptions=False).stdout
    base = read_base(run / BEST)
    base.keep_choice(run / BEST, CHOICE, key_array(HELD[:3]))
    told = CliRunner().invoke(cli, [*ask, "--overwrite"], catch_exceptions=False).stdout
    expected = (
        f"the base that was there is gone: {len(base)} rows (films), with their texts, k {CHOICE.k} and beta"
    )
    assert expected in told
    facts = json.loads(
        CliRunner().invoke(cli, [*ask, "--overwrite", "--json"], catch_exceptions=False).stdout
    )
    assert (facts["replaced"]["rows"], facts["replaced"]["chosen"]) == (len(base), None)
    # One that is damaged can be replaced as well.
    (run / BEST / KNOWLEDGE_BASE / HEADER).write_text("{}")
    assert built(run, cache, overwrite=True).replaced is None


def test_vectors_of_zeros_are_near_to_nothing_and_refused(tmp_path, run, monkeypatch):
    monkeypatch.setattr("knowledge_base_helpers.teacher_vectors", lambda texts: 0 * teacher_vectors(texts))
    other = make_cache(tmp_path / "zeros")
    with pytest.raises(DataError, match=r"46 of 46 vectors of teacher 'tiny.projected' are zero: .*doctor"):
        built(run, other)
    assert read_base(run / BEST) is None


def test_the_facts_of_a_base_say_whether_a_lead_is_chance(run, cache):
    built(run, cache)
    read_base(run / BEST).keep_choice(run / BEST, CHOICE, key_array(HELD[:3]))
    assert read_header(run / BEST).facts()["chosen"]["within_chance"] is CHOICE.is_within_chance is True
    assert "within_chance" not in json.loads((run / BEST / KNOWLEDGE_BASE / HEADER).read_text())["chosen"]


def test_the_corpus_of_held_out_rows_can_be_named(run, cache):
    store_corpus(cache.corpora_folder, "few", [RowBatch(HELD[:5], None, ["bad"] * 5)], ReadReport())
    rows = held_out_rows(open_folder(run), None, "few")
    assert (rows.texts, rows.labels) == (HELD[:5], ["bad"] * 5)
    assert held_out_rows(open_folder(run), None).texts == HELD
    with pytest.raises(InputError, match="no corpus 'series'"):
        held_out_rows(open_folder(run), None, "series")
    with pytest.raises(ConfigError, match=r"^--corpus is where rows that the run held out"):
        choose(run, corpus="few", data="films.tsv")


def test_the_header_says_whose_it_is(run, cache):
    folder = built(run, cache).folder
    header = read_sealed_json(folder / HEADER)
    base, projected, logits = contracts()
    assert header["origin"] == {
        "teacher": "tiny.projected",
        "contract": projected.id,
        "base": base.id,
        "projection": "p" * 64,
        "logits": logits.id,
        "labels": list(LABELS),
        "classifier": "c" * 64,
        "encoder": encoder_of(base),
    }
    assert header["index"] == EXACT.to_json()
    assert header["chosen"] is None


CHOICE = Chosen(5, 0.4, "rows", "d", 3, 0.9, 0.8, 46, (-0.05, 0.2))


def test_another_choice_leaves_vectors_and_texts_as_they_lie(run, cache):
    folder = built(run, cache, texts=True).folder
    base = read_base(run / BEST)
    before = contents(folder)
    places = {path.name: path.stat().st_ino for path in folder.iterdir()}
    base.keep_choice(run / BEST, CHOICE, key_array(HELD[:3]))
    after = contents(folder)
    assert {name for name in after if after[name] != before.get(name)} == {HEADER, CHOSEN}
    # Not even copied: they are the same files on the disk.
    kept = {INDEX, ROWS, TEXTS_FILE}
    assert {path.name for path in folder.iterdir() if path.stat().st_ino == places.get(path.name)} == kept
    found = read_base(run / BEST)
    assert found.chosen == CHOICE
    assert np.array_equal(found.chosen_keys, key_array(HELD[:3]))
    assert found.header.is_of(base.header)
    # Whole or not: written at once it has the same bytes.
    found.write(run / BEST)
    assert contents(folder) == after
    # And a second choice takes the place of the first.
    found.keep_choice(run / BEST, replace(CHOICE, k=7), key_array(HELD[:2]))
    assert (read_base(run / BEST).chosen.k, len(read_base(run / BEST).chosen_keys)) == (7, 2)


def test_every_file_of_a_base_is_read_once(run, cache, monkeypatch):
    built(run, cache, texts=True)
    read_base(run / BEST).keep_choice(run / BEST, CHOICE, key_array(HELD[:3]))
    read: list[str] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        read.append(path.name)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)
    found = read_base(run / BEST)
    assert sorted(name for name in read if name != HEADER) == sorted([INDEX, ROWS, TEXTS_FILE, CHOSEN])
    assert np.array_equal(found.chosen_keys, key_array(HELD[:3]))


def test_where_there_are_no_links_files_are_copied(run, cache, monkeypatch):
    def refuse(source, target):
        raise OSError("no links here")

    folder = built(run, cache, texts=True).folder
    before = contents(folder)
    base = read_base(run / BEST)
    monkeypatch.setattr("distill.knowledge_base.base.os.link", refuse)
    base.keep_choice(run / BEST, CHOICE, key_array(HELD[:3]))
    after = contents(folder)
    assert {name for name in after if after[name] != before.get(name)} == {HEADER, CHOSEN}
    assert read_base(run / BEST).chosen == CHOICE


def test_a_choice_is_not_written_into_another_base(tmp_path, run, cache):
    built(run, cache)
    base = read_base(run / BEST)
    more = make_cache(tmp_path / "more", MORE, name="more")
    add_rows(run, more.folder)
    with pytest.raises(DataError, match="became another knowledge base"):
        base.keep_choice(run / BEST, CHOICE, key_array(HELD[:3]))
    assert read_base(run / BEST).chosen is None


def test_a_base_that_another_replaces_while_it_is_read_is_read_again(tmp_path, run, cache, monkeypatch):
    built(run, cache)
    more = make_cache(tmp_path / "more", MORE, name="more")
    read, left = base_module._read_file, [lambda: add_rows(run, more.folder)]

    def read_slowly(header, folder, name):
        data = read(header, folder, name)
        if name == INDEX and left:
            left.pop()()
        return data

    monkeypatch.setattr(base_module, "_read_file", read_slowly)
    assert len(read_base(run / BEST)) == len(TEXTS) - len(HELD) + len(MORE)
    assert not left
    # One that stays as it is and cannot be read is damaged.
    (run / BEST / KNOWLEDGE_BASE / INDEX).write_bytes(b"damaged")
    with pytest.raises(CorruptCacheError, match="is not the file"):
        read_base(run / BEST)


def meanwhile(does):
    """Return what does something once, as another process may while rows are linked."""
    left = [does]
    return lambda what, done, total: left.pop()() if left else None


def test_rows_that_another_adds_meanwhile_are_not_lost(tmp_path, run, cache):
    built(run, cache)
    first, second = (make_cache(tmp_path / name, texts, name=name) for name, texts in PARTS.items())
    other = meanwhile(lambda: add_rows(run, second.folder))
    words = r"became another knowledge base meanwhile, of 56 rows instead of 46, .*run it again$"
    with pytest.raises(DataError, match=words):
        add_rows(run, first.folder, on_step=other)
    assert [corpus["name"] for corpus in read_base(run / BEST).corpora] == ["films", "second"]
    # Run again it has both.
    add_rows(run, first.folder)
    base = read_base(run / BEST)
    assert [corpus["name"] for corpus in base.corpora] == ["films", "second", "first"]
    assert base.holds(key_array(MORE)).all()
    assert sorted(path.name for path in (run / BEST).iterdir()) == MODEL_FILES


def test_what_is_chosen_meanwhile_stays(tmp_path, run, cache):
    built(run, cache)
    read_base(run / BEST).keep_choice(run / BEST, CHOICE, key_array(HELD[:3]))
    more = make_cache(tmp_path / "more", MORE, name="more")
    other = replace(CHOICE, k=9, beta=0.1)
    tuned = meanwhile(lambda: read_base(run / BEST).keep_choice(run / BEST, other, key_array(HELD[:7])))
    added = add_rows(run, more.folder, on_step=tuned)
    base = read_base(run / BEST)
    assert base.chosen == added.base.chosen == other
    assert np.array_equal(base.chosen_keys, key_array(HELD[:7]))
    assert len(base) == 46 + len(MORE)


def test_a_base_that_was_deleted_meanwhile_is_not_added_to(tmp_path, run, cache):
    folder = built(run, cache).folder
    more = make_cache(tmp_path / "more", MORE, name="more")
    with pytest.raises(DataError, match=r"was deleted meanwhile: .*distill kb build"):
        add_rows(run, more.folder, on_step=meanwhile(lambda: shutil.rmtree(folder)))
    assert not folder.exists()


def test_a_base_that_another_builds_meanwhile_is_not_replaced_unasked(run, cache):
    with pytest.raises(ConfigError, match=r"is there already: .*--overwrite$"):
        built(run, cache, on_step=meanwhile(lambda: built(run, cache, texts=True)))
    assert read_base(run / BEST).texts is not None
    again = meanwhile(lambda: built(run, cache, texts=True, overwrite=True))
    built(run, cache, overwrite=True, on_step=again)
    assert read_base(run / BEST).texts is None


def test_one_process_writes_at_a_time(run, monkeypatch):
    script = (
        "import sys, pathlib\n"
        "from embedcache.folders import locked_folder\n"
        "print('ready', flush=True)\n"
        "with locked_folder(pathlib.Path(sys.argv[1])): print('in')\n"
    )
    with locked_folder(run / BEST):
        process = subprocess.Popen([sys.executable, "-c", script, run / BEST], stdout=subprocess.PIPE)
        assert process.stdout.readline().strip() == b"ready"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.5)
    assert process.communicate(timeout=120)[0].strip() == b"in"

    # Where folders cannot be locked nobody waits.
    def refuse(descriptor, how):
        raise OSError("no locks here")

    monkeypatch.setattr("embedcache.folders.fcntl.flock", refuse)
    with locked_folder(run / BEST), locked_folder(run / BEST):
        pass
    with pytest.raises(StorageError), locked_folder(run / "missing"):
        pass


def test_a_bigger_base_is_measured_anew(tmp_path, run, cache, monkeypatch):
    monkeypatch.setattr("distill.knowledge_base.effort.FEWEST_QUERIES", len(HELD))
    found = build_base(run, cache.folder).effort
    assert found.ef_search == EFFORTS[0]
    # It is told by the header, so that a base that is opened later knows.
    assert read_header(run / BEST).settings.is_settled
    more = make_cache(tmp_path / "more", [*MORE, *HELD], name="more")
    monkeypatch.setattr("distill.knowledge_base.effort.EFFORTS", (48, 64))
    added = add_rows(run, more.folder)
    assert added.effort.ef_search == read_header(run / BEST).settings.ef_search == 48
    # A cache without the held-out rows cannot tell: it stays as it was.
    last = make_cache(tmp_path / "last", sentences(9, seed=5, longest=12), name="last")
    monkeypatch.setattr("distill.knowledge_base.effort.EFFORTS", (96,))
    asked = ["kb", "add", str(run), "--cache", str(last.folder)]
    told = CliRunner().invoke(cli, asked, catch_exceptions=False).stdout
    assert told.splitlines()[1].startswith("ef-search 48 was not measured on these rows")
    assert read_header(run / BEST).settings.ef_search == 48


def test_what_was_asked_for_is_not_measured(tmp_path, run, cache, monkeypatch):
    monkeypatch.setattr("distill.knowledge_base.effort.FEWEST_QUERIES", len(HELD))
    assert built(run, cache).effort is None
    more = make_cache(tmp_path / "more", [*MORE, *HELD], name="more")
    assert add_rows(run, more.folder).effort is None
    assert read_header(run / BEST).settings == EXACT


def test_the_header_is_read_without_the_vectors(run, cache):
    made = built(run, cache)
    (made.folder / INDEX).write_bytes(b"damaged")
    header = require_header(open_folder(run))
    assert header.facts() == made.base.facts()
    assert header.files.keys() == {INDEX, ROWS}
    assert index_bytes(run / BEST) == 7
    with pytest.raises(CorruptCacheError, match="is not the file"):
        read_base(run / BEST)
    (made.folder / INDEX).unlink()
    with pytest.raises(CorruptCacheError, match=r"index\.faiss"):
        index_bytes(run / BEST)
    shutil.rmtree(made.folder)
    assert read_header(run / BEST) is None
    with pytest.raises(DataError, match="has no knowledge base"):
        require_header(open_folder(run))


def test_a_choice_of_an_older_version_has_no_interval():
    older = {name: value for name, value in CHOICE.to_json().items() if name != "lead"}
    assert Chosen.from_json(older) == replace(CHOICE, lead=None)
    assert not Chosen.from_json(older).is_within_chance
    assert Chosen.from_json(json.loads(json.dumps(CHOICE.to_json()))) == CHOICE
    assert CHOICE.is_within_chance
    assert not replace(CHOICE, lead=(0.01, 0.2)).is_within_chance
    assert not replace(CHOICE, beta=1.0, lead=(0.0, 0.0)).is_within_chance


def test_a_damaged_classifier_or_record_is_told(run):
    (run / RECORD).write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="record of the run"):
        open_folder(run)
    (run / BEST / "classifier.safetensors").write_bytes(b"nothing")
    with pytest.raises(CorruptCacheError, match="classifier"):
        open_folder(run)


def test_names_that_are_not_there_are_told(run, cache):
    with pytest.raises(InputError, match="no corpus 'series'"):
        built(run, cache, corpus="series")
    with pytest.raises(InputError, match="no teacher 'large'"):
        built(run, cache, teacher="large")
