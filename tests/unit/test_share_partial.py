"""Pulling a part: some rows of a corpus, its views cut alike, the vectors of these texts, nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from corpus_helpers import small_parts
from share_helpers import (
    SHARD_ROWS,
    TEXTS,
    content,
    files_of,
    make_cache,
    manifest_bytes,
    manifest_of,
    without_indexes,
)

from embedcache.cache import Cache
from embedcache.catalog.select import check_condition, select_rows
from embedcache.check import repair, verify
from embedcache.check.progress import Meter
from embedcache.cli.main import cli
from embedcache.codecs import get_codec
from embedcache.corpus.subset import part_name
from embedcache.errors import InputError, RemoteError
from embedcache.housekeeping import collect_garbage
from embedcache.keys import KeyArray
from embedcache.share import PullChoice, PullEstimate, preview_pull, pull, push
from embedcache.share.places.base import RangesNotServedError
from embedcache.share.places.folder import FolderPlace
from embedcache.share.pulling.partial_texts import PartTexts
from embedcache.share.remote.remote import Remote
from embedcache.share.remotes import location_of
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.rows.row_ranges import ranges_of, scattered_bytes
from embedcache.share.rows.shard_index import BLOCK_BYTES
from embedcache.testing import fake_teacher, sentences
from embedcache.views.plan import ViewOptions

OTHER = fake_teacher(12, name="other", seed=3)
PART_ROWS = 60


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a remote with a corpus of four parts, a view and a teacher."""
    small_parts(monkeypatch, rows=PART_ROWS)
    push(
        make_cache(tmp_path / "mine", views=ViewOptions(("crop",), embed=("crop",))), str(tmp_path / "remote")
    )
    return str(tmp_path / "remote")


def size_of(remote: str, kind: str) -> int:
    """Return the bytes of the files on a remote whose paths match."""
    return sum(file["bytes"] for file in manifest_of(Path(remote))["files"] if re.search(kind, file["path"]))


def test_the_first_rows_become_a_corpus_of_their_own(tmp_path: Path, remote: str) -> None:
    done = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=50))
    mine, there = Cache(tmp_path / "mine"), Cache(tmp_path / "there")
    assert there.corpus_names() == ["corpus-first-50"]
    part, whole = there.corpus(), mine.corpus()
    assert part.texts() == TEXTS[:50]
    assert part.view("crop").texts() == whole.view("crop").texts()[:50]
    assert part.view("crop").recipe == whole.view("crop").recipe
    assert part.info.digest != whole.info.digest
    texts = list(dict.fromkeys([*part.texts(), *part.view("crop").texts()]))
    assert np.array_equal(there.lookup(texts), mine.lookup(texts))
    assert done.part is not None
    assert (done.part.corpus, done.part.rows, done.part.of) == ("corpus-first-50", 50, len(TEXTS))
    assert (done.part.texts, done.part.was_there) == (len(texts), False)
    (vectors,) = done.part.vectors
    assert (vectors.teacher, vectors.taken, vectors.present, vectors.missing) == ("fake", len(texts), 0, 0)
    assert verify(tmp_path / "there").findings == ()


def test_only_the_parts_that_are_needed_travel(tmp_path: Path, remote: str) -> None:
    wanted = manifest_of(Path(remote))["files"]
    parts = {file["sha256"] for file in wanted if re.fullmatch(r"corpora/corpus/\w{64}\.arrow", file["path"])}
    assert len(parts) == len(TEXTS) // PART_ROWS
    for rows, expected in [(1, 1), (PART_ROWS, 1), (PART_ROWS + 1, 2), (len(TEXTS), 4)]:
        there = tmp_path / f"there-{rows}"
        pull(there, remote, PullChoice(corpora=["corpus"], rows=rows))
        staged = {path.stem for path in there.rglob("*.arrow")}
        assert len(staged & parts) == expected
    # Of whole parts there is one copy: the corpus has them too.
    assert len(list((tmp_path / f"there-{PART_ROWS}").rglob("derived/remotes/**/*.arrow"))) == 0


