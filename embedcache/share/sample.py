"""Comparison of a remote's vectors with the live teacher and with local ones, before they are admitted."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache, CachedTeacher
from embedcache.cache_documents import noted_model
from embedcache.corpus.corpus import Corpus
from embedcache.errors import ContractMismatchError, TeacherError
from embedcache.live import MESSAGES, Computing, compare_with_live, sample_texts
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.store import Positions, ShardStore
from embedcache.store.noise import compare_rows, noise_angle
from embedcache.teacher.aliases import ALIASES
from embedcache.teacher.lazy import refuse_other_teacher
from embedcache.teacher.resolve import is_served
from embedcache.teacher.token_table import TokenTable

if TYPE_CHECKING:
    from embedcache.teacher.text_encoder import TextEncoder

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

    def __str__(self) -> str:
        own = f", {self.own:,} rows beside others of their texts" if self.own else ""
        return f"{self.verdict} ({self.sampled:,} texts{own}): {self.message}"

    @property
    def is_bad(self) -> bool:
        """True if these are not the teacher's vectors."""
        return self.verdict == "bad"


def compare(
    name: str,
    came: ShardStore,
    own: ShardStore,
    corpora: Sequence[Corpus],
    load: Callable[..., TextEncoder],
    *,
    table: Path | None = None,
    progress: Progress = NO_PROGRESS,
) -> SampleCheck:
    """Compare vectors that came from a remote with one's own and with the live teacher's.

    Both samples are random. A predictable sample could be forged: send right vectors for the sample only.

    Args:
        name: name of the teacher.
        came: the vectors.
        own: the vectors that the cache has of the same teacher.
        corpora: corpora that may hold the texts of their keys.
        load: loads the teacher, with ``keep_weights`` to compare token embeddings; nothing is compared if it
            raises ``TeacherError`` or ``ContractMismatchError``.
        table: the file of token embeddings that came with them.
        progress: receives what is done.
    """
    generator = np.random.default_rng()
    compared, differ = _compare_own(came, own, generator)
    if differ:
        message = f"{differ:,} of {compared:,} vectors contradict others of the same texts"
        return SampleCheck(name, "bad", 0, compared, message)
    progress.phase("sample texts")
    texts = sample_texts(came, corpora, SAMPLE, int(generator.integers(1 << 60)))
    verdict, message = NOT_COMPARED, "none of their texts is here"
    try:
        if texts or table:
            progress.phase(f"load teacher {name}")
            encoder = load(keep_weights=True) if table else load()
            if table and not _has_table(encoder, TokenTable.read(table, came.contract)):
                verdict, message = "bad", "its token embeddings are not the model's"
            elif texts:
                progress.phase("compare", len(texts))
                refuse_other_teacher(encoder, came.contract)
                level = compare_with_live(came, texts, encoder).level
                verdict, message = level, MESSAGES[level]
    except (TeacherError, ContractMismatchError) as error:
        message = str(error)
    sampled = 0 if verdict == NOT_COMPARED else len(texts)
    return SampleCheck(name, verdict, sampled, compared, message)


def _has_table(encoder: TextEncoder, table: TokenTable) -> bool:
    """Return whether token embeddings are those of a teacher's model."""
    from embedcache.teacher.token_table import token_table_of

    own = token_table_of(encoder.teacher)
    both = ((own.word, table.word), (own.words(), table.words()), (own.block(), table.block()))
    return own.tokens == table.tokens and all(
        one.shape == other.shape and np.allclose(one, other, atol=1e-5) for one, other in both
    )


def _compare_own(came: ShardStore, own: ShardStore, generator: np.random.Generator) -> tuple[int, int]:
    """Compare rows that came with the cache's of the same texts, and with each other where a text came twice.

    Returns:
        How many rows were compared, and how many differ beyond noise.
    """
    compared = differ = 0
    most = max(64, _OWN_ROWS // max(1, len(came.shards)))
    for shard, is_read in came.own_rows():
        for other, there in ((own, own.locate(shard.keys) >= 0), (came, ~is_read)):
            rows = np.sort(generator.permutation(np.flatnonzero(there))[:most])
            if not len(rows):
                continue
            theirs = np.empty((len(rows), came.contract.dimension), np.float32)
            shard.codec.decode_into(shard.stored, rows, theirs)
            positions = other.locate(shard.keys[rows])
            angles = _noise_of(other, positions) + noise_angle(shard.header)
            _, beyond = compare_rows(theirs, other.vectors(positions), angles)
            compared, differ = compared + len(rows), differ + int(beyond.sum())
    return compared, differ


def _noise_of(store: ShardStore, positions: Positions) -> NDArray[np.float64]:
    """Return the angle that noise explains for the vector at each position, shape (n,)."""
    numbers, of_each = np.unique(store.shards_at(positions), return_inverse=True)
    return np.array([noise_angle(store.shards[number].header) for number in numbers.tolist()])[of_each]


def local_encoder(
    cache: Cache,
    teacher: CachedTeacher,
    came: ShardStore,
    computing: Computing | None = None,
    *,
    keep_weights: bool = False,
) -> TextEncoder:
    """Return an encoder of a teacher whose model is on this machine; nothing is downloaded.

    A folder counts only if this machine has noted it, not because a remote names it.

    Raises:
        TeacherError: if there is none, or it cannot be loaded, as that of a projection.
        ContractMismatchError: if it is another one.
    """
    computing = computing or Computing()
    spec = computing.teacher_model or noted_model(cache.derived_folder, teacher.contract.id)
    if not is_served(spec) and (spec is None or not Path(spec).expanduser().is_dir()):
        # The pusher chose both, so nothing is downloaded for them.
        named = (teacher.origin.get("spec", ""), teacher.name)
        spec = next((one for one in named if _is_downloaded(one)), None)
    if spec is None:
        raise TeacherError("the model is not on this machine")
    return computing.encoder(
        teacher.contract,
        spec=spec,
        name=teacher.name,
        shards=came.shards,
        keep_weights=keep_weights,
        local=True,
    )


def _is_downloaded(spec: str) -> bool:
    """Return whether the model of an alias or a hub id is on this machine."""
    base, _, revision = spec.partition("@")
    alias = ALIASES.get(base)
    if alias is not None and alias.module and not revision and importlib.util.find_spec(alias.module):
        return True
    model_id = base if alias is None else alias.model_id
    if model_id.count("/") != 1:
        return False
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):  # no hub id
        return isinstance(try_to_load_from_cache(model_id, "config.json", revision=revision or None), str)
    return False
