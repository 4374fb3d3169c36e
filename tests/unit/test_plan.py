"""Planning: the counts are those a build then has, estimates hold the truth, nothing is written."""

from __future__ import annotations

import io
import json
import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import view_helpers
from pair_helpers import classifier_folder, pair_file

import embedcache
from embedcache.build_report import BuildSummary
from embedcache.cache import Cache
from embedcache.cli.main import main
from embedcache.errors import CacheFormatError, InputError, TeacherError
from embedcache.keys import key_array
from embedcache.plan import Plan, Range, Speed, plan_build
from embedcache.plan import plan as plan_module
from embedcache.plan.survey import Survey
from embedcache.sampling import KeySample, ranks
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher
from embedcache.testing import sentences
from embedcache.views.plan import ViewOptions

TEXTS = sentences(60)
FAST: dict[str, Any] = {"probe_seconds": 0.0, "compute_dtype": "float32"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text("".join(f"{text}\n" for text in [*TEXTS, TEXTS[0], "", TEXTS[1]]))
    return path


@pytest.fixture
def plan(source: Path, loaded_teacher: Teacher) -> Callable[..., Plan]:
    """Return ``plan_build`` of the source with the tiny teacher, without a probe."""

    def run(**settings: Any) -> Plan:
        return plan_build(source, **{"teacher": loaded_teacher, **FAST, **settings})

    return run


def everything_in(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_counts_are_those_of_the_build_that_follows(
    tmp_path: Path, source: Path, plan: Callable[..., Plan], loaded_teacher: Teacher
) -> None:
    some = tmp_path / "some.txt"
    some.write_text("".join(f"{text}\n" for text in TEXTS[:20]))
    settings: dict[str, Any] = {"teacher": loaded_teacher, "compute_dtype": "float32"}
    embedcache.build(some, cache=tmp_path / "c", **settings)
    found = plan(cache=tmp_path / "c")
    assert (found.rows, found.skipped, found.distinct) == (62, {"empty": 1}, 60)
    assert (found.cached, found.reusable, found.missing) == (20, 0, 40)
    done = embedcache.build(source, cache=tmp_path / "c", **settings).last_build
    assert done is not None
    assert (done.rows, done.distinct, done.encoded, done.reused) == (62, 60, 40, 20)
    assert found.tokens is not None
    assert (found.tokens.missing, found.tokens.standard_error) == (done.tokens, 0)
    after = plan(cache=tmp_path / "c")
    assert (after.cached, after.missing) == (60, 0)
    assert after.tokens is not None
    assert after.tokens.missing == 0
    assert [one.to_write for one in after.bytes] == [0] * 4
    assert after.build_seconds == Range(0, 0, 0)
    assert after.epochs_to_pay == Range(0, 0, 0)


def test_counts_with_views_are_those_of_the_build_that_follows(
    tmp_path: Path, plan: Callable[..., Plan], loaded_teacher: Teacher
) -> None:
    source = tmp_path / "pairs.tsv"
    # Some cells are empty, and some are texts of the corpus.
    cells = [
        "" if row % 5 == 0 else TEXTS[0] if row % 5 == 1 else f"pas {text}" for row, text in enumerate(TEXTS)
    ]
    lines = [f"{text}\t{cell}" for text, cell in zip(TEXTS, cells, strict=True)]
    source.write_text("\n".join(["text\tfrench", *lines, "\tskipped", ""]))
    settings: dict[str, Any] = {"teacher": loaded_teacher, "text_column": "text", "compute_dtype": "float32"}
    cache = tmp_path / "c"

    def both(*views: str, embed: tuple[str, ...] = (), **others: Any) -> tuple[Plan, BuildSummary]:
        given = {**settings, "views": ViewOptions(views, embed=embed, **others), "cache": cache}
        found = plan_build(source, **given, probe_seconds=0)
        done = embedcache.build(source, **given).last_build
        assert done is not None
        assert (found.rows, found.missing, found.reusable) == (done.rows, done.encoded, done.carried)
        assert found.tokens is not None
        assert found.tokens.missing == pytest.approx(done.tokens)
        return found, done

    specs = ("crop", "delete-words*2", "column:french")
    found, _ = both(*specs, embed=("delete-words-1", "column-french"))
    assert found.missing > 60 + 30
    assert [(one.name, one.is_there, one.is_embedded, one.is_counted) for one in found.views] == [
        ("crop", False, False, False),
        ("delete-words-1", False, True, True),
        ("delete-words-2", False, False, False),
        ("column-french", False, True, True),
    ]
    # What is there is not made, and may be encoded by its name alone.
    found, _ = both("crop", embed=("crop", "delete-words-2"))
    assert [(one.name, one.is_there, one.is_counted) for one in found.views] == [
        ("crop", True, True),
        ("delete-words-2", True, True),
    ]
    assert found.cached > 60
    with pytest.raises(InputError, match=r"another view called 'crop'.*--overwrite"):
        both("crop", seed=3)
    found, _ = both("crop", embed=("crop",), seed=3, replace=True)
    assert (found.views[0].is_there, found.missing > 0) == (False, True)
    with pytest.raises(InputError, match="--embed-views nosuch: there is no such view"):
        both(embed=("nosuch",))
    # Views are those of the corpus of that name, and rows those that it was made of.
    with pytest.raises(InputError, match="--embed-views crop: there is no such view"):
        plan_build(source, **settings, cache=cache, name="other", views=ViewOptions(embed=["crop"]))
    source.write_text("\n".join(["text\tfrench", *lines[1:], ""]))
    with pytest.raises(InputError, match="holds other rows than the source"):
        plan_build(source, **settings, cache=cache, views=ViewOptions(embed=["crop"]))


def test_texts_that_a_model_has_yet_to_make_are_not_counted_and_told_of(
    tmp_path: Path, source: Path, plan: Callable[..., Plan], loaded_teacher: Teacher
) -> None:
    model = str(view_helpers.masked_model(tmp_path / "masked"))
    views = ViewOptions(["mask-fill"], embed=["mask-fill"], mask_model=model, device="cpu")
    found = plan(views=views, cache=tmp_path / "c")
    assert (found.missing, [one.is_counted for one in found.views]) == (60, [False])
    (told,) = found.notes
    assert "view 'mask-fill' are not known before a model has made them: up to 62 more to encode" in told
    embedcache.build(source, teacher=loaded_teacher, cache=tmp_path / "c", views=replace(views, embed=()))
    found = plan(views=views, cache=tmp_path / "c")
    assert (found.notes, [one.is_counted for one in found.views], found.cached) == ((), [True], 60)
    done = embedcache.build(source, teacher=loaded_teacher, cache=tmp_path / "c", views=views).last_build
    assert done is not None
    assert 0 < found.missing == done.encoded


def test_nothing_is_written_into_the_cache(
    tmp_path: Path, source: Path, plan: Callable[..., Plan], loaded_teacher: Teacher
) -> None:
    embedcache.build(source, cache=tmp_path / "c", teacher=loaded_teacher, limit=20)
    before = everything_in(tmp_path / "c")
    plan(cache=tmp_path / "c", probe_seconds=0.05)
    assert everything_in(tmp_path / "c") == before
    plan(cache=tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_a_new_cache_and_none_are_the_same(tmp_path: Path, plan: Callable[..., Plan]) -> None:
    (tmp_path / "empty").mkdir()
    plans = [plan(cache=cache) for cache in (None, tmp_path / "none", tmp_path / "empty")]
    assert plans[0] == plans[1] == plans[2]
    assert plans[0].missing == 60


def test_vectors_of_another_length_are_counted_as_reusable(
    tmp_path: Path, source: Path, tiny_teacher: Path
) -> None:
    settings: dict[str, Any] = {"teacher": tiny_teacher, "device": "cpu", **FAST}
    build = {name: value for name, value in settings.items() if name != "probe_seconds"}
    cache = tmp_path / "c"
    embedcache.build(source, cache=cache, max_length=12, codec="float16", **build)
    found = plan_build(source, cache=cache, max_length=16, teacher_name="longer", **settings)
    done = embedcache.build(
        source, cache=cache, max_length=16, teacher_name="longer", codec="float16", **build
    ).last_build
    assert done is not None
    assert 0 < found.reusable < 60
    assert (found.reusable, found.missing) == (done.carried, done.encoded)
    assert all(one.to_write == one.distinct for one in found.bytes)
    assert f"{found.reusable:,} vectors are carried over from another max_length" in found.notes[0]
    clash = plan_build(source, cache=cache, max_length=8, **settings)
    assert "the cache holds 'tiny' with another contract (max_length 12 -> 8)" in clash.notes[0]
    assert "--teacher-name OTHER" in clash.notes[0]


def test_vectors_of_another_length_in_a_coarser_codec_are_told_of(
    tmp_path: Path, source: Path, tiny_teacher: Path
) -> None:
    settings: dict[str, Any] = {"teacher": tiny_teacher, "cache": tmp_path / "c", "device": "cpu"}
    longer = {**settings, "max_length": 32, "teacher_name": "longer"}
    embedcache.build(source, max_length=12, codec="int8", **settings)
    (tmp_path / "other.txt").write_text("something else\n")
    embedcache.build(tmp_path / "other.txt", codec="float16", **longer)
    found = plan_build(source, **longer, **FAST)
    assert (found.reusable, found.missing) == (0, 60)
    (note,) = found.notes
    assert "are encoded again, because their codec keeps less" in note
    # Nor is another codec of any help: the rows that are there are float16.
    with pytest.raises(InputError, match="stores these vectors as float16, not as int8"):
        embedcache.build(source, codec="int8", **longer)


@pytest.mark.parametrize("codec", ["float32", "int8"])
def test_a_build_does_what_was_planned_whatever_the_codec_of_the_other_length(
    tmp_path: Path, source: Path, tiny_teacher: Path, codec: str
) -> None:
    settings: dict[str, Any] = {"teacher": tiny_teacher, "cache": tmp_path / "c", "device": "cpu"}
    longer = {**settings, "max_length": 32, "teacher_name": "longer"}
    embedcache.build(source, max_length=12, codec=codec, **settings)
    found = plan_build(source, **longer, **FAST)
    done = embedcache.build(source, **longer).last_build
    assert done is not None
    assert (found.reusable, found.missing, found.codec) == (done.carried, done.encoded, codec)
    assert 0 < done.carried < 60


def test_bytes_are_those_on_disk(
    tmp_path: Path, plan: Callable[..., Plan], source: Path, loaded_teacher: Teacher
) -> None:
    found = {one.codec: one for one in plan().bytes}
    assert all(one.a_row - one.a_vector == 16 + 4 + 1 / 8 for one in found.values())
    assert [found[name].a_row - found["pq"].a_row for name in ("float32", "float16", "int8")] == [60, 28, 16]
    for codec in ("float32", "float16", "int8"):
        cache = embedcache.build(source, teacher=loaded_teacher, cache=tmp_path / codec, codec=codec)
        assert cache.last_build is not None
        # What shards tell about their provenance is not foreseen.
        assert cache.last_build.bytes_written == pytest.approx(found[codec].to_write, abs=1500)
        assert found[codec].distinct == found[codec].to_write


def test_a_sample_of_tokens_says_how_sure_it_is(plan: Callable[..., Plan], loaded_teacher: Teacher) -> None:
    exact = plan().tokens
    assert exact is not None
    lengths = Encoder(loaded_teacher, compute_dtype="float32").encode(TEXTS).tokens
    assert exact.missing == lengths.sum()
    assert exact.an_epoch == pytest.approx(lengths.mean() * 62)
    guesses = [plan(token_sample=20, seed=seed).tokens for seed in range(12)]
    inside = [abs(one.missing - exact.missing) < 2 * one.standard_error for one in guesses if one]
    assert sum(inside) >= 10
    assert len({one.missing for one in guesses if one}) > 6
    assert plan(token_sample=20, seed=3).tokens == guesses[3]
    for guess in guesses:
        assert guess is not None
        assert guess.sample == 20
        # Of 20 drawn out of 60: the spread of the sum, less what is known for sure.
        expected = 60 * lengths.std(ddof=1) / math.sqrt(20) * math.sqrt(2 / 3)
        assert guess.standard_error == pytest.approx(expected, rel=0.5)


def test_truncated_rows_are_a_share_of_all_rows(tmp_path: Path, tiny_teacher: Path) -> None:
    source = tmp_path / "long.txt"
    source.write_text(
        "".join(f"{text}\n" for text in ["the cat", "the dog", "the bird " * 9, "the bird " * 9])
    )
    settings: dict[str, Any] = {"teacher": tiny_teacher, "max_length": 8, "device": "cpu"}
    found = plan_build(source, **settings, **FAST).tokens
    assert found is not None
    # Distinct texts stand for their rows: one of three is cut.
    assert found.truncated_share == pytest.approx(1 / 3)
    embedcache.build(source, cache=tmp_path / "c", **settings)
    found = plan_build(source, cache=tmp_path / "c", **settings, **FAST).tokens
    assert found is not None
    assert found.truncated_share == pytest.approx(2 / 4)
    assert found.an_epoch == 4 + 4 + 8 + 8


def test_the_probe_times_a_build_and_a_loop(plan: Callable[..., Plan]) -> None:
    found = plan(probe_seconds=0.4, threads=1)
    for speed in (found.encode, found.live):
        assert speed is not None
        assert speed.unit == "tokens/s"
        assert 0 < speed.low <= speed.mean <= speed.high
    build, live, paid = found.build_seconds, found.live_epoch_seconds, found.epochs_to_pay
    assert build is not None
    assert live is not None
    assert paid is not None
    assert found.encode is not None
    assert found.tokens is not None
    assert build.low <= build.mean <= build.high
    assert build.mean == pytest.approx(found.tokens.missing / found.encode.mean)
    assert paid.low <= paid.mean <= paid.high
    assert paid.mean == pytest.approx(build.mean / (live.mean - found.cached_epoch_seconds))
    without = plan()
    assert (without.encode, without.live, without.build_seconds, without.epochs_to_pay) == (None,) * 4
    assert without.cached_epoch_seconds is None


def test_a_loop_runs_random_batches_of_128(
    plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    forward = Encoder.forward

    def watched(encoder: Encoder, features: dict[str, Any]) -> Any:
        rows.append(len(features["input_ids"]))
        return forward(encoder, features)

    monkeypatch.setattr(Encoder, "forward", watched)
    plan(probe_seconds=0.1, batch_tokens=64, threads=1)
    assert max(rows) == 128
    assert min(rows) <= 64 // 3


def found_survey(*, rows: int, distinct: int) -> Survey:
    return Survey(KeySample(1), rows=rows, distinct=distinct)


def test_when_a_cache_pays_for_itself() -> None:
    speed = Speed(100.0, 100.0, 100.0, "rows/s", 1.0)
    build, live, paid = plan_module._times(found_survey(rows=1000, distinct=500), None, speed, speed, 2.0)
    assert (build, live) == (Range(5, 5, 5), Range(10, 10, 10))
    # Building costs 5 s; every epoch then saves 10 s of the teacher and costs 2 s of reading.
    assert paid == Range(5 / 8, 5 / 8, 5 / 8)
    never = plan_module._times(found_survey(rows=1000, distinct=500), None, speed, speed, 10.0)
    assert never[2] is None
    shaky = Speed(50.0, 100.0, 200.0, "rows/s", 1.0)
    *_, paid = plan_module._times(found_survey(rows=1000, distinct=500), None, speed, shaky, 6.0)
    assert paid == Range(5 / 14, 5 / 4, math.inf)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"token_sample": 0}, InputError, "--token-sample 0"),
        ({"probe_seconds": -1.0}, InputError, "--probe-seconds -1"),
        ({"probe_seconds": math.inf}, InputError, "--probe-seconds inf"),
        ({"teacher": "nobody"}, TeacherError, "no teacher 'nobody'"),
        ({"threads": 0}, InputError, "--threads 0"),
        ({"text_column": "x"}, InputError, "x"),
    ],
)
def test_what_cannot_work_is_refused(
    plan: Callable[..., Plan], settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan(**settings)


def test_a_folder_of_other_things_is_no_cache_to_build_into(
    tmp_path: Path, plan: Callable[..., Plan]
) -> None:
    with pytest.raises(CacheFormatError, match="is no cache"):
        plan(cache=tmp_path)


def test_standard_input_is_read_once(loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch) -> None:
    data = "".join(f"{text}\n" for text in TEXTS[:5]).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data))))
    found = plan_build("-", teacher=loaded_teacher, probe_seconds=0.05)
    assert (found.rows, found.missing) == (5, 5)
    assert found.encode is not None


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "argv", ["embedcache", *map(str, arguments)])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


