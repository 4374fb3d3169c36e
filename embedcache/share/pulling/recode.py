"""Another codec on the way down: a shard arrives as it was pushed, is found right, and is kept smaller.

The copy's provenance names the shard that it was made of, and the cache notes it: neither is that fetched
again, nor the copy sent back to where the whole is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedcache.check.verify.shards import open_without_codebook
from embedcache.codecs import CODEC_NAMES, FLOAT_CODECS, Stored, check_codec_name, get_codec, measure, pq
from embedcache.contract import Contract
from embedcache.conversions import Conversions
from embedcache.errors import InputError
from embedcache.fsio import temporary_sibling
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
    """Return ``name`` if what arrives can be kept in the codec called so.

    Raises:
        InputError: if there is no such codec, or it has to be learnt from all vectors of a teacher.
    """
    if check_codec_name(name) == pq.NAME:
        raise InputError(
            "--codec pq: it learns a codebook from all of a teacher's vectors, which are not here yet; pull "
            "them as they are or as int8, then 'embedcache convert --codec pq'"
        )
    return name


def keeps_less(contract: Contract, wanted: str, stored: str) -> bool:
    """Return whether rows of ``contract`` that are ``stored`` in a codec are to be converted to ``wanted``.

    Never to a codec that takes more room without bringing anything back; and logits stay floats.
    """
    if contract.output == LOGITS and wanted not in FLOAT_CODECS:
        return False
    return CODEC_NAMES.index(wanted) > CODEC_NAMES.index(stored)


def recoded(shard: Shard, codec_name: str) -> tuple[str, pa.Buffer]:
    """Return name and bytes of ``shard`` in another codec: the same for the same shard, on every machine.

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
    """Keeps shards of the cache in another codec; called under a lock, for a shard may take much memory.

    Args:
        codec: name of the codec.

    Attributes:
        converted: shards that were converted.
        bytes: what they take now.
        kept: codec -> shards that were taken as they are, because theirs keeps no more.
    """

    codec: str
    converted: int = 0
    bytes: int = 0
    kept: Counter[str] = field(default_factory=Counter)

    def put(
        self, container: FolderShards | LmdbShards, conversions: Conversions, name: str, place: Path
    ) -> bool:
        """Put what the shard in the file ``place`` becomes into ``container``; return whether it becomes any.

        Args:
            container: where to.
            conversions: where that is noted.
            name: of the shard.
            place: its file, whose digest and whose content were found right.

        Raises:
            InputError: if a vector does not fit the codec.
            StorageError: if the cache cannot be written.
        """
        import pyarrow as pa

        with pa.memory_map(str(place), "r") as source:
            shard = open_without_codebook(source.read_buffer(), name, str(place))
        if not keeps_less(shard.header.contract, self.codec, shard.header.codec):
            self.kept[shard.header.codec] += 1
            return False
        new, data = recoded(shard, self.codec)
        # Before the copy is there: should this be killed in between, a note on nothing does no harm.
        conversions.add({new: name})
        if isinstance(container, LmdbShards):
            container.add(new, data)
        else:
            # One that is there may be damaged, or its source would not have been fetched.
            with temporary_sibling(container.path(new)) as temporary:
                temporary.write_bytes(data)
                container.adopt(new, temporary)
        self.converted += 1
        self.bytes += data.size
        return True

    def told(self) -> list[str]:
        """Return what is worth telling: what was taken as it is though another codec was asked for."""
        return [
            f"{counted(shards, 'shard')} stored as {codec} taken so: as {self.codec} no less would be kept"
            for codec, shards in sorted(self.kept.items())
            if codec != self.codec
        ]
