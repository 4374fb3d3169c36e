"""Teacher whose contracts are known without its model, which is loaded once a text needs it.

A build notes the contracts under a digest of everything they depend on: the options, the state of each file
of the model, and library versions. While none of that changes, the next build reads the note.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.codecs import Vectors
from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError, CorruptCacheError, InputError, StorageError
from embedcache.fsio import canonical_json, file_state, read_sealed_json, write_sealed_json
from embedcache.lazy import load
from embedcache.teacher.load import Teacher, load_teacher, logits_teacher
from embedcache.teacher.options import EMBEDDING, LOGITS, EncodeOptions, TeacherOptions, parse_outputs
from embedcache.teacher.resolve import ModelSource, is_local, resolve
from embedcache.teacher.served import ServedEncoder, ServedTeacher, refuse_local_settings

if TYPE_CHECKING:
    from embedcache.teacher.text_encoder import TextEncoder

_LIBRARIES = ("sentence-transformers", "transformers")


class LazyTeacher:
    """Teacher of a build.

    Args:
        teacher: alias, hub id, folder, options with one of these, a loaded teacher, or an encoder.
        encode: outputs wanted, and how they are computed.
        derived: the cache's folder of derived files, where contracts are noted; None for a new cache.

    Attributes:
        source: source of the model.

    Raises:
        TeacherError: if there is no such teacher.
        InputError: if the outputs are unknown, or not those of the given encoder.
    """

    def __init__(
        self,
        teacher: str | Path | TeacherOptions | Teacher | TextEncoder,
        encode: EncodeOptions,
        derived: Path | None = None,
    ) -> None:
        self._given = TeacherOptions(teacher) if isinstance(teacher, (str, Path)) else teacher
        self._encode, self._outputs, self._derived = encode, parse_outputs(encode.output), derived
        self._note = ""
        if isinstance(self._given, TeacherOptions):
            source = resolve(self._given.spec)
            self.source = replace(source, name=self._given.name or source.name)
            # Whether a server still runs the same model is asked each time.
            if source.server is None:
                self._note = f"contracts/{_digest(self._given, self._outputs, source)}.json"
        elif isinstance(self._given, Teacher):
            self.source = self._given.source
        else:
            self.source = self._given.teacher.source
            if (found := tuple(one.contract.output for one in self._given.teachers)) != self._outputs:
                raise InputError(f"the encoder gives {', '.join(found)}, not {', '.join(self._outputs)}")
        if self.source.server is not None:
            refuse_local_settings(encode)
        elif encode.requests is not None:
            raise InputError("requests: only a served teacher, openai:MODEL@URL, takes it. Leave it out")

    @cached_property
    def encoder(self) -> TextEncoder:
        """Teacher ready to encode; it is loaded at the first access.

        Raises:
            TeacherError, InputError: if it cannot be loaded or computed as asked.
        """
        teacher, encode = self._given, self._encode
        if isinstance(teacher, TeacherOptions):
            teacher = load_teacher(**asdict(teacher), device=encode.device)
        if not isinstance(teacher, Teacher):
            return teacher
        teachers = [teacher] if EMBEDDING in self._outputs else []
        teachers += [logits_teacher(teacher)] if LOGITS in self._outputs else []
        return encoder_of(teachers, encode)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Encode texts; float32 of shape (n, d), in order. The teacher is loaded."""
        return self.encoder.encode(texts).vectors

    @cached_property
    def contracts(self) -> Mapping[str, Contract]:
        """Contract of each output by its name in a cache; the model is loaded unless they are noted."""
        if self._note and self._derived is not None:
            with suppress(OSError, ValueError, CorruptCacheError):
                noted = read_sealed_json(self._derived / self._note)
                return {name: Contract.from_json(value) for name, value in noted.items()}
        return {one.name: one.contract for one in self.encoder.teachers}

    def portable(self) -> TeacherOptions | TextEncoder:
        """Return the teacher as another process can load it.

        Raises:
            InputError: if it is loaded.
        """
        given = self._given
        if isinstance(given, TeacherOptions):
            return replace(given, spec=self.source.folder.resolve()) if is_local(self.source) else given
        if isinstance(given, Teacher) or given.teacher.model is not None:
            raise InputError(
                "a teacher that is loaded cannot go to other processes: give its alias, hub id or folder, or "
                "leave devices and engine out"
            )
        return given

    def unload(self) -> None:
        """Free the memory of the model; contracts stay known, and it is loaded again when it is needed."""
        if self.contracts and self.__dict__.pop("encoder", None) and isinstance(self._given, TeacherOptions):
            import torch

            torch.cuda.empty_cache()

    def note(self, derived: Path) -> None:
        """Note the contracts for the next build; where that cannot be written, nothing is noted."""
        if self._note and not (derived / self._note).exists():
            value = {name: contract.to_json() for name, contract in self.contracts.items()}
            with suppress(StorageError):
                write_sealed_json(derived / self._note, value)


def encoder_of(teachers: Sequence[Teacher], encode: EncodeOptions) -> TextEncoder:
    """Return an encoder of loaded teachers, served or run here.

    Raises:
        InputError: if the teacher cannot be computed as asked.
    """
    if isinstance(teachers[0], ServedTeacher):
        return ServedEncoder(teachers[0], batch_tokens=encode.batch_tokens, requests=encode.requests)
    from embedcache.teacher.encode import Encoder

    return Encoder(
        *teachers,
        compute_dtype=encode.compute_dtype,
        batch_tokens=encode.batch_tokens,
        threads=encode.threads,
        backend=encode.backend,
    )


def columns_of(encoder: TextEncoder, contract: Contract) -> slice:
    """Return the columns of an encoder's rows that hold the output of ``contract``.

    Raises:
        ContractMismatchError: if the encoder does not give it.
    """
    before = 0
    for one in encoder.teachers:
        if one.contract == contract:
            return slice(before, before + one.dimension)
        before += one.dimension
    differences = contract.differences(encoder.teacher.contract)
    raise ContractMismatchError(
        f"the encoder's teacher is another one ({describe_differences(differences)}): delete the cache's "
        "derived/contracts",
        differences,
    )


def _digest(teacher: TeacherOptions, outputs: tuple[str, ...], source: ModelSource) -> str:
    """Digest everything that the contracts depend on."""
    files = sorted(path for path in source.folder.rglob("*") if path.is_file())
    depends_on = {
        "options": {**asdict(teacher), "spec": str(teacher.spec)},
        "outputs": outputs,
        "folder": str(source.folder.resolve()),
        "files": {path.relative_to(source.folder).as_posix(): file_state(path) for path in files},
        "versions": [load("embedcache:__version__"), *(version(name) for name in _LIBRARIES)],
    }
    return hashlib.sha256(canonical_json(depends_on)).hexdigest()
