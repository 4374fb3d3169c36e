"""Input token embeddings of a teacher, stored once beside its contract; SimTDE's students learn from them.

The file is a safetensors file with one spelling: its header follows from the contract and the table, and
holds the sha256 of the rest of the file, so every changed byte is found.
"""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.fsio import canonical_json, parsed_json, regular_size, write_bytes

TABLE_FILE = "token_embeddings.safetensors"
"""Name of the file in a teacher's folder."""

TABLE_VERSION = 2
_WITHOUT_PROJECTION = 1  # files without a projection keep the version that first wrote them
_MOST_HEADER_BYTES = 1 << 14
_MOST_TOKEN_BYTES = 12 << 20  # half a million tokens of a multilingual vocabulary take six megabytes
_BLOCK_BYTES = 1 << 20
_BLOCK_ROWS = 4096


@dataclass(frozen=True, eq=False)
class TokenTable:
    """Input of a teacher's layers for each token, without positions.

    Attributes:
        word: input word embeddings, float32 of shape (V, d); d need not be the width of a sentence vector.
        tokens: the V tokens in the order of their ids, as the tokenizer spells them; empty for an id without.
        norm_weight: weight of the LayerNorm behind the embeddings, float32 of shape (d,); None without one.
        norm_bias: its bias, float32 of shape (d,); None without one.
        norm_eps: what it adds to the variance; None without a norm.
        type_row: first row of the table of token types, float32 of shape (d,); None without one.
        project_weight: matrix of the linear map to the width h of the layers, float32 of shape (h, d); None
            without one.
        project_bias: its bias, float32 of shape (h,); None without one.

    Raises:
        InputError: if the parts do not belong together.
    """

    word: Vectors
    tokens: tuple[str, ...]
    norm_weight: NDArray[np.float32] | None = None
    norm_bias: NDArray[np.float32] | None = None
    norm_eps: float | None = None
    type_row: NDArray[np.float32] | None = None
    project_weight: NDArray[np.float32] | None = None
    project_bias: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        if self.word.ndim != 2 or not self.word.size or len(self.tokens) != len(self.word):
            raise InputError(
                f"word embeddings of shape {self.word.shape} for {len(self.tokens):,} tokens, expected (V, d)"
            )
        width = self.word.shape[1]
        height = 0 if self.project_bias is None else self.project_bias.size
        expected = {
            "norm_weight": (width,),
            "norm_bias": (width,),
            "type_row": (width,),
            "project_weight": (height, width),
            "project_bias": (height,),
        }
        for name, shape in expected.items():
            part = getattr(self, name)
            if part is not None and (part.shape != shape or not part.size):
                raise InputError(f"{name} has shape {part.shape}, expected {shape}")
        normed = self.norm_weight is not None
        if normed != (self.norm_eps is not None) or (self.norm_bias is not None and not normed):
            raise InputError("norm_weight and norm_eps go together, norm_bias needs both")
        if self.norm_eps is not None and not 0 <= self.norm_eps < math.inf:
            raise InputError(f"norm_eps is {self.norm_eps}, expected a finite number of at least 0")
        if (self.project_weight is None) != (self.project_bias is None):
            raise InputError("project_weight and project_bias go together")

    def write(self, path: Path, contract: Contract) -> None:
        """Write the table atomically; the same table gives the same bytes.

        Raises:
            InputError: if its tokens take more bytes than a reader allows.
            StorageError: if it cannot be written.
        """
        parts = self._parts()
        if parts["tokens"].nbytes > _MOST_TOKEN_BYTES:
            raise InputError(
                f"tokens of {parts['tokens'].nbytes:,} bytes: expected at most {_MOST_TOKEN_BYTES:,}; this "
                "vocabulary cannot be stored in a cache"
            )
        header = self._header(contract.id)
        pieces = [part.reshape(-1).view(np.uint8).data for part in parts.values()]
        digest = hashlib.sha256(canonical_json(header))
        for piece in pieces:
            digest.update(piece)
        write_bytes(path, _spelled(header, digest.hexdigest()), *pieces)

    @classmethod
    def read(cls, path: Path, contract: Contract | str) -> TokenTable:
        """Read a table; its tensors are mapped, not copied.

        Args:
            path: the file.
            contract: contract of its teacher, or the contract's id.

        Raises:
            CorruptCacheError: if the file is damaged, missing, or another teacher's.
            CacheFormatError: if a newer version of embedcache wrote it.
        """
        try:
            return cls._read(path, contract if isinstance(contract, str) else contract.id)
        except (CorruptCacheError, CacheFormatError):
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise CorruptCacheError(
                f"{path} is damaged ({str(error)[:200]}): run 'embedcache repair'"
            ) from error

    @classmethod
    def _read(cls, path: Path, contract_id: str) -> TokenTable:
        size = regular_size(path)
        with path.open("rb") as handle:
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
        start = 8 + int.from_bytes(data[:8], "little")
        if start > min(size, _MOST_HEADER_BYTES):
            raise ValueError(f"a header of {start:,} bytes in a file of {size:,}")
        header: Any = parsed_json(data[8:start])
        metadata = header["__metadata__"]
        sha256 = metadata.pop("sha256")
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        if size != start + max(entry["data_offsets"][1] for entry in entries.values()):
            raise ValueError("its size is not that of its tensors")
        digest = hashlib.sha256(canonical_json(header))
        view = memoryview(data)
        for at in range(start, size, _BLOCK_BYTES):
            digest.update(view[at : at + _BLOCK_BYTES])
        if digest.hexdigest() != sha256:
            raise ValueError("its bytes do not have the digest in its header")
        if int(metadata["version"]) > TABLE_VERSION:
            raise CacheFormatError(
                f"{path} has version {metadata['version'][:20]}, this embedcache reads version "
                f"{TABLE_VERSION}: upgrade embedcache"
            )
        if metadata["contract"] != contract_id:
            raise CorruptCacheError(f"{path} belongs to another teacher: run 'embedcache repair'")
        parts = {name: _tensor(data, start, name, entry) for name, entry in entries.items()}
        tokens = parsed_json(parts["tokens"].tobytes())
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise ValueError("its tokens are no list of texts")
        table = cls(
            parts["word"],
            tuple(tokens),
            parts.get("norm.weight"),
            parts.get("norm.bias"),
            float(metadata["norm_eps"]) if "norm_eps" in metadata else None,
            parts.get("type"),
            parts.get("project.weight"),
            parts.get("project.bias"),
        )
        if _spelled(table._header(contract_id), sha256) != data[:start]:
            raise ValueError("its header is not as embedcache writes it")
        return table

    def rows_of(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Rows of ``tokens``, int64 of shape (n,).

        Raises:
            InputError: if the table lacks a token; the first ones are named.
        """
        missing = [token for token in tokens if token not in self._row_of]
        if missing:
            shown = ", ".join(repr(token) for token in missing[:5])
            raise InputError(
                f"{len(missing):,} of {len(tokens):,} tokens are not in the teacher's token embeddings "
                f"({shown}{', …' if len(missing) > 5 else ''}): use tokens of the teacher's own tokenizer"
            )
        return np.array([self._row_of[token] for token in tokens], dtype=np.int64)

    def words(self) -> Vectors:
        """Word embeddings in the width of the layers, float32 of shape (V, h)."""
        return self._projected(self.word)

    def block(self) -> Vectors:
        """LayerNorm(word + type) in the width of the layers, float32 of shape (V, h)."""
        return self._projected(self._normalised())

    def _projected(self, rows: Vectors) -> Vectors:
        if self.project_weight is None or self.project_bias is None:
            return rows
        matrix, bias = self.project_weight.T.astype(np.float64), self.project_bias
        out = np.empty((len(rows), len(bias)), dtype=np.float32)
        for first in range(0, len(out), _BLOCK_ROWS):
            out[first : first + _BLOCK_ROWS] = rows[first : first + _BLOCK_ROWS] @ matrix + bias
        return out

    def _normalised(self) -> Vectors:
        out = np.empty(self.word.shape, dtype=np.float32)
        for first in range(0, len(out), _BLOCK_ROWS):
            rows = self.word[first : first + _BLOCK_ROWS].astype(np.float64)
            if self.type_row is not None:
                rows += self.type_row
            if self.norm_weight is not None and self.norm_eps is not None:
                rows -= rows.mean(axis=1, keepdims=True)
                rows /= np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + self.norm_eps)
                rows *= self.norm_weight
                if self.norm_bias is not None:
                    rows += self.norm_bias
            out[first : first + _BLOCK_ROWS] = rows
        return out

    @cached_property
    def _row_of(self) -> dict[str, int]:
        # The first row of a duplicate token counts.
        return {token: row for row, token in reversed(list(enumerate(self.tokens))) if token}

    def _parts(self) -> dict[str, NDArray[Any]]:
        """Tensors by name, in the order of the file."""
        found = {
            "norm.bias": self.norm_bias,
            "norm.weight": self.norm_weight,
            "project.bias": self.project_bias,
            "project.weight": self.project_weight,
            "type": self.type_row,
            "word": self.word,
        }
        parts: dict[str, NDArray[Any]] = {
            name: np.ascontiguousarray(part, dtype="<f4") for name, part in found.items() if part is not None
        }
        return {**parts, "tokens": np.frombuffer(canonical_json(list(self.tokens)), np.uint8)}

    def _header(self, contract_id: str) -> dict[str, Any]:
        """Header without the digest."""
        version = _WITHOUT_PROJECTION if self.project_bias is None else TABLE_VERSION
        metadata = {"contract": contract_id, "version": str(version)}
        if self.norm_eps is not None:
            metadata["norm_eps"] = repr(self.norm_eps)
        header: dict[str, Any] = {"__metadata__": metadata}
        begin = 0
        for name, part in self._parts().items():
            end = begin + part.nbytes
            dtype = "U8" if name == "tokens" else "F32"
            header[name] = {"dtype": dtype, "shape": list(part.shape), "data_offsets": [begin, end]}
            begin = end
        return header


def _spelled(header: Mapping[str, Any], sha256: str) -> bytes:
    """Bytes before the tensors."""
    spelled = canonical_json({**header, "__metadata__": {**header["__metadata__"], "sha256": sha256}})
    # Blanks align the tensors, so they can be mapped.
    spelled += b" " * (-len(spelled) % 8)
    return len(spelled).to_bytes(8, "little") + spelled


def _tensor(data: mmap.mmap, start: int, name: str, entry: Mapping[str, Any]) -> NDArray[Any]:
    """Tensor of a mapped file; ``ValueError`` if no writer leaves such a one."""
    shape, (begin, _) = tuple(entry["shape"]), entry["data_offsets"]
    dtype = np.dtype(np.uint8) if name == "tokens" else np.dtype("<f4")
    if name == "tokens" and math.prod(shape) > _MOST_TOKEN_BYTES:
        raise ValueError(f"tokens of {math.prod(shape):,} bytes")
    if begin < 0 or any(size < 1 for size in shape):
        raise ValueError(f"tensor {name[:20]!r} of shape {str(shape)[:40]}")
    tensor = np.frombuffer(data, dtype, math.prod(shape), start + begin).reshape(shape)
    for first in range(0, len(tensor), _BLOCK_ROWS):
        if not np.isfinite(tensor[first : first + _BLOCK_ROWS]).all():
            raise ValueError(f"{name} holds numbers that are not finite")
    return tensor


def read_stored(cache: Path, teacher: str, contract: Contract, source: str | None = None) -> TokenTable:
    """Read the token embeddings of a teacher from a cache.

    Args:
        cache: the cache's folder.
        teacher: the teacher's name.
        contract: its contract.
        source: alias, hub id or folder of its model, for the message; default: its name.

    Raises:
        InputError: if there are none.
        CorruptCacheError: if they are damaged.
    """
    path = table_path(cache, contract)
    if not path.exists():
        raise InputError(
            f"no token embeddings of {teacher!r} in {cache}: run 'embedcache build CORPUS --teacher "
            f"{source or teacher} --cache {cache} --token-embeddings'"
        )
    return TokenTable.read(path, contract)


def table_path(cache: Path, contract: Contract) -> Path:
    """Path of a teacher's token embeddings in the cache's folder."""
    return cache / "teachers" / contract.id / TABLE_FILE
