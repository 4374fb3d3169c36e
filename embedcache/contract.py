"""The teacher contract: everything that determines a teacher's vector, and nothing else.

Its sha256 names the teacher inside a cache, so vectors of two contracts can never be mixed up. What only
changes speed (batch size, device, compute dtype, library versions) is provenance of a shard, not identity.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, fields

from embedcache.errors import CorruptCacheError
from embedcache.fsio import canonical_json

CONTRACT_VERSION = 1

_TYPES = {"str": (str,), "int": (int,), "bool": (bool,), "int | None": (int, type(None))}


@dataclass(frozen=True)
class Contract:
    """What determines a vector.

    Attributes:
        weights: sha256 over names, dtypes, shapes and bytes of the weight tensors, whatever files hold them.
        tokenizer: sha256 of the tokenizer's files, padding and truncation settings left out.
        architecture: sha256 of the model's ``config.json``, fields without influence on a vector left out.
        pooling: how token vectors become one: ``mean``, ``cls``, ``pooler``, ``lasttoken``, or ``none``.
        modules: what follows the pooling (Dense and the like), as canonical JSON; empty where nothing does.
        prompt: text put before every sentence; empty where there is none.
        max_length: tokens after which a text is cut, special tokens counted; 0 means never.
        normalize: whether vectors are scaled to length one.
        output: what is stored; ``embedding`` is the sentence vector.
        truncate_dim: vectors are cut to so many leading dimensions; None means never.
        dimension: width of a stored vector.
        version: version of this list of fields.
    """

    weights: str
    tokenizer: str
    architecture: str
    pooling: str
    modules: str
    prompt: str
    max_length: int
    normalize: bool
    dimension: int
    output: str = "embedding"
    truncate_dim: int | None = None
    version: int = CONTRACT_VERSION

    @property
    def id(self) -> str:
        """The sha256 of the contract, 64 hexadecimal digits: the teacher's name on disk."""
        return hashlib.sha256(canonical_json(self.to_json())).hexdigest()

    def to_json(self) -> dict[str, object]:
        """Return the contract as a JSON object."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, value: object) -> Contract:
        """Read a contract back.

        Raises:
            CorruptCacheError: if fields are missing or unknown, or a value is of another type.
        """
        if not isinstance(value, Mapping):
            raise CorruptCacheError(f"a contract has to be a JSON object, found a {type(value).__name__}")
        expected = {field.name: _TYPES[str(field.type)] for field in fields(cls)}
        if set(value) != set(expected):
            raise CorruptCacheError(
                f"a contract with the fields {sorted(value)} was found, expected {sorted(expected)}: "
                "it was damaged or written by another version of embedcache"
            )
        for name, types in expected.items():
            # Not isinstance, which takes True for a number.
            if type(value[name]) not in types:
                raise CorruptCacheError(
                    f"a contract whose {name} is {value[name]!r} was found, expected a value of type "
                    f"{types[0].__name__}: it was damaged or written by another version of embedcache"
                )
        return cls(**value)

    def differences(self, other: Contract) -> dict[str, tuple[object, object]]:
        """Return the fields in which the two contracts differ, as field -> (own value, other's value)."""
        own, others = self.to_json(), other.to_json()
        return {name: (own[name], others[name]) for name in own if own[name] != others[name]}


def describe_differences(differences: Mapping[str, tuple[object, object]]) -> str:
    """Return differences as ``pooling 'mean' -> 'cls', max_length 256 -> 64``; digests are shortened."""

    def short(value: object) -> str:
        is_digest = isinstance(value, str) and len(value) == 64
        if value is None:
            return "none"
        return repr(value[:12] + "…") if is_digest and isinstance(value, str) else repr(value)

    return ", ".join(f"{name} {short(a)} -> {short(b)}" for name, (a, b) in differences.items())
