"""How the file of a teacher's token embeddings is laid out: a safetensors file with one spelling.

Its header follows from the contract and the shapes, and carries a digest of everything else in the file. So
no byte of it can change unseen.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.fsio import canonical_json, parsed_json, regular_size

TOKEN_TABLE_VERSION = 2
_WITHOUT_PROJECTION = 1
"""Version of files that hold no projection, which readers of version 1 know."""

# Larger than any model has, and small enough to be read through before anybody gives up.
MOST_BYTES = 16 << 30
# Half a million tokens of a multilingual vocabulary are spelled in six megabytes.
MOST_TOKEN_BYTES = 12 << 20
_LENGTH_BYTES = 8
LARGEST_HEADER_BYTES = 1 << 14
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Layout:
    """All that the header of a file says beside its digest.

    Attributes:
        contract_id: whose table it is.
        rows: V.
        width: d.
        token_bytes: bytes that the tokens are spelled in.
        parts: names of the tensors.
        norm_eps: as in the table.
        projected: h, width of what a projection makes of them; None without one.
    """

    contract_id: str
    rows: int
    width: int
    token_bytes: int
    parts: frozenset[str]
    norm_eps: float | None
    projected: int | None = None

    def places(self) -> Iterator[tuple[str, list[int], int, int]]:
        """Yield name, shape, first byte and the byte after the last one of each tensor, in file order."""
        begin = 0
        vector = [self.width]
        h = self.projected or 0
        shapes = {
            "norm.bias": vector,
            "norm.weight": vector,
            "project.bias": [h],
            "project.weight": [h, self.width],
            "type": vector,
            "word": [self.rows, self.width],
        }
        for name, shape in shapes.items():
            if name in self.parts:
                yield name, shape, begin, (end := begin + 4 * math.prod(shape))
                begin = end
        yield "tokens", [self.token_bytes], begin, begin + self.token_bytes

    @property
    def data_bytes(self) -> int:
        """Bytes of all tensors."""
        return max(end for *_, end in self.places())

    def fields(self) -> dict[str, dict[str, Any]]:
        """Return the header as JSON, without the digest."""
        version = _WITHOUT_PROJECTION if self.projected is None else TOKEN_TABLE_VERSION
        metadata = {"contract": self.contract_id, "version": str(version)}
        if self.norm_eps is not None:
            metadata["norm_eps"] = repr(self.norm_eps)
        found: dict[str, dict[str, Any]] = {"__metadata__": metadata}
        for name, shape, begin, end in self.places():
            dtype = "U8" if name == "tokens" else "F32"
            found[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        return found

    def header(self, sha256: str) -> bytes:
        """Return the one spelling of the bytes before the tensors."""
        fields = self.fields()
        fields["__metadata__"]["sha256"] = sha256
        spelled = canonical_json(fields)
        # Blanks, so that tensors begin where they can be mapped.
        spelled += b" " * (-len(spelled) % _LENGTH_BYTES)
        return len(spelled).to_bytes(_LENGTH_BYTES, "little") + spelled


def read_layout(path: Path, contract_id: str) -> tuple[Layout, str, int]:
    """Return what the header of a file says, the digest in it, and where the tensors begin.

    The tensors are not read; that the file is long enough for them is known.

    Raises:
        CorruptCacheError: if it is another teacher's.
        CacheFormatError: if a newer version of embedcache wrote it.
        ValueError: if it is no such file.
        OSError: if it cannot be read.
    """
    size = regular_size(path)
    if size > MOST_BYTES:
        raise ValueError(f"it has {size:,} bytes, more than such a file may have")
    with path.open("rb") as handle:
        length = handle.read(_LENGTH_BYTES)
        count = int.from_bytes(length, "little")
        if len(length) < _LENGTH_BYTES or count > min(size - _LENGTH_BYTES, LARGEST_HEADER_BYTES):
            raise ValueError(f"a header of {count:,} bytes does not fit into its {size:,}")
        spelled = length + handle.read(count)
        header = parsed_json(spelled[_LENGTH_BYTES:])
        metadata = header.get("__metadata__") if isinstance(header, dict) else None
        if not isinstance(header, dict) or not isinstance(metadata, dict):
            raise ValueError("its header is not that of token embeddings")
        is_others = metadata.get("contract") != contract_id
        # A changed byte must not pass for another version, nor for another teacher.
        is_whole = (_is_newer(metadata) or is_others) and _is_sealed(handle, header)
    if is_whole and _is_newer(metadata):
        raise CacheFormatError(
            f"{path} has version {str(metadata['version'])[:20]}, this embedcache reads token embeddings of "
            f"version {TOKEN_TABLE_VERSION}: upgrade embedcache"
        )
    layout = _layout_of(header, metadata)
    if layout.header(str(metadata.get("sha256"))) != spelled:
        raise ValueError("its header is not spelled as embedcache writes it")
    if is_others and not is_whole:
        raise ValueError("its contract is another, and its bytes do not have the digest in its header")
    if is_others:
        raise CorruptCacheError(
            f"{path} does not belong here (it holds the token embeddings of another teacher, "
            f"{layout.contract_id[:12]!r}): 'embedcache repair' makes it anew"
        )
    if size != len(spelled) + layout.data_bytes:
        wanted = len(spelled) + layout.data_bytes
        raise ValueError(f"it has {size:,} bytes, and its header tells of {wanted:,}")
    return layout, str(metadata["sha256"]), len(spelled)


def digest_of(fields: Mapping[str, Any], tensors: Iterable[bytes | memoryview]) -> str:
    """Return the digest in a header.

    Args:
        fields: the header as JSON, without the digest.
        tensors: all bytes behind the header, in pieces.
    """
    digest = hashlib.sha256(canonical_json(fields))
    for piece in tensors:
        digest.update(piece)
    return digest.hexdigest()


def blocks(handle: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a file in blocks."""
    while block := handle.read(_BLOCK_BYTES):
        yield block


