"""Where remotes lie: URLs, secrets that are never repeated, connections that break, web servers."""

from __future__ import annotations

import errno
import functools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pyarrow.fs import LocalFileSystem as LocalFileSystemOfArrow
from share_helpers import TEXTS, content, make_cache

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.errors import InputError, RemoteError, StorageError
from embedcache.share import pull, push, remotes, retry
from embedcache.share.places import Location, open_place, parse_location
from embedcache.share.places.base import Stat
from embedcache.share.places.bucket import BucketPlace
from embedcache.share.places.folder import FolderPlace
from embedcache.share.places.web import WebPlace
from embedcache.share.remote.remote import Remote
from embedcache.share.retry import LaterError, retrying

pytestmark = pytest.mark.usefixtures("no_pauses")


SECRET = "s3cr3t"  # noqa: S105 - to be looked for in messages


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/data/team", Location("file", "", "/data/team")),
        ("file:///data/a%20b/", Location("file", "", "/data/a b")),
        ("s3://Bucket/teachers/", Location("s3", "Bucket", "/teachers")),
        ("s3://bucket", Location("s3", "bucket", "")),
        ("S3://bucket/x", Location("s3", "bucket", "/x")),
        ("gs://bucket/x", Location("gs", "bucket", "/x")),
        ("sftp://ann@host:2222/srv/x", Location("sftp", "host", "/srv/x", "ann", 2222)),
        ("https://host:8443/x/y", Location("https", "host", "/x/y", None, 8443)),
        ("https://host/a%20b/%23c%3F", Location("https", "host", "/a b/#c?")),
        ("hf://datasets/ann/vectors/x", Location("hf", "datasets", "/ann/vectors/x")),
        (
            "s3://bucket/x?scheme=http&endpoint_override=localhost:9000",
            Location(
                "s3", "bucket", "/x", options=(("endpoint_override", "localhost:9000"), ("scheme", "http"))
            ),
        ),
    ],
)
def test_urls_are_read(text: str, expected: Location) -> None:
    assert parse_location(text) == expected
    # What is kept says the same.
    assert parse_location(expected.url) == expected


@pytest.mark.parametrize(
    "text",
    [
        f"s3://key:{SECRET}@bucket/x",
        f"s3://{SECRET}@bucket/x",
        f"https://ann:{SECRET}@host/x",
        f"https://{SECRET}@host/x",
        f"sftp://ann:{SECRET}@host/x",
        f"s3://bucket/x?access_key={SECRET}",
        f"s3://bucket/x?secret_key={SECRET}&region=x",
        f"https://host/x?token={SECRET}",
        f"gs://bucket/x?access_token={SECRET}",
        f"hf://datasets/a/b?token={SECRET}",
        f"s3://bucket/x?scheme={SECRET}",
        f"s3://bucket/x?endpoint_override=http://ann:{SECRET}@host",
        f"s3://bucket/x?{SECRET}",
        f"https://host/x#{SECRET}",
    ],
)
def test_secrets_in_a_url_are_refused_and_never_repeated(text: str) -> None:
    with pytest.raises(InputError) as found:
        open_place(parse_location(text))
    assert SECRET not in str(found.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://host/x",
        "s3://",
        "s3:///x",
        "s3://b/../x",
        "s3://b//x",
        "https://",
        "https:///x",
        "https://host:port/x",
        "http://[::1/x",
        "file://host/x",
        "hf://x",
        "hf://datasets/x",
        "sftp://host",
        "sftp://ann@host:2222/",
        "nothing://x",
        "s3://bucket/a#b",
        "s3://bucket/a%0ab",
        "https://host/a\x1b[2Jb",
        "file:///a%00b",
        "a\0b",
    ],
)
def test_what_is_no_place_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_location(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("s3:/bucket/x", "s3://bucket/x"),
        ("GS:/bucket", "gs://bucket"),
        ("sftp:/host/x", "sftp://host/x"),
        ("file:/x", "file:///x"),
        ("s3:/key:s3cr3t@bucket/x", "s3://..."),
        ("s3:/bucket?secret_key=s3cr3t", "s3://..."),
        ("s3//bucket/x", "s3://bucket/x"),
        ("HTTPS//host/x", "https://host/x"),
        ("hf:datasets/ann/x", "hf://datasets/ann/x"),
        ("s3//key:s3cr3t@bucket/x", "s3://..."),
    ],
)
def test_a_slash_or_colon_too_few_makes_no_folder(text: str, meant: str) -> None:
    with pytest.raises(InputError, match=rf"did you mean {re.escape(meant)}\? ") as found:
        parse_location(text)
    assert "s3cr3t" not in str(found.value)
    assert parse_location(f"./{text}").scheme == "file"