def test_the_rows_for_which_a_condition_holds(tmp_path: Path, remote: str) -> None:
    where = "length(text) % 3 = 0"
    chosen = [text for text in TEXTS if len(text) % 3 == 0]
    done = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where=where, alias="thirds"))
    there = Cache(tmp_path / "there")
    assert there.corpus_names() == ["thirds"]
    assert there.corpus().texts() == chosen
    assert len(there.corpus().view("crop").texts()) == len(chosen)
    assert np.array_equal(there.lookup(chosen), Cache(tmp_path / "mine").lookup(chosen))
    assert done.part is not None
    assert (done.part.rows, done.part.of) == (len(chosen), len(TEXTS))
    assert verify(tmp_path / "there").findings == ()
    both = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where=where, rows=5))
    assert both.part is not None
    assert there.corpus(both.part.corpus).texts() == chosen[:5]
    assert both.fetched_bytes == 0


def test_a_condition_may_look_into_views(tmp_path: Path, remote: str) -> None:
    where = "row IN (SELECT row FROM views WHERE view = 'crop' AND text LIKE '%a%')"
    whole = Cache(tmp_path / "mine").corpus()
    expected = [text for text, crop in zip(TEXTS, whole.view("crop").texts(), strict=True) if "a" in crop]
    pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where=where, alias="some"))
    assert Cache(tmp_path / "there").corpus().texts() == expected


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("tokens > 3", "tokens and truncated are not known before vectors are here"),
        ("truncated AND row IN (SELECT row FROM views)", "not known before vectors are here"),
        ("nothing = 1", "the columns are row, key, text, characters$"),
        ("tokens > 3 AND nothing = 1", "the columns are"),
        ("label = 'news'", "the columns are"),
        ("characters", "expected true or false"),
        ("text LIKE 'no such text'", "holds for none"),
        ("random() > 0.5", "other rows every time"),
        ("true); DROP TABLE x", "no condition"),
        ("text = read_text('/etc/passwd')", "no condition"),
    ],
)
def test_conditions_that_cannot_be_used_are_refused(
    tmp_path: Path, remote: str, where: str, told: str
) -> None:
    with pytest.raises(InputError, match=told) as found:
        pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where=where))
    assert "derived" not in str(found.value)
    if (tmp_path / "there").exists():
        assert Cache(tmp_path / "there").corpus_names() == []
        assert Cache(tmp_path / "there").teachers() == []


@pytest.mark.parametrize("where", ["tokens > 3", "nothing = 1", "characters"])
def test_a_condition_that_cannot_be_used_is_refused_before_anything_is_fetched(
    tmp_path: Path, remote: str, where: str
) -> None:
    for attempt in (pull, preview_pull):
        with pytest.raises(InputError) as found:
            attempt(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where=where))
        assert "teacher" not in str(found.value)
        assert not (tmp_path / "there").exists()


def test_labels_of_any_type_may_be_asked_for_before_they_are_here() -> None:
    for where in ("label = 'news'", "label > 3", "label % 2 = 0.5", "id = 'a' AND text LIKE '%tokens%'"):
        check_condition(where, has_ids=True, has_labels=True)
    with pytest.raises(InputError, match="lable"):
        check_condition("lable = 'news'", has_ids=True, has_labels=True)
    with pytest.raises(InputError, match="the columns are"):
        check_condition("label = 'news'", has_ids=True, has_labels=False)
    with pytest.raises(InputError, match="has no ids and the corpus has no labels; the columns are"):
        check_condition("label = 'news' OR id = 'a'", has_ids=False, has_labels=False)
    with pytest.raises(InputError, match="Binder Error"):
        check_condition("label = 'news' OR nope > 3", has_ids=True, has_labels=False)


def test_a_corpus_without_labels_says_so(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "mine")
    remote = str(tmp_path / "remote")
    push(cache, remote)
    with pytest.raises(InputError, match="the corpus has no labels; the columns are row, key, text, char"):
        pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where="label = 'news'"))
    with pytest.raises(InputError, match="the corpus has no ids; the columns are"):
        select_rows(cache, "corpus", "id = 'a'")


