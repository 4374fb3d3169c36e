"""Stored vectors compared with those of the live teacher, computed as the stored ones were.

A vector is wrong if it is farther from the live one than its codec loses, two runs differ
(``embedcache.store.noise``) and another device or library version explains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import Vectors
from embedcache.contract import SERVED, Contract
from embedcache.corpus.corpus import Corpus, find_texts
from embedcache.errors import InputError, MissingExtraError, TeacherError
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray, key_array
from embedcache.store import Positions, Shard, ShardStore, VectorBatch
from embedcache.store.noise import COMPUTE_COSINE
from embedcache.teacher import canary
from embedcache.teacher.options import PROJECTION, EncodeOptions

if TYPE_CHECKING:
    from embedcache.store.waiting import WaitingRows
    from embedcache.teacher.lazy import LazyTeacher
    from embedcache.teacher.text_encoder import TextEncoder

Level: TypeAlias = Literal["ok", "look", "bad"]
MARGIN = 0.1
"""Relative distance beyond the noise that another device or library version may cause."""
MESSAGES: dict[Level, str] = {
    "ok": "the stored vectors are the teacher's",
    "look": "beyond the noise: another device or library version computed these vectors",
    "bad": "these are not this teacher's vectors",
}
ENOUGH = 20
"""Vectors of an imported shard that are compared with the live teacher before all of it counts as checked."""
_MEASURED = 16
# Largest loss of a codec: pq may come with the codebook of a stranger.
_MOST_LOST = 0.7


@dataclass(frozen=True)
class Computing:
    """Options of running a teacher again.

    Attributes:
        teacher_model: alias, hub id or folder to load it from; None: where it was built from.
        compute_dtype: None: the dtype the stored vectors were computed in.
        device, batch_tokens, threads, trust_remote_code: as for a build.
    """

    teacher_model: str | Path | None = None
    compute_dtype: str | None = None
    device: str = "auto"
    batch_tokens: int | None = None
    threads: int | None = None
    trust_remote_code: bool = False

    def encoder(
        self,
        contract: Contract,
        *,
        spec: str | Path,
        name: str,
        shards: Iterable[Shard],
        keep_weights: bool = False,
        local: bool = False,
    ) -> TextEncoder:
        """Return an encoder of the teacher of a contract.

        Args:
            contract: contract that the model must have.
            spec: source of the teacher.
            name: its name.
            shards: its stored vectors.
            keep_weights: leave the weights in memory as the files have them.
            local: download nothing.

        Raises:
            TeacherError: if it cannot be found or loaded.
            ContractMismatchError: if the model has another contract; it names the fields that differ.
            InputError: if the device cannot compute in the dtype asked for.
        """
        from embedcache.teacher.inference import resolve_compute_dtype
        from embedcache.teacher.lazy import encoder_of
        from embedcache.teacher.load import load_by_contract, resolve_device
        from embedcache.teacher.openvino_model import TORCH, takes_openvino

        shards, device = list(shards), resolve_device(self.device)
        default = "auto" if contract.quantization is None else "float32"
        name_of_dtype = self.compute_dtype or next(iter(compute_dtypes(shards)), default)
        try:
            dtype = None if contract.is_served else resolve_compute_dtype(name_of_dtype, device)
        except InputError:
            if self.compute_dtype is not None:
                raise
            dtype = resolve_compute_dtype("auto", device)
        try:
            loaded = load_by_contract(
                self.teacher_model or spec,
                contract,
                name=name,
                remedy="give the right one with teacher_model",
                device=self.device,
                dtype=None if keep_weights else dtype,
                trust_remote_code=self.trust_remote_code,
                local=local,
            )
        except TeacherError as error:
            if self.teacher_model is not None or contract.output == PROJECTION or contract.is_served:
                raise
            raise TeacherError(f"{error}; or give its folder with teacher_model") from error
        if dtype is None:
            return encoder_of(loaded, EncodeOptions(batch_tokens=self.batch_tokens))
        backend = next(iter(_recorded(shards, "backend", TORCH)), TORCH)
        try:
            takes_openvino(backend, loaded.model, dtype)
        except (InputError, MissingExtraError):
            backend = TORCH
        how = EncodeOptions(
            compute_dtype=str(dtype).removeprefix("torch."),
            backend=backend,
            batch_tokens=self.batch_tokens,
            threads=self.threads,
        )
        return encoder_of(loaded, how, copy=keep_weights)


def compute_dtypes(shards: Iterable[Shard]) -> list[str]:
    """Return the compute dtypes of stored vectors, the most frequent first."""
    return _recorded(shards, "compute_dtype")


def _recorded(shards: Iterable[Shard], field: str, default: str | None = None) -> list[str]:
    """Return the values of a field of the shards' provenance, the most frequent first."""
    counts: Counter[str] = Counter()
    for shard in shards:
        value = shard.header.provenance.get(field, default)
        if isinstance(value, str):
            counts[value] += len(shard)
    return [value for value, _ in counts.most_common()]


