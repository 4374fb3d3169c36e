"""Signatures of manifests, with ed25519 keys as ssh-keygen makes them.

A manifest lists the digests of all its files, so its signature vouches for every byte.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable
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
_SSH_PREFIX = b"\0\0\0\x0bssh-ed25519\0\0\0\x20"
_LARGEST_KEYS, _LARGEST_SIGNATURE = 1 << 20, 4096


def public_keys(path: str | Path) -> list[bytes]:
    """Return the public keys in a file, each a line as in ``id_ed25519.pub``; 32 bytes each.

    Raises:
        InputError: if the file cannot be read, or holds anything but public ed25519 keys.
        MissingExtraError: if ``cryptography`` is not installed.
    """
    lines = [line.strip() for line in _read_key(path).splitlines()]
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        keys = [load_ssh_public_key(line) for line in lines if line and line[:1] != b"#"]
    except (ValueError, UnsupportedAlgorithm):
        keys = []
    found = [key.public_bytes_raw() for key in keys if isinstance(key, Ed25519PublicKey)]
    if not found or len(found) != len(keys):
        raise InputError(f"{path}: expected public ed25519 keys, each a line that begins with ssh-ed25519.")
    return found


def private_key(path: str | Path) -> Ed25519PrivateKey:
    """Return OpenSSH's private key in a file; a locked one opens with ``$EMBEDCACHE_SIGN_PASSPHRASE``.

    Raises:
        InputError: if the file cannot be read, or holds no private ed25519 key that opens.
        MissingExtraError: if ``cryptography`` is not installed.
    """
    data = _read_key(path)
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(data, os.environ.get(PASSPHRASE_VARIABLE, "").encode() or None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        # Without the library's message: it may contain a part of the key.
        raise InputError(
            f"{path}: expected a private ed25519 key, as 'ssh-keygen -t ed25519' makes it; set "
            f"${PASSPHRASE_VARIABLE} if it is locked, and only then."
        )
    return key


def sign_manifest(remote: Remote, name: str, key: Ed25519PrivateKey) -> None:
    """Write the signature of a manifest to a remote; it comes before the manifest."""
    public = key.public_key().public_bytes_raw()
    signature = key.sign(_DOMAIN + digest_in(name).encode()).hex()
    value = {"version": 2, "manifest": digest_in(name), "key": public.hex(), "signature": signature}
    remote.write(_path(name, public), spelled_json(value))


def signed_by(remote: Remote, names: Iterable[str], keys: Iterable[bytes]) -> list[str]:
    """Return those of the manifests ``names`` that one of ``keys`` has signed; each signature is checked.

    Raises:
        RemoteError: if the signatures cannot be read.
    """
    asked, every = list(names), list(keys)
    signed = remote.in_threads(lambda name: any(_is_signed(remote, name, key) for key in every), asked)
    return [name for name, is_signed in zip(asked, signed, strict=True) if is_signed]


def require_signed(remote: Remote, names: Iterable[str], keys_file: str | Path) -> list[str]:
    """Return the manifests that a key of ``keys_file`` has signed.

    Raises:
        RemoteError: if there are none.
        InputError, MissingExtraError: as ``public_keys``.
    """
    keys = public_keys(keys_file)
    signed = signed_by(remote, names, keys)
    if not signed:
        shown = (base64.b64encode(_fingerprint(key)).decode().rstrip("=") for key in keys)
        raise RemoteError(
            f"{remote.url}: no manifest is signed by {', '.join(f'SHA256:{one}' for one in shown)}. "
            "Check the key, or let its owner push again with a signature."
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


def _fingerprint(key: bytes) -> bytes:
    """Return the SHA-256 of a public key as ssh spells it."""
    return hashlib.sha256(_SSH_PREFIX + key).digest()


def _path(name: str, key: bytes) -> str:
    return f"signatures/{digest_in(name)}/{_fingerprint(key).hex()}.json"


def _read_key(path: str | Path) -> bytes:
    if importlib.util.find_spec("cryptography") is None:
        raise MissingExtraError("signatures need cryptography: pip install 'embedcache-distill[sign]'.")
    try:
        # Keys may lie behind links: they are the user's own.
        return read_regular(Path(path).expanduser().resolve(), _LARGEST_KEYS)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: the key cannot be read ({error}).") from error
