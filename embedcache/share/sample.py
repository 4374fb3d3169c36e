"""Comparison of a remote's vectors with the live teacher and with one's own, before they are admitted."""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from embedcache.cache import Cache, CachedTeacher
from embedcache.cached_teacher import noted_model
from embedcache.codecs import Vectors
from embedcache.corpus.corpus import Corpus
from embedcache.doctor.deep import MESSAGES, compare_with_live, sample_texts
from embedcache.doctor.sampling import ranks
from embedcache.errors import ContractMismatchError, TeacherError
from embedcache.keys import key_array
from embedcache.live import Computing
from embedcache.noise import compare_rows, noise_angle
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.reuse import shard_places
from embedcache.store import Positions, ShardStore
from embedcache.teacher.aliases import ALIASES
from embedcache.teacher.token_table import TokenTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedcache.teacher.encode import Encoder

SAMPLE = 100
"""Texts that are encoded again."""
NOT_COMPARED = "not compared"
_OWN_ROWS = 20_000


@dataclass(frozen=True)
class SampleCheck:
    """Result of comparing a teacher's vectors.

    Attributes:
        teacher: its name.
        verdict: ``ok``, ``look`` (more than batching explains), ``bad`` or ``not compared``.
        sampled: texts that were encoded again.
        own: rows that were compared with other vectors of the same texts.
        message: the verdict in words.
    """

    teacher: str
    verdict: str
    sampled: int
    own: int
    message: str

    @property
    def is_bad(self) -> bool:
        """True if these are not the teacher's vectors."""
        return self.verdict == "bad"


def compare(
    came: ShardStore,
    own: ShardStore,
    teacher: CachedTeacher,
    corpora: Iterable[Corpus],
    load: Callable[[], LiveTeacher | None],
    *,
    table: Path | None = None,
    progress: Progress = NO_PROGRESS,
) -> SampleCheck:
    """Compare vectors that came from a remote with one's own and with the live teacher's.

    Both samples are drawn with a fresh secret seed: a pusher who knew it could send right vectors of the
    sample and any others.

    Args:
        came: the vectors.
        own: the vectors that the cache has of the same teacher.
        teacher: the teacher.
        corpora: where the texts of their keys may be.
        load: loads the teacher; returns None where its model is not on this machine.
        table: the file of token embeddings that came with them.
        progress: receives what is done.
    """
    seed = secrets.randbits(60)
    compared, differ = _compare_own(came, own, seed)

    def result(verdict: str, message: str, sampled: int = 0) -> SampleCheck:
        return SampleCheck(teacher.name, verdict, sampled, compared, message)

    if differ:
        return result("bad", f"{differ:,} of {compared:,} vectors contradict others of the same texts")
    progress.phase("sample texts")
    texts = sample_texts(came, list(corpora), SAMPLE, seed)
    if not texts and table is None:
        return result(NOT_COMPARED, "none of their texts is here")
    progress.phase(f"load teacher {teacher.name}")
    try:
        live = load()
    except (TeacherError, ContractMismatchError) as error:
        return result(NOT_COMPARED, str(error))
    if live is None:
        return result(NOT_COMPARED, "the model is not on this machine")
    if table is not None and not live.has_table(TokenTable.read(table, teacher.contract)):
        return result("bad", "its token embeddings are not the model's")
    if not texts:
        return result(NOT_COMPARED, "none of their texts is here")
    progress.phase("compare", len(texts))
    vectors, positions = live.encode(texts), came.locate(key_array(texts))
    level = compare_with_live(came, positions, vectors, live.compute_dtype).level
    return result(level, MESSAGES[level], len(texts))


@dataclass(frozen=True)
class LiveTeacher:
    """A live teacher.

    Attributes:
        encoder: encodes texts.
        columns: the part of what it gives that is compared, of a teacher that gives several outputs at once.
    """

    encoder: Encoder
    columns: slice | None = None

    @property
    def compute_dtype(self) -> str:
        """Compute dtype."""
        return str(self.encoder.provenance.get("compute_dtype"))

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, float32 of shape (n, d)."""
        return self.encoder.encode(texts).vectors[:, self.columns or slice(None)]

    def has_table(self, table: TokenTable) -> bool:
        """Return whether token embeddings are those of its model."""
        from embedcache.teacher.token_table import token_table_of

        own = token_table_of(self.encoder.teacher)
        return own.word.shape == table.word.shape and bool(np.allclose(own.word, table.word, atol=1e-6))


def local_teacher(
    cache: Cache, teacher: CachedTeacher, came: ShardStore, computing: Computing | None = None
) -> LiveTeacher | None:
    """Return a teacher whose model is on this machine, else None; nothing is downloaded.

    A folder counts only if this machine has noted it, not because a remote names it.

    Raises:
        TeacherError: if the model cannot be loaded, as that of a projection.
        ContractMismatchError: if it is another one.
    """
    computing = computing or Computing()
    spec = computing.teacher_model or noted_model(cache.derived_folder, teacher.contract.id)
    if spec is None or not Path(spec).expanduser().is_dir():
        # A pusher chose both.
        named = (teacher.origin.get("spec", ""), teacher.name)
        spec = next((one for one in named if _is_downloaded(one)), None)
    if spec is None:
        return None
    return LiveTeacher(computing.encoder(teacher.contract, spec=spec, name=teacher.name, shards=came.shards))


def _is_downloaded(spec: str) -> bool:
    """Return whether the model of an alias or a hub id is on this machine."""
    base, _, revision = spec.partition("@")
    alias = ALIASES.get(base)
    if alias is not None and alias.module and not revision and importlib.util.find_spec(alias.module):
        return True
    model_id = base if alias is None else alias.model_id
    if model_id.count("/") != 1 or model_id.startswith((".", "/", "~")):
        return False
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):
        return isinstance(try_to_load_from_cache(model_id, "config.json", revision=revision or None), str)
    return False


def _compare_own(came: ShardStore, own: ShardStore, seed: int) -> tuple[int, int]:
    """Compare rows that came with the cache's of the same texts, and with each other where a text came twice.

    Returns:
        How many rows were compared, and how many differ beyond noise.
    """
    compared = differ = 0
    most = max(64, _OWN_ROWS // max(1, len(came.shards)))
    for shard, is_read in came.own_rows():
        is_own = own.locate(shard.keys) >= 0 if own.shards else np.zeros(len(shard), dtype=np.bool_)
        for other, mask in ((own, is_own), (came, ~is_read)):
            rows = np.flatnonzero(mask)
            rows = rows[np.argsort(ranks(shard.keys[rows], seed), kind="stable")[:most]]
            if not len(rows):
                continue
            theirs = np.empty((len(rows), came.contract.dimension), np.float32)
            shard.codec.decode_into(shard.stored, rows, theirs)
            positions = other.locate(shard.keys[rows])
            angles = _angles(other, positions) + noise_angle(shard.header)
            _, beyond = compare_rows(theirs, other.vectors(positions), angles)
            compared, differ = compared + len(rows), differ + int(beyond.sum())
    return compared, differ


def _angles(store: ShardStore, positions: Positions) -> NDArray[np.float64]:
    """Return how far noise may turn the vectors at some positions, in radians."""
    numbers, _ = shard_places(store, positions)
    return np.array([noise_angle(store.shards[number].header) for number in numbers.tolist()])