@dataclass(frozen=True)
class LiveComparison:
    """Stored vectors beside the live teacher's; arrays of shape (n,).

    Attributes:
        differs: rows beyond the noise.
        wrong: rows beyond noise and margin: vectors of another text or teacher.
        noise: relative distance that two runs of the teacher explain.
        shards: number of each row's shard.
    """

    differs: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    noise: NDArray[np.float64]
    shards: NDArray[np.int64]

    @property
    def level(self) -> Level:
        """``ok`` within the noise, ``look`` within the margin, else ``bad``."""
        return "bad" if self.wrong.any() else "look" if self.differs.any() else "ok"


def compare_with_live(store: ShardStore, texts: Sequence[str], encoder: TextEncoder) -> LiveComparison:
    """Compare stored vectors with those that the live teacher computes now.

    Args:
        store: the stored vectors.
        texts: n texts that have one.
        encoder: the teacher.
    """
    live, positions = encoder.encode(texts).vectors, store.locate(key_array(texts))
    dtype = str(encoder.provenance.get("compute_dtype"))
    return _compare(store, positions, live, {dtype: run_noise(encoder, texts, live)}, dtype, MARGIN)


def _compare(
    store: ShardStore,
    positions: Positions,
    live: Vectors,
    measured: Mapping[str, float],
    dtype: str,
    margin: float,
) -> LiveComparison:
    """Compare stored vectors with live ones.

    Args:
        store: the stored vectors.
        positions: positions of the rows to compare, shape (n,).
        live: the teacher's vectors of their texts, float32, shape (n, d).
        measured: noise by compute dtype, where it was measured.
        dtype: dtype that the live teacher computed in.
        margin: relative distance beyond the noise from which a vector is wrong.
    """
    stored = store.vectors(positions)
    shards = store.shards_at(positions)
    lost, noise = np.empty(len(live)), np.empty(len(live))
    for number in np.unique(shards).tolist():
        rows, shard = shards == number, store.shards[number]
        # A codec rounds to the nearest value: a vector moved by e comes back at most 2 e farther away.
        lost[rows] = _distances(shard.codec.decode(shard.codec.encode(live[rows])), live[rows])
        stored_in = str(shard.header.provenance.get("compute_dtype"))
        noise[rows] = sum(measured.get(one, _documented_noise(one)) for one in (stored_in, dtype))
    distances = _distances(stored, live) - np.minimum(lost, _MOST_LOST)
    # Not a number is no distance within the noise.
    return LiveComparison(~(distances <= noise), ~(distances <= noise + margin), noise, shards)


def _distances(found: NDArray[np.floating], expected: Vectors) -> NDArray[np.float64]:
    wide = expected.astype(np.float64)
    lengths = np.maximum(np.linalg.norm(wide, axis=1), np.finfo(np.float32).tiny)
    distances: NDArray[np.float64] = np.linalg.norm(found - wide, axis=1) / lengths
    return distances