@pytest.mark.parametrize("text", ["s3", "s3/x", "s3x//y", "gs.d/x", "files//x", "/srv/s3//x"])
def test_a_folder_may_begin_like_a_url(text: str) -> None:
    assert parse_location(text).scheme == "file"


def test_a_port_is_shown_plainly() -> None:
    url = "s3://bucket/x?endpoint_override=127.0.0.1:9199&scheme=http"
    assert parse_location(url).url == url
    # So it was spelled before.
    assert parse_location(url.replace(":9199", "%3A9199")).url == url


def test_a_name_with_an_earlier_spelling_of_the_same_url_is_the_same_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(remotes.CONFIG_VARIABLE, str(tmp_path / "remotes.json"))
    url = "s3://bucket/x?endpoint_override=127.0.0.1:9199"
    remotes._write({"team": url.replace(":9199", "%3A9199")})
    assert remotes.location_of("team").url == url
    assert remotes.add_remote("team", url) == url
    with pytest.raises(InputError, match="already"):
        remotes.add_remote("team", "s3://other")


@pytest.mark.parametrize("inside", ["", "/x", "/x/y"])
def test_a_file_is_no_remote_and_is_told_of_at_once(tmp_path: Path, inside: str) -> None:
    (tmp_path / "afile").write_bytes(b"")
    with pytest.raises(InputError, match=r"afile is a file, and a remote is a folder") as error:
        pull(tmp_path / "there", f"{tmp_path / 'afile'}{inside}")
    assert error.value.exit_code == 2


def test_a_folder_that_may_not_be_looked_at_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    # Whoever runs the tests may be allowed everything.
    monkeypatch.setattr(Path, "is_dir", refuse)
    with pytest.raises(InputError, match=r"^/locked/x cannot be looked at \(Permission denied\): see to"):
        open_place(parse_location("/locked/x"))


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="there is no /proc")
def test_where_no_folder_can_be_made_it_is_said(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS[:10])
    with pytest.raises(
        StorageError, match=r"/proc/nothing/claims: there is no such folder, and it cannot be made; choose"
    ):
        push(cache, "/proc/nothing")


def test_the_numbers_and_names_that_python_adds_to_errors_are_left_out(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match=r"tried once\): Not a directory; a part of the path is a file"):
        retrying("list x", str(tmp_path), lambda: _fail(errno.ENOTDIR, "Not a directory", "/x"))


def test_so_are_those_that_other_clients_add() -> None:
    with pytest.raises(
        RemoteError, match=r"5 times\): the connection failed: Connection refused; see to the connection, to"
    ):
        retrying("list x", "http://x", lambda: _fail("the connection failed: [Errno 111] Connection refused"))


def test_a_file_among_the_folders_of_a_remote_is_told_of_at_once(tmp_path: Path) -> None:
    (tmp_path / "objects").write_bytes(b"")
    with pytest.raises(RemoteError, match=r"tried once\).*a part of the path is a file"):
        Remote(parse_location(str(tmp_path))).files_in("objects")


def test_the_endpoint_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://localhost:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://localhost:2/")
    place = open_place(parse_location("s3://bucket/x"))
    assert "localhost:2" in repr(place.__dict__["_files"].__reduce__())
    given = open_place(parse_location("s3://bucket/x?endpoint_override=localhost:3"))
    assert "localhost:3" in repr(given.__dict__["_files"].__reduce__())


