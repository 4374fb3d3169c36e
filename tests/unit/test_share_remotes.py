"""URLs and names of remotes, refusals that repeat no secret, folders that are not remotes, broken lines."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from sharing import content, digests_of, make_cache, manifests_of, put_manifest

from embedcache.errors import InputError, MissingExtraError, RemoteError
from embedcache.filesystems import open_filesystem
from embedcache.share import add_remote, list_remotes, pull, push, remove_remote
from embedcache.share.location import CONFIG_VARIABLE, checked_url, is_remote, url_of


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "settings" / "remotes.json"))
    return tmp_path / "settings" / "remotes.json"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cache(tmp_path_factory.mktemp("caches") / "cache").folder


# fmt: off
URLS = {
    "/srv/team/": "/srv/team", "s3://Bucket/folder/": "s3://Bucket/folder", "S3://bucket": "s3://bucket",
    "gs://bucket/x?anonymous=true": "gs://bucket/x?anonymous=true", "az://container/x": "az://container/x",
    "sftp://ann@host:2222/srv/x": "sftp://ann@host:2222/srv/x", "https://host:8443/x": "https://host:8443/x",
    "hf://datasets/owner/name": "hf://datasets/owner/name",
}
WRONG_URLS = [
    "", " ", "a\0b", "s3:bucket/x", "ftp://host/x", "s3://", "s3:///x", "file://host/x", "file://",
    "s3://bucket/../x", "s3://bucket/a//b", "s3://bucket/a/%2e%2e/b", "s3://bucket/%00", "s3://bucket/\x1b[2J",
    "s3://bucket/x?anonymous=false", "https://host/x?anonymous=true", "https://[host/x", "https://host:port/x",
    "s3://key:s3cr3t@bucket/x", "s3://s3cr3t@bucket/x", "https://ann:s3cr3t@host/x", "https://host/x?s3cr3t",
    "sftp://ann:s3cr3t@host/x", "https://host/x#s3cr3t", "s3://:s3cr3t@bucket:port/x",
]
WRONG_NAMES = ["", "a b", "../x", "-x", "x" * 65, "s3://x", "a/b"]
# fmt: on


@pytest.mark.parametrize("text", URLS)
def test_urls_have_one_spelling(text: str) -> None:
    assert checked_url(text) == checked_url(URLS[text]) == URLS[text]


@pytest.mark.parametrize(
    ("name", "url"), [("team", url) for url in WRONG_URLS] + [(name, "s3://bucket/x") for name in WRONG_NAMES]
)
def test_invalid_names_of_remotes_are_refused_without_repeating_a_secret(
    name: str, url: str, config: Path
) -> None:
    with pytest.raises(InputError) as found:
        add_remote(name, url)
    assert str(found.value).isprintable()
    assert "s3cr3t" not in str(found.value)
    assert not config.exists()


def test_names_are_added_listed_and_removed(config: Path, tmp_path: Path) -> None:
    assert list_remotes() == {}
    assert add_remote("team", "s3://bucket/x/") == "s3://bucket/x"
    add_remote("here", str(tmp_path))
    add_remote("team", "s3://bucket/x")
    assert list_remotes() == {"here": str(tmp_path), "team": "s3://bucket/x"}
    with pytest.raises(InputError, match="s3://bucket/x"):
        add_remote("team", "s3://bucket/y")
    remove_remote("team")
    for act in (remove_remote, url_of):
        with pytest.raises(InputError, match="team"):
            act("team")
    config.write_bytes(config.read_bytes()[:-9])
    with pytest.raises(InputError, match=r"remotes\.json"):
        url_of("here")


def test_a_name_wins_over_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team").mkdir()
    assert (is_remote("team"), url_of("team")) == (False, str(tmp_path / "team"))
    add_remote("team", "s3://bucket/x")
    assert (is_remote("team"), url_of("team")) == (True, "s3://bucket/x")
    assert not is_remote("./team")


def test_a_missing_extra_names_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for scheme, extra in {"s3": "s3", "gs": "gcs", "az": "azure", "sftp": "sftp"}.items():
        with pytest.raises(MissingExtraError, match=rf"pip install 'embedcache-distill\[{extra}\]'"):
            open_filesystem(f"{scheme}://host/x")


def test_no_folder_is_both_cache_and_remote(tmp_path: Path) -> None:
    cache, remote = make_cache(tmp_path / "cache").folder, tmp_path / "remote"
    push(cache, str(remote))
    assert (is_remote(str(remote)), is_remote(str(cache))) == (True, False)
    (tmp_path / "link").symlink_to(cache)
    for place in (cache, cache / "derived" / "remote", tmp_path, tmp_path / "link" / "remote"):
        with pytest.raises(InputError, match="contain"):
            push(cache, str(place))
    for place in (remote, remote / "objects" / "cache", tmp_path):
        with pytest.raises(InputError, match="contain"):
            pull(place, str(remote))
    assert not (tmp_path / "cache.json").exists()


def test_a_folder_with_other_files_is_not_a_remote(cache: Path, tmp_path: Path) -> None:
    (docs := tmp_path / "docs").mkdir()
    (docs / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        push(cache, str(docs))
    for place in (docs, tmp_path / "nowhere"):
        with pytest.raises(RemoteError, match="no remote"):
            pull(tmp_path / "mine", str(place))
    (docs / "embedcache-remote.json").write_text('{"version": 1}')
    for act in (lambda: push(cache, str(docs)), lambda: pull(tmp_path / "mine", str(docs))):
        with pytest.raises(RemoteError, match="version"):
            act()
    assert len(list(docs.iterdir())) == 2
    assert not (tmp_path / "mine").exists()


class Dying(LocalFileSystem):
    """A connection that is broken, or one that holds."""

    cachable = False

    def __init__(self, is_broken: bool) -> None:
        super().__init__()
        self.is_broken = is_broken

    def get_file(self, *given: Any, **settings: Any) -> None:
        if self.is_broken:
            raise ConnectionError("broken")
        super().get_file(*given, **settings)


@pytest.mark.parametrize(("url", "survives"), [("https://host/x", 2), ("s3://host/x", 0)])
def test_broken_connections_are_replaced_where_the_client_does_not(
    url: str, survives: int, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(cache, str(tmp_path / "remote"))
    monkeypatch.setattr("embedcache.share.remote.PAUSE", 0)
    for broken in (survives, survives + 1):
        connections = iter([Dying(True)] * broken + [Dying(False)])
        monkeypatch.setattr(
            "embedcache.share.remote.open_filesystem",
            lambda url, left=connections: (next(left), str(tmp_path / "remote")),
        )
        if broken == survives:
            pull(tmp_path / "mine", url)
            assert content(tmp_path / "mine") == content(cache)
        else:
            with pytest.raises(RemoteError, match="broken"):
                pull(tmp_path / "mine", url)


def test_an_entry_that_lies_about_my_shard_is_replaced_by_my_own(cache: Path, tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    push(cache, str(remote))
    (manifest,) = manifests_of(remote)
    files = [{**file, "rows": file["rows"] + 1} if "rows" in file else file for file in manifest["files"]]
    lying = put_manifest(remote, {**manifest, "files": files, "by": "Mallory"})
    assert push(cache, str(remote)).manifest not in ("", lying)
    assert digests_of(remote)[0] == lying
    assert pull(tmp_path / "theirs", str(remote), skip_manifests=[lying]).vectors == {"fake": 120}
