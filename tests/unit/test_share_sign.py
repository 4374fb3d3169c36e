"""Signatures: what one key has not signed is not looked at."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from share_helpers import TEXTS, content, files_of, make_cache, make_key

from embedcache.errors import InputError, MissingInputError, RemoteError
from embedcache.share import PullChoice, list_remote, pull, push
from embedcache.share.places import Stat, parse_location
from embedcache.share.places.folder import FolderPlace
from embedcache.share.pushing.remote_state import RemoteState
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.sign import PASSPHRASE_VARIABLE, PublicKey, Signer
from embedcache.share.remote.superseded import superseded

pytest.importorskip("cryptography", reason="needs the extra sign")


@pytest.mark.parametrize("pem", [False, True], ids=["openssh", "pem"])
def test_only_what_the_key_has_signed_is_pulled(tmp_path: Path, pem: bool) -> None:
    remote = str(tmp_path / "remote")
    private, public = make_key(tmp_path, "ann", pem=pem)
    _, other = make_key(tmp_path, "bob")
    mine = make_cache(tmp_path / "mine", TEXTS[:80], name="mine")
    push(mine, remote, sign=private)
    push(make_cache(tmp_path / "theirs", TEXTS[80:], name="theirs"), remote)
    pull(tmp_path / "there", remote, PullChoice(require_signature=public))
    assert content(tmp_path / "there") == content(mine.folder)
    with pytest.raises(RemoteError, match=r"none of the 2 manifests .* is signed by SHA256:"):
        pull(tmp_path / "nothing", remote, PullChoice(require_signature=other))
    assert not (tmp_path / "nothing").exists()
    shown = PublicKey.load(public).shown
    assert sorted(len(one.signed_by or ()) for one in list_remote(remote).pushes) == [0, 1]
    assert [key for one in list_remote(remote).pushes for key in one.signed_by or ()] == [shown]


def test_signing_vouches_for_what_others_have_sent_too(tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    private, public = make_key(tmp_path, "ann")
    cache = make_cache(tmp_path / "cache")
    push(cache, remote)
    done = push(cache, remote, sign=private)
    assert done.signed_by == PublicKey.load(public).shown
    assert (done.sent, bool(done.manifest)) == (0, True)
    assert push(cache, remote, sign=private).manifest == ""
    pull(tmp_path / "there", remote, PullChoice(require_signature=public))
    assert content(tmp_path / "there") == content(cache.folder)


def test_a_signature_is_of_one_manifest_by_one_key(tmp_path: Path) -> None:
    private, public = make_key(tmp_path, "ann")
    other, _ = make_key(tmp_path, "bob")
    one, two = "a" * 64, "b" * 64
    signature = Signer.load(private).sign(one)
    key = PublicKey.load(public)
    assert key.signed(one, signature)
    assert not key.signed(two, signature)
    assert not key.signed(one, signature[:-1] + bytes([signature[-1] ^ 1]))
    assert not key.signed(one, b"")
    assert not key.signed(one, Signer.load(other).sign(one))


def test_every_flipped_byte_of_a_signature_unsigns(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    private, public = make_key(tmp_path, "ann")
    push(make_cache(tmp_path / "cache", TEXTS[:50]), str(remote), sign=private)
    ((name, data),) = files_of(remote, "signatures").items()
    for place in range(0, len(data), 7):
        changed = bytearray(data)
        changed[place] ^= 1
        (remote / "signatures" / name).write_bytes(changed)
        if bytes(changed).lower() == data.lower() or chr(data[place]).isspace():
            continue
        with pytest.raises(RemoteError, match="is signed by"):
            pull(tmp_path / "there", str(remote), PullChoice(require_signature=public))
        assert [one.signed_by for one in list_remote(str(remote)).pushes] == [()]


def test_a_signature_does_not_go_over_to_another_manifest(tmp_path: Path) -> None:
    remote = tmp_path / "remote"
    private, public = make_key(tmp_path, "ann")
    push(make_cache(tmp_path / "mine", TEXTS[:50], name="mine"), str(remote), sign=private)
    (signed,) = (path.name for path in (remote / "signatures").iterdir())
    push(make_cache(tmp_path / "theirs", TEXTS[50:], name="theirs"), str(remote))
    (foreign,) = (name for name in files_of(remote, "manifests") if not name.startswith(signed))
    (remote / "signatures" / signed).rename(remote / "signatures" / foreign.removesuffix(".json"))
    with pytest.raises(RemoteError, match="is signed by"):
        pull(tmp_path / "there", str(remote), PullChoice(require_signature=public))


@pytest.mark.parametrize("pem", [True, False], ids=["pem", "openssh"])
def test_a_locked_key_is_opened_with_the_environments_passphrase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pem: bool
) -> None:
    private, public = make_key(tmp_path, "ann", pem=pem, passphrase=b"open sesame")
    for nothing in (None, ""):
        if nothing is not None:
            monkeypatch.setenv(PASSPHRASE_VARIABLE, nothing)
        with pytest.raises(InputError, match=rf"a locked key: set \${PASSPHRASE_VARIABLE} to"):
            Signer.load(private)
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "wrong")
    with pytest.raises(InputError, match=rf"passphrase in \${PASSPHRASE_VARIABLE} does not open") as found:
        Signer.load(private)
    assert "wrong" not in str(found.value)
    monkeypatch.setenv(PASSPHRASE_VARIABLE, "open sesame")
    assert Signer.load(private).public == PublicKey.load(public)
    free, _ = make_key(tmp_path, "free")
    assert Signer.load(free).fingerprint != Signer.load(private).fingerprint


def test_what_is_no_key_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    private, public = make_key(tmp_path, "ann")
    for load, wrong, told in (
        (Signer.load, public, "holds a public key, not the private one: expected"),
        (PublicKey.load, private, "holds a private key, not the public one: expected"),
    ):
        with pytest.raises(InputError, match=told):
            load(wrong)
    (tmp_path / "nonsense").write_bytes(b"nonsense")
    (tmp_path / "curve").write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()
        )
    )
    for load in (Signer.load, PublicKey.load):
        with pytest.raises(InputError, match=r"holds no p[a-z]+ key[^(]*: expected"):
            load(tmp_path / "nonsense")
        with pytest.raises(MissingInputError, match="no key at"):
            load(tmp_path / "nothing")
    with pytest.raises(InputError, match="another kind"):
        Signer.load(tmp_path / "curve")


class Meeting(FolderPlace):
    """A folder that answers about signatures once two ask at the same time."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.both = threading.Barrier(2, timeout=60)

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        if path.startswith("signatures/"):
            self.both.wait()
        yield from super().blocks(path, size)

    def list(self, folder: str) -> dict[str, Stat]:
        if folder.startswith("signatures/"):
            self.both.wait()
        return super().list(folder)


def test_signatures_of_many_pushes_are_looked_at_at_once(tmp_path: Path) -> None:
    private, _ = make_key(tmp_path, "ann")
    caches = [make_cache(tmp_path / name, TEXTS[:40], name=name) for name in ("one", "two")]
    for cache in caches:
        push(cache, str(tmp_path / "remote"))
    remote = Remote(parse_location(str(tmp_path / "remote")), Meeting(tmp_path / "remote"))
    assert list(RemoteState(remote, caches[0], Signer.load(private)).stock()) == []
    assert superseded(remote, remote.survey().manifests) == {}