def test_the_estimate_tells_what_rows_take_that_lie_apart(tmp_path: Path) -> None:
    remote, texts = str(tmp_path / "remote"), sentences(6000)
    teacher = fake_teacher(256)
    push(make_cache(tmp_path / "mine", texts, teacher=teacher, shard_rows=6000), remote)
    apart = PullChoice(corpora=["corpus"], where="row % 300 = 7", rows=20)
    neighbours = PullChoice(corpora=["corpus"], rows=20)
    for choice in (apart, neighbours):
        estimate = preview_pull(tmp_path / "new", remote, choice)
        assert estimate.vector_bytes < estimate.most_vector_bytes
        done = pull(tmp_path / f"there-{choice.where is None}", remote, choice)
        if choice is neighbours:
            assert done.fetched_row_bytes == pytest.approx(estimate.vector_bytes, abs=BLOCK_BYTES)
        else:
            # As far from each other as can be, rows need the least that scattered ones do: a block each.
            assert 2 * estimate.vector_bytes < done.fetched_row_bytes < estimate.most_vector_bytes
            assert done.fetched_row_bytes > 0.5 * estimate.most_vector_bytes


@pytest.mark.parametrize("width", [64, 768, 1536])
@pytest.mark.parametrize("share", [0.0005, 0.01, 0.05, 0.3])
def test_what_is_read_for_scattered_rows_is_about_what_is_foretold(width: int, share: float) -> None:
    rows = 20_000_000 // width
    index: Any = SimpleNamespace(row_bytes=width, start=0, end=rows * width)
    chosen = np.sort(np.random.default_rng(0).choice(rows, max(1, int(rows * share)), replace=False))
    size = sum(span.size for span in ranges_of(index, chosen))
    assert scattered_bytes(rows * width, rows, len(chosen)) == pytest.approx(size, rel=0.4, abs=BLOCK_BYTES)


def test_a_second_pull_of_the_same_fetches_nothing(tmp_path: Path, remote: str) -> None:
    for choice in ({"rows": 50}, {"where": "row % 2 = 0"}, {"rows": 70, "where": "row % 2 = 1"}):
        pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], **choice))
        before = content(tmp_path / "there")
        assert preview_pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], **choice)).bytes == 0
        again = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], **choice))
        assert (again.fetched, again.fetched_bytes) == (0, 0)
        assert (again.fetched_text_rows, again.fetched_vectors) == (0, 0)
        assert again.part is not None
        assert again.part.was_there
        assert [one.taken for one in again.part.vectors] == [0]
        assert content(tmp_path / "there") == before


def test_more_rows_fetch_the_difference_alone(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=30))
    more = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=PART_ROWS))
    # The texts of both are those of one part.
    assert more.fetched == 0
    assert more.part is not None
    (vectors,) = more.part.vectors
    assert 0 < vectors.taken == more.part.texts - vectors.present
    assert vectors.present >= 30
    last = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=PART_ROWS + 1))
    assert last.fetched == 2
    assert verify(tmp_path / "there").findings == ()
    names = Cache(tmp_path / "there").corpus_names()
    assert names == ["corpus-first-30", f"corpus-first-{PART_ROWS}", f"corpus-first-{PART_ROWS + 1}"]


def test_a_part_of_what_is_here_is_cut_without_the_remote(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote)
    estimate = preview_pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where="row >= 100"))
    assert (estimate.files, estimate.bytes) == (0, 0)
    done = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where="row >= 100", alias="rest"))
    assert (done.fetched, done.fetched_bytes) == (0, 0)
    assert Cache(tmp_path / "there").corpus("rest").texts() == TEXTS[100:]
    # Nor is anything in the way of the whole after a part.
    pull(tmp_path / "other", remote, PullChoice(corpora=["corpus"], rows=70))
    pull(tmp_path / "other", remote)
    assert content(tmp_path / "other").items() >= content(tmp_path / "mine").items()
    assert verify(tmp_path / "other").findings == ()


