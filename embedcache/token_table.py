"""A teacher's input token embeddings, kept once beside its contract: what students of SimTDE learn from."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.fsio import canonical_json, parsed_json, write_bytes
from embedcache.token_layout import MOST_BYTES, MOST_TOKEN_BYTES, Layout, blocks, digest_of, read_layout

if TYPE_CHECKING:
    from embedcache.teacher.load import Teacher

TABLE_FILE = "token_embeddings.safetensors"
"""Name of the file in a teacher's folder."""

_BLOCK_ROWS = 4096


@dataclass(frozen=True, eq=False)
class TokenTable:
    """What a teacher's encoder is fed for a token, but for its position.

    Attributes:
        word: input word embeddings, float32 of shape (V, d); d need not be the width of a sentence vector.
        tokens: the V tokens in the order of their ids, as the tokenizer spells them; empty for an id without.
        norm_weight: weight of the LayerNorm behind the embeddings, float32 of shape (d,); None without one.
        norm_bias: its bias, float32 of shape (d,); None without one.
        norm_eps: what it adds to the variance; None without a norm.
        type_row: first row of the table of token types, float32 of shape (d,); None without one.
        project_weight: matrix of the linear map to the width h of the layers, float32 of shape (h, d); None
            where they take embeddings as they are.
        project_bias: its bias, float32 of shape (h,); None without one.
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
        """Refuse parts that do not belong together.

        Raises:
            InputError: naming the part.
        """
        if self.word.ndim != 2 or not self.word.size or len(self.tokens) != len(self.word):
            raise InputError(
                f"word embeddings of shape {self.word.shape} and {len(self.tokens):,} tokens: expected "
                "(V, d) and V, at least one of each"
            )
        wanted = self.word.shape[1:]
        for name in ("norm_weight", "norm_bias", "type_row"):
            part = getattr(self, name)
            if part is not None and part.shape != wanted:
                raise InputError(f"{name} has shape {part.shape}, expected that of a word, {wanted}")
        if (self.norm_weight is None) != (self.norm_eps is None) or (
            self.norm_weight is None and self.norm_bias is not None
        ):
            raise InputError("norm_weight and norm_eps go together, norm_bias needs both: give them or none")
        weight, bias = self.project_weight, self.project_bias
        if weight is None or bias is None:
            if weight is not bias:
                raise InputError("project_weight and project_bias go together: give both or none")
        elif bias.ndim != 1 or not bias.size or weight.shape != (len(bias), *wanted):
            raise InputError(
                f"project_weight has shape {weight.shape} and project_bias {bias.shape}, expected (h, "
                f"{self.word.shape[1]}) and (h,), h at least 1"
            )

    @classmethod
    def from_teacher(cls, teacher: Teacher) -> TokenTable:
        """Return the token embeddings of a loaded teacher.

        Raises:
            TeacherError: if it has none, as static embeddings, or they are not finite.
        """
        from embedcache.teacher.token_embeddings import input_embeddings, tokens_by_id

        found = input_embeddings(teacher)
        return cls(
            found.word,
            tokens_by_id(teacher, len(found.word)),
            found.norm_weight,
            found.norm_bias,
            found.norm_eps,
            found.type_row,
            found.project_weight,
            found.project_bias,
        )

    def write(self, path: Path, contract: Contract) -> None:
        """Write the table to ``path``, atomically; the same table gives the same bytes.

        Raises:
            InputError: if it is larger than a reader allows.
            StorageError: if it cannot be written.
        """
        parts = {name: part.reshape(-1).view(np.uint8).data for name, part in self._parts().items()}
        layout = self._layout(contract.id)
        if layout.token_bytes > MOST_TOKEN_BYTES or layout.data_bytes > MOST_BYTES // 2:
            raise InputError(
                f"a table of {layout.data_bytes:,} bytes, {layout.token_bytes:,} of them tokens: expected at "
                f"most {MOST_BYTES // 2:,} and {MOST_TOKEN_BYTES:,}; its vocabulary cannot be kept in a cache"
            )
        sha256 = digest_of(layout.fields(), parts.values())
        write_bytes(path, layout.header(sha256), *parts.values())

    @classmethod
    def read(cls, path: Path, contract: Contract | str) -> TokenTable:
        """Return the table that :meth:`write` has written, its large part mapped rather than copied.

        Args:
            path: the file.
            contract: whose it has to be: the contract, or its id.

        Raises:
            CorruptCacheError: naming the file, if it is damaged or missing, or another teacher's.
            CacheFormatError: if a newer version of embedcache wrote it.
        """
        contract_id = contract if isinstance(contract, str) else contract.id
        try:
            layout, sha256, start = read_layout(path, contract_id)
            with path.open("rb") as handle:
                handle.seek(start)
                if digest_of(layout.fields(), blocks(handle)) != sha256:
                    raise ValueError("its bytes do not have the digest in its header")
                # Written to by nobody: a table that changes in memory does not change the file.
                mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_COPY)
            return _table_in(mapped, layout, start)
        except (CorruptCacheError, CacheFormatError):
            raise
        except (OSError, ValueError) as error:
            raise CorruptCacheError(
                f"{path} is damaged ({str(error)[:200]}): 'embedcache repair' makes it anew"
            ) from error

    def rows_of(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Return the rows of ``tokens``, int64 of shape (n,).

        Raises:
            InputError: if the table lacks some; it names the first ones and says how many.
        """
        missing = [token for token in tokens if token not in self._row_of]
        if missing:
            shown = ", ".join(repr(token) for token in missing[:5])
            raise InputError(
                f"{len(missing):,} of {len(tokens):,} tokens are not among the {len(self.tokens):,} of the "
                f"teacher's token embeddings ({shown}{', …' if len(missing) > 5 else ''}): take tokens of "
                "the teacher's own tokenizer"
            )
        return np.array([self._row_of[token] for token in tokens], dtype=np.int64)

    def words(self) -> Vectors:
        """Return the word embeddings in the width of the layers, float32 of shape (V, h).

        Without a projection they are ``word`` itself, not copied; with one, what it makes of them.
        """
        return self._projected(self.word)

    def block(self) -> Vectors:
        """Return what the layers are fed but for positions, float32 of shape (V, h).

        This is LayerNorm(word + type), or without a norm the sum alone; with a projection, what that makes
        of it.
        """
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
        # Of a token that stands twice the first row counts.
        return {token: row for row, token in reversed(list(enumerate(self.tokens))) if token}

    def _parts(self) -> dict[str, NDArray[Any]]:
        """Return the tensors by name, in the order in which they lie in the file."""
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

    def _layout(self, contract_id: str) -> Layout:
        parts = self._parts()
        rows, width = self.word.shape
        size = parts["tokens"].nbytes
        projected = None if self.project_bias is None else len(self.project_bias)
        return Layout(contract_id, rows, width, size, frozenset(parts), self.norm_eps, projected)