def run_noise(encoder: TextEncoder, texts: Sequence[str], vectors: Vectors) -> float:
    """Return the relative distance between two runs of a teacher, or the documented one if that is larger.

    It is measured on this machine, for texts of all lengths: in many layers of bfloat16 it adds up.

    Args:
        encoder: the teacher.
        texts: n texts.
        vectors: their vectors, encoded together, float32, shape (n, d); some are encoded one by one as well.
    """
    documented = _documented_noise(encoder.provenance.get("compute_dtype"))
    if encoder.teacher.contract.is_served:
        return documented
    by_length = np.argsort([len(text) for text in texts], kind="stable")
    some = by_length[:: max(1, len(texts) // _MEASURED)]
    singly = np.concatenate([encoder.encode([texts[row]]).vectors for row in some])
    return max(documented, float(_distances(singly, vectors[some]).max(initial=0.0)))


def _documented_noise(compute_dtype: object) -> float:
    return math.acos(COMPUTE_COSINE.get(str(compute_dtype), COMPUTE_COSINE["float32"]))


def sample_texts(
    store: ShardStore, corpora: Sequence[Corpus], sample: int, seed: int, shards: Collection[str] = ()
) -> list[str]:
    """Return a random sample of the distinct texts of corpora and views that have a vector.

    Keys are digests, so the texts whose keys rank lowest are a uniform sample; order and repeats do not
    matter.

    Args:
        store: the vectors.
        corpora: corpora and views.
        sample: most texts.
        seed: seed of the ranks.
        shards: names of shards to sample first: at least ``ENOUGH`` texts each, at most half of the sample.
    """
    shards = sorted(shards)[: max(1, sample // (2 * ENOUGH))]
    each = max(ENOUGH, sample // (2 * len(shards))) if shards else 0
    is_named = np.isin(store.shard_names, shards)
    drawn = of_shards = np.empty(0, KEY_DTYPE)
    for corpus in corpora:
        for keys in corpus.iter_keys():
            keys = np.concatenate([drawn, of_shards, keys[store.locate(keys) >= 0]])
            keys = keys[np.unique(_ranks(keys, seed), return_index=True)[1]]
            drawn = keys[:sample]
            if each:
                numbers = store.shards_at(store.locate(keys))
                places = np.flatnonzero(is_named[numbers])
                # Of each shard, the keys that rank lowest.
                places = places[np.argsort(numbers[places], kind="stable")]
                firsts = np.searchsorted(numbers[places], numbers[places])
                of_shards = keys[places[np.arange(len(places)) - firsts < each]]
    is_new = ~np.isin(_ranks(drawn, seed), _ranks(of_shards, seed))
    drawn = np.concatenate([of_shards, drawn[is_new]])[:sample]
    return [text for text in find_texts(drawn, corpora) if text is not None]


def _ranks(keys: KeyArray, seed: int) -> NDArray[np.uint64]:
    """Return a number for each key, in an order that is random and depends on ``seed``; shape (n,)."""
    words = np.ascontiguousarray(keys).view(np.uint64).reshape(-1, KEY_BYTES // 8)[:, 0]
    factor = np.random.default_rng(seed).integers(1 << 63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    # Odd, so that no two words get the same number.
    return words * factor


def refuse_changed_server(
    store: ShardStore,
    corpora: Callable[[], Sequence[Corpus]],
    encode: Callable[[Sequence[str]], Vectors],
    waiting: WaitingRows | None = None,
) -> None:
    """Refuse a served teacher whose vectors are not the stored ones; other teachers pass.

    The canary's texts are compared; where the store lacks some of them, because a build was killed or a part
    was copied, texts of the corpora are as well.

    Args:
        store: the stored vectors.
        corpora: returns the corpora that may have their texts.
        encode: returns the served vectors of texts, float32, shape (n, d).
        waiting: rows that wait to be stored; the canary is among them.

    Raises:
        ContractMismatchError: if a vector differs by more than two runs and the codec explain.
        ServedTeacherError: if the server does not answer.
        CorruptCacheError: if the cache is damaged.
    """
    if not store.contract.is_served:
        return
    if waiting is not None:
        _refuse_changed_waiting(waiting, store.contract, encode)
    texts = [text for text in canary.TEXTS if store.locate(key_array([text]))[0] >= 0]
    if len(texts) < len(canary.TEXTS) and len(store):
        texts += sample_texts(store, corpora(), len(canary.TEXTS), seed=0)
    if not texts:
        return
    positions, now = store.locate(key_array(texts)), encode(texts)
    found = _compare(store, positions, now, {}, SERVED, 0.0)
    before = store.vectors(positions)
    canary.refuse_other_model(store.contract.weights, texts, before, now, found.wrong, "in the cache")


def _refuse_changed_waiting(
    waiting: WaitingRows, contract: Contract, encode: Callable[[Sequence[str]], Vectors]
) -> None:
    waiting.refresh()
    places = waiting.locate(key_array(canary.TEXTS))
    if (places >= 0).all():
        before, now = waiting.vectors(places), encode(canary.TEXTS)
        wrong = canary.cosines(before, now) < canary.LEAST_COSINE
        canary.refuse_other_model(contract.weights, canary.TEXTS, before, now, wrong, "in the cache")


def keep_canary(store: ShardStore, teacher: LazyTeacher) -> None:
    """Store the canary of a served teacher beside its vectors; other teachers have none.

    It comes last: the first vectors that are stored may have to teach a codebook.

    Raises:
        StorageError: if the store cannot be written.
    """
    keys = key_array(canary.TEXTS)
    if store.contract.is_served and len(store) and (store.locate(keys) < 0).any():
        found = teacher.encoder.encode(canary.TEXTS)
        store.put(VectorBatch(keys, *found, teacher.encoder.provenance))
