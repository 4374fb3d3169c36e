"""Versions: of one path several may be on a remote, or another here. One is chosen, none is overwritten."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from share_helpers import TEXTS, content, files_of, make_cache

from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.errors import ContractMismatchError, InputError
from embedcache.fsio import write_sealed_json
from embedcache.share import PullChoice, collect_remote, compare_with_remote, pull, push, sync
from embedcache.split import split_cache
from embedcache.testing import fake_teacher
from embedcache.views.plan import ViewOptions


@pytest.fixture
def two_versions(tmp_path: Path) -> tuple[Cache, Cache, str]:
    """Return two caches with other rows under one name, and the remote that both were pushed to."""
    one = make_cache(tmp_path / "one", TEXTS[:90])
    two = make_cache(tmp_path / "two", TEXTS[60:])
    push(one, str(tmp_path / "remote"), by="Ann")
    push(two, str(tmp_path / "remote"), by="Bob")
    return one, two, str(tmp_path / "remote")


def test_of_several_versions_one_has_to_be_chosen(
    tmp_path: Path, two_versions: tuple[Cache, Cache, str]
) -> None:
    one, two, remote = two_versions
    digests = [cache.corpus().info.digest for cache in (one, two)]
    with pytest.raises(InputError, match=r"2 corpora called 'corpus'.*--corpus corpus@DIGEST") as found:
        pull(tmp_path / "there", remote)
    for text in (*(digest[:12] for digest in digests), "Ann", "Bob", "90 rows", "180 rows"):
        assert text in str(found.value)
    assert not (tmp_path / "there").exists()
    pull(tmp_path / "there", remote, PullChoice(corpora=[f"corpus@{digests[0][:8]}"]))
    assert Cache(tmp_path / "there").corpus().texts() == TEXTS[:90]
    pull(tmp_path / "there", remote, PullChoice(corpora=[f"corpus@{digests[1][:8]}"], alias="second"))
    assert Cache(tmp_path / "there").corpus("second").texts() == TEXTS[60:]
    assert Cache(tmp_path / "there").corpus("corpus").texts() == TEXTS[:90]
    assert not verify(tmp_path / "there").damage
    # Texts of both are there, whoever's corpus they stood in.
    assert len(Cache(tmp_path / "there").lookup(TEXTS)) == len(TEXTS)


def test_a_version_can_be_chosen_by_the_manifest_that_lists_it(
    tmp_path: Path, two_versions: tuple[Cache, Cache, str]
) -> None:
    _, _, remote = two_versions
    for name, data in files_of(Path(remote), "manifests").items():
        target = tmp_path / f"by-{name[:8]}"
        pull(target, remote, PullChoice(corpora=[f"corpus@{name[:10]}"]))
        assert Cache(target).corpus().texts() == (TEXTS[:90] if b'"by":"Ann"' in data else TEXTS[60:])


def test_the_version_that_the_cache_has_is_meant(
    tmp_path: Path, two_versions: tuple[Cache, Cache, str]
) -> None:
    one, two, remote = two_versions
    before = content(one.folder)
    done = pull(one, remote)
    assert any("1 more version of corpus 'corpus'" in line for line in done.told)
    assert content(one.folder).items() >= before.items()
    assert one.corpus().texts() == TEXTS[:90]
    assert len(one.lookup(TEXTS)) == len(TEXTS)
    assert two.corpus().texts() == TEXTS[60:]


@pytest.mark.parametrize("chosen", ["corpus@0000000", "corpus@xyz", "corpus@ab", "../x", "corpus@"])
def test_a_choice_that_fits_nothing_is_refused(
    tmp_path: Path, two_versions: tuple[Cache, Cache, str], chosen: str
) -> None:
    with pytest.raises(InputError):
        pull(tmp_path / "there", two_versions[2], PullChoice(corpora=[chosen]))
    assert not (tmp_path / "there").exists()


def objects_on(remote: str) -> int:
    return len(files_of(Path(remote), "objects"))


def test_a_push_of_another_corpus_of_a_name_says_what_that_means_and_how_to_undo_it(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    one, two = make_cache(tmp_path / "one", TEXTS[:90]), make_cache(tmp_path / "two", TEXTS[60:])
    first = push(one, remote)
    make_cache(tmp_path / "one", TEXTS[:10], name="more")
    assert first.told == push(one, remote).told == ()
    before: list[tuple[str, int]] = []
    done = push(two, remote, on_warning=lambda line: before.append((line, objects_on(remote))))
    # Before anything is sent, too, while it can still be stopped.
    ((warning, there),) = before
    assert there < objects_on(remote)
    assert warning.endswith(
        "stop this push and push what 'embedcache split CACHE --corpus corpus --as NAME --out DIR' makes"
    )
    (told,) = done.told
    digests = [cache.corpus("corpus").info.digest[:12] for cache in (one, two)]
    for text in ("corpus 'corpus'", f"({digests[0]} with 90 rows)", f"({digests[1]})", "corpus@DIGEST"):
        assert text in told
        assert text in warning
    # Later pushes have not brought it, and taking them back would not help.
    assert push(two, remote, on_warning=pytest.fail).told == ()
    assert push(make_cache(tmp_path / "three", TEXTS[:20], name="third"), remote).told == ()
    # The way out that it names is there.
    assert f"embedcache remote gc {remote} --drop {done.manifest[:12]} --yes" in told
    collect_remote(remote, drop=[done.manifest[:12]], delete=True)
    split_cache(two.folder, tmp_path / "renamed", corpora=["corpus"], name="second")
    assert push(tmp_path / "renamed", remote).told == ()
    pull(tmp_path / "there", remote)
    assert Cache(tmp_path / "there").corpus_names() == ["corpus", "more", "second", "third"]


def test_who_pushes_corpora_of_one_name_that_both_were_there_is_not_warned(
    tmp_path: Path, two_versions: tuple[Cache, Cache, str]
) -> None:
    one, two, remote = two_versions
    mine = tmp_path / "mine"
    pull(mine, remote, PullChoice(corpora=[f"corpus@{one.corpus().info.digest[:8]}"]))
    pull(mine, remote, PullChoice(corpora=[f"corpus@{two.corpus().info.digest[:8]}"], alias="invoices"))
    make_cache(mine, TEXTS[:10], name="new")
    done = push(mine, remote)
    assert done.manifest
    assert done.told == ()


def test_a_push_of_another_teacher_of_a_name_says_what_that_means_and_how_to_undo_it(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    mine, other = fake_teacher(8), fake_teacher(8, seed=4, max_length=32)
    theirs = make_cache(tmp_path / "theirs", teacher=mine)
    assert push(theirs, remote).told == ()
    cache = make_cache(tmp_path / "cache", teacher=other)
    before: list[tuple[str, int]] = []
    done = push(cache, remote, on_warning=lambda line: before.append((line, objects_on(remote))))
    ((warning, there),) = before
    assert there < objects_on(remote)
    assert "stop this push, push to a new FOLDER, get it so with 'embedcache pull FOLDER" in warning
    (told,) = done.told
    for text in ("teacher 'fake'", mine.contract.id[:12], other.contract.id[:12]):
        assert text in told
    # Later pushes have not brought it.
    assert push(cache, remote).told == push(theirs, remote).told == ()
    # The way out that it names is there.
    new = tmp_path / "new"
    assert f"pull {remote} --cache NEW --teacher {other.contract.id[:12]} --as NAME" in told
    pull(new, remote, PullChoice(teachers=[other.contract.id[:12]], alias="small"), sample_check=False)
    assert f"embedcache remote gc {remote} --drop {done.manifest[:12]} --yes" in told
    collect_remote(remote, drop=[done.manifest[:12]], delete=True)
    assert push(new, remote).told == ()
    pull(tmp_path / "there", remote, sample_check=False)
    assert {teacher.name for teacher in Cache(tmp_path / "there").teachers()} == {"fake", "small"}


def test_a_comparison_tells_that_a_line_has_two_corpora(
    tmp_path: Path, two_versions: tuple[Cache, Cache, str]
) -> None:
    one, two, _ = two_versions
    remote = str(tmp_path / "another")
    push(one, remote)
    (told,) = compare_with_remote(two, remote).told
    for text in ("corpus 'corpus'", one.corpus().info.digest[:12], "90 rows", two.corpus().info.digest[:12]):
        assert text in told
    assert compare_with_remote(one, remote).told == ()


def test_another_corpus_of_the_same_name_is_never_overwritten(tmp_path: Path) -> None:
    mine = make_cache(tmp_path / "mine", TEXTS[:50])
    push(make_cache(tmp_path / "theirs", TEXTS[50:]), str(tmp_path / "remote"))
    before = content(mine.folder)
    for corpora in ([], ["corpus"]):
        with pytest.raises(InputError, match=r"holds another corpus called 'corpus'.*--as NAME"):
            pull(mine, str(tmp_path / "remote"), PullChoice(corpora=corpora))
        assert content(mine.folder) == before
    pull(mine, str(tmp_path / "remote"), PullChoice(corpora=["corpus"], alias="theirs"))
    assert mine.corpus("theirs").texts() == TEXTS[50:]
    assert content(mine.folder).items() >= before.items()
    with pytest.raises(InputError, match="--as needs one"):
        pull(mine, str(tmp_path / "remote"), PullChoice(alias="other"))


def test_views_go_with_the_rows_they_were_made_of(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    one = make_cache(tmp_path / "one", TEXTS[:50], views=ViewOptions(("crop",)))
    two = make_cache(tmp_path / "two", TEXTS[50:], views=ViewOptions(("delete-one-word",)))
    push(one, remote)
    push(two, remote)
    digest = two.corpus().info.digest
    pull(tmp_path / "there", remote, PullChoice(corpora=[f"corpus@{digest[:8]}"], alias="new"))
    there = Cache(tmp_path / "there").corpus("new")
    assert there.view_names() == ["delete-one-word"]
    assert there.view("delete-one-word").texts() == two.corpus().view("delete-one-word").texts()
    assert not verify(tmp_path / "there").damage


def test_another_view_of_the_same_name_is_never_overwritten(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    mine = make_cache(tmp_path / "mine", views=ViewOptions(("crop",), seed=1))
    theirs = make_cache(tmp_path / "theirs", views=ViewOptions(("crop",), seed=2))
    push(theirs, remote)
    before = content(mine.folder)
    with pytest.raises(InputError, match=r"another view 'crop'.*embedcache rm view"):
        pull(mine, remote)
    assert content(mine.folder) == before
    push(mine, remote)
    with pytest.raises(InputError, match=r"2 views 'crop'.*--corpus corpus@MANIFEST"):
        pull(tmp_path / "there", remote)
    (manifest,) = (
        name
        for name, data in files_of(Path(remote), "manifests").items()
        if _recipe_digest(theirs).encode() in data
    )
    pull(tmp_path / "there", remote, PullChoice(corpora=[f"corpus@{manifest[:12]}"]))
    assert content(tmp_path / "there") == content(theirs.folder)


def _recipe_digest(cache: Cache) -> str:
    return content(cache.folder)["corpora/corpus/views/crop/recipe.json"]


def test_where_a_teacher_is_said_to_come_from_stays_as_it_is_here(tmp_path: Path) -> None:
    mine, theirs = (make_cache(tmp_path / name) for name in ("mine", "theirs"))
    path = f"teachers/{theirs.teacher().contract.id}/names/fake.json"
    write_sealed_json(theirs.folder / path, {"spec": "elsewhere"})
    push(theirs, str(tmp_path / "remote"))
    before = content(mine.folder)
    done = pull(mine, str(tmp_path / "remote"))
    assert any("'fake'" in line and "stays" in line for line in done.told)
    assert content(mine.folder) == before
    push(mine, str(tmp_path / "remote"))
    pull(tmp_path / "there", str(tmp_path / "remote"))
    assert Cache(tmp_path / "there").teacher("fake").origin["spec"] in ("elsewhere", "fake")


def test_a_name_never_comes_to_stand_for_two_teachers(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    mine = make_cache(tmp_path / "mine")
    other = fake_teacher(8, seed=4, max_length=32)
    push(make_cache(tmp_path / "theirs", teacher=other), remote)
    before = content(mine.folder)
    with pytest.raises(ContractMismatchError, match=r"max_length 64 -> 32.*--as NAME") as found:
        pull(mine, remote)
    assert found.value.differences["max_length"] == (64, 32)
    assert content(mine.folder) == before
    pull(mine, remote, PullChoice(teachers=[other.contract.id[:8]], alias="theirs", text=False))
    assert {one.name: one.contract for one in mine.teachers()}["theirs"] == other.contract
    push(make_cache(tmp_path / "again"), remote)
    with pytest.raises(InputError, match="two teachers called 'fake'"):
        pull(tmp_path / "there", remote)
    assert not (tmp_path / "there").exists()


def test_of_two_teachers_of_one_name_the_one_in_the_cache_is_meant(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    mine = make_cache(tmp_path / "mine")
    other = fake_teacher(8, seed=4, max_length=32)
    push(mine, remote, by="Ann")
    # The same corpus: the teachers alone are two.
    second = push(make_cache(tmp_path / "theirs", teacher=other), remote, by="Bob").manifest
    before = content(mine.folder)
    done = pull(mine, remote)
    (note,) = [line for line in done.told if "another teacher called 'fake'" in line]
    assert f"{other.contract.id[:12]}, manifest {second[:12]}, pushed by Bob" in note
    assert content(mine.folder) == before
    assert pull(mine, remote, PullChoice(teachers=["fake"], text=False)).told == done.told
    synced = sync(mine, remote)
    assert synced.pulled is not None
    assert synced.pulled.told == done.told
    # What the note says brings the other one too, and then nothing else has to be said.
    (arguments,) = re.findall(r"'embedcache pull \S+ --teacher (\S+) --no-text --as NAME'", note)
    pull(mine, remote, PullChoice(teachers=[arguments], text=False, alias="bobs"))
    assert {teacher.name: teacher.contract for teacher in mine.teachers()}["bobs"] == other.contract


def test_who_has_neither_of_two_teachers_of_one_name_learns_how_to_get_on(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    other = fake_teacher(8, seed=4, max_length=32)
    first = make_cache(tmp_path / "mine")
    push(first, remote, by="Ann")
    second = push(make_cache(tmp_path / "theirs", teacher=other), remote, by="Bob").manifest
    there = tmp_path / "there"
    with pytest.raises(InputError, match="two teachers called 'fake'") as caught:
        pull(there, remote)
    message = str(caught.value)
    assert f"{other.contract.id[:12]}, manifest {second[:12]}, pushed by Bob" in message
    assert f"'embedcache remote gc {remote} --drop MANIFEST --yes'" in message
    with pytest.raises(InputError, match="several teachers 'fake'"):
        pull(there, remote, PullChoice(teachers=["fake"]))
    assert not there.exists()
    pull(there, remote, PullChoice(teachers=[first.teacher().contract.id[:12]]))
    pull(there, remote)
    assert [teacher.contract for teacher in Cache(there).teachers()] == [first.teacher().contract]
    # The other way out: the second push is taken back.
    collect_remote(remote, drop=[second], delete=True)
    pull(tmp_path / "anew", remote)


def test_another_name_belongs_to_the_corpus_where_both_are_named(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    push(make_cache(tmp_path / "mine"), remote)
    there = tmp_path / "there"
    done = pull(there, remote, PullChoice(teachers=["fake"], corpora=["corpus"], alias="other"))
    assert any("--as other names the corpus" in line for line in done.told)
    assert (Cache(there).corpus_names(), Cache(there).teacher().name) == (["other"], "fake")
    with pytest.raises(InputError, match=r"choose one with --as$"):
        pull(there, remote, PullChoice(corpora=["corpus"], alias="a b"))


def test_a_version_is_put_down_to_one_push_and_to_who_made_that(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    make_cache(tmp_path / "ann", TEXTS[:40], name="news")
    push(tmp_path / "ann", remote)
    # The same corpus with another beside it: both manifests list it, and only this one has a name.
    make_cache(tmp_path / "ann", TEXTS[:20], name="other")
    bobs = push(tmp_path / "ann", remote, by="Bob").manifest
    push(make_cache(tmp_path / "eve", TEXTS[:30], name="news"), remote, by="Eve")
    with pytest.raises(InputError) as caught:
        pull(tmp_path / "there", remote)
    (digits,) = re.findall(r"manifest ([0-9a-f]{12}), pushed by Bob", str(caught.value))
    assert bobs.startswith(digits)


def test_a_sync_that_another_corpus_of_a_name_stops_goes_on_after_the_command_of_the_message(
    tmp_path: Path,
) -> None:
    remote = str(tmp_path / "remote")
    mine, theirs = make_cache(tmp_path / "mine", TEXTS[:50]), make_cache(tmp_path / "theirs", TEXTS[50:])
    push(theirs, remote)
    with pytest.raises(InputError, match="holds another corpus called 'corpus'") as caught:
        sync(mine, remote)
    (asked,) = re.findall(r"'embedcache pull \S+ --corpus (\S+) --as NAME'", str(caught.value))
    pull(mine, remote, PullChoice(corpora=[asked], alias="theirs"))
    (told,) = pull(mine, remote).told
    assert "is called 'theirs' in the cache" in told
    make_cache(tmp_path / "theirs", TEXTS[50:], views=ViewOptions(("crop",)))
    push(theirs, remote)
    sync(mine, remote)
    # Each goes on under the name that it has here, with what has come to it since.
    assert mine.corpus("corpus").texts() == TEXTS[:50]
    assert mine.corpus("theirs").texts() == TEXTS[50:]
    assert mine.corpus("theirs").view_names() == ["crop"]
    assert not verify(mine.folder).findings
    assert sync(mine, remote).pulled.fetched == 0


def test_a_corpus_that_the_remote_has_under_two_names_is_fetched_once(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    mine, theirs = make_cache(tmp_path / "mine", TEXTS[:50]), make_cache(tmp_path / "theirs", TEXTS[50:])
    make_cache(theirs.folder, TEXTS[50:], name="theirs")
    push(theirs, remote)
    pull(mine, remote, PullChoice(corpora=["theirs"]))
    for path in (mine.folder / "corpora" / "theirs").glob("*.arrow"):
        path.unlink()
    done = pull(mine, remote)
    assert (done.fetched, done.fetched_text_rows) == (1, len(TEXTS[50:]))
    assert mine.corpus("theirs").texts() == TEXTS[50:]


def test_a_sync_that_another_teacher_of_a_name_stops_goes_on_after_the_command_of_the_message(
    tmp_path: Path,
) -> None:
    remote = str(tmp_path / "remote")
    mine, other = make_cache(tmp_path / "mine"), fake_teacher(8, seed=4, max_length=32)
    theirs = make_cache(tmp_path / "theirs", TEXTS[:40], teacher=other, name="some")
    push(theirs, remote)
    with pytest.raises(ContractMismatchError, match="with another contract") as caught:
        sync(mine, remote)
    (asked,) = re.findall(r"'embedcache pull \S+ --teacher (\S+) --no-text --as NAME'", str(caught.value))
    pull(mine, remote, PullChoice(teachers=[asked], text=False, alias="theirs"))
    (told,) = pull(mine, remote).told
    assert "is called 'theirs' in the cache" in told
    # Once the remote has both, the other one goes on here as well.
    sync(mine, remote)
    make_cache(tmp_path / "theirs", TEXTS[40:80], teacher=other, name="more")
    push(theirs, remote)
    sync(mine, remote)
    assert {teacher.name: teacher.contract for teacher in mine.teachers()} == {
        "fake": fake_teacher(8).contract,
        "theirs": other.contract,
    }
    assert len(mine.lookup(TEXTS[:80], teacher="theirs")) == 80
    assert not verify(mine.folder).damage


def test_a_teacher_comes_with_two_names_that_have_one_origin(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    mine = make_cache(tmp_path / "mine", TEXTS[:40])
    push(mine, remote)
    pull(mine, remote, PullChoice(teachers=["fake"], text=False, alias="second"))
    push(mine, remote)
    pull(tmp_path / "there", remote)
    assert {teacher.name for teacher in Cache(tmp_path / "there").teachers()} == {"fake", "second"}


def test_a_sync_takes_other_names_past_one_that_is_in_the_way(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    mine = make_cache(tmp_path / "mine", TEXTS[:50])
    make_cache(mine.folder, TEXTS[:20], name="own")
    theirs = make_cache(tmp_path / "theirs", TEXTS[50:])
    make_cache(theirs.folder, TEXTS[20:40], name="new")
    push(theirs, remote)
    with pytest.raises(InputError, match="choose others with --corpus"):
        sync(mine, remote)
    done = sync(mine, remote, PullChoice(corpora=["own", "new"]))
    assert done.pulled.fetched_text_rows == 20
    assert mine.corpus_names() == ["corpus", "new", "own"]
    pull(tmp_path / "there", remote)
    assert Cache(tmp_path / "there").corpus_names() == ["corpus", "new", "own"]
    assert Cache(tmp_path / "there").corpus("corpus").texts() == TEXTS[50:]


def test_a_sync_of_some_teachers_takes_those_that_only_one_side_has(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    theirs = make_cache(tmp_path / "theirs", TEXTS[:40])
    push(theirs, remote)
    other = fake_teacher(4, seed=3)
    mine = make_cache(tmp_path / "mine", TEXTS[:40], teacher=other)
    own = mine.teacher().name
    for name in mine.folder.rglob(f"names/{own}.json"):
        name.rename(name.with_name("own.json"))
    # Nobody has it: neither half is begun.
    with pytest.raises(InputError, match="no teacher 'nobody'"):
        sync(mine, remote, PullChoice(teachers=["own", "nobody"]))
    with pytest.raises(InputError, match="no corpus 'nothing'"):
        sync(mine, remote, PullChoice(corpora=["corpus", "nothing"]))
    done = sync(mine, remote, PullChoice(teachers=["own"], text=False))
    assert (done.pulled.fetched, done.pushed.sent > 0) == (0, True)
    assert [teacher.name for teacher in mine.teachers()] == ["own"]
    sync(mine, remote, PullChoice(teachers=["fake", other.contract.id[:8]]))
    assert [teacher.name for teacher in mine.teachers()] == ["fake", "own"]
    with pytest.raises(InputError, match="pull with --rows, --where or --as, then push"):
        sync(mine, remote, PullChoice(corpora=["corpus"], rows=3))
