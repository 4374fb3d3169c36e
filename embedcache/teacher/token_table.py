"""Input token embeddings of a teacher, stored once beside its contract; SimTDE's students learn from them.

The file is a safetensors file with one spelling: its header follows from the contract and the table, and
holds the sha256 of the rest of the file. A file is sound if writing its table again gives the same header.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, InputError, TeacherError, UnreadableError
from embedcache.fsio import canonical_json, open_regular, parsed_json, write_bytes
from embedcache.os_errors import reading

if TYPE_CHECKING:
    from torch import nn

    from embedcache.teacher.load import Teacher

TABLE_FILE = "token_embeddings.safetensors"
"""Name of the file in a teacher's folder."""

_VERSION, _VERSION_WITH_PROJECTION = "1", "2"
_FIELD_OF = {
    "norm.bias": "norm_bias",
    "norm.weight": "norm_weight",
    "project.bias": "project_bias",
    "project.weight": "project_weight",
    "type": "type_row",
    "word": "word",
}
"""Field of each tensor of numbers, in the order of the file."""
_MOST_HEADER_BYTES = 1 << 14
_BLOCK_ROWS = 4096
# Norms of the embeddings in models that keep them beside the layers, without a block of their own.
_NORMS_BESIDE_LAYERS = ("layernorm_embedding", "layer_norm_emb", "word_embeddings_layernorm")


