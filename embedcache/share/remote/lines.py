"""What manifests say of the same object: who says so, who is wrong, and who contradicts whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from embedcache.share.remote.manifest import IndexObject, Manifest, SharedFile
from embedcache.share.remote.remote import Remote, SharedObject, object_path
from embedcache.sizes import counted

_SHOWN = 3


@dataclass(frozen=True)
class WrongLine:
    """What a manifest says of an object that is not so, or that another manifest contradicts.

    Attributes:
        manifest: its id.
        path: the file, as it lies in a cache.
        said: what the manifest says of it.
        found: what its object is, or others say.
    """

    manifest: str
    path: str
    said: str
    found: str


def wrong_lines(manifests: Sequence[Manifest], sizes: Mapping[str, int]) -> list[WrongLine]:
    """Return what manifests say that cannot be right.

    Args:
        manifests: the manifests.
        sizes: of objects that are sound, by digest.
    """
    rows = {digest: said for digest, said in _said(manifests, "rows").items() if len(said) > 1}
    found: list[WrongLine] = []
    for manifest in manifests:
        for path, listed in _objects(manifest.files):
            size = sizes.get(listed.sha256)
            if size is not None and listed.bytes != size:
                said = f"{listed.bytes:,} bytes"
                found.append(WrongLine(manifest.id, path, said, counted(size, "byte")))
            if isinstance(listed, SharedFile) and listed.sha256 in rows:
                others = " or ".join(f"{count:,}" for count in sorted(rows[listed.sha256] - {listed.rows}))
                said = counted(listed.rows, "row")
                found.append(WrongLine(manifest.id, path, said, f"{others} as others say"))
    return found


def listed_so(manifests: Iterable[Manifest], shared: SharedObject) -> str:
    """Return which manifests say of an object what is known of it, and how to do without them, for errors.

    Args:
        manifests: the manifests.
        shared: the object, a file of a cache or a row index.

    Returns:
        Nothing where none does.
    """
    rows = shared.rows if isinstance(shared, SharedFile) else None
    names = [
        manifest.id[:12]
        for manifest in manifests
        if any(
            (listed.sha256, listed.bytes) == (shared.sha256, shared.bytes)
            and (rows is None or (isinstance(listed, SharedFile) and listed.rows == rows))
            for _, listed in _objects(manifest.files)
        )
    ]
    if not names:
        return ""
    options = " ".join(f"--skip-manifest {name}" for name in names[:_SHOWN])
    return f"{shown_manifests(names, 'list')} it so, and {options} does without"


def shown_manifests(names: Sequence[str], verb: str) -> str:
    """Return manifests as messages name them, some and how many more there are, and what they do."""
    if len(names) == 1:
        return f"manifest {names[0]} {verb}s"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"manifests {', '.join(names[:_SHOWN])}{more} {verb}"


def with_right_sizes(source: Remote, manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return manifests in which lines that contradict others about a size say what the object has.

    One manifest that lies must not keep anybody from what others list rightly. Where the place does not tell
    sizes, or has no such object, lines stay; so do those of files that cannot have the size of the object.

    Args:
        source: the remote.
        manifests: its manifests.

    Raises:
        RemoteError: if an object cannot be looked up.
    """
    asked = sorted(digest for digest, said in _said(manifests, "bytes").items() if len(said) > 1)
    if not asked:
        return list(manifests)
    stats = source.in_threads(lambda digest: source.stat(object_path(digest)), asked)
    sizes = {digest: stat.bytes for digest, stat in zip(asked, stats, strict=True) if stat and stat.bytes}
    return [_corrected(manifest, sizes) for manifest in manifests]


def _corrected(manifest: Manifest, sizes: Mapping[str, int]) -> Manifest:
    files = tuple(_with_size(file, sizes.get(file.sha256, file.bytes)) for file in manifest.files)
    if all(file is said for file, said in zip(files, manifest.files, strict=True)):
        return manifest
    right = replace(manifest, files=files)
    # It is still called by the digest of what it said.
    vars(right)["id"] = manifest.id
    return right


def _with_size(file: SharedFile, size: int) -> SharedFile:
    """Return a file with another size; the same where it has that, or no such file can."""
    if size == file.bytes:
        return file
    right = replace(file, bytes=size)
    try:
        right.entry  # noqa: B018 - looks at the size
    except ValueError:
        return file
    return right


def _said(manifests: Iterable[Manifest], what: str) -> dict[str, set[int]]:
    """Return what manifests say of each file, by digest: its ``bytes`` or its ``rows``."""
    said: dict[str, set[int]] = {}
    # Manifests that were read together share most of their file objects.
    for file in {id(file): file for manifest in manifests for file in manifest.files}.values():
        said.setdefault(file.sha256, set()).add(getattr(file, what))
    return said


def _objects(files: Iterable[SharedFile]) -> Iterator[tuple[str, SharedFile | IndexObject]]:
    for file in files:
        yield file.path, file
        if file.index is not None:
            yield f"row index of {file.path}", file.index