def test_teachers_can_be_chosen(tmp_path: Path, remote: str) -> None:
    push(make_cache(tmp_path / "mine", TEXTS[:20], teacher=OTHER, name="few"), remote)
    done = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=40, teachers=["other"]))
    there = Cache(tmp_path / "there")
    assert [teacher.name for teacher in there.teachers()] == ["other"]
    assert there.corpus_names() == ["corpus-first-40"]
    assert done.part is not None
    (vectors,) = done.part.vectors
    assert (vectors.taken, vectors.missing) == (20, done.part.texts - 20)
    both = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=40))
    assert both.part is not None
    assert {one.teacher for one in both.part.vectors} == {"fake", "other"}
    assert len(there.lookup(TEXTS[:40], teacher="fake")) == 40


def test_as_many_rows_as_there_are_is_the_whole(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=10_000))
    mine = content(tmp_path / "mine")
    there = content(tmp_path / "there")
    assert {path: digest for path, digest in there.items() if path.startswith("corpora/")} == {
        path: digest for path, digest in mine.items() if path.startswith("corpora/")
    }
    assert pull(tmp_path / "there", remote).told == ()


def test_names_that_are_taken_are_not_overwritten(tmp_path: Path, remote: str) -> None:
    make_cache(tmp_path / "there", TEXTS[:10], name="mine", teacher=OTHER)
    before = content(tmp_path / "there")
    for choice in ({"rows": 30}, {"where": "row < 10 AND row <> 3"}):
        with pytest.raises(InputError, match=r"another corpus called 'mine' .* --as NAME"):
            pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], alias="mine", **choice))
        assert {
            path: digest for path, digest in content(tmp_path / "there").items() if path in before
        } == before
    # What stands there already is what would be put there.
    done = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=10, alias="mine"))
    assert done.part is not None
    assert Cache(tmp_path / "there").corpus("mine").view_names() == ["crop"]


def test_names_tell_which_part_it_is() -> None:
    assert part_name("news", 100, 10, None) == "news-first-10"
    assert part_name("news", 100, 100, None) == "news"
    names = {
        part_name("news", 100, rows, where) for rows in (None, 5) for where in ("a = 1", "a <> 1", "a=1")
    }
    assert len(names) == 6
    for name in names:
        assert re.fullmatch(r"news-where-a-1-[0-9a-f]{6}(-first-5)?", name)
    assert part_name("news", 100, None, "!!").startswith("news-where-")
    assert len(part_name("n" * 100, 10, 5, "x" * 200)) == 100


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"rows": 5}, "name it with one --corpus"),
        ({"where": "true"}, "name it with one --corpus"),
        ({"rows": 5, "corpora": ["a", "b"]}, "name it with one --corpus"),
        ({"rows": 0, "corpora": ["a"]}, "expected at least 1"),
        ({"rows": 5, "corpora": ["a"], "text": False}, "--no-text"),
        ({"rows": 5, "corpora": ["nothing"]}, "no corpus 'nothing'"),
        ({"rows": 5, "corpora": ["corpus"], "alias": "../x"}, "cannot name a corpus"),
        ({"rows": 5, "corpora": ["corpus"], "teachers": ["nobody"]}, "no teacher 'nobody'"),
    ],
)
def test_choices_that_make_no_part_are_refused(
    tmp_path: Path, remote: str, choice: dict[str, object], told: str
) -> None:
    for ask in (pull, preview_pull):
        with pytest.raises(InputError, match=told):
            ask(tmp_path / "there", remote, PullChoice(**choice))
    assert not (tmp_path / "there").exists()


def test_a_preview_fetches_nothing(tmp_path: Path, remote: str) -> None:
    before = files_of(Path(remote), ".")
    found = preview_pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=PART_ROWS))
    assert not (tmp_path / "there").exists()
    assert files_of(Path(remote), ".") == before
    assert found.corpus == f"corpus-first-{PART_ROWS}"
    assert found.bytes < size_of(remote, "corpora/")
    assert 0 < found.vectors <= 2 * PART_ROWS
    assert found.vector_bytes > 0
    done = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=PART_ROWS))
    assert done.fetched == found.files
    assert preview_pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=PART_ROWS)).files == 0
    whole = preview_pull(tmp_path / "new", remote)
    assert (whole.files, whole.corpus) == (len(manifest_of(Path(remote))["files"]), "")
    assert not (tmp_path / "new").exists()
    assert pull(tmp_path / "new", remote).fetched_bytes == whole.bytes


