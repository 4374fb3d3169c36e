"""Where a push may make a remote: not among files of something else, and not in the cache it pushes."""

from __future__ import annotations

from pathlib import Path

from embedcache.errors import InputError
from embedcache.share.remote.remote import MARKER, Remote

_OWN_NAMES = frozenset({"objects", "manifests", "cards", "claims", "signatures", MARKER})
# A disk that was just formatted is not empty either.
_IGNORED_NAMES = frozenset({"lost+found"})


def refuse_unfit_place(remote: Remote, cache: Path) -> None:
    """Refuse a remote and a cache inside each other, and a new remote in a folder of other files.

    Buckets are not looked at: a folder of theirs is a prefix of names.

    Args:
        remote: the remote, or where it will be.
        cache: the folder of the cache that is pushed.

    Raises:
        InputError: if the place cannot be used.
        RemoteError: if the remote cannot be reached, or as :meth:`Remote.is_there`.
    """
    if remote.location.scheme == "file":
        _refuse_nested(Path(remote.location.path), cache)
    if remote.location.scheme in ("file", "sftp") and not remote.is_there():
        _refuse_other_files(remote)


def _refuse_nested(remote: Path, cache: Path) -> None:
    remote_folder, cache_folder = remote.expanduser().resolve(), cache.resolve()
    # That the two are one folder is told by the remote, which finds a cache there.
    if remote_folder == cache_folder:
        return
    if remote_folder.is_relative_to(cache_folder):
        raise InputError(
            f"the remote {remote} lies inside the cache {cache} that is pushed: give a folder outside of it"
        )
    if cache_folder.is_relative_to(remote_folder):
        raise InputError(
            f"the cache {cache} lies inside the remote {remote}: give a folder for the remote that does not "
            "hold the cache"
        )


def _refuse_other_files(remote: Remote) -> None:
    """Refuse to make a remote where something else lies; what a begun push has left is no such thing."""
    names = sorted(name for name in _names_in(remote) if not _may_lie_there(name))
    if names:
        raise InputError(
            f"{remote.where} holds other files ({', '.join(map(repr, names[:3]))}"
            f"{', ...' if len(names) > 3 else ''}) and is no remote: give a new or an empty folder, say "
            f"{remote.where.rstrip('/')}/remote"
        )


def _names_in(remote: Remote) -> set[str]:
    if remote.location.scheme != "file":
        # Folders on a server are not listed.
        return set(remote.files_in(""))
    try:
        return {path.name for path in Path(remote.location.path).iterdir()}
    except OSError:
        # There is no such folder yet; of another reason the first write tells.
        return set()


def _may_lie_there(name: str) -> bool:
    return name.startswith(".") or name in _OWN_NAMES or name in _IGNORED_NAMES
