"""Token embeddings of a loaded teacher, and its norm, types and projection before the first layer."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from embedcache.errors import TeacherError
from embedcache.teacher.token_table import TokenTable

if TYPE_CHECKING:
    from embedcache.teacher.load import Teacher

# Norms of the embeddings in models that keep them beside the layers, without a block of their own.
_NORMS_BESIDE_LAYERS = ("layernorm_embedding", "layer_norm_emb", "word_embeddings_layernorm")


def token_table_of(teacher: Teacher) -> TokenTable:
    """Copy the token embeddings of a teacher.

    Raises:
        TeacherError: if the model has no token embeddings before its layers, or they are not finite.
    """
    inner, embedding = _embedding_of(teacher)
    norm, types = _block_around(inner, embedding)
    with torch.no_grad():
        # Looked up, not read from the weights: some models scale their embeddings.
        word = _array(embedding(torch.arange(embedding.num_embeddings, device=embedding.weight.device)))
    weight = bias = eps = None
    if norm is not None:
        eps = float(norm.eps)
        weight = np.ones(word.shape[1], np.float32) if norm.weight is None else _array(norm.weight)
        bias = None if norm.bias is None else _array(norm.bias)
    row = None if types is None else _array(types.weight[0])
    # The name in ELECTRA and models made like it.
    project = getattr(inner, "embeddings_project", None)
    matrix = shift = None
    if isinstance(project, nn.Linear):
        matrix = _array(project.weight)
        shift = np.zeros(len(matrix), np.float32) if project.bias is None else _array(project.bias)
    for part in (word, weight, bias, row, matrix, shift):
        if part is not None and not np.isfinite(part).all():
            raise TeacherError(f"the token embeddings of {teacher.name} are not finite: copy the model again")
    return TokenTable(word, _tokens_by_id(teacher, len(word)), weight, bias, eps, row, matrix, shift)


def _tokens_by_id(teacher: Teacher, count: int) -> tuple[str, ...]:
    """Tokens of ids 0 to ``count`` - 1 as the tokenizer spells them, empty for ids without one."""
    tokenizer: Any = teacher.model.tokenizer
    found = [""] * count
    # Sorted, so two tokens of one id give the same result every time.
    for token, number in sorted(tokenizer.get_vocab().items(), reverse=True):
        if 0 <= number < count:
            found[number] = token
    return tuple(found)


def _embedding_of(teacher: Teacher) -> tuple[nn.Module, nn.Embedding]:
    """Transformer of a teacher and its table of token embeddings."""
    first: Any = next(iter(teacher.model or ()), None)
    inner: Any = getattr(first, "model", None)
    look: Any = getattr(inner, "get_input_embeddings", None)
    embedding = None
    if look is not None:
        with suppress(NotImplementedError):
            embedding = look()
    if not isinstance(inner, nn.Module) or not isinstance(embedding, nn.Embedding):
        raise TeacherError(
            f"{teacher.name} has no token embeddings before its layers (its first module is a "
            f"{type(first).__name__}): --token-embeddings needs a transformer"
        )
    return inner, embedding


def _block_around(
    inner: nn.Module, embedding: nn.Embedding
) -> tuple[nn.LayerNorm | None, nn.Embedding | None]:
    """Norm and token types in the same block as the token embeddings; None if missing."""
    blocks = (one for one in inner.modules() if any(child is embedding for child in one.children()))
    block = next(blocks)
    children = dict(block.named_children())
    # A model without such a block has the norm behind its last layer there, too.
    is_whole_model = any(isinstance(child, nn.ModuleList) for child in children.values())
    norms = [
        child
        for name, child in children.items()
        if isinstance(child, nn.LayerNorm)
        and tuple(child.normalized_shape) == (embedding.embedding_dim,)
        and (not is_whole_model or name in _NORMS_BESIDE_LAYERS)
    ]
    types = children.get("token_type_embeddings")
    fits = isinstance(types, nn.Embedding) and types.embedding_dim == embedding.embedding_dim
    return norms[0] if len(norms) == 1 else None, types if isinstance(types, nn.Embedding) and fits else None


def _array(tensor: Tensor) -> NDArray[np.float32]:
    return np.array(tensor.detach().float().cpu().numpy(), dtype=np.float32)