def test_limits_hold_for_what_a_part_takes(tmp_path: Path, remote: str) -> None:
    for most in (1000, 30_000):
        with pytest.raises(InputError, match="--max-bytes"):
            pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=PART_ROWS, max_bytes=most))
        assert not (tmp_path / "there").exists() or Cache(tmp_path / "there").corpus_names() == []
    whole = preview_pull(tmp_path / "new", remote).bytes
    done = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=PART_ROWS, max_bytes=whole))
    assert 0 < done.fetched_bytes < whole


def test_a_limit_holds_where_the_remote_gives_no_parts_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = str(tmp_path / "remote")
    texts = sentences(3000)
    push(make_cache(tmp_path / "mine", texts, shard_rows=3000), remote)
    choice: dict[str, Any] = {"corpora": ["corpus"], "where": "row % 300 = 0"}
    by_range = pull(tmp_path / "ranges", remote, PullChoice(**choice)).fetched_bytes

    def no_ranges(self: FolderPlace, path: str, start: int, length: int) -> bytes:
        raise RangesNotServedError("whole files alone")

    monkeypatch.setattr(FolderPlace, "read_range", no_ranges)
    whole = pull(tmp_path / "whole", remote, PullChoice(**choice)).fetched_bytes + manifest_bytes(remote)
    # The description of the whole is read, and not kept as a file.
    described = size_of(remote, "corpus.json")
    whole += described
    assert whole > by_range
    told = f"{whole:,} bytes would have to be fetched.*gives no parts of files, so whole shards"
    with pytest.raises(InputError, match=told):
        pull(tmp_path / "there", remote, PullChoice(max_bytes=whole - 1, **choice))
    assert pull(tmp_path / "there", remote, PullChoice(max_bytes=whole, **choice)).fetched_bytes < whole


def test_the_estimate_is_told_before_anything_is_fetched(tmp_path: Path, remote: str) -> None:
    seen = []

    def note(found: object) -> None:
        seen.append((found, (tmp_path / "there").exists()))

    pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=50), on_estimate=note)
    ((found, was_there),) = seen
    assert not was_there
    assert found == preview_pull(tmp_path / "new", remote, PullChoice(corpora=["corpus"], rows=50))


@pytest.mark.parametrize("codec", [None, "int8"])
def test_the_estimate_of_what_is_here_looks_at_what_is_here(
    tmp_path: Path, remote: str, codec: str | None
) -> None:
    there = tmp_path / "there"
    first = PullChoice(corpora=["corpus"], rows=30, codec=codec)
    pull(there, remote, first)
    some = PullChoice(corpora=["corpus"], where="row % 9 = 0", codec=codec)
    pull(there, remote, some)
    for choice in (first, some):
        again = preview_pull(there, remote, choice)
        assert (again.files, again.vectors, again.vector_bytes) == (0, 0, 0)
    # More rows of a part whose texts and row indexes are here.
    more = PullChoice(corpora=["corpus"], rows=PART_ROWS, codec=codec)
    estimate = preview_pull(there, remote, more)
    needed = estimate.vector_bytes
    with pytest.raises(InputError, match=f"{needed:,} bytes would have to be fetched.*--max-bytes"):
        preview_pull(there, remote, replace(more, max_bytes=needed - 1))
    done = pull(there, remote, replace(more, max_bytes=needed))
    assert (done.fetched_bytes, done.fetched_vectors) == (needed, estimate.vectors)
    assert estimate.least_vector_bytes == needed > 0


def test_the_estimate_leaves_out_what_the_remote_has_not(
    tmp_path: Path, remote: str, capsys: pytest.CaptureFixture[str]
) -> None:
    few = make_cache(tmp_path / "few", [*TEXTS[:10], *TEXTS[200:230]], teacher=OTHER, name="few")
    push(few, remote)
    choice = PullChoice(corpora=["corpus"], rows=40, teachers=["other"])
    before = preview_pull(tmp_path / "there", remote, choice)
    assert pull(tmp_path / "there", remote, choice).fetched_vectors == 10
    # Of the texts that have no vector here, the remote has none either, though it has others.
    after = preview_pull(tmp_path / "there", remote, choice)
    assert (before.vectors, after.vectors, after.vector_bytes) == (40, 0, 0)
    words = ["pull", remote, "--cache", str(tmp_path / "there"), "--corpus", "corpus", "--rows", "40"]
    cli.main([*words, "--teacher", "other", "--dry-run"], standalone_mode=False)
    assert capsys.readouterr().out.startswith("nothing to fetch from ")


