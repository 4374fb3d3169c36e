"""A new remote is made in a new or empty folder outside the cache, and nowhere among other files."""

from __future__ import annotations

from pathlib import Path

import pytest
from share_helpers import TEXTS, files_of, make_cache

from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.share import pull, push
from embedcache.share.places import Location
from embedcache.share.places.folder import FolderPlace
from embedcache.share.pushing.new_remote import refuse_unfit_place
from embedcache.share.remote.remote import MARKER, Remote


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return make_cache(tmp_path / "box" / "cache", TEXTS[:20])


@pytest.mark.parametrize("is_there", [False, True])
def test_no_remote_lies_inside_the_cache(tmp_path: Path, cache: Cache, is_there: bool) -> None:
    remote = cache.folder / "derived" / "remote"
    if is_there:
        push(cache, str(tmp_path / "remote"))
        (tmp_path / "remote").rename(remote)
    before = sorted(cache.folder.rglob("*"))
    with pytest.raises(InputError, match="lies inside the cache"):
        push(cache, str(remote))
    assert sorted(cache.folder.rglob("*")) == before


def test_a_link_does_not_hide_that_the_remote_lies_inside_the_cache(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "link").symlink_to(cache.folder)
    with pytest.raises(InputError, match="lies inside the cache"):
        push(cache, str(tmp_path / "link" / "remote"))


def test_no_cache_lies_inside_the_remote(cache: Cache) -> None:
    box = cache.folder.parent
    (box / "cache-corpus.txt").unlink(missing_ok=True)
    before = sorted(box.iterdir())
    with pytest.raises(InputError, match="lies inside the remote"):
        push(cache, str(box))
    assert sorted(box.iterdir()) == before


@pytest.mark.parametrize("name", ["thesis.tex", "photos/one.jpg"])
def test_a_folder_of_other_files_is_no_place_for_a_remote(tmp_path: Path, cache: Cache, name: str) -> None:
    remote = tmp_path / "mine"
    (remote / name).parent.mkdir(parents=True)
    (remote / name).write_text("mine")
    with pytest.raises(InputError, match=rf"holds other files \('{name.partition('/')[0]}'\)") as error:
        push(cache, str(remote))
    assert files_of(remote, "") == {name: b"mine"}
    # The way out that it names is there.
    assert f"say {remote}/remote" in str(error.value)
    push(cache, f"{remote}/remote")
    pull(tmp_path / "there", f"{remote}/remote")


def test_what_a_begun_push_or_the_disk_has_left_is_in_nobodys_way(tmp_path: Path, cache: Cache) -> None:
    remote = tmp_path / "remote"
    push(cache, str(remote))
    (remote / MARKER).unlink()
    (remote / "lost+found").mkdir()
    (remote / ".DS_Store").write_bytes(b"x")
    push(cache, str(remote))
    assert (remote / MARKER).is_file()
    # Of a remote that is there, other files are nobody's business.
    (remote / "README.md").write_text("Ours.")
    push(cache, str(remote))


def test_files_on_a_server_are_seen_too_and_those_of_buckets_are_not(tmp_path: Path, cache: Cache) -> None:
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "thesis.tex").write_text("mine")
    place = FolderPlace(tmp_path / "server")
    with pytest.raises(InputError, match=r"holds other files \('thesis.tex'\)"):
        refuse_unfit_place(Remote(Location("sftp", "host", "/server"), place), cache.folder)
    refuse_unfit_place(Remote(Location("s3", "bucket", "/server"), place), cache.folder)
