"""Teacher whose contracts are known without its model, which is loaded once a text needs it.

A build notes the contracts under a digest of everything they depend on: the options, the state of each file
of the model, and library versions. While none of that changes, the next build reads the note.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError, CorruptCacheError, InputError, StorageError
from embedcache.fsio import canonical_json, file_state, read_sealed_json, write_sealed_json
from embedcache.teacher.load import Teacher, load_teacher, logits_teacher
from embedcache.teacher.options import EncodeOptions, TeacherOptions
from embedcache.teacher.outputs import EMBEDDING, LOGITS, parse_outputs
from embedcache.teacher.resolve import ModelSource, resolve

if TYPE_CHECKING:
    from embedcache.teacher.encode import Encoder

_LIBRARIES = ("embedcache", "sentence-transformers", "transformers")
# A file may change again within a tick of the file system's clock without a trace.
_TICK_NS = 50_000_000


class LazyTeacher:
    """Teacher of a build.

    Args:
        teacher: alias, hub id, folder, options with one of these, a loaded teacher, or an encoder.
        encode: outputs wanted, and how they are computed.
        derived: the cache's folder of derived files, where contracts are noted; None for a new cache.

    Attributes:
        source: where the model comes from.

    Raises:
        TeacherError: if there is no such teacher.
        InputError: if the outputs are unknown, or not those of the given encoder.
    """

    def __init__(
        self,
        teacher: str | Path | TeacherOptions | Teacher | Encoder,
        encode: EncodeOptions,
        derived: Path | None = None,
    ) -> None:
        outputs = parse_outputs(encode.output)
        self._note_name: str | None = None
        self._noted: dict[str, Contract] | None = None
        self._load: Callable[[], Encoder]
        if isinstance(teacher, (str, Path)):
            teacher = TeacherOptions(teacher)
        if isinstance(teacher, TeacherOptions):
            source = resolve(teacher.spec)
            self.source = replace(source, name=teacher.name or source.name)
            self._note_name = _note_name(teacher, outputs, source)
            if self._note_name is not None and derived is not None:
                self._noted = _read_note(derived / self._note_name)
            settings = asdict(teacher)
            self._load = lambda: _encoder(load_teacher(**settings, device=encode.device), outputs, encode)
        elif isinstance(teacher, Teacher):
            self.source, loaded = teacher.source, teacher
            self._load = lambda: _encoder(loaded, outputs, encode)
        else:
            self.source, encoder = teacher.teacher.source, teacher
            self._load = lambda: encoder
            if (found := tuple(one.contract.output for one in encoder.teachers)) != outputs:
                raise InputError(f"the encoder gives {', '.join(found)}, not {', '.join(outputs)}")

    @cached_property
    def encoder(self) -> Encoder:
        """Teacher ready to encode; it is loaded at the first access.

        Raises:
            TeacherError, InputError: if it cannot be loaded or computed as asked.
            ContractMismatchError: if its contracts are not the noted ones.
        """
        encoder = self._load()
        for one in encoder.teachers:
            noted = (self._noted or {}).get(one.name, one.contract)
            if differences := noted.differences(one.contract):
                found = describe_differences(differences)
                raise ContractMismatchError(
                    f"the contract noted for {one.name!r} is not its model's ({found}): delete the cache's "
                    "derived/contracts",
                    differences,
                )
        return encoder

    @cached_property
    def contracts(self) -> Mapping[str, Contract]:
        """Contract of each output by its name in a cache; the model is loaded unless they are noted."""
        return self._noted or {one.name: one.contract for one in self.encoder.teachers}

    def note(self, derived: Path) -> None:
        """Note the contracts for the next build; where that cannot be written, nothing is noted."""
        if self._note_name is not None and not (derived / self._note_name).exists():
            value = {name: contract.to_json() for name, contract in self.contracts.items()}
            with suppress(StorageError):
                write_sealed_json(derived / self._note_name, value)


def columns_of(encoder: Encoder, contract: Contract) -> slice:
    """Return the columns of an encoder's rows that hold the output of ``contract``."""
    before = 0
    for one in encoder.teachers:
        if one.contract == contract:
            return slice(before, before + one.dimension)
        before += one.dimension
    raise InputError("the encoder does not give the vectors of this contract")


def _encoder(teacher: Teacher, outputs: tuple[str, ...], encode: EncodeOptions) -> Encoder:
    from embedcache.teacher.encode import Encoder

    teachers = [teacher] if EMBEDDING in outputs else []
    teachers += [logits_teacher(teacher)] if LOGITS in outputs else []
    return Encoder(
        teachers[0],
        also=teachers[1] if len(teachers) > 1 else None,
        compute_dtype=encode.compute_dtype,
        batch_tokens=encode.batch_tokens,
        threads=encode.threads,
    )


def _note_name(teacher: TeacherOptions, outputs: tuple[str, ...], source: ModelSource) -> str | None:
    """Return the note's file for the model as it is now; None where a file has only just changed."""
    files = sorted(path for path in source.folder.rglob("*") if path.is_file())
    states = {path.relative_to(source.folder).as_posix(): file_state(path) for path in files}
    if any(abs(time.time_ns() - state[1]) < _TICK_NS for state in states.values()):
        return None
    depends_on = {
        "options": {**asdict(teacher), "spec": str(teacher.spec)},
        "outputs": outputs,
        "folder": str(source.folder.resolve()),
        "files": states,
        "versions": [version(name) for name in _LIBRARIES],
    }
    return f"contracts/{hashlib.sha256(canonical_json(depends_on)).hexdigest()}.json"


def _read_note(path: Path) -> dict[str, Contract] | None:
    with suppress(OSError, ValueError, CorruptCacheError):
        return {name: Contract.from_json(value) for name, value in read_sealed_json(path).items()}
    return None
