"""Signatures of manifests, with ed25519 keys as ssh has them.

A manifest lists the digests of all its files, so its signature vouches for every byte.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.errors import InputError, MissingExtraError, RemoteError
from embedcache.fsio import read_regular, spelled_json
from embedcache.share.manifest import digest_in
from embedcache.share.remote import Remote

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PASSPHRASE_VARIABLE = "EMBEDCACHE_SIGN_PASSPHRASE"  # noqa: S105 - a name
_DOMAIN = b"embedcache manifest 2\n"
_LARGEST_KEYS, _LARGEST_SIGNATURE = 1 << 20, 4096


def fingerprint(key: bytes) -> str:
    """Return the SHA-256 of a public key of 32 bytes as ssh spells it, in hexadecimal."""
    blob = b"".join(struct.pack(">I", len(part)) + part for part in (b"ssh-ed25519", key))
    return hashlib.sha256(blob).hexdigest()


def shown(key: bytes) -> str:
    """Return the fingerprint of a public key as ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(bytes.fromhex(fingerprint(key))).decode().rstrip("=")


def public_keys(path: str | Path) -> list[bytes]:
    """Return the public keys in a file: one PEM, or lines as in ``id_ed25519.pub`` and ``authorized_keys``.

    Raises:
        InputError: if the file cannot be read, or holds anything but public ed25519 keys.
        MissingExtraError: if ``cryptography`` is not installed.
    """
    data = _read_key(path)
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        if data.lstrip().startswith(b"-----"):
            keys = [serialization.load_pem_public_key(data)]
        else:
            lines = [line.strip() for line in data.splitlines()]
            # ssh_public_key wants an algorithm first, so options of authorized_keys are refused.
            keys = [serialization.load_ssh_public_key(one) for one in lines if one and one[:1] != b"#"]
    except (ValueError, TypeError, UnsupportedAlgorithm):
        keys = []
    if not keys or not all(isinstance(key, Ed25519PublicKey) for key in keys):
        raise InputError(
            f"{path}: expected public ed25519 keys, each a line that begins with ssh-ed25519, or PEM."
        )
    return [key.public_bytes_raw() for key in keys if isinstance(key, Ed25519PublicKey)]


def private_key(path: str | Path) -> Ed25519PrivateKey:
    """Return the private key in a file, OpenSSH's or PEM; a locked one with ``$EMBEDCACHE_SIGN_PASSPHRASE``.

    Raises:
        InputError: if the file cannot be read, or holds no private ed25519 key that opens.
        MissingExtraError: if ``cryptography`` is not installed.
    """
    data = _read_key(path)
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    is_ssh = b"BEGIN OPENSSH PRIVATE KEY" in data
    load = serialization.load_ssh_private_key if is_ssh else serialization.load_pem_private_key
    passphrase = os.environ.get(PASSPHRASE_VARIABLE, "").encode() or None
    key = None
    # A key that is not locked refuses a passphrase. No message may show anything of either.
    for attempt in dict.fromkeys((None, passphrase)):
        with suppress(ValueError, TypeError, UnsupportedAlgorithm):
            key = load(data, attempt)
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            f"{path}: expected a private ed25519 key, as 'ssh-keygen -t ed25519' makes it; the passphrase of "
            f"a locked one is read from ${PASSPHRASE_VARIABLE}."
        )
    return key


def sign_manifest(remote: Remote, name: str, key: Ed25519PrivateKey) -> None:
    """Write the signature of a manifest to a remote; it comes before the manifest."""
    public = key.public_key().public_bytes_raw()
    signature = key.sign(_DOMAIN + digest_in(name).encode()).hex()
    value = {"version": 2, "manifest": digest_in(name), "key": public.hex(), "signature": signature}
    remote.write(_path(name, public), spelled_json(value))


def signed_by(remote: Remote, names: Iterable[str], keys: Iterable[bytes]) -> dict[str, list[bytes]]:
    """Return which of ``keys`` have signed each of the manifests ``names``; each signature is checked.

    Raises:
        RemoteError: if the signatures cannot be read.
    """
    asked, every = list(names), list(keys)

    def check(name: str) -> list[bytes]:
        return [key for key in every if _is_signed(remote, name, key)]

    return dict(zip(asked, remote.in_threads(check, asked), strict=True))


def require_signed(remote: Remote, names: Iterable[str], keys_file: str | Path) -> list[str]:
    """Return the manifests that a key of ``keys_file`` has signed.

    Raises:
        RemoteError: if there are none.
        InputError, MissingExtraError: as :func:`public_keys`.
    """
    keys = public_keys(keys_file)
    found = signed_by(remote, names, keys)
    signed = [name for name, by in found.items() if by]
    if not signed:
        raise RemoteError(
            f"{remote.url}: none of {len(found):,} manifests is signed by {', '.join(map(shown, keys))}. "
            "Check the key, or let its owner push again with --sign."
        )
    return signed


def _is_signed(remote: Remote, name: str, key: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    data = remote.read(_path(name, key), _LARGEST_SIGNATURE)
    try:
        signature = bytes.fromhex(json.loads(data or b"{}")["signature"])
        Ed25519PublicKey.from_public_bytes(key).verify(signature, _DOMAIN + digest_in(name).encode())
    except (ValueError, KeyError, TypeError, RecursionError, InvalidSignature):
        return False
    return True


def _path(name: str, key: bytes) -> str:
    return f"signatures/{digest_in(name)}/{fingerprint(key)}.json"


def _read_key(path: str | Path) -> bytes:
    if importlib.util.find_spec("cryptography") is None:
        raise MissingExtraError("signatures need cryptography: pip install 'embedcache[sign]'.")
    try:
        # Keys may lie behind links: they are the user's own.
        return read_regular(Path(path).expanduser().resolve(), _LARGEST_KEYS)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the key cannot be read ({error}).") from error
