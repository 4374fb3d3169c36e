"""Storing shards in another codec as they are pulled: each is checked as it was pushed, then converted.

The provenance of the copy names the original, and the cache notes it. So the original is not fetched again,
and the copy is not pushed to a remote that has the original.
"""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedcache.check.verify.shards import open_without_codebook
from embedcache.codecs import CODEC_NAMES, FLOAT_CODECS, Stored, check_codec_name, get_codec, measure, pq
from embedcache.contract import Contract
from embedcache.conversions import Conversions
from embedcache.errors import InputError
from embedcache.share.temporaries import being_made
from embedcache.sizes import counted
from embedcache.store.base import CONVERTED_FROM
from embedcache.store.containers import FolderShards, LmdbShards
from embedcache.store.shard import Shard, ShardHeader, shard_bytes
from embedcache.teacher.outputs import LOGITS

if TYPE_CHECKING:
    import pyarrow as pa

# As float32, vectors of 768 components of so many rows take 50 MB.
_BLOCK_ROWS = 16384


def check_kept_codec(name: str) -> str:
    """Return ``name`` if shards that arrive can be stored in the codec of that name.

    Raises:
        InputError: if there is no such codec, or it is learnt from all vectors of a teacher.
    """
    if check_codec_name(name) == pq.NAME:
        raise InputError(
            "--codec pq: it learns a codebook from all of a teacher's vectors, which are not here yet; pull "
            "them as they are or as int8, then 'embedcache convert --codec pq'"
        )
    return name


def keeps_less(contract: Contract, wanted: str, stored: str) -> bool:
    """Return whether rows that are stored in one codec are to be converted to another.

    They are if that takes less room. Logits are only stored as floats.

    Args:
        contract: the teacher of the rows.
        wanted: name of the codec that was asked for.
        stored: name of the codec that they have.
    """
    if contract.output == LOGITS and wanted not in FLOAT_CODECS:
        return False
    return CODEC_NAMES.index(wanted) > CODEC_NAMES.index(stored)


def recoded(shard: Shard, codec_name: str) -> tuple[str, pa.Buffer]:
    """Return name and bytes of ``shard`` in another codec; they are the same on every machine.

    Args:
        shard: the shard.
        codec_name: name of the other codec.

    Raises:
        InputError: if a vector does not fit the codec.
    """
    codec = get_codec(codec_name)
    pieces: list[Stored] = []
    mean, worst = 0.0, 1.0
    for start in range(0, len(shard), _BLOCK_ROWS):
        block = shard.stored.take(slice(start, start + _BLOCK_ROWS))
        vectors = np.asarray(shard.codec.decode(block), dtype=np.float32)
        pieces.append(codec.encode(vectors))
        lost = measure(codec, vectors, pieces[-1])
        mean += lost.mean_cosine * len(block) / len(shard)
        worst = min(worst, lost.worst_cosine)
    scales = [piece.scale for piece in pieces if piece.scale is not None]
    stored = Stored(
        np.concatenate([piece.vector for piece in pieces]), np.concatenate(scales) if scales else None
    )
    header = ShardHeader(
        shard.header.contract,
        codec.name,
        codec.codebook,
        len(shard),
        {**shard.header.provenance, CONVERTED_FROM: shard.name},
        {"mean_cosine": min(mean, 1.0), "worst_cosine": worst},
    )
    return shard_bytes(header, codec, shard.keys, stored, shard.tokens, shard.truncated)


@dataclass
class Recoder:
    """Stores shards in another codec; safe from several threads, which convert one at a time.

    Args:
        codec: name of the codec.

    Attributes:
        converted: shards that were converted.
        bytes: what they take now.
        kept: codec -> number of shards that stayed as they are, because they would not shrink.
    """

    codec: str
    converted: int = 0
    bytes: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def put(
        self, container: FolderShards | LmdbShards, conversions: Conversions, name: str, place: Path
    ) -> bool:
        """Put a shard into ``container`` in the other codec; return whether it was converted.

        Args:
            container: where the copy goes.
            conversions: notes which shard it is a copy of.
            name: of the shard.
            place: its file, which was checked.

        Raises:
            InputError: if a vector does not fit the codec.
            StorageError: if the cache cannot be written.
        """
        import pyarrow as pa

        with ExitStack() as making:
            # A shard may take much memory: that of the next is not read before this one is in its file.
            with self._one_at_a_time:
                with pa.memory_map(str(place), "r") as source:
                    shard = open_without_codebook(source.read_buffer(), name, str(place))
                if not keeps_less(shard.header.contract, self.codec, shard.header.codec):
                    self.kept[shard.header.codec] += 1
                    return False
                new, data = recoded(shard, self.codec)
                self.converted += 1
                self.bytes += data.size
                if isinstance(container, LmdbShards):
                    conversions.add({new: name})
                    container.add(new, data)
                    return True
                temporary = making.enter_context(being_made(container.path(new)))
                temporary.write_bytes(data)
                del data
            # The note comes first: if the process is killed in between, a note without a copy does no harm.
            conversions.add({new: name})
            # A copy that is here already may be damaged: else its original would not have been fetched.
            container.adopt(new, temporary)
        return True

    def told(self) -> list[str]:
        """Return what to tell of shards that were not converted."""
        return [
            f"{counted(shards, 'shard')} stored as {codec} taken so: as {self.codec} no less would be kept"
            for codec, shards in sorted(self.kept.items())
            if codec != self.codec
        ]