# --- outputs, codecs, and rows that are not asked for ---


PAIR_COLUMNS = {"text_column": "premise", "text2_column": "hypothesis"}


def test_counts_of_two_outputs_are_those_of_the_build_that_follows(tmp_path: Path) -> None:
    file, folder = pair_file(tmp_path / "pairs.tsv", 40), classifier_folder(tmp_path / "model")
    settings: dict[str, Any] = {**PAIR_COLUMNS, "compute_dtype": "float32", "cache": tmp_path / "c"}
    # Of ten texts only the vectors are there, of five others only the logits.
    embedcache.build(file, teacher=folder, **settings, limit=10, name="first")
    some = tmp_path / "some.tsv"
    lines = file.read_text().splitlines(keepends=True)
    some.write_text("".join([lines[0], *lines[21:26]]))
    embedcache.build(some, teacher=folder, **settings, output="logits")
    found = plan_build(file, teacher=folder, **settings, output="embedding,logits", probe_seconds=0)
    assert (found.teacher, found.distinct, found.cached, found.missing) == ("model", 40, 0, 40)
    assert [(one.output, one.teacher, one.cached) for one in found.outputs] == [
        ("embedding", "model", 10),
        ("logits", "model.logits", 5),
    ]
    done = embedcache.build(file, teacher=folder, **settings, output="embedding,logits").last_build
    assert done is not None
    assert done.encoded == found.missing
    assert found.tokens is not None
    assert found.tokens.missing == pytest.approx(done.tokens)
    for one, other in zip(found.outputs, done.outputs, strict=True):
        assert (one.output, one.teacher, one.contract_id) == (other.output, other.teacher, other.contract_id)
        assert (one.cached, 40 - one.cached) == (other.reused, other.stored)
    new = {**settings, "cache": tmp_path / "new"}
    planned = plan_build(file, teacher=folder, **new, output="embedding,logits", probe_seconds=0)
    made = embedcache.build(file, teacher=folder, **new, output="embedding,logits").last_build
    assert made is not None
    assert sum(one.to_write for one in planned.outputs) == pytest.approx(made.bytes_written, rel=0.1)
    after = plan_build(file, teacher=folder, **settings, output="logits", probe_seconds=0)
    assert (after.teacher, after.cached, after.missing, after.codec_in_use) == ("model.logits", 40, 0, True)
    # Logits are kept as floats.
    assert [one.codec for one in after.bytes] == ["float32", "float16"]


