"""Live teacher of stored vectors, computing as it did when they were made: in their dtype and backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.contract import Contract
from embedcache.errors import InputError, MissingExtraError, TeacherError
from embedcache.store import Shard
from embedcache.teacher.options import PROJECTION, EncodeOptions

if TYPE_CHECKING:
    from embedcache.teacher.windows import TextEncoder


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
        self, contract: Contract, *, spec: str | Path, name: str, shards: Iterable[Shard]
    ) -> TextEncoder:
        """Return an encoder of the teacher of a contract.

        Args:
            contract: contract that the model must have.
            spec: where the teacher was built from.
            name: its name.
            shards: its stored vectors.

        Raises:
            TeacherError: if it cannot be found or loaded.
            ContractMismatchError: if the model has another contract; it names the fields that differ.
            InputError: if the device cannot compute in the dtype asked for.
        """
        from embedcache.teacher.inference import resolve_compute_dtype
        from embedcache.teacher.lazy import encoder_of
        from embedcache.teacher.load import load_by_contract
        from embedcache.teacher.openvino_model import TORCH, takes_openvino

        try:
            loaded = load_by_contract(
                self.teacher_model or spec,
                contract,
                name=name,
                remedy="give the right one with teacher_model",
                device=self.device,
                trust_remote_code=self.trust_remote_code,
            )
        except TeacherError as error:
            if self.teacher_model is not None or contract.output == PROJECTION or contract.is_served:
                raise
            raise TeacherError(f"{error}; or give its folder with teacher_model") from error
        if contract.is_served:
            return encoder_of([loaded], EncodeOptions(batch_tokens=self.batch_tokens))
        shards = list(shards)
        dtype = self.compute_dtype
        if dtype is None:
            dtype = next(iter(compute_dtypes(shards)), "auto")
            try:
                resolve_compute_dtype(dtype, loaded.model.device)
            except InputError:
                dtype = "auto"
        backend = next(iter(_recorded(shards, "backend", TORCH)), TORCH)
        try:
            takes_openvino(backend, loaded.model, resolve_compute_dtype(dtype, loaded.model.device))
        except (InputError, MissingExtraError):
            backend = TORCH
        how = EncodeOptions(
            compute_dtype=dtype, backend=backend, batch_tokens=self.batch_tokens, threads=self.threads
        )
        return encoder_of([loaded], how)


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
