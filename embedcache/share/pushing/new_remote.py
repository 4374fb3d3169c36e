"""Where a push may make a remote: not among files of something else, not in the cache that is pushed, and not
where one was that is only out of sight.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from embedcache.cache import Cache
from embedcache.errors import InputError, RemoteError
from embedcache.share.remote.remote import MARKER, Remote

_OWN_NAMES = frozenset({"objects", "manifests", "cards", "claims", "signatures", MARKER})
# A disk that was just formatted is not empty either.
_IGNORED_NAMES = frozenset({"lost+found"})


def refuse_unfit_place(remote: Remote, cache: Cache, *, new_remote: bool = False) -> None:
    """Refuse what can only be read, a remote and a cache inside each other, a new one among other files.

    In an empty folder none is made if the cache knows one of that place: its disk may not be mounted.

    Buckets are not looked at: a folder of theirs is a prefix of names.

    Args:
        remote: the remote, or where it will be.
        cache: the cache that is pushed.
        new_remote: whether a remote is made where the cache knows another one of.

    Raises:
        InputError: if the place cannot be used.
        RemoteError: if the remote can only be read, cannot be reached, or as :meth:`Remote.is_there`.
    """
    if remote.place.read_only:
        raise RemoteError(
            f"{remote.where} can only be read: push to a folder, s3://, gs:// or sftp://, and copy that there"
        )
    if remote.location.scheme == "file":
        _refuse_nested(Path(remote.location.path), cache.folder)
    if remote.location.scheme in ("file", "sftp") and not remote.is_there():
        names = _names_in(remote)
        _refuse_other_files(remote, names)
        if remote.location.scheme == "file" and not new_remote and not names & _OWN_NAMES:
            _refuse_missing(remote, cache)


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


def _refuse_missing(remote: Remote, cache: Cache) -> None:
    """Refuse to make a remote where the cache has seen one: the folder tells for what it keeps of that."""
    # It may be empty: copies of manifests go with the manifests.
    if (cache.derived_folder / "remotes" / remote.id).is_dir():
        raise InputError(
            f"{remote.where} was a remote when {cache.folder} last used it, and there is none now: "
            "mount its disk, or make a new one there with --new-remote"
        )


def _refuse_other_files(remote: Remote, found: Collection[str]) -> None:
    """Refuse to make a remote where something else lies; what a begun push has left is no such thing."""
    names = sorted(name for name in found if not _may_lie_there(name))
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
