"""S3 without a server of its own: addresses and credentials that are missing, and what is said of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from embedcache.errors import InputError, RemoteError
from embedcache.share.places import open_place, parse_location
from embedcache.share.remote.remote import Remote

SECRET = "s3cr3t"  # noqa: S105 - to be looked for in messages


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815 - the name it has there

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        pass


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let there be no credentials; return the folder where files with some are looked for."""
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_CONFIG_FILE",
        "AWS_ENDPOINT_URL",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / ".aws").mkdir()
    return tmp_path / ".aws"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be refused by a server, whatever is asked."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()
        thread.join()


def refusal(url: str = "s3://bucket/x") -> str:
    with pytest.raises(RemoteError, match="tried once") as error:
        Remote(parse_location(url)).read("a", 100)
    return str(error.value)


def test_missing_credentials_are_told_of(server: None) -> None:
    told = refusal()
    assert "no credentials were found: AWS_ACCESS_KEY_ID is not set" in told
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE" in told


def test_settings_without_credentials_are_none(server: None, home: Path) -> None:
    (home / "config").write_text("[default]\nregion = us-east-1\n")
    assert "no credentials were found" in refusal()


def test_a_key_without_its_secret_is_told_of(server: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    assert "AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY is not" in refusal()


def test_a_profile_that_is_not_there_is_told_of(
    server: None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "credentials").write_text(
        f"[default]\naws_access_key_id = key\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "nope")
    told = refusal()
    assert (
        "AWS_PROFILE is 'nope', and ~/.aws/credentials and ~/.aws/config have no credentials of that" in told
    )
    assert SECRET not in told


@pytest.mark.parametrize(
    ("file", "text", "profile"),
    [
        (
            "credentials",
            f"[default]\naws_access_key_id = key\naws_secret_access_key = {SECRET}\n",
            "default",
        ),
        ("credentials", f"[mine]\naws_access_key_id = key\naws_secret_access_key = {SECRET}\n", "mine"),
        ("config", "[profile mine]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = other\n", "mine"),
    ],
)
def test_credentials_that_are_there_are_not_called_missing(
    server: None, home: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, profile: str
) -> None:
    (home / file).write_text(text)
    monkeypatch.setenv("AWS_PROFILE", profile)
    told = refusal()
    assert "see to the credentials, the permissions" in told
    assert "no credentials" not in told
    assert SECRET not in told


def test_nobody_needs_credentials(server: None) -> None:
    assert "no credentials" not in refusal("s3://bucket/x?anonymous=true")


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])
def test_an_address_without_a_scheme_is_told_of_at_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv(name, "127.0.0.1:9199")
    with pytest.raises(InputError, match=rf"{name} has no scheme: expected http://HOST:PORT or https://"):
        open_place(parse_location("s3://bucket/x"))
    # Where the URL says it, it is known.
    open_place(parse_location("s3://bucket/x?scheme=http"))
