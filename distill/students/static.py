"""Static students: a text is the weighted mean of one vector per token; no attention, so very fast.

A token's weight is part of its vector: frequent tokens say less about a sentence (smooth inverse frequency,
Arora et al., 2017, "A simple but tough-to-beat baseline for sentence embeddings"). The model is
sentence-transformers' ``StaticEmbedding`` and a linear layer to the teacher's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from distill.errors import StudentError
from distill.students.subwords import is_unused
from distill.students.transformer import one_thread, transformer_of
from distill.students.vocabulary import prune_vocabulary
from embedcache.teacher.tokenize import FastTokenizer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from distill.students.spec import StudentOptions, StudentSpec
    from embedcache.codecs import Vectors
    from embedcache.teacher.encode import Encoder
    from embedcache.teacher.load import Teacher

SMOOTHING = 1e-3
"""Share of the corpus at which a token weighs half as much as a rare one."""

_CENTRE_SHARE = 0.3
"""Share of the centre that every vector gets: all of it would hide the differences between sentences."""

_TOKENS_AT_ONCE = 512


def build_static(
    spec: StudentSpec, teacher: Teacher, options: StudentOptions, *, dim: int, vocab: int | None = None
) -> SentenceTransformer:
    """Return a static student that begins with its teacher's vectors of single tokens.

    The vectors are centred on their mean over the corpus and reduced to ``dim`` by PCA. The linear layer maps
    the mean over tokens back, so the student resembles its teacher before it is trained. Its bias points to
    the centre, so a text without known tokens has a vector, too.

    Args:
        spec: the spec.
        teacher: the loaded teacher.
        options: counted tokens give the frequencies; without them, frequencies fall with a token's number
            (Zipf), as in vocabularies sorted by frequency. On trial all weights stay zero.
        dim: width of a token's vector.
        vocab: tokens to keep; default: all.

    Returns:
        [StaticEmbedding, Dense], gradients on; its vectors have the teacher's width.

    Raises:
        StudentError: if the teacher's input is more than token ids, ``dim`` is more than its width, or as
            ``prune_vocabulary``.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    from embedcache.teacher.encode import Encoder

    tokenizer: PreTrainedTokenizerFast = transformer_of(teacher.model).tokenizer
    if dim > teacher.dimension:
        raise StudentError(f"dim={dim}, expected 1 to {teacher.dimension} as the teacher has")
    counts = None
    if options.count_tokens is not None:
        counts = options.count_tokens(FastTokenizer(tokenizer, 0, special_tokens=False))
    backend = tokenizer.backend_tokenizer
    old_ids = np.arange(max(backend.get_vocab(with_added_tokens=True).values()) + 1, dtype=np.int64)
    if vocab is not None:
        pruned, old_ids = prune_vocabulary(tokenizer, counts, vocab, options.on_note)
        backend = pruned.backend_tokenizer
        counts = None if counts is None else counts[old_ids]
    encoder = Encoder(teacher, compute_dtype="float32")
    if encoder.tokenizer is None:
        raise StudentError("the teacher's input is more than token ids; use another student kind")
    # Special and unused tokens, which stand in no text, keep vectors of zeros.
    rows = np.zeros((len(old_ids), dim), dtype=np.float32)
    basis, centre = np.zeros((teacher.dimension, dim)), np.zeros(teacher.dimension)
    if not options.on_trial:
        ordinary = _ordinary(backend, len(old_ids))
        options.on_note(f"the student begins with the teacher's vectors of {ordinary.sum():,} single tokens")
        shares = token_shares(counts, ordinary)
        vectors = _token_vectors(
            encoder, tokenizer, old_ids[ordinary], with_types=encoder.tokenizer.uses_token_types
        )
        with one_thread():
            centre = shares[ordinary] @ vectors.astype(np.float64)
            scores, basis = _reduce(vectors, centre, dim)
        rows[ordinary] = scores * token_weights(shares)[ordinary, None]
    head = Dense(
        dim,
        teacher.dimension,
        activation_function=nn.Identity(),
        init_weight=torch.from_numpy(basis.astype(np.float32)),
        init_bias=torch.from_numpy((_CENTRE_SHARE * centre).astype(np.float32)),
    )
    embedding = StaticEmbedding(_plain(backend), embedding_weights=torch.from_numpy(rows))
    built = SentenceTransformer(modules=[embedding, head], device="cpu")
    built.requires_grad_(True)
    return built