def test_the_texts_of_views_count_in_the_estimate_of_a_condition(tmp_path: Path, remote: str) -> None:
    choice = PullChoice(corpora=["corpus"], where="row >= 0")
    estimate = preview_pull(tmp_path / "there", remote, choice)
    done = pull(tmp_path / "there", remote, choice)
    assert (done.fetched, done.fetched_bytes - done.fetched_row_bytes) == (estimate.files, estimate.bytes)
    assert estimate.least_bytes < estimate.bytes
    few = pull(tmp_path / "other", remote, PullChoice(corpora=["corpus"], where="row = 3"))
    assert estimate.least_bytes <= few.fetched_bytes - few.fetched_row_bytes < estimate.bytes


def test_a_preview_refuses_what_a_pull_refuses_before_it_fetches_anything(
    tmp_path: Path, remote: str
) -> None:
    choice = PullChoice(corpora=["corpus"], rows=PART_ROWS)
    estimate = preview_pull(tmp_path / "there", remote, choice)
    # A cache without vectors has to look at all row indexes.
    least = estimate.counted_bytes
    read = least - estimate.bytes - estimate.least_vector_bytes
    assert read > manifest_bytes(remote)
    assert estimate.bytes + read < least < estimate.bytes + read + estimate.vector_bytes
    for ask in (preview_pull, pull):
        with pytest.raises(InputError, match=f"{least:,} bytes would have to be fetched"):
            ask(tmp_path / "there", remote, replace(choice, max_bytes=least - 1))
        assert not (tmp_path / "there").exists()
    told = preview_pull(tmp_path / "there", remote, replace(choice, max_bytes=least)).told
    assert any("more than the" in line and "is refused as soon as" in line for line in told)
    with pytest.raises(InputError, match="--max-bytes"):
        pull(tmp_path / "there", remote, replace(choice, max_bytes=least))


def test_texts_that_were_read_are_garbage_after_a_while(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where="row % 7 = 0", alias="some"))
    before = content(tmp_path / "there")
    assert collect_garbage(Cache(tmp_path / "there")) == []
    found = collect_garbage(Cache(tmp_path / "there"), hours=0)
    assert any("cut out of" in garbage.reason for garbage in found)
    assert list((tmp_path / "there" / "derived").rglob("*.arrow")) == []
    assert content(tmp_path / "there") == before


def test_texts_that_were_read_are_verified_and_come_again(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], where="row % 7 = 0", alias="some"))
    staged = next((tmp_path / "there" / "derived").rglob("*.arrow"))
    sound = staged.read_bytes()
    staged.write_bytes(sound[:-20] + b"x" * 20)
    (found,) = verify(tmp_path / "there").damage
    assert found.kind == "part of a remote's corpus"
    again = pull(
        tmp_path / "there", remote, PullChoice(corpora=["corpus"], where="row % 5 = 0", alias="others")
    )
    assert again.fetched == 1
    assert staged.read_bytes() == sound
    staged.write_bytes(sound[:-20] + b"x" * 20)
    repair(tmp_path / "there")
    assert not staged.exists()
    assert verify(tmp_path / "there").findings == ()