def test_what_a_build_would_refuse_a_plan_refuses(tmp_path: Path, plan: Callable[..., Plan]) -> None:
    folder = classifier_folder(tmp_path / "model")
    with pytest.raises(InputError, match="--codec int8: logits"):
        plan(teacher=folder, output="logits", codec="int8")
    with pytest.raises(InputError, match="--output 'vectors'"):
        plan(output="vectors")
    with pytest.raises(TeacherError, match="has no classifier"):
        plan(output="embedding,logits")
    with pytest.raises(InputError, match="--shard-rows 0"):
        plan(shard_rows=0)


def test_a_codec_and_shards_are_planned_as_asked(
    tmp_path: Path, source: Path, plan: Callable[..., Plan], loaded_teacher: Teacher
) -> None:
    found = plan(codec="int8")
    assert (found.codec, found.codec_in_use, found.outputs[0].codec) == ("int8", False, "int8")
    assert found.outputs[0].to_write == next(one.to_write for one in found.bytes if one.codec == "int8")
    settings: dict[str, Any] = {"teacher": loaded_teacher, "compute_dtype": "float32"}
    embedcache.build(source, cache=tmp_path / "c", codec="int8", **settings)
    assert plan(cache=tmp_path / "c").codec_in_use
    # Each shard has a head of its own.
    whole, cut = (plan(shard_rows=rows).outputs[0].to_write for rows in (100, 10))
    assert cut > whole


