"""Projections: teachers whose vectors are a linear map of another teacher's cached vectors.

A projection has a contract, a name and a store like any teacher, so every reader of vectors reads it too. Its
contract names the contract of its base and the digest of the map, which is stored beside it.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache, CachedTeacher
from embedcache.cache_documents import IMPORTED
from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.errors import CorruptCacheError, InputError, MissingVectorsError, UnreadableError
from embedcache.fsio import canonical_json, map_regular, write_bytes
from embedcache.missing import MissingRows
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.store.base import VectorBatch
from embedcache.teacher.classifier import modules_of
from embedcache.teacher.options import PROJECTION as OUTPUT

PROJECTION = "projection.safetensors"
ROWS_A_SHARD = 16384


def projection_bytes(matrix: NDArray[np.float32]) -> bytes:
    """File content of a map: float32, shape (d, base's d)."""
    from safetensors.numpy import save

    return save({"weight": np.ascontiguousarray(matrix, dtype=np.float32)})


def projection_contract(base: Contract, matrix: NDArray[np.float32]) -> Contract:
    """Contract of a projection; its vectors have length one.

    Args:
        base: contract of the vectors that are mapped.
        matrix: float32, shape (d, base's d).

    Raises:
        InputError: if the base is not a teacher of embeddings, or of another width.
    """
    if base.output != "embedding":
        raise InputError(
            f"cannot project a teacher whose output is {base.output!r}: expected embeddings; name its base"
        )
    if matrix.ndim != 2 or matrix.shape[1] != base.dimension:
        raise InputError(f"a map of shape {matrix.shape} for vectors of {base.dimension} dimensions")
    digest = hashlib.sha256(projection_bytes(matrix)).hexdigest()
    modules = [*modules_of(base), {"type": "Projection", "of": base.id, "weights": digest}]
    return replace(
        base,
        output=OUTPUT,
        normalize=True,
        truncate_dim=None,
        dimension=len(matrix),
        modules=canonical_json(modules).decode(),
    )


def write_derived(
    cache: Cache, base: CachedTeacher, name: str, matrix: NDArray[np.float32], note: str
) -> CachedTeacher:
    """Register a projection in a cache; doing it again is harmless.

    Args:
        cache: the cache.
        base: the teacher whose vectors are mapped.
        name: name of the projection.
        matrix: float32, shape (d, base's d).
        note: settings that it was trained with, for people.

    Raises:
        InputError, ContractMismatchError: as ``projection_contract`` and ``Cache.register_teacher``.
        StorageError: if the cache cannot be written.
    """
    contract = projection_contract(base.contract, matrix)
    cache.refuse_other_contract(name, contract)
    # The map first: every registered projection has one.
    write_bytes(cache.teacher_folder(contract) / PROJECTION, projection_bytes(matrix))
    return cache.register_teacher(name, contract, {**base.origin, "projection": note})


def projection_digest(contract: Contract) -> str | None:
    """The sha256 of the file of a projection's map; None for the contract of any other teacher."""
    return str(modules_of(contract)[-1]["weights"]) if is_derived(contract) else None


def is_derived(contract: Contract) -> bool:
    """Check if a contract is that of a projection."""
    return contract.output == OUTPUT


def base_of(cache: Cache, teacher: CachedTeacher) -> CachedTeacher:
    """Find the teacher whose vectors a projection maps.

    Raises:
        InputError: if ``teacher`` is not a projection, or the cache lacks its base.
    """
    wanted = _entry(teacher)["of"]
    for other in cache.teachers():
        if other.contract.id == wanted:
            return other
    raise InputError(
        f"teacher {teacher.name!r} is a projection of teacher {wanted[:12]}, which {cache.folder} does not "
        "hold: build that one first"
    )


def read_projection(cache: Cache, teacher: CachedTeacher) -> NDArray[np.float32]:
    """Read the map of a projection: float32, shape (d, base's d).

    Raises:
        InputError: if ``teacher`` is not a projection.
        CorruptCacheError: if the file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path, wanted = cache.teacher_folder(teacher.contract) / PROJECTION, _entry(teacher)["weights"]
    try:
        data = bytes(map_regular(path))
        if hashlib.sha256(data).hexdigest() != wanted:
            raise ValueError("its digest is not the one in the contract")
        matrix: NDArray[np.float32] = load(data)["weight"]
    except UnreadableError:
        raise
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CorruptCacheError(
            f"{path} is damaged ({str(error)[:200]}): run 'distill kb project' again with the settings it "
            f"was made with ({teacher.origin.get('projection', 'not noted')}), or copy the file back"
        ) from error
    return matrix


def apply_projection(matrix: NDArray[np.float32], vectors: Vectors) -> Vectors:
    """Map vectors (n, base's d) and scale them to length one, shape (n, d)."""
    mapped = vectors @ matrix.T
    lengths = np.linalg.norm(mapped, axis=1, keepdims=True)
    found: Vectors = mapped / np.maximum(lengths, np.finfo(np.float32).tiny)
    return found


def extend(
    cache: Cache,
    teacher: CachedTeacher,
    corpus: Corpus,
    progress: Progress = NO_PROGRESS,
) -> int:
    """Compute the vectors of a projection that a corpus lacks, from those of its base; return how many.

    Args:
        cache: the cache.
        teacher: the projection.
        corpus: the corpus.
        progress: progress over the rows.

    Raises:
        MissingVectorsError: if the base lacks vectors too; nothing is written then.
        InputError: as ``base_of``.
        CorruptCacheError: as ``read_projection``.
        StorageError: if the cache cannot be written.
    """
    base, matrix = base_of(cache, teacher), read_projection(cache, teacher)
    given, made = cache.store(base.contract), cache.store(teacher.contract)
    missing = MissingRows.of(corpus, made)
    keys, total = missing.keys(), len(missing)
    places = given.locate(keys)
    if lacking := int((places < 0).sum()):
        raise MissingVectorsError(
            f"{lacking} of {missing.distinct} texts of {corpus.title} have no vector of teacher "
            f"{base.name!r}, the base of {teacher.name!r}: run 'embedcache build' for this corpus and teacher"
        )
    facts = (fact for shard in given.shards for fact in shard.header.provenance.items())
    provenance = {
        "projection": base.contract.id,
        **{name: value for name, value in facts if name == IMPORTED},
    }
    progress.phase("project", total)
    for start in range(0, total, ROWS_A_SHARD):
        rows = places[start : start + ROWS_A_SHARD]
        vectors = apply_projection(matrix, given.vectors(rows))
        made.put(VectorBatch(keys[start : start + len(rows)], vectors, *given.seen(rows), provenance))
        progress.advance(len(rows))
    made.finish()
    return total


def _entry(teacher: CachedTeacher) -> dict[str, str]:
    """The module of a projection: ``of`` and ``weights``."""
    if not is_derived(teacher.contract):
        raise InputError(f"teacher {teacher.name!r} is not a projection: its vectors are a model's own")
    return modules_of(teacher.contract)[-1]