@dataclass(frozen=True, eq=False)
class TokenTable:
    """Input of a teacher's layers for each token, without positions.

    Attributes:
        word: input word embeddings, float32 of shape (V, d); d need not be the width of a sentence vector.
        tokens: the V tokens in the order of their ids, as the tokenizer spells them; empty for an id without.
        norm_weight: weight of the LayerNorm behind the embeddings, float32 of shape (d,); None without one.
        norm_bias: its bias, float32 of shape (d,); None without one.
        norm_eps: its addition to the variance; None without a norm.
        type_row: first row of the table of token types, float32 of shape (d,); None without one.
        project_weight: matrix of the linear map to the width h of the layers, float32 of shape (h, d); None
            without one.
        project_bias: its bias, float32 of shape (h,); None without one.

    Raises:
        InputError: if the parts do not belong together, or hold numbers that are not finite.
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
        height = 1 if self.project_bias is None else self.project_bias.size
        expected = {"word": self.word.shape, "project.bias": (height,), "project.weight": (height, width)}
        for name, part in self._numbers().items():
            if part.shape != (shape := expected.get(name, (width,))):
                raise InputError(f"{name} has shape {part.shape}, expected {shape}")
            if not np.isfinite(part).all():
                raise InputError(f"{name} holds numbers that are not finite")
        normed = self.norm_weight is not None
        if normed != (self.norm_eps is not None) or (self.norm_bias is not None and not normed):
            raise InputError("norm_weight and norm_eps go together, norm_bias needs both")
        if (self.project_weight is None) != (self.project_bias is None):
            raise InputError("project_weight and project_bias go together")

    def write(self, path: Path, contract: Contract) -> None:
        """Write the table atomically; the same table gives the same bytes.

        Raises:
            StorageError: if it cannot be written.
        """
        write_bytes(path, self._header(contract.id), *map(_bytes_of, self._tensors().values()))

    @classmethod
    def read(cls, path: Path, contract: Contract | str) -> TokenTable:
        """Read a table.

        Args:
            path: the file.
            contract: contract of its teacher, or the contract's id.

        Raises:
            CorruptCacheError: if the file is damaged, missing, another teacher's, or of a newer version.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with open_regular(path) as handle, reading(path):
                size = int.from_bytes(handle.read(8), "little")
                if size > _MOST_HEADER_BYTES:
                    raise ValueError(f"a header of {size:,} bytes")
                header = size.to_bytes(8, "little") + handle.read(size)
            with safe_open(path, "np") as file:
                metadata = file.metadata()
                parts = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
            tokens: Any = parsed_json(parts["tokens"].tobytes())
            if not all(isinstance(token, str) for token in tokens):
                raise ValueError("its tokens are not texts")
            numbers: Any = {field: parts[name] for name, field in _FIELD_OF.items() if name in parts}
            eps = float(metadata["norm_eps"]) if "norm_eps" in metadata else None
            table = cls(tokens=tuple(tokens), norm_eps=eps, **numbers)
            if table._header(contract if isinstance(contract, str) else contract.id) != header:
                raise ValueError("its digest, teacher or version is another one")
        except UnreadableError:
            raise
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, InputError) as error:
            raise CorruptCacheError(
                f"{path} is damaged ({str(error)[:200]}): run 'embedcache repair'"
            ) from error
        return table

    def rows_of(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Rows of ``tokens``, int64 of shape (n,).

        Raises:
            InputError: if the table lacks a token; the first ones are named.
        """
        if missing := [token for token in tokens if token not in self._row_of]:
            raise InputError(
                f"{len(missing):,} of {len(tokens):,} tokens are not in the teacher's token embeddings "
                f"({', '.join(map(repr, missing[:5]))}): use tokens of the teacher's own tokenizer"
            )
        return np.array([self._row_of[token] for token in tokens], dtype=np.int64)

    def words(self) -> Vectors:
        """Word embeddings in the width of the layers, float32 of shape (V, h)."""
        return self.word if self.project_weight is None else self._computed(block=False)

    def block(self) -> Vectors:
        """LayerNorm(word + type) in the width of the layers, float32 of shape (V, h)."""
        return self._computed(block=True)

    def _computed(self, *, block: bool) -> Vectors:
        """Compute the input of the layers in float64, some rows at a time."""
        height = self.word.shape[1] if self.project_bias is None else self.project_bias.size
        out = np.empty((len(self.word), height), dtype=np.float32)
        for first in range(0, len(out), _BLOCK_ROWS):
            rows = self.word[first : first + _BLOCK_ROWS].astype(np.float64)
            if block and self.type_row is not None:
                rows += self.type_row
            if block and self.norm_weight is not None and self.norm_eps is not None:
                rows -= rows.mean(axis=1, keepdims=True)
                rows /= np.sqrt(np.square(rows).mean(axis=1, keepdims=True) + self.norm_eps)
                rows *= self.norm_weight
                rows += 0 if self.norm_bias is None else self.norm_bias
            if self.project_weight is not None and self.project_bias is not None:
                rows = rows @ self.project_weight.T + self.project_bias
            out[first : first + _BLOCK_ROWS] = rows
        return out

    @cached_property
    def _row_of(self) -> dict[str, int]:
        # The first row of a duplicate token counts.
        return {token: row for row, token in reversed(list(enumerate(self.tokens))) if token}

    def _numbers(self) -> dict[str, NDArray[np.float32]]:
        found = {name: getattr(self, field) for name, field in _FIELD_OF.items()}
        return {name: part for name, part in found.items() if part is not None}

    def _tensors(self) -> dict[str, NDArray[Any]]:
        """All tensors by name, as the file holds them."""
        numbers = {name: np.ascontiguousarray(part, dtype="<f4") for name, part in self._numbers().items()}
        return {**numbers, "tokens": np.frombuffer(canonical_json(list(self.tokens)), np.uint8)}

    def _header(self, contract_id: str) -> bytes:
        """Bytes before the tensors."""
        version = _VERSION if self.project_bias is None else _VERSION_WITH_PROJECTION
        metadata = {"contract": contract_id, "version": version}
        if self.norm_eps is not None:
            metadata["norm_eps"] = repr(self.norm_eps)
        header: dict[str, Any] = {"__metadata__": metadata}
        begin, tensors = 0, self._tensors()
        for name, part in tensors.items():
            offsets = [begin, begin := begin + part.nbytes]
            dtype = "U8" if name == "tokens" else "F32"
            header[name] = {"dtype": dtype, "shape": list(part.shape), "data_offsets": offsets}
        digest = hashlib.sha256(canonical_json(header))
        for part in tensors.values():
            digest.update(_bytes_of(part))
        metadata["sha256"] = digest.hexdigest()
        spelled = canonical_json(header)
        # Blanks align the tensors, so they can be mapped.
        spelled += b" " * (-len(spelled) % 8)
        return len(spelled).to_bytes(8, "little") + spelled


def _bytes_of(part: NDArray[Any]) -> memoryview:
    return part.reshape(-1).view(np.uint8).data


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


def token_table_of(teacher: Teacher) -> TokenTable:
    """Copy the token embeddings of a teacher, and its norm, types and projection before the first layer.

    Raises:
        TeacherError: if the model has no token embeddings before its layers, or they are not finite.
    """
    import torch
    from torch import nn

    first: Any = next(iter(teacher.model or ()), None)
    inner: Any = getattr(first, "model", None)
    embedding = None
    with suppress(AttributeError, NotImplementedError):
        embedding = inner.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise TeacherError(
            f"{teacher.name} has no token embeddings before its layers (its first module is a "
            f"{type(first).__name__}): token_embeddings needs a transformer"
        )
    norm, types = _block_around(inner, embedding)
    # The name in ELECTRA and models made like it.
    project = getattr(inner, "embeddings_project", None)
    numbers = range(embedding.num_embeddings)
    token_of = {number: token for token, number in sorted(teacher.model.tokenizer.get_vocab().items())[::-1]}
    parts: dict[str, Any] = {
        # Looked up, not read from the weights: some models scale their embeddings.
        "word": embedding(torch.arange(len(numbers), device=embedding.weight.device)),
        "type_row": None if types is None else types.weight[0],
    }
    if norm is not None:
        weight = torch.ones(norm.normalized_shape) if norm.weight is None else norm.weight
        parts |= {"norm_weight": weight, "norm_bias": norm.bias}
    if isinstance(project, nn.Linear):
        bias = torch.zeros(project.out_features) if project.bias is None else project.bias
        parts |= {"project_weight": project.weight, "project_bias": bias}
    arrays: Any = {
        name: part.detach().float().cpu().numpy().copy() for name, part in parts.items() if part is not None
    }
    try:
        return TokenTable(
            tokens=tuple(token_of.get(number, "") for number in numbers),
            norm_eps=None if norm is None else float(norm.eps),
            **arrays,
        )
    except InputError as error:
        raise TeacherError(f"{teacher.name}, token embeddings: {error}; copy the model again") from error


def _block_around(
    inner: nn.Module, embedding: nn.Embedding
) -> tuple[nn.LayerNorm | None, nn.Embedding | None]:
    """Norm and token types in the same block as the token embeddings; None if missing."""
    from torch import nn

    width = embedding.embedding_dim
    block = next(one for one in inner.modules() if any(child is embedding for child in one.children()))
    children = dict(block.named_children())
    # A model without such a block has the norm behind its last layer there, too.
    is_whole_model = any(isinstance(child, nn.ModuleList) for child in children.values())
    norms = [
        child
        for name, child in children.items()
        if isinstance(child, nn.LayerNorm)
        and tuple(child.normalized_shape) == (width,)
        and (not is_whole_model or name in _NORMS_BESIDE_LAYERS)
    ]
    types = children.get("token_type_embeddings")
    if not isinstance(types, nn.Embedding) or types.embedding_dim != width:
        types = None
    return norms[0] if len(norms) == 1 else None, types