def test_a_part_goes_round(tmp_path: Path, remote: str) -> None:
    pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=50))
    before = len(files_of(Path(remote), "objects"))
    push(tmp_path / "there", remote)
    # The corpus is new there; the vectors are not.
    assert len(files_of(Path(remote), "objects")) == before + len(
        list((tmp_path / "there" / "corpora").rglob("*.*"))
    )
    pull(tmp_path / "third", remote, PullChoice(corpora=["corpus-first-50"]))
    assert Cache(tmp_path / "third").corpus().texts() == TEXTS[:50]


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_vectors_go_into_whichever_store_there_is(tmp_path: Path, remote: str, kind: str) -> None:
    own = sentences(SHARD_ROWS, seed=2)
    make_cache(tmp_path / "there", own, store=kind, name="own")
    pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=50))
    there = Cache(tmp_path / "there")
    assert there.store(there.teacher().contract).kind == kind
    assert np.array_equal(there.lookup(TEXTS[:50]), Cache(tmp_path / "mine").lookup(TEXTS[:50]))
    assert pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=50)).fetched_bytes == 0
    assert not verify(tmp_path / "there").damage


def test_vectors_of_a_part_are_kept_in_another_codec(tmp_path: Path, remote: str) -> None:
    done = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=50, codec="int8"))
    there, mine = Cache(tmp_path / "there"), Cache(tmp_path / "mine")
    store = there.store(there.teacher().contract)
    assert {shard.codec.name for shard in store.shards} == {"int8"}
    assert done.part is not None
    assert len(store) == done.part.texts
    expected = get_codec("int8")
    vectors = expected.decode(expected.encode(mine.lookup(TEXTS[:50])))
    assert np.array_equal(there.lookup(TEXTS[:50]), vectors)
    assert (
        pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=50, codec="int8")).fetched_bytes
        == 0
    )
    # What a pull of the whole has converted is not fetched again for a part.
    pull(tmp_path / "whole", remote, PullChoice(codec="int8"))
    assert pull(tmp_path / "whole", remote, PullChoice(corpora=["corpus"], rows=50)).fetched_bytes == 0
    assert verify(tmp_path / "whole").findings == verify(tmp_path / "there").findings == ()


def test_a_part_of_pq_comes_with_its_codebook(tmp_path: Path) -> None:
    texts, remote = sentences(600, seed=1), str(tmp_path / "remote")
    mine = make_cache(tmp_path / "mine", texts, codec="pq", shard_rows=300)
    push(mine, remote)
    pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=20))
    there = Cache(tmp_path / "there")
    assert np.array_equal(there.lookup(texts[:20]), mine.lookup(texts[:20]))
    assert len(there.store(there.teacher().contract)) == 20
    assert verify(tmp_path / "there").findings == ()


def test_a_limit_counts_the_codebooks_of_a_part(tmp_path: Path) -> None:
    texts, remote = sentences(600, seed=1), str(tmp_path / "remote")
    push(make_cache(tmp_path / "mine", texts, codec="pq", shard_rows=300), remote)
    choice = PullChoice(corpora=["corpus"], rows=20)
    fetched = pull(tmp_path / "there", remote, choice).fetched_bytes
    described = size_of(remote, "corpus.json")
    needed = fetched + manifest_bytes(remote) + described
    with pytest.raises(InputError, match=f"{needed:,} bytes would have to be fetched"):
        pull(tmp_path / "less", remote, replace(choice, max_bytes=needed - 1))
    assert pull(tmp_path / "enough", remote, replace(choice, max_bytes=needed)).fetched_bytes == fetched
    (book,) = (Path(tmp_path) / "mine").rglob("codebooks/*.npy")
    estimate = preview_pull(tmp_path / "new", remote, choice)
    shards = size_of(remote, "/shards/") * 20 // 600
    assert estimate.vector_bytes == pytest.approx(
        estimate.least_vector_bytes + book.stat().st_size + shards, abs=2
    )


def test_shards_without_a_row_index_are_read_whole_and_told_of_before(
    tmp_path: Path, remote: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = [file for file in without_indexes(Path(remote)) if "/shards/" in file["path"]]
    size = sum(file["bytes"] for file in shards)
    before = preview_pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=50))
    estimates: list[PullEstimate] = []
    done = pull(
        tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=50), on_estimate=estimates.append
    )
    (told,) = done.told
    assert told.startswith(f"{len(shards)} shards of {remote} without a row index: fetched whole")
    assert f", {size:,} bytes;" in told
    assert before.told == estimates[0].told == done.told
    assert done.fetched_bytes > size
    assert len(Cache(tmp_path / "there").lookup(TEXTS[:50])) == 50
    again = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=50))
    assert (again.fetched_bytes, again.told) == (0, ())
    # The command says it once, before.
    words = ["pull", remote, "--cache", str(tmp_path / "other"), "--corpus", "corpus", "--rows", "50"]
    cli.main(words, standalone_mode=False)
    out, err = capsys.readouterr()
    assert err.count("without a row index") == 1
    assert "without a row index" not in out


