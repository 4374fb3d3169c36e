"""URLs and names of remotes: accepted, refused, and without secrets."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from sharing import digests_of, make_cache, manifests_of, put_manifest

from embedcache.errors import EmbedCacheError, InputError, MissingExtraError, RemoteError
from embedcache.share import add_remote, list_remotes, pull, push, remove_remote
from embedcache.share.location import checked_url, open_filesystem
from embedcache.share.names import CONFIG_VARIABLE, is_remote, url_of


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "settings" / "remotes.json"))
    return tmp_path / "settings" / "remotes.json"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("/srv/team/", "/srv/team"),
        ("file:///srv/team", "/srv/team"),
        ("file://localhost/srv/a%20b", "/srv/a b"),
        ("s3://Bucket/folder/", "s3://Bucket/folder"),
        ("S3://bucket", "s3://bucket"),
        ("s3://bucket/x?anonymous=true", "s3://bucket/x?anonymous=true"),
        ("gs://bucket/x", "gs://bucket/x"),
        ("az://container/x", "az://container/x"),
        ("sftp://ann@host:2222/srv/x", "sftp://ann@host:2222/srv/x"),
        ("https://host:8443/x", "https://host:8443/x"),
        ("hf://datasets/owner/name", "hf://datasets/owner/name"),
    ],
)
def test_urls_have_one_spelling(text: str, url: str) -> None:
    assert checked_url(text) == url
    assert checked_url(url) == url


WRONG_URLS = [
    *(
        "",
        " ",
        "a\0b",
        "s3:bucket/x",
        "ftp://host/x",
        "s3://",
        "s3:///x",
        "s3://bucket/../x",
        "s3://bucket/a//b",
    ),
    *("s3://bucket/a/%2e%2e/b", "s3://bucket/%00", "s3://bucket/\x1b[2J", "s3://bucket/x?anonymous=false"),
    *(
        "https://host/x?token=1",
        "https://host/x#part",
        "https://[host/x",
        "https://host:port/x",
        "sftp://host",
    ),
    *("hf://owner/name", "hf://datasets/owner", "file://host/x", "file://", "file:///a/../b"),
]


@pytest.mark.parametrize("text", WRONG_URLS)
def test_urls_that_name_no_remote_are_refused(text: str) -> None:
    with pytest.raises(InputError) as found:
        checked_url(text)
    assert str(found.value).isprintable()


SECRETS = [
    *(
        "s3://key:s3cr3t@bucket/x",
        "s3://s3cr3t@bucket/x",
        "https://ann:s3cr3t@host/x",
        "sftp://ann:s3cr3t@host/x",
    ),
    *("https://host/x?sig=s3cr3t", "https://host/x#s3cr3t", "s3://:s3cr3t@bucket:port/x"),
]


@pytest.mark.parametrize("text", SECRETS)
def test_credentials_in_a_url_are_refused_and_not_repeated(text: str, config: Path) -> None:
    with pytest.raises(InputError) as found:
        add_remote("team", text)
    assert "s3cr3t" not in str(found.value)
    assert not config.exists()


@pytest.mark.parametrize(
    ("url", "extra"),
    [("s3://b/x", "s3"), ("gs://b/x", "gcs"), ("az://b/x", "azure"), ("sftp://h/x", "sftp")],
)
def test_a_missing_extra_names_its_install_line(
    url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'embedcache\[{extra}\]'"):
        open_filesystem(url)


def test_names_are_added_listed_and_removed(config: Path, tmp_path: Path) -> None:
    assert list_remotes() == {}
    assert add_remote("team", "s3://bucket/x/") == "s3://bucket/x"
    add_remote("here", str(tmp_path))
    add_remote("team", "s3://bucket/x")
    assert list_remotes() == {"here": str(tmp_path), "team": "s3://bucket/x"}
    assert url_of("team") == "s3://bucket/x"
    with pytest.raises(InputError, match="s3://bucket/x"):
        add_remote("team", "s3://bucket/y")
    remove_remote("team")
    assert list_remotes() == {"here": str(tmp_path)}
    with pytest.raises(InputError, match="team"):
        remove_remote("team")
    with pytest.raises(InputError, match="here"):
        url_of("team")


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "s3://x", "a/b"])
def test_names_that_could_be_urls_or_folders_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        add_remote(name, "s3://bucket/x")


def test_a_damaged_file_of_names_is_an_error(config: Path) -> None:
    add_remote("team", "s3://bucket/x")
    config.write_bytes(config.read_bytes()[:-9])
    with pytest.raises(EmbedCacheError, match=r"remotes\.json"):
        url_of("team")


def test_a_name_wins_over_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team").mkdir()
    assert (is_remote("team"), url_of("team")) == (False, str(tmp_path / "team"))
    add_remote("team", "s3://bucket/x")
    assert (is_remote("team"), url_of("team")) == (True, "s3://bucket/x")
    assert not is_remote("./team")


def test_no_folder_is_both_cache_and_remote(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    push(cache.folder, str(tmp_path / "remote"))
    assert is_remote(str(tmp_path / "remote"))
    assert not is_remote(str(cache.folder))
    for place in (cache.folder, cache.folder / "derived" / "remote", tmp_path):
        with pytest.raises(InputError, match="contain"):
            push(cache.folder, str(place))
    for place in (tmp_path / "remote", tmp_path / "remote" / "objects" / "cache", tmp_path):
        with pytest.raises(InputError, match="contain"):
            pull(place, str(tmp_path / "remote"))
    assert not (tmp_path / "cache.json").exists()


def test_a_link_does_not_hide_that_a_remote_lies_in_a_cache(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    (tmp_path / "link").symlink_to(cache.folder)
    with pytest.raises(InputError, match="contain"):
        push(cache.folder, str(tmp_path / "link" / "remote"))


def test_a_folder_with_other_things_is_no_remote(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        push(cache.folder, str(tmp_path / "docs"))
    assert [path.name for path in (tmp_path / "docs").iterdir()] == ["thesis.tex"]
    with pytest.raises(RemoteError, match="no remote"):
        pull(tmp_path / "mine", str(tmp_path / "docs"))
    with pytest.raises(RemoteError, match="no remote"):
        pull(tmp_path / "mine", str(tmp_path / "nowhere"))
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize(("version", "advice"), [(1, "push again"), (3, "Upgrade"), ("x", "push again")])
def test_a_remote_of_another_version_is_refused(tmp_path: Path, version: object, advice: str) -> None:
    cache = make_cache(tmp_path / "cache")
    remote = tmp_path / "remote"
    remote.mkdir()
    (remote / "embedcache-remote.json").write_text(json.dumps({"version": version}))
    for act in (lambda: push(cache.folder, str(remote)), lambda: pull(tmp_path / "mine", str(remote))):
        with pytest.raises(RemoteError, match=advice):
            act()
    assert len(list(remote.iterdir())) == 1


@pytest.mark.parametrize("url", ["https://localhost/x", "hf://datasets/owner/name"])
def test_read_only_remotes_are_not_pushed_to(url: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="read-only"):
        push(make_cache(tmp_path / "cache").folder, url)


def test_an_entry_that_lies_about_my_shard_is_replaced_by_my_own(tmp_path: Path) -> None:
    cache, remote = make_cache(tmp_path / "mine"), tmp_path / "remote"
    push(cache.folder, str(remote))
    (manifest,) = manifests_of(remote)
    files = [{**file, "rows": file["rows"] + 1} if "rows" in file else file for file in manifest["files"]]
    put_manifest(remote, {**manifest, "files": files, "by": "Mallory"})
    assert push(cache.folder, str(remote)).manifests
    lying = digests_of(remote)[0]
    assert pull(tmp_path / "theirs", str(remote), skip_manifests=[lying]).vectors == {"fake": 120}
