"""Parts of files: what they cost in requests and open files, and servers that give none, or too much."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from pyarrow.fs import LocalFileSystem as LocalFileSystemOfArrow

from embedcache.share.places import open_place, parse_location
from embedcache.share.places.base import RangesNotServedError
from embedcache.share.places.bucket import BucketPlace
from embedcache.share.places.folder import FolderPlace
from embedcache.share.places.web import WebPlace

DATA = np.random.default_rng(0).bytes(100_000)


class _Whole(SimpleHTTPRequestHandler):
    """Python's own server, which gives whole files alone."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        pass


class _Parts(_Whole):
    """One that gives parts as well."""

    def do_GET(self) -> None:
        span = self.headers.get("Range")
        if span is None:
            super().do_GET()
            return
        first, last = (int(number) for number in span.removeprefix("bytes=").split("-"))
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class _TooMuch(_Parts):
    """One that says that it gives a part and gives more."""

    def do_GET(self) -> None:
        self.send_response(206)
        self.end_headers()
        self.wfile.write(DATA)


@contextmanager
def served(folder: Path, handler: type[SimpleHTTPRequestHandler]) -> Iterator[WebPlace]:
    """Serve ``folder`` on the loopback device."""
    made = functools.partial(handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield WebPlace(f"http://127.0.0.1:{server.server_port}")
        finally:
            server.shutdown()
            thread.join()


def test_an_object_is_looked_up_once_for_all_parts_of_it(tmp_path: Path) -> None:
    asked: list[str] = []

    class Bucket(_Parts):
        def do_HEAD(self) -> None:
            asked.append("HEAD")
            super().do_HEAD()

        def do_GET(self) -> None:
            asked.append(self.headers.get("Range", "all"))
            super().do_GET()

    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "data").write_bytes(DATA)
    with served(tmp_path, Bucket) as web:
        server = web.where.removeprefix("http://")
        place = open_place(parse_location(f"s3://team?endpoint_override={server}&scheme=http&anonymous=true"))
        for start in (0, 50_000, 7):
            assert place.read_range("data", start, 10) == DATA[start : start + 10]
    assert asked == ["HEAD", "bytes=0-9", "bytes=50000-50009", "bytes=7-16"]


def test_few_objects_stay_open(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).write_bytes(DATA[number : number + 10])
    place = BucketPlace("s3://bucket", LocalFileSystemOfArrow(), str(tmp_path))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in [*range(100), *range(100)]:
        assert place.read_range(str(number), 1, 5) == DATA[number + 1 : number + 6]
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 40


def test_an_object_that_is_another_by_now_is_looked_up_again(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA[:10])
    place = BucketPlace("s3://bucket", LocalFileSystemOfArrow(), str(tmp_path))
    assert place.read_range("data", 0, 100) == DATA[:10]
    (tmp_path / "new").write_bytes(DATA[:100])
    (tmp_path / "new").rename(tmp_path / "data")
    assert place.read_range("data", 0, 100) == DATA[:100]


def test_what_was_used_last_stays_open(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / str(number)).write_bytes(DATA[:10])
    place = BucketPlace("s3://bucket", LocalFileSystemOfArrow(), str(tmp_path))
    for number in (0, 1):
        place.read_range(str(number), 0, 5)
        (tmp_path / "new").write_bytes(DATA[10:20])
        (tmp_path / "new").rename(tmp_path / str(number))
    for number in range(2, 100):
        place.read_range(str(number), 0, 5)
        # What is open is the old one still.
        assert place.read_range("0", 0, 5) == DATA[:5]
    assert place.read_range("1", 0, 5) == DATA[10:15]


def test_a_server_of_whole_files_says_so_at_once(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    with (
        served(tmp_path, _Whole) as place,
        pytest.raises(RangesNotServedError, match="whole files alone"),
    ):
        place.read_range("data", 5, 10)


def test_more_than_was_asked_for_is_refused(tmp_path: Path) -> None:
    with served(tmp_path, _TooMuch) as place, pytest.raises(OSError, match="more than 10 bytes"):
        place.read_range("data", 5, 10)


def test_links_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(DATA)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with pytest.raises(OSError, match="symbolic link"):
        FolderPlace(tmp_path).read_range("link", 0, 1)
    with pytest.raises(OSError, match="symbolic link"):
        list(FolderPlace(tmp_path).blocks("link", 10))