def test_rows_that_are_not_asked_for_are_counted(
    tmp_path: Path,
    loaded_teacher: Teacher,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = pair_file(tmp_path / "pairs.tsv", 40)
    split = [line.split("\t") for line in file.read_text().splitlines()]
    place = split[0].index("split")
    asked = sum(line[place] == "train" for line in split[1:])
    found = plan_build(file, teacher=loaded_teacher, **PAIR_COLUMNS, rows=["split=train"], probe_seconds=0)
    assert (found.rows, found.not_asked) == (asked, 40 - asked)
    folder = classifier_folder(tmp_path / "model")
    words = ("plan", file, "--teacher", folder, "--text-column", "premise", "--text2-column", "hypothesis")
    words = (
        *words,
        "--rows",
        "split=train",
        "--output",
        "embedding,logits",
        "--codec",
        "int8",
        "--shard-rows",
        9,
    )
    assert run(monkeypatch, *words, "--probe-seconds", 0, "--device", "cpu") == 0
    table = capsys.readouterr().out
    assert re.search(rf"not asked for +│ {40 - asked} rows, by --rows", table)
    assert f"as teacher model.logits: {asked} to store, 0 already cached" in " ".join(table.split())
    assert "int8 (chosen)" in table


def test_the_command_prints_a_plan(
    tmp_path: Path,
    source: Path,
    tiny_teacher: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ("plan", source, "--teacher", tiny_teacher, "--cache", tmp_path / "c", "--threads", 1)
    arguments = (*arguments, "--compute-dtype", "float32", "--device", "cpu")
    assert run(monkeypatch, *arguments, "--probe-seconds", 0.1) == 0
    table = capsys.readouterr().out
    for part in ("60 (2 duplicates)", "1 empty", "exactly", "pays for itself", "random batches of 128", "pq"):
        assert part in table
    assert "float16 (default)" in table
    assert "in use" not in table
    assert "pq (incl. codebook 16.4 kB)" in table
    sampled = (*arguments, "--probe-seconds", 0, "--token-sample", 20, "--seed", 1)
    assert run(monkeypatch, *sampled) == 0
    table = capsys.readouterr().out
    assert "standard error of a sample of 20" in table
    assert "not measured: --probe-seconds 0" in table
    assert run(monkeypatch, *sampled, "--json", "--limit", 30) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["missing"], found["tokens"]["sample"]) == (30, 30, 20)
    assert found["build_seconds"] is None
    viewed = (*sampled, "--view", "crop", "--view", "delete-words", "--embed-views", "delete-words")
    assert run(monkeypatch, *viewed, "--view-seed", 3) == 0
    table = capsys.readouterr().out
    assert re.search(r"view crop +│ to make +│", table)
    assert re.search(r"view delete-words +│ to make; also to encode +│", table)
    assert re.search(r"distinct +│ 12\d \(\d duplicates\)", table)
    assert run(monkeypatch, *viewed, "--json") == 0
    other = json.loads(capsys.readouterr().out)
    assert other["views"][1].pop("recipe").startswith("delete-words")
    assert other["views"][1] == {
        "name": "delete-words",
        "is_there": False,
        "is_embedded": True,
        "is_counted": True,
    }
    embedcache.build(source, teacher=tiny_teacher, cache=tmp_path / "c", device="cpu", views=["crop"])
    named = (*arguments, "--probe-seconds", 0, "--embed-views", "crop")
    assert run(monkeypatch, *named) == 0
    assert re.search(r"view crop +│ there; also to encode", capsys.readouterr().out)
    assert run(monkeypatch, *named, "--name", "other") == 2
    assert "there is no such view" in capsys.readouterr().err
    seeded = (*arguments, "--probe-seconds", 0, "--view", "crop", "--view-seed", 5)
    assert run(monkeypatch, *seeded) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(monkeypatch, *seeded, "--replace-views") == 0
    assert re.search(r"view crop +│ to make +│", capsys.readouterr().out)
    assert run(monkeypatch, *arguments) == 0
    table = capsys.readouterr().out
    assert "nothing to encode" in table
    assert "float16 (in use)" in table


def test_json_holds_no_infinity() -> None:
    plan = Plan(
        teacher="t",
        contract_id="c",
        codec="float16",
        codec_in_use=False,
        rows=1,
        skipped={},
        distinct=1,
        cached=0,
        reusable=0,
        missing=1,
        tokens=None,
        bytes=(),
        encode=None,
        live=None,
        build_seconds=None,
        live_epoch_seconds=None,
        cached_epoch_seconds=1.0,
        epochs_to_pay=Range(1, 2, math.inf),
        notes=(),
    )
    assert json.loads(json.dumps(plan.to_json(), allow_nan=False))["epochs_to_pay"]["high"] is None


def test_progress_tells_every_phase(plan: Callable[..., Plan]) -> None:
    phases: list[str] = []
    plan(probe_seconds=0.05, on_progress=lambda progress: phases.append(progress.phase))
    assert phases == ["read", "count", "probe"]


def sampled(sample: KeySample, texts: list[str]) -> KeySample:
    for start in range(0, len(texts), 7):
        batch = texts[start : start + 7]
        sample.add(key_array(batch), batch)
    return sample


def test_a_sample_depends_on_the_set_of_texts_and_the_seed_alone() -> None:
    texts = sentences(200)
    one = sampled(KeySample(30), texts)
    other = sampled(KeySample(30), [*texts[::-1], *texts[:50]])
    assert one.texts() == other.texts()
    assert len(set(one.texts())) == 30
    assert not one.complete
    assert one.keys().tobytes() == key_array(one.texts()).tobytes()
    assert sampled(KeySample(30, seed=1), texts).texts() != one.texts()
    whole = sampled(KeySample(200), [*texts, *texts])
    assert whole.complete
    assert sorted(whole.texts()) == sorted(texts)


def test_every_text_is_as_likely_to_be_drawn() -> None:
    texts = sentences(100)
    drawn = [text for seed in range(200) for text in sampled(KeySample(20, seed), texts).texts()]
    counts = np.array([drawn.count(text) for text in texts])
    # Binomial of 200 draws at 0.2: mean 40, standard deviation 5.7.
    assert counts.min() > 40 - 5 * 5.7
    assert counts.max() < 40 + 5 * 5.7


def test_long_texts_make_a_smaller_sample() -> None:
    texts = [f"{number} " * 100 for number in range(100, 164)]
    sample = sampled(KeySample(64, characters=8000), texts)
    assert not sample.complete
    assert 0 < sum(map(len, sample.texts())) <= 8000
    assert len(sample.texts()) == 16
    assert set(sample.texts()) < set(texts)
    one = sampled(KeySample(4, characters=10), texts)
    assert len(one.texts()) == 1


def test_ranks_differ_by_seed_and_never_collide() -> None:
    keys = key_array(sentences(300))
    assert len(set(ranks(keys, 0).tolist())) == 300
    assert (np.argsort(ranks(keys, 0)) != np.argsort(ranks(keys, 1))).any()


def test_the_cache_is_opened_not_made(tmp_path: Path, plan: Callable[..., Plan], source: Path) -> None:
    Cache.create(tmp_path / "c")
    assert plan(cache=tmp_path / "c").cached == 0
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["cache.json"]
