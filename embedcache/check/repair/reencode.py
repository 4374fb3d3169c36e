"""Making lost shards anew: texts out of the corpora, vectors from the teacher, cut as they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.check.repair.cuts import Layout
from embedcache.check.repair.lost_keys import LostShard
from embedcache.check.texts import texts_of
from embedcache.codecs import CODEC_NAMES, Codec, get_codec, measure, pq
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.errors import EmbedCacheError, InputError, MissingVectorsError, NonFiniteVectorError
from embedcache.key_index import KeyIndex
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray
from embedcache.reuse import related_stores, reuse_rows
from embedcache.store import FolderShards, MemoryShards, Shard, ShardStore, VectorBatch
from embedcache.store.digests import CHECKED, FileNotes
from embedcache.store.shard import stored_shard
from embedcache.teacher.options import DEFAULT_SHARD_ROWS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from embedcache.teacher.batching import EncodedTexts
    from embedcache.teacher.encode import Encoder

# The token count and one bit beside the key and the vector.
_BYTES_BESIDE = 4.125
_PROBE_ROWS = 64
# About as long as what encoders say, for where no shard is left to tell.
_LIKELY_PROVENANCE = {
    "compute_dtype": "bfloat16",
    "device": "cpu",
    "sentence_transformers": "5.0.0",
    "torch": "2.0.0+cpu",
    "transformers": "5.0.0",
}
_MOST_KEPT_BYTES = 256 << 20


@dataclass(frozen=True)
class Made:
    """A shard made anew.

    Attributes:
        name: its name.
        data: its bytes.
        encoded: rows that were encoded for it.
        carried: whether its rows were carried over from another ``max_length``.
    """

    name: str
    data: pa.Buffer
    encoded: int = 0
    carried: bool = False


@dataclass
class ShardMaker:
    """Makes the shards of one teacher.

    Args:
        cache: the cache; its corpora and contracts are mended by now.
        contract: the teacher.
        corpora: where its texts are.
        sound: its sound shards.
        load: loads the encoder, as it was for some shards; called at the first text that has to be encoded.
        meter: counts the rows encoded.

    Attributes:
        damaged: what can be read of its damaged shards.
        encoded: rows encoded so far.
    """

    cache: Cache
    contract: Contract
    corpora: Sequence[Corpus]
    sound: list[Shard]
    load: Callable[[Sequence[Shard]], Encoder]
    meter: Meter
    damaged: list[Shard] = field(default_factory=list)
    encoded: int = 0
    _kept: dict[bytes, EncodedTexts] = field(default_factory=dict, repr=False)

    @property
    def index_folder(self) -> Path:
        """Where the teacher's indexes lie."""
        return self.cache.derived_folder / "index" / self.contract.id

    def folder_shards(self) -> FolderShards:
        """Return the teacher's shards in files; of those removed, ``finish`` notes that none is missed."""
        notes = FileNotes(self.index_folder / CHECKED)
        return FolderShards(self.cache.teacher_folder(self.contract) / "shards", notes)

    @cached_property
    def encoder(self) -> Encoder:
        """The teacher's encoder."""
        encoder = self.load([*self.sound, *self.damaged])
        if encoder.teacher.contract != self.contract:
            raise InputError("the encoder was made of another teacher")
        return encoder

    def add_sound(self, shard: Shard) -> None:
        """Count a shard as sound."""
        if all(shard.name != other.name for other in self.sound):
            self.sound.append(shard)

    def has_texts(self, keys: KeyArray) -> bool:
        """Return whether the corpora have the text of every key."""
        return None not in texts_of(keys, self.corpora)

    def holds_any(self, keys: KeyArray) -> bool:
        """Return whether a sound shard has one of the keys."""
        index = KeyIndex(keys)
        return any((index.locate(shard.keys) >= 0).any() for shard in self.sound)

    def make(self, keys: KeyArray, lost: Sequence[LostShard], codec: Codec | None = None) -> Made:
        """Return a shard of ``keys``: the one of ``lost`` that it is, or one that is right.

        Args:
            keys: the rows.
            lost: shards that it may be.
            codec: how it was stored, where that is known.

        Raises:
            MissingVectorsError: if no corpus has a text that is needed.
            EmbedCacheError: if the teacher cannot be loaded or cannot encode a text.
        """
        names = {one.name for one in lost}
        carried = self._carried(keys, lost)
        if carried is not None:
            self.meter.add(rows=len(keys))
            return carried
        before = self.encoded
        encoded = self.encode(keys)
        batch = VectorBatch(keys, encoded.vectors, encoded.tokens, encoded.truncated, self.encoder.provenance)
        first = None
        for candidate in [codec] if codec is not None else self._codecs(lost):
            with suppress(InputError):
                made = replace(self.stored(batch, candidate), encoded=self.encoded - before)
                first = first or made
                if made.name in names:
                    return made
        if first is None:
            raise InputError("no codec can store its vectors")
        return first

    def encode(self, keys: KeyArray, *, keep: bool = False) -> EncodedTexts:
        """Encode the texts of ``keys`` as one window, as a build encodes a shard.

        Last bits of a vector depend on the texts it was batched with, so what was encoded in one window is
        of no use in another.

        Args:
            keys: the texts' keys.
            keep: the same window will be needed again.

        Raises:
            MissingVectorsError, EmbedCacheError: as :meth:`make`.
        """
        if (kept := self._kept.get(keys.tobytes())) is not None:
            return kept
        texts = [text for text in texts_of(keys, self.corpora) if text is not None]
        if len(texts) < len(keys):
            raise MissingVectorsError(f"{len(keys) - len(texts)} of its {len(keys)} texts are in no corpus")
        times, told = self.encoder.times, 0
        before = times.rows

        def on_wait() -> None:
            nonlocal told
            self.meter.add(rows=times.rows - before - told)
            told = times.rows - before

        (encoded,) = self.encoder.encode_windows(iter([texts]), on_wait)
        self.meter.add(rows=len(texts) - told)
        if not np.isfinite(encoded.vectors).all():
            raise NonFiniteVectorError("the teacher returned NaN or infinity for one of its texts")
        self.encoded += len(texts)
        kept_bytes = sum(one.vectors.nbytes for one in self._kept.values())
        if keep and kept_bytes + encoded.vectors.nbytes <= _MOST_KEPT_BYTES:
            self._kept[keys.tobytes()] = encoded
        return encoded

    def stored(self, batch: VectorBatch, codec: Codec) -> Made:
        """Return ``batch`` as a shard."""
        stored = codec.encode(batch.vectors)
        error = measure(codec, batch.vectors, stored).to_json()
        return Made(*stored_shard(self.contract, codec, stored, batch, error))

    def rows_of(self, lost: Sequence[LostShard], missing: int) -> list[int]:
        """Return how many rows a lost shard may have had, the likeliest first.

        A build cuts all its shards but the last one alike, so the largest number counts.

        Args:
            lost: the lost shards.
            missing: how many texts they held together.
        """
        known = [len(shard) for shard in (*self.sound, *(one.shard for one in lost)) if shard is not None]
        largest = max((one.size for one in lost), default=0)
        guesses = [max(known)] if known else []
        if largest:
            # Headers differ by some digits.
            about = [layout.rows(largest) for layout in self.layouts(lost)]
            guesses += [rows + off for rows in about for off in (0, -1, 1)]
        guesses += [DEFAULT_SHARD_ROWS, *_likely_rows(missing, len(lost))]
        distinct = dict.fromkeys(min(rows, missing) for rows in guesses if rows > 0)
        return list(distinct)

    def layouts(self, lost: Sequence[LostShard]) -> list[Layout]:
        """Return how large shards are, by the codecs the lost shards may have had, the likeliest first."""
        return [
            Layout(codec, self._overhead(codec), self._bytes_a_row(codec)) for codec in self._codecs(lost)
        ]

    def _bytes_a_row(self, codec: Codec) -> float:
        return KEY_BYTES + codec.bytes_per_row(self.contract.dimension) + _BYTES_BESIDE

    def _overhead(self, codec: Codec) -> float:
        """Return about how many bytes a shard has beside its rows."""
        vectors = np.eye(1, self.contract.dimension, dtype=np.float32).repeat(_PROBE_ROWS, axis=0)
        zeros = np.zeros(_PROBE_ROWS, dtype=np.int32)
        keys = np.zeros(_PROBE_ROWS, dtype=KEY_DTYPE)
        others = [shard.header.provenance for shard in (*self.sound, *self.damaged)]
        provenance = others[0] if others else _LIKELY_PROVENANCE
        batch = VectorBatch(keys, vectors, zeros, zeros.astype(np.bool_), provenance)
        return float(self.stored(batch, codec).data.size) - _PROBE_ROWS * self._bytes_a_row(codec)

    def _carried(self, keys: KeyArray, lost: Sequence[LostShard]) -> Made | None:
        """Return the shard if its rows had been carried over from another max_length."""
        names = {one.name for one in lost}
        for codec in dict.fromkeys(codec.name for codec in self._codecs(lost) if codec.codebook is None):
            scratch = ShardStore(MemoryShards(), self.contract, codec)
            # A donor that is damaged itself gives nothing.
            with suppress(EmbedCacheError):
                reuse_rows(related_stores(self.cache, self.contract), scratch, keys, len(keys))
            for shard in scratch.shards:
                if shard.name in names:
                    return Made(shard.name, scratch.container.open(shard.name), carried=True)
        return None

    def _codecs(self, lost: Sequence[LostShard]) -> Iterator[Codec]:
        """Yield the codecs the lost shards may have had, the likeliest first."""
        headers = [one.header for one in lost if one.header is not None]
        siblings = Counter((shard.header.codec, shard.header.codebook) for shard in self.sound)
        likely = [(header.codec, header.codebook) for header in headers]
        likely += [codec for codec, _ in siblings.most_common()]
        likely += [(name, None) for name in CODEC_NAMES if name != pq.NAME] if len(siblings) != 1 else []
        codebooks = self.cache.teacher_folder(self.contract) / "codebooks"
        likely += [(pq.NAME, path.stem) for path in sorted(codebooks.glob("*.npy"))]
        for name, codebook in dict.fromkeys(likely):
            with suppress(EmbedCacheError):
                yield get_codec(name) if codebook is None else pq.load(codebooks, codebook)


def _likely_rows(missing: int, shards: int) -> list[int]:
    """Return numbers people choose that cut ``missing`` rows into so many shards."""
    if shards < 2:
        return []
    low, high = -(-missing // shards), (missing - 1) // (shards - 1)
    tens = [high // unit * unit for unit in (10_000, 1_000, 100, 10)]
    powers = [1 << high.bit_length() - 1] if high else []
    return [rows for rows in (*powers, *tens) if low <= rows <= high]
