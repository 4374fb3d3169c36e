"""Signatures of manifests, with ed25519 keys as ssh has them.

What is signed is :data:`DOMAIN` followed by the manifest's sha256 in hexadecimal. A manifest lists digests of
all its files, so its signature vouches for every byte.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.errors import InputError, MissingExtraError, MissingInputError, RemoteError
from embedcache.fsio import parsed_json, read_regular, spelled_json
from embedcache.share.remote.names import digest_before
from embedcache.share.remote.remote import Remote

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

DOMAIN = b"embedcache manifest 1\n"
SIGNATURE_VERSION = 1
PASSPHRASE_VARIABLE = "EMBEDCACHE_SIGN_PASSPHRASE"  # noqa: S105 - a name

MOST_SIGNATURES = 100
_ALGORITHM = b"ssh-ed25519"
_KEY_BYTES = 32
_LARGEST_KEY_FILE = 1 << 16
_LARGEST_SIGNATURE = 1 << 16


@dataclass(frozen=True)
class PublicKey:
    """A public ed25519 key.

    Attributes:
        raw: its 32 bytes.
    """

    raw: bytes

    @property
    def fingerprint(self) -> str:
        """The sha256 of the key as ssh spells it, in hexadecimal; names its signatures."""
        return hashlib.sha256(self._blob).hexdigest()

    @property
    def shown(self) -> str:
        """The fingerprint as ``ssh-keygen -l`` prints it."""
        return "SHA256:" + base64.b64encode(bytes.fromhex(self.fingerprint)).decode().rstrip("=")

    @property
    def _blob(self) -> bytes:
        return b"".join(struct.pack(">I", len(part)) + part for part in (_ALGORITHM, self.raw))

    def signed(self, manifest: str, signature: bytes) -> bool:
        """Return whether ``signature`` is this key's of a manifest."""
        _require()
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, DOMAIN + manifest.encode())
        except InvalidSignature:
            return False
        return True

    @classmethod
    def load(cls, path: Path) -> PublicKey:
        """Read a public key: one line as in ``id_ed25519.pub``, or PEM.

        Raises:
            InputError: if the file holds none, or one of another kind.
            MissingExtraError: if ``cryptography`` is not installed.
        """
        _require()
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        data = _key_file(path)
        try:
            key = (
                serialization.load_pem_public_key(data)
                if data.lstrip().startswith(b"-----")
                else serialization.load_ssh_public_key(data.strip())
            )
        except (ValueError, TypeError, UnsupportedAlgorithm):
            found = "a private key, not the public one" if b"PRIVATE KEY-----" in data else "no public key"
            raise InputError(
                f"{path} holds {found}: expected a line that begins with ssh-ed25519, or PEM"
            ) from None
        if not isinstance(key, Ed25519PublicKey):
            raise InputError(f"{path} holds a public key of another kind: expected ed25519")
        return cls(key.public_bytes_raw())


