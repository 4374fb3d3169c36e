"""Google Cloud Storage: where its server is looked for, and what becomes of what it answers."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from embedcache.errors import InputError, RemoteError
from embedcache.share.places import google, open_place, parse_location
from embedcache.share.places.bucket import BucketPlace
from embedcache.share.remote.remote import Remote
from embedcache.share.retry import RefusedError, RemediedError

GIVE = r"set GOOGLE_APPLICATION_CREDENTIALS .*'gcloud auth application-default login'"


class _Answers(BaseHTTPRequestHandler):
    """Answers everything alike.

    Attributes:
        status: of the answers.
        begins: whether uploads can be begun all the same.
        asked: requests that have come, each with whether it says who asks.
    """

    status = 200
    begins = False
    asked: list[tuple[str, bool]]

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        pass

    def do_GET(self) -> None:
        type(self).asked.append((self.path, "Authorization" in self.headers))
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        error = {"code": self.status, "message": "ann@x does not have storage.objects.get access"}
        body = json.dumps({"error": {**error, "errors": [{"reason": "x", "domain": "y"}]}}).encode()
        begun = self.begins and self.command == "POST"
        self.send_response(200 if begun else self.status)
        if begun:
            self.send_header("Location", f"http://{self.headers['Host']}{self.path}&upload_id=1")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()


@pytest.fixture
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pauses: None) -> None:
    """Let there be neither an emulator nor credentials, nor a machine of Google's."""
    for name in (
        "CLOUD_STORAGE_EMULATOR_ENDPOINT",
        "STORAGE_EMULATOR_HOST",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GCE_METADATA_ROOT", "127.0.0.1:1")
    monkeypatch.setattr(google, "_RETRY_SECONDS", 1)


@pytest.fixture
def answers(nobody: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yield the server that is taken for an emulator of Google's."""
    kind = type("Answers", (_Answers,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        kind.port = server.server_port  # type: ignore[attr-defined]
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{server.server_port}/")
        yield kind
        server.shutdown()
        thread.join()


def settings_of(url: str) -> dict[str, Any]:
    """Return what the file system of a place was made with."""
    found: dict[str, Any] = open_place(parse_location(url)).__dict__["_files"].__reduce__()[1][0]
    return found


@pytest.mark.parametrize(
    ("address", "scheme", "host"),
    [
        ("http://localhost:9023", "http", "localhost:9023"),
        ("https://emulator/", "https", "emulator"),
        ("localhost:9023", "http", "localhost:9023"),
    ],
)
@pytest.mark.parametrize("name", ["STORAGE_EMULATOR_HOST", "CLOUD_STORAGE_EMULATOR_ENDPOINT"])
def test_an_emulator_is_found_and_asked_by_nobody(
    nobody: None, monkeypatch: pytest.MonkeyPatch, name: str, address: str, scheme: str, host: str
) -> None:
    monkeypatch.setenv(name, address)
    found = settings_of("gs://bucket/x")
    assert (found["anonymous"], found["scheme"], found["endpoint_override"]) == (True, scheme, host)


def test_the_emulator_that_arrow_takes_by_itself_wins(nobody: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "localhost:1")
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", "localhost:2")
    assert settings_of("gs://bucket/x")["endpoint_override"] == "localhost:2"


@pytest.mark.parametrize("address", ["ftp://host", "http://ann:s3cr3t@host", "http://host/s3cr3t", "http://"])
def test_an_address_that_is_none_is_refused_and_never_repeated(
    nobody: None, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    with pytest.raises(InputError, match="STORAGE_EMULATOR_HOST is no address") as found:
        open_place(parse_location("gs://bucket/x"))
    assert "s3cr3t" not in str(found.value)


def test_who_is_nobody_travels_encrypted(nobody: None) -> None:
    for url, anonymous in (("gs://bucket/x", False), ("gs://bucket/x?anonymous=true", True)):
        found = settings_of(url)
        assert (found["anonymous"], found["scheme"], found["endpoint_override"]) == (anonymous, "https", "")


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_anonymous_is_true_or_left_out(nobody: None, scheme: str) -> None:
    with pytest.raises(InputError, match="another value of anonymous than true"):
        open_place(parse_location(f"{scheme}://bucket/x?anonymous=yes"))


def test_nobody_says_nothing_to_an_s3_server(answers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    base = f"s3://team/x?endpoint_override=127.0.0.1:{answers.port}&scheme=http"
    for url in (base, f"{base}&anonymous=true"):
        assert open_place(parse_location(url)).stat("a") is not None
    assert answers.asked == [("/team/x/a", True), ("/team/x/a", False)]


def test_missing_credentials_are_told_of_soon(nobody: None) -> None:
    began = time.monotonic()
    with pytest.raises(RemoteError, match=rf"tried once\): no credentials .*; {GIVE}; .*anonymous=true"):
        Remote(parse_location("gs://bucket/x")).is_there()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("text", [None, "{", "{}"])
def test_credentials_that_are_none_are_told_of(
    nobody: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "key").write_text(text)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key"))
    with pytest.raises(RemoteError, match=rf"tried once\): no access token .*/key.*{GIVE}") as found:
        Remote(parse_location("gs://bucket/x")).is_there()
    assert "google::cloud" not in str(found.value)


@pytest.mark.parametrize(("status", "code"), [(400, "invalid_grant"), (503, "busy")])
def test_a_token_that_is_not_given_is_asked_for_again_where_that_may_help(
    answers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s3cr3t", "refresh_token": "s3cr3t"}
    place = tmp_path / ".config" / "gcloud" / "application_default_credentials.json"
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps({**user, "token_uri": f"http://127.0.0.1:{answers.port}/token"}))
    answers.status = status
    tried = "once" if status == 400 else "5 times"
    with pytest.raises(RemoteError, match=rf"tried {tried}\): no access token .*ann@x") as found:
        Remote(parse_location("gs://bucket/x")).is_there()
    assert "s3cr3t" not in str(found.value)
    assert {path for path, _ in answers.asked} == {"/token"}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (400, "INVALID_ARGUMENT: .*spelling"),
        (401, f"UNAUTHENTICATED: .*{GIVE}"),
        (403, "PERMISSION_DENIED: ann@x does not have .*see to the permissions"),
    ],
)
def test_what_is_refused_is_told_of_at_once(answers: Any, status: int, told: str) -> None:
    answers.status = status
    remote = Remote(parse_location("gs://team/x"))
    for act in (
        lambda: remote.read("a", 100),
        lambda: remote.files_in("a"),
        lambda: remote.stat("a"),
        lambda: remote.write("a", b"data"),
        lambda: remote.remove("a"),
    ):
        answers.asked.clear()
        with pytest.raises(RemoteError, match=rf"tried once\): {told}") as found:
            act()
        assert "google::cloud" not in str(found.value)
        assert len(answers.asked) <= 2


def test_what_may_pass_is_tried_again(answers: Any) -> None:
    answers.status = 503
    with pytest.raises(
        RemoteError, match=r"tried 5 times\): UNAVAILABLE: ann@x .*run the same command again"
    ):
        Remote(parse_location("gs://team/x")).stat("a")
    assert len(answers.asked) >= 5


def test_what_is_not_there_is_not_there(answers: Any) -> None:
    answers.status = 404
    remote = Remote(parse_location("gs://team/x"))
    assert remote.read("a", 100) is None
    assert remote.stat("a") is None
    assert remote.files_in("a") == {}
    remote.remove("a")
    with pytest.raises(FileNotFoundError):
        remote.place.read_range("a", 1, 2)
    with pytest.raises(RemoteError, match=r"tried once\): there is no bucket team; see to the spelling"):
        remote.write("a", b"data")


def test_an_upload_that_the_server_forgets_is_begun_anew(answers: Any) -> None:
    answers.status, answers.begins = 404, True
    with pytest.raises(RemoteError, match=r"tried 5 times\): the server has forgotten an upload"):
        Remote(parse_location("gs://team/x")).write("a", b"data")
    assert [("upload_id" in path) for path, _ in answers.asked].count(False) == 5


def test_a_server_that_has_never_answered_is_not_waited_for_again() -> None:
    said = (
        "google::cloud::Status(DEADLINE_EXCEEDED: Retry policy exhausted, with a last message of "
        "PerformWork() - CURL error [28]=Timeout was reached error_info={reason=, domain=, metadata={}})"
    )
    errors = google.GoogleErrors()
    with pytest.raises(RefusedError, match="Timeout was reached"), errors():
        raise OSError(said)
    with errors():
        pass
    with pytest.raises(OSError, match="Timeout was reached") as error, errors():
        raise OSError(said)
    assert not isinstance(error.value, RefusedError)


def test_a_file_that_counts_as_closed_is_no_fault_of_the_caller() -> None:
    with (
        pytest.raises(OSError, match="the connection failed: I/O operation on closed file"),
        google.GoogleErrors()(),
    ):
        raise ValueError("I/O operation on closed file")
    with pytest.raises(RemediedError) as found, google.GoogleErrors()():
        raise RemediedError("what", "remedy")
    assert found.value.remedy == "remedy"
    with pytest.raises(ValueError, match="a mistake of ours"), google.GoogleErrors()():
        raise ValueError("a mistake of ours")


class _Machine(_Answers):
    """A machine of Google's, whose tokens soon end, and its storage, which has no object."""

    def do_GET(self) -> None:
        kind = type(self)
        if self.path.startswith("/storage"):
            kind.asked.append((self.path, "Authorization" in self.headers))
            self.send_error(404)
        elif kind.status != 200:
            super().do_GET()
        else:
            kind.asked.append((self.path, False))
            token = {"access_token": "t0ken", "expires_in": 0, "token_type": "Bearer"}
            account = {"email": "ann@x", "scopes": ["all"]}
            body = json.dumps(token if "/token" in self.path else account).encode()
            self.send_response(200)
            self.send_header("Metadata-Flavor", "Google")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_token_that_was_given_before_may_be_given_again(
    nobody: None, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    from pyarrow.fs import GcsFileSystem

    kind = type("Machine", (_Machine,), {"asked": [], "status": 200 if is_known else 503})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        host = f"127.0.0.1:{server.server_port}"
        monkeypatch.setenv("GCE_METADATA_ROOT", host)
        files = GcsFileSystem(scheme="http", endpoint_override=host, retry_time_limit=timedelta(seconds=1))
        place = BucketPlace("gs://team/x", files, "team/x", errors=google.GoogleErrors())
        remote = Remote(parse_location("gs://team/x"), place)
        if is_known:
            assert remote.stat("a") is None
        kind.status = 503  # type: ignore[attr-defined]
        told = "tried 5 times): no access token was given:" if is_known else "tried once): no credentials"
        with pytest.raises(RemoteError, match=re.escape(told)):
            remote.stat("a")
        assert any(path.startswith("/storage") for path, _ in kind.asked) is is_known
        server.shutdown()
