"""A new remote is made in a new or empty folder outside the cache, and nowhere among other files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from share_helpers import TEXTS, files_of, make_cache

from embedcache.cache import Cache
from embedcache.errors import InputError, RemoteError
from embedcache.share import collect_remote, pull, push, sync
from embedcache.share.places import Location
from embedcache.share.places.folder import FolderPlace
from embedcache.share.pushing.new_remote import refuse_unfit_place
from embedcache.share.remote import remote as remote_module
from embedcache.share.remote.marker import MARKER_BYTES
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
        refuse_unfit_place(Remote(Location("sftp", "host", "/server"), place), cache)
    refuse_unfit_place(Remote(Location("s3", "bucket", "/server"), place), cache)


class Showing(FolderPlace):
    """A folder whose marker is cut off at first, as on servers that show what is being written."""

    def __init__(self, root: Path, *shown: int) -> None:
        super().__init__(root)
        self.looks, self._shown = 0, shown

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        number, self.looks = self.looks, self.looks + 1
        yield memoryview(MARKER_BYTES[: self._shown[min(number, len(self._shown) - 1)]])


@pytest.mark.parametrize("first", [0, 1, len(MARKER_BYTES) - 1])
def test_a_marker_that_is_being_written_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(remote_module, "_MARKER_PAUSE_SECONDS", 0.0)
    place = Showing(tmp_path, first, len(MARKER_BYTES))
    assert Remote(Location("s3", "bucket", ""), place).is_there()
    assert place.looks == 2


def test_a_marker_that_stays_cut_off_or_is_another_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "_MARKER_PAUSE_SECONDS", 0.0)
    place = Showing(tmp_path, 10)
    with pytest.raises(RemoteError, match="it was not made by embedcache, or is damaged"):
        Remote(Location("s3", "bucket", ""), place).is_there()
    assert place.looks == 2
    # What is no beginning of a marker will not become one.
    (tmp_path / MARKER).write_bytes(b"x")
    monkeypatch.setattr(remote_module, "_MARKER_PAUSE_SECONDS", 300.0)
    with pytest.raises(RemoteError, match="it was not made by embedcache, or is damaged"):
        Remote(Location("s3", "bucket", ""), FolderPlace(tmp_path)).is_there()


def test_no_new_remote_is_made_where_the_disk_of_one_is_not_mounted(tmp_path: Path, cache: Cache) -> None:
    mount, away = tmp_path / "mount", tmp_path / "away"
    push(cache, str(mount))
    pull(tmp_path / "bob", str(mount))
    mount.rename(away)
    # Whoever knows it is refused, whether the mount point is there or not; who has never been there is not.
    for folder in (cache.folder, tmp_path / "bob"):
        with pytest.raises(InputError, match=r"mount was a remote when .* there is none now: .*--new-remote"):
            push(folder, str(mount))
        assert not mount.exists()
    mount.mkdir()
    with pytest.raises(InputError, match="mount its disk"):
        sync(cache, str(mount))
    assert list(mount.iterdir()) == []
    push(make_cache(tmp_path / "other", TEXTS[:20]), str(mount))
    # A remote, whoever has made it, is one again.
    assert push(cache, str(mount)).remote == str(mount)


def test_a_remote_of_which_all_was_taken_back_is_known_all_the_same(tmp_path: Path, cache: Cache) -> None:
    remote = str(tmp_path / "remote")
    manifest = push(cache, remote).manifest
    shutil.copytree(cache.folder, tmp_path / "copy", ignore=shutil.ignore_patterns("derived"))
    # Nothing is sent, so that copies of manifests are all that is kept, and these go with the manifests.
    push(tmp_path / "copy", remote)
    collect_remote(remote, drop=[manifest], delete=True)
    with pytest.raises(InputError, match="no finished push"):
        pull(tmp_path / "copy", remote)
    shutil.rmtree(remote)
    with pytest.raises(InputError, match="mount its disk"):
        push(tmp_path / "copy", remote)


def test_a_new_remote_is_made_there_when_that_is_said(tmp_path: Path, cache: Cache) -> None:
    push(cache, str(tmp_path / "remote"))
    shutil.rmtree(tmp_path / "remote")
    assert push(cache, str(tmp_path / "remote"), new_remote=True).sent
    shutil.rmtree(tmp_path / "remote")
    done = sync(cache, str(tmp_path / "remote"), new_remote=True).pushed
    assert done is not None
    assert done.sent
