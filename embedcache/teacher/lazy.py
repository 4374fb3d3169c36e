"""Teacher whose contract is known without its model, which is loaded once a text needs it.

A build notes the contract under a digest of the options, the state of the model's files, and the versions of
libraries. While none of them changes, the next build reads the note.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.codecs import Vectors
from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError, CorruptCacheError, InputError, StorageError
from embedcache.fsio import file_state, json_digest, read_sealed_json, write_sealed_json
from embedcache.lazy import load
from embedcache.teacher.classifier import logits_name
from embedcache.teacher.given import is_model, options_of, refuse_other_vectors
from embedcache.teacher.load import (
    Teacher,
    load_source,
    logits_teacher,
    resolve_dtype,
    resolve_teacher,
    warn_of_last_word,
)
from embedcache.teacher.model_folder import choose_route, find_routes, read_prompts
from embedcache.teacher.options import LOGITS, EncodeOptions, TeacherOptions, check_output, with_quantization
from embedcache.teacher.resolve import ModelSource, is_local
from embedcache.teacher.served import ServedEncoder, ServedTeacher, refuse_local_settings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from embedcache.teacher.text_encoder import TextEncoder
    from embedcache.teacher.token_table import TokenTable

_LIBRARIES = ("sentence-transformers", "transformers")


class LazyTeacher:
    """Teacher of a build.

    Args:
        teacher: alias, hub id, folder, options with one of these, a model of sentence-transformers, a loaded
            teacher, or an encoder.
        encode: output wanted, and how it is computed.
        derived: the cache's folder of derived files, where contracts are noted; None for a new cache.

    Attributes:
        source: source of the model.
        is_model: True for a model of sentence-transformers.
        known_as: name that the cache has for the teacher, in place of the model's own.
        has_passed_probes: True once stored rows were encoded again, see ``embedcache.probes``.

    Raises:
        TeacherError: if there is no such teacher.
        InputError: if the output is unknown, or the given encoder has another output.
    """

    def __init__(
        self,
        teacher: str | Path | TeacherOptions | SentenceTransformer | Teacher | TextEncoder,
        encode: EncodeOptions,
        derived: Path | None = None,
    ) -> None:
        model = teacher if is_model(teacher) else None
        self.is_model, self.known_as = model is not None, ""
        given = teacher if model is None else options_of(model)
        self._given: TeacherOptions | Teacher | TextEncoder = (
            TeacherOptions(given) if isinstance(given, (str, Path)) else given
        )
        check_output(encode.output)
        if isinstance(self._given, TeacherOptions):
            encode = with_quantization(encode, self._given.quantize)
        self._encode, self._derived = encode, derived
        self._note, self.has_passed_probes = "", False
        self._table: TokenTable | None = None
        if isinstance(self._given, TeacherOptions):
            self.source = resolve_teacher(self._given)
            # Whether a server still runs the same model is asked each time.
            if self.source.server is None:
                self._note = f"contracts/{_digest(self._given, encode.output, self.source)}.json"
        elif isinstance(self._given, Teacher):
            self.source = self._given.source
        else:
            self.source = self._given.teacher.source
            if (found := self._given.teacher.contract.output) != encode.output:
                raise InputError(f"the encoder gives {found}, not {encode.output}")
        if self.source.server is not None:
            refuse_local_settings(encode)
        elif encode.requests is not None:
            raise InputError("requests: only a served teacher, openai:MODEL@URL, takes it. Leave it out")
        if model is not None:
            length, own = model.max_seq_length, self.encoder.teacher.contract.max_length
            if length is not None and own is not None and length < own:
                self._given = replace(options_of(model), max_length=length)
                self._note = f"contracts/{_digest(self._given, encode.output, self.source)}.json"
                del self.encoder
            refuse_other_vectors(model, self.encoder, self.source.spec)

    @cached_property
    def encoder(self) -> TextEncoder:
        """Teacher ready to encode; it is loaded at the first access.

        Raises:
            TeacherError, InputError: if it cannot be loaded or computed as asked.
        """
        teacher, encode = self._given, self._encode
        if is_own := isinstance(teacher, TeacherOptions):
            dtype = None
            if self.source.server is None and not encode.token_embeddings:  # which are not rounded
                dtype = resolve_dtype(encode.compute_dtype, encode.device)
            teacher = load_source(self.source, teacher, encode.device, dtype)
            warn_of_last_word(teacher)
        if not isinstance(teacher, Teacher):
            return teacher
        if encode.token_embeddings:
            from embedcache.teacher.token_table import token_table_of

            # The encoder may convert the model.
            self._table = token_table_of(teacher)
        teacher = logits_teacher(teacher) if encode.output == LOGITS else teacher
        return encoder_of(teacher, encode, copy=not is_own)

    def token_table(self) -> TokenTable:
        """Return the token embeddings of a teacher with ``token_embeddings``; it is loaded."""
        from embedcache.teacher.token_table import token_table_of

        teacher = self.encoder.teacher
        return self._table or token_table_of(teacher)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Encode texts; float32 of shape (n, d), in order. The teacher is loaded."""
        return self.encoder.encode(texts).vectors

    @property
    def name(self) -> str:
        """Name in a cache."""
        if self.known_as:
            return self.known_as
        if self._encode.output == LOGITS and isinstance(self._given, (TeacherOptions, Teacher)):
            return logits_name(self.source.name)
        return self.source.name

    @property
    def unused_prompts(self) -> tuple[str, ...]:
        """Names of the model's own prompts; empty if one was chosen by its name."""
        given = self._given
        if isinstance(given, TeacherOptions) and given.prompt_name is not None:
            return ()
        return tuple(read_prompts(self.source.folder))

    @property
    def route(self) -> str:
        """Route of a Router model, and its other routes; empty for any other model."""
        given, folder = self._given, self.source.folder
        if isinstance(given, TeacherOptions):
            own = choose_route(folder, given.task)
        else:
            own = (given if isinstance(given, Teacher) else given.teacher).route
        if own is None:
            return ""
        return f"{own}; --task takes {', '.join(one for one in find_routes(folder) if one != own)}"

    @cached_property
    def contract(self) -> Contract:
        """Contract of the output; the model is loaded unless it is noted."""
        if self._note and self._derived is not None:
            with suppress(OSError, ValueError, CorruptCacheError):
                return Contract.from_json(read_sealed_json(self._derived / self._note))
        return self.encoder.teacher.contract

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
        """Free the memory of the model; the contract stays known, and the next use loads it again."""
        self.contract  # noqa: B018 - remembered before the model goes
        if self.__dict__.pop("encoder", None) is not None and isinstance(self._given, TeacherOptions):
            import torch

            self._table = None
            torch.cuda.empty_cache()

    def note(self, derived: Path) -> None:
        """Note the contract for the next build; where that cannot be written, nothing is noted."""
        if self._note and not (derived / self._note).exists():
            with suppress(StorageError):
                write_sealed_json(derived / self._note, self.contract.to_json())