class Signer:
    """A private ed25519 key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key().public_bytes_raw())

    @property
    def fingerprint(self) -> str:
        """The fingerprint of its public key."""
        return self.public.fingerprint

    def sign(self, manifest: str) -> bytes:
        """Return the signature of a manifest, given by its id; nothing is raised."""
        return self._key.sign(DOMAIN + manifest.encode())

    @classmethod
    def load(cls, path: Path) -> Signer:
        """Read a private key, OpenSSH's or PEM; one that is locked with ``$EMBEDCACHE_SIGN_PASSPHRASE``.

        Raises:
            InputError: if the file holds none, one of another kind, or one that stays locked.
            MissingExtraError: if ``cryptography`` is not installed.
        """
        _require()
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        data = _key_file(path)
        load = (
            serialization.load_ssh_private_key
            if b"BEGIN OPENSSH PRIVATE KEY" in data
            else serialization.load_pem_private_key
        )
        passphrase = None
        if is_locked := _is_locked(load, data):
            passphrase = os.environ.get(PASSPHRASE_VARIABLE, "").encode()
            if not passphrase:
                raise InputError(f"{path} holds a locked key: set ${PASSPHRASE_VARIABLE} to its passphrase")
        try:
            key = load(data, passphrase)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            # Nothing of the key, or of what opens it, may be shown.
            if is_locked:
                found = f"a locked key that the passphrase in ${PASSPHRASE_VARIABLE} does not open"
            elif data.lstrip().startswith((b"ssh-", b"-----BEGIN PUBLIC KEY")):
                found = "a public key, not the private one"
            else:
                found = "no private key that can be read"
            expected = "expected one of the kind ed25519, made with 'ssh-keygen -t ed25519'"
            raise InputError(f"{path} holds {found}: {expected}") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(f"{path} holds a private key of another kind: expected ed25519")
        return cls(key)


def _is_locked(load: Callable[[bytes, None], object], data: bytes) -> bool:
    """Return whether ``load`` wants a passphrase for what may be a private key."""
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        load(data, None)
    except TypeError:
        return True
    except (ValueError, UnsupportedAlgorithm):
        pass
    return False


def signature_path(manifest: str, fingerprint: str) -> str:
    """Return where the signature of a manifest lies on a remote."""
    return f"signatures/{manifest}/{fingerprint}.json"


def sign_manifest(remote: Remote, manifest: str, signer: Signer) -> None:
    """Put the signature of a manifest on a remote.

    Raises:
        RemoteError: if it cannot be written.
    """
    value = {
        "version": SIGNATURE_VERSION,
        "manifest": manifest,
        "key": signer.public.raw.hex(),
        "signature": signer.sign(manifest).hex(),
    }
    remote.write(signature_path(manifest, signer.fingerprint), spelled_json(value))


def is_signed(remote: Remote, manifest: str, key: PublicKey) -> bool:
    """Return whether a remote has a valid signature of a manifest by ``key``.

    Raises:
        RemoteError: if the signature cannot be read.
        MissingExtraError: if there is one, and ``cryptography`` is not installed.
    """
    data = remote.read(signature_path(manifest, key.fingerprint), _LARGEST_SIGNATURE)
    signature = None if data is None else _signature_in(data, manifest, key)
    return signature is not None and key.signed(manifest, signature)


def signed_by(remote: Remote, manifest: str) -> list[PublicKey]:
    """Return the keys that have signed a manifest, each signature checked.

    Raises:
        RemoteError: if signatures cannot be read, or are more than anybody makes.
        MissingExtraError: if there is one, and ``cryptography`` is not installed.
    """
    keys = []
    files = remote.files_in(f"signatures/{manifest}")
    names = sorted(name for name in files if digest_before(name, ".json"))
    if len(names) > MOST_SIGNATURES:
        raise RemoteError(
            f"{remote.where} has {len(names):,} signatures of manifest {manifest[:12]}, expected "
            f"{MOST_SIGNATURES} at most: it is damaged or hostile"
        )
    for name in names:
        data = remote.read(f"signatures/{manifest}/{name}", _LARGEST_SIGNATURE)
        key = None if data is None else _key_in(data)
        if data is not None and key is not None and name == f"{key.fingerprint}.json":
            signature = _signature_in(data, manifest, key)
            if signature is not None and key.signed(manifest, signature):
                keys.append(key)
    return keys


def signed_manifests(remote: Remote, key: PublicKey) -> list[str]:
    """Return the ids of the manifests on a remote that ``key`` has signed.

    Raises:
        RemoteError: if there are none, or as :func:`is_signed`.
        MissingExtraError: as :func:`is_signed`.
    """
    ids = remote.manifest_ids()
    signed = signed_among(remote, ids, key)
    if not signed:
        raise RemoteError(
            f"none of the {len(ids):,} manifests of {remote.where} is signed by {key.shown}: see to it that "
            "this is the right key, or let its owner push again with --sign"
        )
    return signed


def signed_among(remote: Remote, ids: Sequence[str], key: PublicKey) -> list[str]:
    """Return those of the manifests ``ids`` that ``key`` has signed; many are asked for at once.

    Raises:
        RemoteError, MissingExtraError: as :func:`is_signed`.
    """
    answers = remote.in_threads(lambda manifest: is_signed(remote, manifest, key), ids)
    return [manifest for manifest, answer in zip(ids, answers, strict=True) if answer]


def _key_in(data: bytes) -> PublicKey | None:
    value = _parsed(data)
    try:
        raw = bytes.fromhex(str(value.get("key")))
    except ValueError:
        return None
    return PublicKey(raw) if len(raw) == _KEY_BYTES else None


def _signature_in(data: bytes, manifest: str, key: PublicKey) -> bytes | None:
    value = _parsed(data)
    if (value.get("version"), value.get("manifest"), value.get("key")) != (
        SIGNATURE_VERSION,
        manifest,
        key.raw.hex(),
    ):
        return None
    try:
        return bytes.fromhex(str(value.get("signature")))
    except ValueError:
        return None


def _parsed(data: bytes) -> dict[str, object]:
    try:
        value = parsed_json(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _key_file(path: Path) -> bytes:
    try:
        # Keys may lie behind links: they are the user's own.
        return read_regular(path.expanduser().resolve(), _LARGEST_KEY_FILE)
    except FileNotFoundError:
        raise MissingInputError(
            f"no key at {path}: give its file, or make one with 'ssh-keygen -t ed25519'"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"the key {path} cannot be read ({error})") from error


def _require() -> None:
    try:
        import cryptography  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingExtraError("signatures need cryptography: pip install 'embedcache[sign]'") from error
