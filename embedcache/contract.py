"""Teacher contract: everything that determines a teacher's vector, and nothing else.

Its sha256 names the teacher inside a cache, so vectors of two contracts cannot be mixed up. What only changes
speed or last bits (batch size, device, compute dtype, library versions) is provenance of a shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from embedcache.errors import CorruptCacheError
from embedcache.fsio import json_digest

OPTIONAL = frozenset({"quantization", "loading", "code"})
"""Fields that JSON leaves out if they are None, so that older contracts keep their ids."""
_REMEDY = "it is damaged, or needs an upgrade of embedcache"

SERVED = "served"
"""Pooling of a served teacher, whose contract names server and model in place of digests."""

# Sizes that 31 bits hold.
Size = Annotated[int, Field(ge=0, lt=1 << 31)]


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Contract:
    """Settings that determine a vector.

    Attributes:
        weights: sha256 over names, dtypes, shapes and bytes of the weight tensors, in any files; of a served
            teacher ``openai:MODEL@URL``.
        tokenizer: sha256 of the tokenizer's files, padding and truncation settings left out.
        architecture: sha256 of the model's ``config.json``, fields without influence on a vector left out.
        pooling: pooling of token vectors: ``mean``, ``cls``, ``pooler``, ``lasttoken``, ``none`` or
            ``served``.
        modules: modules after the pooling (Dense and the like), as canonical JSON; empty for none.
        prompt: text put before every sentence; empty for none.
        max_length: tokens after which a text is cut, special tokens counted; 0 means never.
        normalize: True if vectors are scaled to length one, before they are truncated.
        dimension: width of a stored vector.
        output: the stored output; ``embedding`` is the sentence vector.
        truncate_dim: number of leading dimensions that vectors are cut to; None means never.
        quantization: quantization of the weights, such as ``openvino-int8``; None means not at all.
        loading: arguments that configuration, tokenizer and weights are loaded with, as canonical JSON; None
            for none that change a vector.
        code: sha256 of the model's own code and of every file that it may read; None if no own code ran.
        version: version of this list of fields.
    """

    weights: str
    tokenizer: str
    architecture: str
    pooling: str
    modules: str
    prompt: str
    max_length: Size
    normalize: bool
    dimension: Annotated[Size, Field(ge=1)]
    output: str = "embedding"
    truncate_dim: Annotated[Size, Field(ge=1)] | None = None
    version: Literal[1] = 1
    quantization: str | None = None
    loading: str | None = None
    code: str | None = None

    @property
    def id(self) -> str:
        """The sha256 of the contract, 64 hexadecimal digits: the teacher's name on disk."""
        return json_digest(self.to_json())

    @property
    def is_served(self) -> bool:
        """True if a server computes the vectors, so that no digest of the weights is known."""
        return self.pooling == SERVED

    @property
    def is_unit_length(self) -> bool:
        """True if stored vectors have length one; vectors are scaled before they are truncated."""
        return self.normalize and (self.truncate_dim is None or self.is_served)

    def to_json(self) -> dict[str, object]:
        """Return the contract as a JSON object."""
        return {
            name: value for name, value in vars(self).items() if name not in OPTIONAL or value is not None
        }

    @classmethod
    def from_json(cls, value: object) -> Contract:
        """Read a contract back.

        Raises:
            CorruptCacheError: if fields are missing or unknown, or a value is invalid.
        """
        fields = cls.__dataclass_fields__
        if not isinstance(value, Mapping) or value.keys() | OPTIONAL != fields.keys():
            raise CorruptCacheError(f"a contract needs the fields {', '.join(fields)}: {_REMEDY}")
        try:
            return cls(**value)
        except ValidationError as error:
            first = error.errors()[0]
            wrong = f"a contract with a wrong {first['loc'][0]!r} ({first['msg']})"
            raise CorruptCacheError(f"{wrong}: {_REMEDY}") from error

    def differences(self, other: Contract) -> dict[str, tuple[object, object]]:
        """Return the fields in which the two contracts differ, as field -> (own value, other's value)."""
        own, others = vars(self), vars(other)
        return {name: (own[name], others[name]) for name in own if own[name] != others[name]}


def describe_differences(differences: Mapping[str, tuple[object, object]]) -> str:
    """Return differences as ``pooling 'mean' -> 'cls', max_length 256 -> 64``; digests are shortened."""

    def short(value: object) -> str:
        is_digest = isinstance(value, str) and len(value) == 64
        return "none" if value is None else f"'{value:.12}…'" if is_digest else repr(value)

    return ", ".join(f"{name} {short(a)} -> {short(b)}" for name, (a, b) in differences.items())