def _is_sealed(handle: BinaryIO, header: Mapping[str, Any]) -> bool:
    """Return whether a header has the digest of itself and of the rest of its file."""
    metadata = {name: value for name, value in header["__metadata__"].items() if name != "sha256"}
    digest = digest_of({**header, "__metadata__": metadata}, blocks(handle))
    return bool(header["__metadata__"].get("sha256") == digest)


def _is_newer(metadata: Mapping[str, object]) -> bool:
    """Return whether the metadata of a file tells of a version after this one."""
    version = str(metadata.get("version"))
    return version.isascii() and version.isdigit() and int(version[:9]) > TOKEN_TABLE_VERSION


def _layout_of(header: Mapping[str, Any], metadata: Mapping[str, Any]) -> Layout:
    """Return the layout that a header may be the spelling of; that it is, has still to be seen.

    Raises:
        ValueError: if it cannot be.
    """
    try:
        rows, width = header["word"]["shape"]
        (token_bytes,) = header["tokens"]["shape"]
        eps = float(metadata["norm_eps"]) if "norm_eps" in metadata else None
    except (KeyError, TypeError, ValueError):
        raise ValueError("its header is not that of token embeddings") from None
    parts = frozenset(header) - {"__metadata__"}
    projected = _projected_in(header)
    counts = (rows, width, token_bytes, 1 if projected is None else projected)
    if not all(type(count) is int and count > 0 for count in counts) or token_bytes > MOST_TOKEN_BYTES:
        raise ValueError(f"its header tells of {str(counts)[:80]} rows, components and bytes of tokens")
    if ("norm.weight" in parts) != (eps is not None) or ("norm.bias" in parts and eps is None):
        raise ValueError("its header tells of a part of a norm only")
    if eps is not None and not 0 <= eps < math.inf:
        raise ValueError("its header tells of a norm that divides by no number")
    return Layout(str(metadata.get("contract")), rows, width, token_bytes, parts, eps, projected)


def _projected_in(header: Mapping[str, Any]) -> Any:
    """Return what a header says that a projection makes of embeddings, whatever that is; None without one."""
    found = [name in header for name in ("project.weight", "project.bias")]
    if not any(found):
        return None
    if not all(found):
        raise ValueError("its header tells of a part of a projection only")
    try:
        (projected,) = header["project.bias"]["shape"]
    except (KeyError, TypeError, ValueError):
        raise ValueError("its header tells of a projection of no width") from None
    return projected