def test_a_name_in_the_address_of_a_server_is_refused_and_never_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://ann:{SECRET}@localhost:1")
    with pytest.raises(InputError, match="AWS_ACCESS_KEY_ID") as found:
        open_place(parse_location("s3://bucket/x"))
    assert SECRET not in str(found.value)


def test_a_url_is_spelled_so_that_it_means_the_same_again() -> None:
    assert parse_location("https://host/a%20b/%23c").url == "https://host/a%20b/%23c"
    assert parse_location("s3://bucket/a b/~c").url == "s3://bucket/a%20b/~c"


def test_what_a_bucket_dates_to_1970_has_no_time(tmp_path: Path) -> None:
    for name, seconds in (("written", 0), ("before", -1), ("whole", 7)):
        (tmp_path / name).write_bytes(b"data")
        os.utime(tmp_path / name, (seconds, seconds))
    place = BucketPlace("s3://bucket", LocalFileSystemOfArrow(), str(tmp_path))
    assert place.list("") == {"written": Stat(4), "before": Stat(4), "whole": Stat(4, 7.0)}
    assert place.stat("written") == Stat(4)


# What breaks


class Flaky(FolderPlace):
    """A folder whose connection breaks so many times."""

    def __init__(self, root: Path, failures: int, error: type[OSError] = ConnectionResetError) -> None:
        super().__init__(root)
        self.failures, self.error, self.calls = failures, error, 0

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        self.calls += 1
        yield memoryview(b"begin")
        if self.calls <= self.failures:
            raise self.error("dropped")
        yield from super().blocks(path, size)


def test_what_breaks_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"data")
    place = Flaky(tmp_path, failures=4)
    assert Remote(parse_location(str(tmp_path)), place).read("x", 100) == b"begindata"
    assert place.calls == 5


def test_in_the_end_it_says_what_where_and_how_often(tmp_path: Path) -> None:
    place = Flaky(tmp_path, failures=9)
    with pytest.raises(
        RemoteError,
        match=r"cannot read x of .*tried 5 times\): dropped; see to the disk .*what has arrived stays",
    ):
        Remote(parse_location(str(tmp_path)), place).read("x", 100)
    assert place.calls == 5


def test_what_is_forbidden_is_not_tried_again(tmp_path: Path) -> None:
    place = Flaky(tmp_path, failures=9, error=PermissionError)
    with pytest.raises(RemoteError, match=r"tried once\): dropped; see to the permissions of the folder"):
        Remote(parse_location(str(tmp_path)), place).read("x", 100)
    assert place.calls == 1
    with pytest.raises(RemoteError, match=r"tried once\): dropped; see to the credentials"):
        Remote(parse_location("s3://bucket"), place).read("x", 100)
    assert place.calls == 2


def test_a_server_that_wants_a_length_is_not_tried_again_and_the_setting_is_named(tmp_path: Path) -> None:
    class LengthError(OSError):
        def __str__(self) -> str:
            return (
                "When uploading x: AWS Error UNKNOWN (HTTP status 411) during PutObject operation: "
                "Unable to parse ExceptionName: MissingContentLength"
            )

    place = Flaky(tmp_path, failures=9, error=LengthError)
    with pytest.raises(RemoteError, match="AWS_REQUEST_CHECKSUM_CALCULATION=when_required") as found:
        Remote(parse_location(str(tmp_path)), place).read("x", 100)
    assert place.calls == 1
    assert "credentials" not in str(found.value)


def test_what_is_long_is_cut_between_words_and_shows_it(tmp_path: Path) -> None:
    class LongError(OSError):
        def __str__(self) -> str:
            return "cannot connect to 127.0.0.1:18765, " * 20

    place = Flaky(tmp_path, failures=9, error=LongError)
    with pytest.raises(RemoteError, match=r"127\.0\.0\.1:18765, cannot connect to …; see to the disk"):
        Remote(parse_location(str(tmp_path)), place).read("x", 100)
    with pytest.raises(RemoteError, match=r"\): x{300} …; see"):
        retrying("read x", "s3://bucket", lambda: _fail("x" * 1000))


