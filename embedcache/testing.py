"""Encoders for tests of embedcache and of packages built on it: a tiny real one and a fake one.

Nothing here needs a network or downloaded weights.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.keys import KEY_BYTES, KeyArray, key_array
from embedcache.store import VectorBatch
from embedcache.teacher.batching import EncodeCounts, EncodedTexts
from embedcache.teacher.load import Teacher
from embedcache.teacher.resolve import ModelSource
from embedcache.teacher.text_encoder import BatchKeeper

WORDS = tuple(
    "a the one two small large old new red blue cat dog bird child river stone house road "  # noqa: SIM905
    "sees likes finds follows runs sleeps sings falls under over near beside today often".split()
)
"""The vocabulary of ``tiny_encoder``, beside its special tokens and single letters."""

_BATCH = 256
"""Texts in a batch of ``FakeEncoder``."""


def sentences(count: int, *, seed: int = 0, longest: int = 12) -> list[str]:
    """Return ``count`` distinct sentences made of ``WORDS``; the same seed gives the same ones."""
    generator = np.random.default_rng(seed)
    found: dict[str, None] = {}
    while len(found) < count:
        words = generator.choice(WORDS, size=int(generator.integers(3, longest + 1)))
        found[" ".join(words) + f" {len(found)}"] = None
    return list(found)


def tiny_encoder(
    folder: Path,
    *,
    dimension: int = 16,
    layers: int = 2,
    normalize: bool = True,
    plain: bool = False,
    seed: int = 0,
) -> Path:
    """Save a BERT with random weights and a WordPiece tokenizer, and return its folder.

    It is small, not fake: every path a real model takes, it takes as well.

    Args:
        folder: folder to save it in.
        dimension: width; a multiple of 4.
        layers: transformer layers.
        normalize: True if vectors are scaled to length one.
        plain: save a plain transformers folder, without sentence-transformers' own files.
        seed: of the weights.
    """
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel, BertTokenizerFast

    from embedcache.teacher.load import quiet_transformers

    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,?!'"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    # A word of one letter is in there already.
    vocabulary = dict.fromkeys([*special, *WORDS, *letters, *(f"##{letter}" for letter in letters)])
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=dimension,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * dimension,
        max_position_embeddings=64,
        # Random weights this large tell texts apart; at the usual 0.02 all vectors look alike.
        initializer_range=0.4,
    )
    with quiet_transformers(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = BertModel(config)
        target = folder if plain else folder.with_name(folder.name + "-parts")
        model.save_pretrained(target)
        BertTokenizerFast(
            vocab={word: number for number, word in enumerate(vocabulary)}, model_max_length=64
        ).save_pretrained(target)
        if plain:
            return folder
        transformer = Transformer(str(target))
        modules = [transformer, Pooling(dimension, "mean"), *([Normalize()] if normalize else [])]
        SentenceTransformer(modules=modules, device="cpu").save_pretrained(
            str(folder), create_model_card=False
        )
    return folder


def encode_texts(teacher: Teacher, texts: Sequence[str]) -> Vectors:
    """Encode texts with a teacher in float32; float32 of shape (n, d), in order."""
    from embedcache.teacher.encode import Encoder

    return Encoder(teacher, compute_dtype="float32").encode(texts).vectors


def fake_teacher(dimension: int = 384, *, name: str = "fake", max_length: int = 64, seed: int = 0) -> Teacher:
    """Return a teacher without a model, for ``FakeEncoder``.

    Args:
        dimension: width of its vectors.
        name: its name in a cache.
        max_length: words after which a text counts as truncated.
        seed: teachers of different seeds have different contracts and unrelated vectors.
    """
    contract = example_contract(dimension, weights=f"{seed:064x}", max_length=max_length)
    source = ModelSource(name, name, Path(os.devnull))
    # Nothing asks it to run.
    return Teacher(source, model=None, contract=contract)


class FakeEncoder:
    """Encoder that needs neither a model nor torch, instead of an ``Encoder``.

    A text's vector is drawn from random bits that depend on its key and the teacher's contract alone, so the
    same text has the same unit vector in every process, and unrelated texts have unrelated ones.

    Attributes:
        teacher: whose encoder it is.
        counts: counts of all builds together.
        rows_encoded: texts encoded so far, over all builds.

    Examples:
        >>> embedcache.build(["A cat."], teacher=FakeEncoder(fake_teacher()), cache="cache")  # doctest: +SKIP
    """

    streams = 1
    canary = None

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher
        self.counts = EncodeCounts()
        self.rows_encoded = 0
        self._salt = np.frombuffer(bytes.fromhex(teacher.contract.id)[:KEY_BYTES], dtype=np.uint64)

    @property
    def provenance(self) -> dict[str, object]:
        """Provenance for shards."""
        return {"device": "none"}

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """Return the vectors of ``texts``, float32 of shape (n, d), and how many words each one has."""
        encoded = EncodedTexts(self._vectors(key_array(texts)), *self._seen(texts))
        self.rows_encoded += len(texts)
        self.counts.rows += len(texts)
        self.counts.tokens += int(encoded.tokens.sum())
        return encoded

    def encode_windows(
        self,
        windows: Iterable[Sequence[str]],
        on_wait: Callable[[], None] | None = None,
        keeper: BatchKeeper | None = None,
    ) -> Generator[EncodedTexts, None, None]:
        """Encode one window of texts after the other; none is begun before the one before was taken."""
        for texts in windows:
            result = EncodedTexts(
                np.empty((len(texts), self.teacher.dimension), np.float32), *self._seen(texts)
            )
            for start in range(0, len(texts), _BATCH):
                batch = np.arange(start, min(start + _BATCH, len(texts)))
                some = texts[start : start + _BATCH]
                found = None if keeper is None else keeper.find(some)
                if found is not None:
                    result.vectors[batch] = found
                    self.counts.resumed += len(batch)
                    continue
                result.vectors[batch] = self.encode(some).vectors
                if keeper is not None:
                    keeper.add(texts, result, batch)
                if on_wait is not None:
                    on_wait()
            yield result

    def confirm(self, *, retries: int | None = None) -> None:
        """Do nothing: the teacher does not change."""

    def _seen(self, texts: Sequence[str]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Return how many words of each text count, and whether the text has more."""
        words = np.fromiter((text.count(" ") + 1 for text in texts), dtype=np.int32, count=len(texts))
        longest = self.teacher.contract.max_length
        tokens = np.minimum(words, longest) if longest else words
        return tokens, words > tokens

    def _vectors(self, keys: KeyArray) -> Vectors:
        dimension = self.teacher.dimension
        halves = keys.view(np.uint64).reshape(-1, 2) ^ self._salt
        # Eight components a word; the step from word to word depends on the text.
        counter = np.arange(-(-dimension // 8), dtype=np.uint64)
        words = _mixed(halves[:, :1] + counter * (halves[:, 1:] | np.uint64(1)))
        # An odd component is never 0, so neither is a vector.
        odd = (words | np.uint64(0x0101010101010101)).view(np.int8)
        vectors = odd[:, :dimension].astype(np.float32)
        vectors /= np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
        return vectors


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble ``words`` in place (the finaliser of SplitMix64) and return them."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def example_contract(dimension: int = 8, **changes: Any) -> Contract:
    """Return a contract of no real teacher, with ``changes`` to its fields."""
    digests = {"weights": "1" * 64, "tokenizer": "2" * 64, "architecture": "3" * 64}
    rest = {"pooling": "mean", "modules": "", "prompt": "", "max_length": 64, "normalize": True}
    return Contract(**{**digests, **rest, "dimension": dimension, **changes})


def example_batch(texts: Sequence[str], dimension: int = 8, *, seed: int = 0) -> VectorBatch:
    """Return a batch with a random unit vector for each text, drawn by ``seed``."""
    vectors = np.random.default_rng(seed).normal(size=(len(texts), dimension)).astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return VectorBatch(
        keys=key_array(texts),
        vectors=vectors,
        tokens=np.full(len(texts), 5, dtype=np.int32),
        truncated=np.zeros(len(texts), dtype=np.bool_),
        provenance={"compute_dtype": "float32"},
    )