def test_what_comes_is_planned_once(tmp_path: Path, remote: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up: list[int] = []
    locate = RemoteKeys.locate

    def counted(keys: RemoteKeys, wanted: KeyArray, kept: str | None = None) -> Any:
        looked_up.append(len(wanted))
        return locate(keys, wanted, kept)

    monkeypatch.setattr(RemoteKeys, "locate", counted)
    done = pull(tmp_path / "there", remote, PullChoice(corpora=["corpus"], rows=50))
    assert done.part is not None
    assert looked_up == [one.taken for one in done.part.vectors] == [100]


# The command line


def test_the_command_line_takes_parts(
    tmp_path: Path, remote: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there = str(tmp_path / "there")
    words = ["pull", remote, "--cache", there, "--corpus", "corpus"]

    def run(*more: str) -> tuple[str, str]:
        cli.main([*words, *more], standalone_mode=False)
        return capsys.readouterr()

    out, _ = run("--rows", "50", "--dry-run")
    assert "to be fetched" in out
    assert "for corpus 'corpus-first-50': 4 files to be fetched" in out
    assert "nothing fetched" in out
    assert not Path(there).exists()
    out, _ = run("--rows", "50", "--dry-run", "--json")
    assert json.loads(out)["corpus"] == "corpus-first-50"
    assert not Path(there).exists()
    out, err = run("--rows", "50")
    assert "for corpus 'corpus-first-50': 4 files to be fetched" in err
    assert "corpus 'corpus-first-50': 50 rows of 240, with 100 distinct texts" in out
    assert "not on the remote" in out
    out, err = run("--rows", "50")
    assert "'corpus-first-50', which was there: 50 rows" in out
    out, _ = run("--where", "row < 9", "--as", "few", "--codec", "int8", "--json")
    found = json.loads(out)
    assert found["part"]["corpus"] == "few"
    assert [one["missing"] for one in found["part"]["vectors"]] == [0]
    assert Cache(there).corpus("few").texts() == TEXTS[:9]


def test_vectors_have_a_line_of_their_own_beside_files(
    tmp_path: Path, remote: str, capsys: pytest.CaptureFixture[str]
) -> None:
    there = str(tmp_path / "there")
    words = ["pull", remote, "--cache", there, "--corpus", "corpus", "--rows", "50"]
    cli.main([*words, "--dry-run"], standalone_mode=False)
    assert "vectors and row indexes, about" in capsys.readouterr().out
    cli.main([*words, "--json"], standalone_mode=False)
    done = json.loads(capsys.readouterr().out)
    files = preview_pull(tmp_path / "new", remote, PullChoice(corpora=["corpus"], rows=50)).bytes
    assert done["fetched_bytes"] - done["fetched_row_bytes"] == files
    cli.main([*words, "--where", "row > 20"], standalone_mode=False)
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"fetched │ [1-9]\d* │ [^│]* │ │ vectors and row indexes │ │ [1-9]", out)


def test_the_command_line_keeps_another_codec(
    tmp_path: Path, remote: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cli.main(["pull", remote, "--cache", str(tmp_path / "there"), "--codec", "int8"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert "of these kept in another codec" in out
    assert "files to be fetched" in err
    with pytest.raises(click.BadParameter):
        cli.main(["pull", remote, "--cache", str(tmp_path / "there"), "--codec", "pq"], standalone_mode=False)


def test_a_part_of_no_corpus_at_all_is_refused(remote: str) -> None:
    source = Remote(location_of(remote))
    with pytest.raises(RemoteError, match=r"0 corpora to take a part of \(none\), expected one.*--corpus"):
        PartTexts(source, [], None, 1, Meter())
