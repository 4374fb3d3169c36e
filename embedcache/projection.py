"""Derived teachers: vectors that a linear map makes of another teacher's, in the same cache.

Such a teacher has a contract, a name and a store as any other has, so all that reads vectors reads its. Its
contract names the base's contract and the digest of the map; the map lies beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import Vectors
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.errors import CorruptCacheError, InputError, MissingVectorsError
from embedcache.fsio import canonical_json, write_bytes
from embedcache.missing import MissingRows
from embedcache.store.base import VectorBatch
from embedcache.teacher import outputs

PROJECTION = "projection.safetensors"
OUTPUT = outputs.PROJECTION
"""What the contract of a derived teacher says is stored."""

ROWS_A_SHARD = 16384


def projection_bytes(matrix: NDArray[np.float32]) -> bytes:
    """Return the content of the file of a map: float32, shape (d, base's d)."""
    from safetensors.numpy import save

    return save({"weight": np.ascontiguousarray(matrix, dtype=np.float32)})


def projection_contract(base: Contract, matrix: NDArray[np.float32]) -> Contract:
    """Return the contract of the vectors of length one that a map makes of ``base``'s.

    Args:
        base: the contract of the vectors it takes.
        matrix: float32, shape (d, base's d).

    Raises:
        InputError: if the base gives no sentence vectors, or vectors of another width.
    """
    if base.output != "embedding":
        raise InputError(
            f"a projection of a teacher whose output is {base.output!r} was asked for: expected one that "
            "gives embeddings; name the teacher it was made of"
        )
    if matrix.ndim != 2 or matrix.shape[1] != base.dimension:
        raise InputError(f"a map of shape {matrix.shape} for vectors of {base.dimension} dimensions")
    digest = hashlib.sha256(projection_bytes(matrix)).hexdigest()
    modules = [
        *(json.loads(base.modules) if base.modules else []),
        {"type": "Projection", "of": base.id, "weights": digest},
    ]
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
    """Give a map of a teacher's vectors a home in the cache under ``name``; harmless where it has one.

    Args:
        cache: the cache.
        base: the teacher whose vectors it takes.
        name: what the derived teacher is called.
        matrix: float32, shape (d, base's d).
        note: how it came about, for people.

    Raises:
        InputError, ContractMismatchError: as :func:`projection_contract` and ``Cache.register_teacher``.
        StorageError: if the cache cannot be written.
    """
    contract = projection_contract(base.contract, matrix)
    cache.refuse_other_contract(name, contract)
    # Before the contract: a teacher that is listed has its map.
    write_bytes(cache.teacher_folder(contract) / PROJECTION, projection_bytes(matrix))
    return cache.register_teacher(name, contract, {**base.origin, "projection": note})


def projection_digest(contract: Contract) -> str | None:
    """Return the sha256 of the file of a derived teacher's map; None for any other teacher's contract."""
    return str(outputs.modules_of(contract)[-1]["weights"]) if is_derived(contract) else None


def is_derived(contract: Contract) -> bool:
    """Return whether a contract is that of a derived teacher."""
    return contract.output == OUTPUT


def base_of(cache: Cache, teacher: CachedTeacher) -> CachedTeacher:
    """Return the teacher whose vectors a derived teacher is made of.

    Raises:
        InputError: if ``teacher`` is none, or the cache does not hold its base.
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
    """Return the map of a derived teacher, shape (d, base's d).

    Raises:
        InputError: if ``teacher`` is none.
        CorruptCacheError: if the file is missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path, wanted = cache.teacher_folder(teacher.contract) / PROJECTION, _entry(teacher)["weights"]
    try:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != wanted:
            raise ValueError("it is not the file that the contract names")
        matrix: NDArray[np.float32] = load(data)["weight"]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CorruptCacheError(
            f"{path} is damaged ({str(error)[:200]}): run 'distill project' again with the settings it was "
            f"made with ({teacher.origin.get('projection', 'not noted')}), or copy the file back"
        ) from error
    return matrix


def apply_projection(matrix: NDArray[np.float32], vectors: Vectors) -> Vectors:
    """Return what a map makes of vectors (n, base's d), scaled to length one, shape (n, d)."""
    mapped = vectors @ matrix.T
    lengths = np.linalg.norm(mapped, axis=1, keepdims=True)
    found: Vectors = mapped / np.maximum(lengths, np.finfo(np.float32).tiny)
    return found


def extend(cache: Cache, teacher: CachedTeacher, corpus: Corpus) -> Iterator[tuple[int, int]]:
    """Make the vectors of a derived teacher that a corpus lacks, of those that its base has.

    Yields:
        rows done and rows there are to do: first of all, and after every shard.

    Raises:
        MissingVectorsError: if the base lacks vectors too; it says how many. Nothing is written then.
        InputError: as :func:`base_of`.
        CorruptCacheError: as :func:`read_projection`.
        StorageError: if the cache cannot be written.
    """
    base, matrix = base_of(cache, teacher), read_projection(cache, teacher)
    given, made = cache.store(base.contract), cache.store(teacher.contract)
    missing = MissingRows.of(corpus, made)
    total, done = len(missing), 0
    places = given.locate(missing.keys())
    if lacking := int((places < 0).sum()):
        raise MissingVectorsError(
            f"{lacking} of {missing.distinct} texts of {corpus.title} have no vector of teacher "
            f"{base.name!r} yet, which {teacher.name!r} is made of: run 'embedcache build' for this corpus "
            "and teacher (it encodes only what is missing)"
        )
    yield done, total
    for rows in missing.windows(ROWS_A_SHARD):
        keys = missing.keys(rows)
        places = given.locate(keys)
        vectors = apply_projection(matrix, given.vectors(places))
        made.put(VectorBatch(keys, vectors, *given.seen(places), {"projection": base.contract.id}))
        done += len(rows)
        yield done, total
    made.finish()


def _entry(teacher: CachedTeacher) -> dict[str, str]:
    if not is_derived(teacher.contract):
        raise InputError(f"teacher {teacher.name!r} is no projection: its vectors are a model's own")
    found: dict[str, str] = json.loads(teacher.contract.modules)[-1]
    return found