def read_stored(cache: Path, teacher: str, contract: Contract, source: str | None = None) -> TokenTable:
    """Return the token embeddings that the cache in a folder holds of a teacher.

    Args:
        cache: the cache's folder.
        teacher: the teacher's name.
        contract: its contract.
        source: what its model is loaded from, for the message; default: its name.

    Raises:
        InputError: if there are none; it says how to add them.
        CorruptCacheError: if they are damaged.
    """
    path = table_path(cache, contract)
    if not path.exists():
        named = "" if source in (None, teacher) else f" --teacher-name {teacher}"
        raise InputError(
            f"no token embeddings of {teacher!r} in {cache}: add them with 'embedcache build CORPUS "
            f"--teacher {source or teacher}{named} --cache {cache} --token-embeddings', with the settings it "
            "was built with; what is encoded is not encoded again"
        )
    return TokenTable.read(path, contract)


def table_path(cache: Path, contract: Contract) -> Path:
    """Return where the cache in a folder keeps a teacher's token embeddings."""
    return cache / "teachers" / contract.id / TABLE_FILE


def _table_in(mapped: mmap.mmap, layout: Layout, start: int) -> TokenTable:
    """Return the table in a file whose digest is right; whoever wrote it may have written nonsense.

    Raises:
        ValueError: if it is.
    """
    parts: dict[str, NDArray[Any]] = {}
    for name, shape, begin, end in layout.places():
        dtype = np.dtype(np.uint8) if name == "tokens" else np.dtype("<f4")
        count = (end - begin) // dtype.itemsize
        parts[name] = np.frombuffer(mapped, dtype, count, start + begin).reshape(shape)
        for first in range(0, len(parts[name]), _BLOCK_ROWS):
            if not np.isfinite(parts[name][first : first + _BLOCK_ROWS]).all():
                raise ValueError(f"{name} holds numbers that are not finite")
    tokens = parsed_json(parts["tokens"].tobytes())
    if (
        not isinstance(tokens, list)
        or len(tokens) != layout.rows
        or not all(isinstance(one, str) for one in tokens)
    ):
        raise ValueError(f"its tokens are no list of {layout.rows:,} texts")
    return TokenTable(
        parts["word"],
        tuple(tokens),
        parts.get("norm.weight"),
        parts.get("norm.bias"),
        layout.norm_eps,
        parts.get("type"),
        parts.get("project.weight"),
        parts.get("project.bias"),
    )