class FailingWrites:
    """Makes every write to disk fail with ``code`` so many times.

    Attributes:
        times: how often it has failed.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int, failures: int, step: str) -> None:
        self.times, self._code, self._failures, self._step = 0, code, failures, step
        monkeypatch.setattr(fsio, "on_write_step", self._fail)

    def _fail(self, step: str, path: Path) -> None:
        if step == self._step and self.times < self._failures:
            self.times += 1
            raise OSError(self._code, os.strerror(self._code))


PASSING = [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EHOSTDOWN]
FINAL = [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES]


@pytest.mark.parametrize("code", PASSING, ids=errno.errorcode.get)
def test_a_hiccup_of_a_network_share_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    remote = Remote(parse_location(str(tmp_path)))
    failing = FailingWrites(monkeypatch, code, failures=2, step="synced")
    remote.write("x", b"data")
    assert failing.times == 2
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"x": b"data"}
    failing = FailingWrites(monkeypatch, code, failures=2, step="remove")
    remote.remove("x")
    assert (failing.times, list(tmp_path.iterdir())) == (2, [])


def test_a_share_that_stays_away_is_told_of_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = FailingWrites(monkeypatch, errno.ESTALE, failures=99, step="synced")
    with pytest.raises(RemoteError, match=r"cannot write x of .*tried 5 times\): .*; see to the disk"):
        Remote(parse_location(str(tmp_path))).write("x", b"data")
    assert failing.times == retry.TRIES


@pytest.mark.parametrize("code", FINAL, ids=errno.errorcode.get)
def test_a_disk_that_is_full_or_closed_to_the_user_is_told_of_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    (tmp_path / "x").write_bytes(b"data")
    for step, act in (
        ("synced", lambda remote: remote.write("y", b"data")),
        ("remove", lambda remote: remote.remove("x")),
    ):
        failing = FailingWrites(monkeypatch, code, failures=99, step=step)
        with pytest.raises(StorageError, match="cannot write"):
            act(Remote(parse_location(str(tmp_path))))
        assert failing.times == 1


def test_a_push_to_a_share_survives_hiccups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = make_cache(tmp_path / "cache")
    FailingWrites(monkeypatch, errno.EIO, failures=4, step="written")
    push(cache, str(tmp_path / "remote"))
    pull(tmp_path / "there", str(tmp_path / "remote"))
    assert content(tmp_path / "there") == content(cache.folder)


def _fail(*said: object) -> None:
    raise OSError(*said)


def test_what_a_server_says_is_shown_without_control_codes(tmp_path: Path) -> None:
    class TalkingError(OSError):
        def __str__(self) -> str:
            return "first\nsecond \x1b[2J\x07 \u202e"

    place = Flaky(tmp_path, failures=9, error=TalkingError)
    with pytest.raises(RemoteError, match=r"first second \\x1b\[2J") as found:
        Remote(parse_location(str(tmp_path)), place).read("x", 100)
    assert str(found.value).isprintable()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda data: bytes([data[0] ^ 1]) + data[1:],
            r"other bytes arrived; {path} is damaged there: delete",
        ),
        (
            lambda data: data[:-1],
            r"[\d,]+ of [\d,]+ bytes arrived; run .* again; if that goes on, {path} has another",
        ),
        (
            lambda data: data + b"x",
            r"more than [\d,]+ bytes arrived; run .*if that goes on, {path} has another size",
        ),
    ],
)
def test_a_damaged_object_is_told_of_with_the_file_and_one_way_to_mend_it(
    tmp_path: Path, change: Callable[[bytes], bytes], told: str
) -> None:
    remote, mine = tmp_path / "remote", make_cache(tmp_path / "mine")
    push(mine, str(remote))
    shard = min(mine.container(mine.teacher().contract).names())
    place = remote / "objects" / shard[:2] / shard
    sound = place.read_bytes()
    place.write_bytes(change(sound))
    with pytest.raises(RemoteError, match=told.format(path=f"objects/{shard[:2]}/{shard}")) as found:
        pull(tmp_path / "there", str(remote), jobs=1)
    assert "see to the" not in str(found.value)
    # What it says helps.
    if "delete that file" in str(found.value):
        place.unlink()
    push(mine, str(remote))
    assert place.read_bytes() == sound
    pull(tmp_path / "there", str(remote))
    assert len(Cache(tmp_path / "there").lookup(TEXTS)) == len(TEXTS)


# The web


class _Quiet(SimpleHTTPRequestHandler):
    cut = 0

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        pass

    def copyfile(self, source: object, outputfile: object) -> None:
        if "/objects/" in self.path and _Quiet.cut > 0:
            _Quiet.cut -= 1
            outputfile.write(source.read(7))  # type: ignore[attr-defined]
            return
        super().copyfile(source, outputfile)  # type: ignore[type-var]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """Serve the folder ``remote`` on the loopback device."""
    (tmp_path / "web" / "remote").mkdir(parents=True)
    handler = functools.partial(_Quiet, directory=str(tmp_path / "web"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/remote"
        server.shutdown()
        thread.join()


def test_a_web_server_is_pulled_from(tmp_path: Path, served: str) -> None:
    cache = make_cache(tmp_path / "cache")
    with pytest.raises(RemoteError, match=r"no remote at http.*see to the spelling$"):
        pull(tmp_path / "there", served)
    push(cache, str(tmp_path / "web" / "remote"))
    _Quiet.cut = 3
    pull(tmp_path / "there", f"{served}/")
    assert _Quiet.cut == 0
    assert content(tmp_path / "there") == content(cache.folder)
    with pytest.raises(RemoteError, match="can only be read"):
        push(cache, served)


def test_links_of_a_listing_that_lead_elsewhere_are_left_out(tmp_path: Path) -> None:
    page = (
        b"<a href='../x'>up</a><a href='/remote/a'>a</a><a href='b?c=d'>b</a><a href='http://other/remote/c'>c</a>"
        b"<a href='sub/'>d</a><a>e</a><a href='%2e%2e%2fevil'>f</a><a href='ab%20c'>g</a>"
    )

    class Page(_Quiet):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(page)

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        found = WebPlace(f"http://127.0.0.1:{server.server_port}/remote").list("")
        server.shutdown()
        thread.join()
    assert found.keys() == {"a", "b", "ab c"}


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupt_waits_for_nobody_who_is_to_come_back_later(tmp_path: Path) -> None:
    is_asked = threading.Event()

    class Busy(FolderPlace):
        def list(self, folder: str) -> dict[str, Stat]:
            is_asked.set()
            raise LaterError("HTTP status 429", "wait", 300.0)

    remote = Remote(parse_location(str(tmp_path)), Busy(tmp_path))
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        if is_asked.wait(60):
            signal.pthread_kill(main, signal.SIGINT)

    began = time.monotonic()
    interrupter = threading.Thread(target=interrupt, daemon=True)
    interrupter.start()
    with pytest.raises(KeyboardInterrupt):
        remote.in_threads(remote.files_in, [f"objects/{number:02x}" for number in range(256)])
    # It would have waited for 300 s.
    assert time.monotonic() - began < 120
    assert remote.stop.is_set()
    # Nor are threads left behind.
    while any(thread.name.startswith("share") for thread in threading.enumerate()):
        assert time.monotonic() - began < 150
        time.sleep(0.01)


def test_an_error_of_one_look_stops_nothing_that_comes_later(tmp_path: Path) -> None:
    remote = Remote(parse_location(str(tmp_path)))

    def look(number: int) -> int:
        if number == 3:
            raise RemoteError("no")
        return number

    with pytest.raises(RemoteError, match="no"):
        remote.in_threads(look, range(10))
    assert not remote.stop.is_set()
    assert remote.in_threads(look, range(3)) == [0, 1, 2]