def is_static(model: nn.Module) -> bool:
    """Return whether a model, wrapped for several processes or not, begins with a table of token vectors."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    first: Any = next(iter(inner.children()), None)
    return type(first).__name__ == "StaticEmbedding"


def static_tokenizer(model: SentenceTransformer) -> FastTokenizer:
    """Return the tokenizer of a static model: no special tokens, no truncation."""
    return FastTokenizer(_wrapped(model), 0, special_tokens=False)


def _wrapped(model: SentenceTransformer) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    first: Any = model[0]
    made: PreTrainedTokenizerFast = PreTrainedTokenizerFast(tokenizer_object=first.tokenizer)
    return made


def flat_features(input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
    """Return the features of a StaticEmbedding from padded token ids and their mask, both (B, T).

    Returns:
        ``input_ids``: the ids of real tokens, one text after the other; ``offsets``, shape (B,): the index
        of each text's first token.
    """
    real = attention_mask.bool()
    ends = real.sum(dim=1).cumsum(dim=0)
    offsets = torch.zeros_like(ends)
    offsets[1:] = ends[:-1]
    return {"input_ids": input_ids[real], "offsets": offsets}


class PaddedStatic(nn.Sequential):
    """A static model that takes padded ids and a mask, for graphs without ragged arrays.

    Args:
        model: the static model; its weights are shared.
    """

    def __init__(self, model: SentenceTransformer) -> None:
        first, *others = model
        super().__init__(_PaddedMean(first), *others)
        self.tokenizer = _wrapped(model)
        self._ids = static_tokenizer(model)

    def preprocess(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Return ``input_ids`` and ``attention_mask`` of texts, int64, shape (n, longest)."""
        from embedcache.teacher.encode import padded_features

        features = padded_features(self._ids(texts), np.arange(len(texts)), self._ids)
        return {name: features[name] for name in ("input_ids", "attention_mask")}


class _PaddedMean(nn.Module):
    def __init__(self, static: Any) -> None:
        super().__init__()
        self.weight: nn.Parameter = static.embedding.weight

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Add ``sentence_embedding`` (B, d): the mean over real tokens, zero where there are none."""
        mask = features["attention_mask"].to(self.weight.dtype)
        tokens = nn.functional.embedding(features["input_ids"], self.weight)
        summed = (tokens * mask.unsqueeze(-1)).sum(dim=1)
        count = mask.sum(dim=1, keepdim=True).clamp(min=1)
        return {**features, "sentence_embedding": summed / count}


def token_shares(counts: NDArray[np.int64] | None, ordinary: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return each token's share of the corpus, shape (V,), summing to 1.

    Args:
        counts: int64, shape (V,) or more; None: shares fall with the token's number (Zipf).
        ordinary: bool, shape (V,); tokens that occur in texts. Others have no share.
    """
    used = np.zeros(len(ordinary), dtype=np.float64)
    if counts is not None:
        used[: len(counts)] = counts[: len(used)]
        used[~ordinary] = 0
    if not used.any():
        used[ordinary] = 1 / np.arange(1, ordinary.sum() + 1)
    shares: NDArray[np.float64] = used / used.sum()
    return shares


def token_weights(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of each token, shape (V,): a / (a + share), scaled to a mean of 1 over the corpus."""
    weights = SMOOTHING / (SMOOTHING + shares)
    scaled: NDArray[np.float64] = weights / (weights * shares).sum()
    return scaled


def _ordinary(backend: Tokenizer, ids: int) -> NDArray[np.bool_]:
    """Return a mask of the ids of tokens that occur in texts, shape (ids,)."""
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    found = np.zeros(ids, dtype=np.bool_)
    for token, number in backend.get_vocab(with_added_tokens=True).items():
        found[number] = token not in special and not is_unused(token)
    return found


def _plain(backend: Tokenizer) -> Tokenizer:
    """Return a copy of a tokenizer without special tokens, padding and truncation."""
    copied: Tokenizer = type(backend).from_str(backend.to_str())
    copied.no_padding()
    copied.no_truncation()
    copied.post_processor = None
    return copied


def _token_vectors(
    encoder: Encoder, tokenizer: PreTrainedTokenizerFast, ids: NDArray[np.int64], *, with_types: bool
) -> Vectors:
    """Return the teacher's vectors of texts of one token each, (n, d)."""
    plain, prompt = _plain(tokenizer.backend_tokenizer), encoder.teacher.contract.prompt
    before = plain.encode(prompt).ids if prompt else []
    plain.post_processor = tokenizer.backend_tokenizer.post_processor
    framed = plain.encode("a")
    inside = np.flatnonzero(np.array(framed.special_tokens_mask) == 0)
    before = [*framed.ids[: inside[0]], *before]
    after = framed.ids[inside[-1] + 1 :]
    columns = torch.tensor([*before, 0, *after]).repeat(len(ids), 1)
    columns[:, len(before)] = torch.from_numpy(ids)

    def encode(part: Tensor) -> Vectors:
        features: dict[str, Any] = {"input_ids": part, "attention_mask": torch.ones_like(part)}
        if with_types:
            features["token_type_ids"] = torch.zeros_like(part)
        if prompt:
            features["prompt_length"] = len(before)
        return encoder.forward(features)

    # Each batch on one thread: their number would otherwise decide how it is rounded.
    with ThreadPoolExecutor(encoder.streams, initializer=encoder.start_stream) as pool:
        return np.concatenate(list(pool.map(encode, torch.split(columns, _TOKENS_AT_ONCE))))


def _reduce(vectors: Vectors, centre: NDArray[np.float64], dim: int) -> tuple[NDArray[np.float64], ...]:
    """Return (scores (n, dim), basis (d, dim)) of a PCA: scores @ basis.T + centre is near ``vectors``.

    Signs are fixed by each direction's largest component, so the same vectors give the same bytes.
    """
    exact = vectors.astype(np.float64) - centre
    _, directions = np.linalg.eigh(exact.T @ exact)
    basis = directions[:, ::-1][:, :dim]
    largest = np.abs(basis).argmax(axis=0)
    basis = basis * np.sign(basis[largest, np.arange(dim)])
    return exact @ basis, basis
