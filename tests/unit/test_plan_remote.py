"""Planning beside a remote: what a plan would fetch and encode is what the build then fetches and encodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pair_helpers import classifier_folder, pair_file
from share_helpers import manifest_bytes, without_indexes

import embedcache
from embedcache.build_remote import RemoteOptions
from embedcache.build_report import BuildSummary, RemoteSummary
from embedcache.cli.main import cli, main
from embedcache.errors import InputError, RemoteError
from embedcache.plan import Plan, RemoteOfPlan, plan_build
from embedcache.plan import plan as plan_module
from embedcache.plan.survey import Survey
from embedcache.sampling import KeySample
from embedcache.share import push
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher
from embedcache.testing import sentences
from embedcache.views.plan import ViewOptions

TEXTS = sentences(80, seed=2)
THEIRS, MINE = TEXTS[:50], TEXTS[20:]
"""Of the second, 30 of 60 stand in the first."""
SHARD_ROWS = 20


def written(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


@pytest.fixture
def settings(loaded_teacher: Teacher) -> dict[str, Any]:
    return {"teacher": loaded_teacher, "compute_dtype": "float32", "shard_rows": SHARD_ROWS}


@pytest.fixture
def team(tmp_path: Path, settings: dict[str, Any]) -> str:
    """Return a remote that a teammate has pushed to."""
    embedcache.build(written(tmp_path / "theirs.txt", THEIRS), cache=tmp_path / "theirs", **settings)
    push(tmp_path / "theirs", str(tmp_path / "team"))
    return str(tmp_path / "team")


@pytest.fixture
def both(tmp_path: Path, settings: dict[str, Any]) -> Callable[..., tuple[Plan, BuildSummary]]:
    """Return what plans a build, and then does it."""

    def run(remote: str, texts: list[str], cache: str = "mine", **more: Any) -> tuple[Plan, BuildSummary]:
        source = written(tmp_path / "mine.txt", texts)
        given = {**settings, **more, "cache": tmp_path / cache}
        found = plan_build(source, **given, remote=remote, probe_seconds=0)
        options = RemoteOptions(remote, sample_check=False)
        done = embedcache.build(source, **given, remote=options).last_build
        assert done is not None
        return found, done

    return run


def of(found: Plan, done: BuildSummary) -> tuple[RemoteOfPlan, RemoteSummary]:
    assert found.remote is not None
    assert done.remote is not None
    return found.remote, done.remote


def agree(found: Plan, done: BuildSummary) -> None:
    planned, was = of(found, done)
    assert (found.missing, found.distinct) == (done.encoded, done.distinct)
    assert (planned.texts, planned.rows, planned.whole_shards, planned.coarser_rows) == (
        was.texts_saved,
        was.rows,
        was.whole_shards,
        was.coarser_rows,
    )
    assert found.cached + found.reusable + planned.texts + found.missing == found.distinct
    assert found.tokens is not None
    assert found.tokens.missing == pytest.approx(done.tokens)


def test_a_new_cache_fetches_and_encodes_what_was_planned(
    team: str, tmp_path: Path, both: Callable[..., tuple[Plan, BuildSummary]]
) -> None:
    found, done = both(team, MINE)
    planned, was = of(found, done)
    agree(found, done)
    assert (planned.texts, found.missing, planned.whole_shards) == (30, 30, 2)
    assert planned.bytes > 0 < planned.index_bytes
    assert planned.bytes + planned.index_bytes == was.bytes
    assert planned.remote == was.remote


def test_a_plan_makes_no_cache_and_encodes_nothing(
    team: str, tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "encode", None)
    source = written(tmp_path / "mine.txt", MINE)
    found = plan_build(source, **settings, cache=tmp_path / "mine", remote=team, probe_seconds=0)
    assert found.missing == 30
    assert not (tmp_path / "mine").exists()
    alone = plan_build(source, **settings, cache=tmp_path / "mine", probe_seconds=0)
    assert (alone.missing, alone.remote) == (60, None)
    with pytest.raises(RemoteError, match="no remote at"):
        plan_build(source, **settings, remote=str(tmp_path / "nowhere"), probe_seconds=0)


def test_row_indexes_that_a_plan_has_fetched_are_there_for_the_build(
    team: str, tmp_path: Path, settings: dict[str, Any], both: Callable[..., tuple[Plan, BuildSummary]]
) -> None:
    cache = tmp_path / "mine"
    embedcache.build(written(tmp_path / "few.txt", TEXTS[:25]), cache=cache, **settings)
    before = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    found = plan_build(
        written(tmp_path / "mine.txt", MINE), **settings, cache=cache, remote=team, probe_seconds=0
    )
    after = {path: path.read_bytes() for path in cache.rglob("*") if path.is_file()}
    assert after.items() >= before.items()
    fresh = after.keys() - before.keys()
    assert fresh
    assert all(path.relative_to(cache).parts[:2] == ("derived", "remotes") for path in fresh)
    assert found.remote is not None
    assert found.remote.index_bytes > 0
    again, done = both(team, MINE)
    agree(again, done)
    planned, was = of(again, done)
    assert (again.cached, planned.texts, planned.index_bytes) == (5, 25, 0)
    assert was.bytes == planned.bytes == found.remote.bytes
    # Nothing is left to fetch or to encode.
    last, done = both(team, MINE)
    agree(last, done)
    assert (last.cached, last.missing, of(last, done)[0].rows) == (60, 0, 0)


def test_views_are_planned_like_texts(
    tmp_path: Path, settings: dict[str, Any], both: Callable[..., tuple[Plan, BuildSummary]]
) -> None:
    views = {"views": ViewOptions(("crop",), embed=("crop",))}
    theirs = written(tmp_path / "theirs.txt", THEIRS)
    embedcache.build(theirs, cache=tmp_path / "theirs", **settings, **views)
    push(tmp_path / "theirs", str(tmp_path / "team"))
    found, done = both(str(tmp_path / "team"), [*THEIRS, *TEXTS[50:60]], **views)
    agree(found, done)
    assert of(found, done)[0].texts > 50


def test_a_text_is_saved_where_the_remote_has_all_that_is_lacking(tmp_path: Path) -> None:
    folder = classifier_folder(tmp_path / "model")
    file = pair_file(tmp_path / "pairs.tsv", 30)
    settings: dict[str, Any] = {
        "teacher": folder,
        "text_column": "premise",
        "text2_column": "hypothesis",
        "compute_dtype": "float32",
        "threads": 1,
    }
    embedcache.build(file, cache=tmp_path / "theirs", limit=25, **settings)
    embedcache.build(file, cache=tmp_path / "theirs", limit=10, name="few", output="logits", **settings)
    push(tmp_path / "theirs", str(tmp_path / "team"))
    settings |= {"output": "embedding,logits", "cache": tmp_path / "mine"}
    found = plan_build(file, **settings, remote=str(tmp_path / "team"), probe_seconds=0)
    options = RemoteOptions(str(tmp_path / "team"), sample_check=False)
    done = embedcache.build(file, **settings, remote=options).last_build
    assert done is not None
    agree(found, done)
    planned, _ = of(found, done)
    assert (planned.texts, planned.rows, found.missing) == (10, 35, 20)


def test_a_plan_refuses_what_the_build_refuses_and_counts_coarser_rows(
    tmp_path: Path, settings: dict[str, Any], both: Callable[..., tuple[Plan, BuildSummary]]
) -> None:
    theirs = written(tmp_path / "theirs.txt", THEIRS)
    embedcache.build(theirs, cache=tmp_path / "theirs", codec="int8", **settings)
    team = str(tmp_path / "team")
    push(tmp_path / "theirs", team)
    with pytest.raises(InputError, match=r"stored as int8.*--codec int8"):
        both(team, MINE)
    found, done = both(team, MINE, "coarse", codec="int8")
    agree(found, done)
    assert (found.codec, of(found, done)[0].texts) == ("int8", 30)
    found, done = both(team, MINE, "fine", codec="float16")
    agree(found, done)
    assert (of(found, done)[0].rows, of(found, done)[0].coarser_rows, found.missing) == (0, 30, 60)


@pytest.mark.parametrize("is_there", [False, True], ids=["new cache", "cache"])
def test_a_plan_says_that_the_build_would_refuse_to_fetch_so_much(
    team: str, tmp_path: Path, settings: dict[str, Any], is_there: bool
) -> None:
    cache = tmp_path / "mine"
    if is_there:
        embedcache.build(written(tmp_path / "few.txt", TEXTS[:25]), cache=cache, **settings)
    source = written(tmp_path / "mine.txt", MINE)
    given = {**settings, "cache": cache}
    free = plan_build(source, **given, remote=team, probe_seconds=0).remote
    assert free is not None
    assert free.refused == ""
    # Row indexes that the plan has fetched are there for the build where there is a cache to keep them.
    enough = free.bytes if is_there else free.bytes + free.index_bytes + manifest_bytes(team)
    for most in (enough - 1, enough):
        options = RemoteOptions(team, sample_check=False, max_bytes=most)
        found = plan_build(source, **given, remote=options, probe_seconds=0)
        assert found.remote is not None
        assert (found.remote.bytes, found.missing) == (free.bytes, 30)
        if most < enough:
            with pytest.raises(InputError, match=r"more than the .* of --max-bytes") as stop:
                embedcache.build(source, **given, remote=options)
            # A build plans output by output, and sees the first that is too much.
            assert str(stop.value) == found.remote.refused
        else:
            assert found.remote.refused == ""
            assert embedcache.build(source, **given, remote=options).last_build is not None


def test_a_remote_that_is_not_there_is_told_of_before_the_teacher_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def untouched(*arguments: object, **settings: object) -> Any:
        raise AssertionError("the teacher was loaded")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("embedcache.teacher.load.load_teacher", untouched)
    source = written(tmp_path / "texts.txt", ["a text"])
    with pytest.raises(InputError, match=r"no remote .*taem"):
        plan_build(source, teacher="minilm-l6", remote="taem")


def test_a_plan_fetches_no_more_manifests_and_row_indexes_than_it_may(
    team: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    source = written(tmp_path / "mine.txt", MINE)
    with pytest.raises(
        InputError, match="more than the 10 of --max-bytes: allow more, or let 'embedcache remote gc'"
    ):
        plan_build(source, **settings, remote=RemoteOptions(team, max_bytes=10), probe_seconds=0)
    most = manifest_bytes(team)
    with pytest.raises(
        InputError, match=rf"\({most:,} of manifests\).*allow more, or build without --remote"
    ):
        plan_build(source, **settings, remote=RemoteOptions(team, max_bytes=most), probe_seconds=0)


@pytest.mark.parametrize("as_json", [False, True])
def test_the_command_prints_the_plan_and_exits_as_the_build_would(
    team: str,
    tmp_path: Path,
    tiny_teacher: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    as_json: bool,
) -> None:
    source = written(tmp_path / "mine.txt", MINE)
    words = ["embedcache", "plan", str(source), "--teacher", str(tiny_teacher), "--probe-seconds", "0"]
    words += ["--compute-dtype", "float32", *(["--json"] if as_json else [])]

    def run(*more: str) -> tuple[object, str, str]:
        monkeypatch.setattr("sys.argv", [*words, *more])
        code: object = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        return code, *capsys.readouterr()

    given: dict[str, Any] = {
        "teacher": tiny_teacher,
        "compute_dtype": "float32",
        "remote": team,
        "probe_seconds": 0,
    }
    free = plan_build(source, **given).remote
    assert free is not None
    manifests = manifest_bytes(team)
    enough = free.bytes + free.index_bytes + manifests
    for most, is_refused in ((enough - 1, True), (enough, False)):
        code, out, err = run("--remote", team, "--max-bytes", str(most))
        assert json.loads(out)["missing"] == 30 if as_json else "to encode" in out
        assert code == (2 if is_refused else 0)
        told = f"{enough:,} bytes would have to be fetched ({manifests:,} of manifests), more than"
        assert (told in err) == is_refused
    code, _, err = run("--max-bytes", "1GB")
    assert code == 2
    assert "--max-bytes says what to take from a remote: give --remote too" in err


def test_where_the_remote_has_all_of_the_sample_the_rest_is_estimated(loaded_teacher: Teacher) -> None:
    encoder = Encoder(loaded_teacher, compute_dtype="float32")
    found = Survey(KeySample(10), rows=100, distinct=100, fetched=60)
    assert encoder.tokenizer is not None
    lengths = encoder.tokenizer(TEXTS[:10]).lengths
    none = plan_module._tokens(encoder, found, TEXTS[:10], np.zeros(10, dtype=np.bool_))
    assert none is not None
    assert (none.sample, none.missing) == (0, pytest.approx(40 * lengths.mean()))
    assert none.standard_error > 0
    chosen = np.arange(10) < 4
    some = plan_module._tokens(encoder, found, TEXTS[:10], chosen)
    assert some is not None
    assert (some.sample, some.missing) == (4, pytest.approx(40 * lengths[:4].mean()))
    # An epoch reads all texts, wherever their vectors come from.
    assert some.an_epoch == pytest.approx(100 * lengths.mean())


def test_the_command_tells_what_would_be_fetched(
    team: str,
    tmp_path: Path,
    tiny_teacher: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    shards = [file for file in without_indexes(Path(team)) if "/shards/" in file["path"]]
    source = written(tmp_path / "mine.txt", MINE)
    words = ["plan", str(source), "--teacher", str(tiny_teacher), "--probe-seconds", "0", "--remote", team]
    cli.main([*words, "--compute-dtype", "float32"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert f"30 of {team}: 30 rows, 2 shards of them whole" in out
    # What the row indexes cost is said before they are fetched.
    assert err.count("3 shards of") == err.count("without a row index") == 1
    assert "without a row index" not in out
    cli.main([*words, "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)["remote"]
    assert (found["texts"], found["index_bytes"]) == (30, sum(file["bytes"] for file in shards))
    assert len(found["told"]) == 1
    cli.main([*words, "--limit", "30"], standalone_mode=False)
    assert "nothing to encode: what the cache lacks is fetched" in capsys.readouterr().out