def encoder_of(teacher: Teacher, encode: EncodeOptions, *, copy: bool = True) -> TextEncoder:
    """Return an encoder of a loaded teacher, served or run here.

    Args:
        teacher: the teacher.
        encode: how it computes.
        copy: leave its model as it is, see ``Encoder``.

    Raises:
        InputError: if the teacher cannot be computed as asked.
    """
    if isinstance(teacher, ServedTeacher):
        return ServedEncoder(teacher, batch_tokens=encode.batch_tokens, requests=encode.requests)
    from embedcache.teacher.encode import Encoder

    return Encoder(
        teacher,
        compute_dtype=encode.compute_dtype,
        batch_tokens=encode.batch_tokens,
        threads=encode.threads,
        backend=encode.backend,
        copy=copy,
    )


def refuse_other_teacher(encoder: TextEncoder, contract: Contract) -> None:
    """Raise ``ContractMismatchError`` unless the vectors of an encoder are of ``contract``."""
    if differences := contract.differences(encoder.teacher.contract):
        raise ContractMismatchError(
            f"the encoder's teacher is another one ({describe_differences(differences)}): delete the cache's "
            "derived/contracts",
            differences,
        )


def _digest(teacher: TeacherOptions, output: str, source: ModelSource) -> str:
    """Digest everything that the contract depends on."""
    folders = [source.folder, *([source.base] if source.base else []), *source.code.values()]
    depends_on = {
        "options": {**asdict(teacher), "spec": str(teacher.spec)},
        "output": output,
        "folders": [
            (str(folder.resolve()), {path.relative_to(folder).as_posix(): file_state(path) for path in files})
            for folder in folders
            for files in [sorted(path for path in folder.rglob("*") if path.is_file())]
        ],
        "versions": [load("embedcache:__version__"), *(version(name) for name in _LIBRARIES)],
    }
    return json_digest(depends_on)
