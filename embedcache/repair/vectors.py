"""Repair of vectors: lost shards are encoded again, with the same bytes where the same machine does it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cached_property
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from embedcache.cache import Cache, CachedTeacher, read_origin
from embedcache.codecs import pq
from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, EmbedCacheError, NonFiniteVectorError, TeacherError
from embedcache.fsio import commit, temporary_sibling
from embedcache.inventory import Kind
from embedcache.projection import extend, is_derived, read_projection
from embedcache.repair.fixes import ENCODED, LEFT, LOST, MADE, MOVED, Work
from embedcache.repair.lost import Window, plan_windows
from embedcache.store import FolderShards, LmdbShards, Shard, VectorBatch
from embedcache.store.lmdb_shards import SEAL
from embedcache.verify import Finding
from embedcache.verify.files import UPGRADE
from embedcache.verify.findings import first_line
from embedcache.verify.rows import rows_without_vector

if TYPE_CHECKING:
    import pyarrow as pa

    from embedcache.teacher.encode import Encoder

_KINDS = (Kind.SHARD, Kind.STORE, Kind.SEAL, Kind.CODEBOOK)


class VectorRepair:
    """Repair of the vectors of teachers.

    Args:
        work: the repair; corpora and views are repaired by now.
        encoder: an encoder of one of the teachers.
    """

    def __init__(self, work: Work, encoder: Encoder | None) -> None:
        self._work, self._verifier, self._encoder = work, work.verifier, encoder

    @cached_property
    def _cache(self) -> Cache:
        return Cache(self._work.folder)

    def repair(self, contract: Contract) -> None:
        """Bring back token embeddings, codebooks and shards of a teacher."""
        work, folder = self._work, f"teachers/{contract.id}/"
        if any(one.fix == UPGRADE and one.path.startswith(folder) for one in work.findings):
            return
        try:
            for finding in work.damage(Kind.TABLE, folder=folder):
                self._write_token_table(contract, finding)
            for finding in work.damage(Kind.CODEBOOK, folder=folder):
                self._learn_codebook(contract, finding)
            if work.damage(*_KINDS, folder=folder):
                self._restore_shards(contract)
        except EmbedCacheError as error:
            for finding in work.damage(*_KINDS, Kind.TABLE, folder=folder):
                work.done(finding, LEFT, first_line(error))

    def _write_token_table(self, contract: Contract, finding: Finding) -> None:
        if not self._work.dry_run:
            from embedcache.teacher.token_table import token_table_of

            table = token_table_of(self._load(contract, ()).teacher)
            self._work.move_aside(finding.path)
            table.write(self._work.folder / finding.path, contract)
        self._work.done(finding, MADE, "from the model")

    def _learn_codebook(self, contract: Contract, finding: Finding) -> None:
        """Learn a codebook again from the first shard. If that gives another one, its shards are lost."""
        path, verifier = self._work.folder / finding.path, self._verifier
        lost = verifier.checks.lost[contract.id].values()
        users = [one for one in lost if one.header.codebook == path.stem]
        windows, _ = plan_windows(users, self._work.texts, verifier.sound_store(contract))
        if self._work.dry_run or not windows:
            return
        (batch,) = self._encode(self._load(contract, users), windows[:1])
        codec = pq.train(batch.vectors)
        if codec.codebook == path.stem:
            self._work.rows += len(batch.keys)
            self._work.move_aside(finding.path)
            pq.save(path.parent, codec)
            names = {shard.name for shard in users}
            for entry in verifier.files(contract.id, Kind.SHARD):
                if entry.stem in names:
                    verifier.checks.check(entry)
            for entry in verifier.files(contract.id, Kind.STORE):
                verifier.checks.check(entry)
            self._work.done(finding, MADE, "identical")

    def _restore_shards(self, contract: Contract) -> None:
        work, verifier, folder = self._work, self._verifier, f"teachers/{contract.id}"
        findings = work.damage(*_KINDS, folder=f"{folder}/")
        lost = [*verifier.checks.lost[contract.id].values(), *verifier.gone_shards(contract)]
        known, kept = {shard.name for shard in lost}, verifier.checks.shards[contract.id]
        is_unknown = any(one.kind == Kind.SHARD.value and _name(one) not in known for one in findings)
        is_store = any(one.kind == Kind.STORE.value for one in findings)
        in_lmdb = is_store or bool(verifier.files(contract.id, Kind.STORE))
        store, windows, without_text = verifier.sound_store(contract), list[Window](), 0
        if not is_derived(contract):
            fill = is_unknown or (is_store and not kept)
            windows, without_text = plan_windows(lost, work.texts, store, fill=fill)
        work.rows += sum(map(len, windows))
        made: list[str] = []
        if not work.dry_run:
            # Load the teacher before anything is moved.
            encoder = self._load(contract, (*store.shards, *lost)) if windows else None
            if is_derived(contract):
                read_projection(self._cache, self._known_as(contract))
            codec = lost[0].header.codec if lost and not store.shards else None
            for name in known:
                work.move_aside(f"{folder}/shards/{name}.arrow")
            for finding in findings:
                if finding.kind != Kind.STORE.value and "#" not in finding.path:
                    work.move_aside(finding.path)
            if in_lmdb and any(one.kind != Kind.SEAL.value for one in findings):
                self._write_lmdb(folder, kept)
            # liblmdb does not open a file twice: let go of what was read.
            del store, kept
            verifier.checks.shards.pop(contract.id)
            made = self._store(contract, windows, encoder, codec, in_lmdb=in_lmdb)
        self._report(findings, is_encoded=bool(windows), without_text=without_text, made=made)

    def _write_lmdb(self, folder: str, kept: Mapping[str, pa.Buffer]) -> None:
        """Write the sound shards of a teacher to a new LMDB file, or to files if there are some already."""
        work, target = self._work, self._work.folder / folder / "vectors.mdb"
        files = FolderShards(target.parent / "shards")
        with temporary_sibling(target) as temporary:
            container = LmdbShards(temporary)
            is_new = bool(kept) and not files.names()
            for name in sorted(kept):
                (container if is_new else files).add(name, kept[name])
            container.close()
            temporary.with_name(f"{temporary.name}-lock").unlink(missing_ok=True)
            work.move_aside(f"{folder}/vectors.mdb")
            work.move_aside(f"{folder}/{SEAL}")
            if is_new:
                commit(temporary, target)

    def _store(
        self,
        contract: Contract,
        windows: Sequence[Window],
        encoder: Encoder | None,
        codec: str | None,
        *,
        in_lmdb: bool,
    ) -> list[str]:
        """Encode and store what is planned, and return the names of all shards."""
        files = FolderShards(self._cache.teacher_folder(contract) / "shards")
        store = self._cache.store(contract, codec, "lmdb" if in_lmdb and not files.names() else None)
        if encoder is not None:
            self._work.progress.phase("encode", sum(map(len, windows)))
            for batch in self._encode(encoder, windows):
                store.put(batch)
        store.finish()
        if is_derived(contract):
            for texts, _ in rows_without_vector(self._work.texts, store):
                for _ in extend(self._cache, self._known_as(contract), texts):
                    pass
        return self._cache.container(contract).names()

    def _encode(self, encoder: Encoder, windows: Sequence[Window]) -> Iterator[VectorBatch]:
        """Yield the rows of each window."""
        texts = (window.texts(self._work.texts) for window in windows)
        with closing(encoder.encode_windows(texts)) as results:
            for window, encoded in zip(windows, results, strict=True):
                if not np.isfinite(encoded.vectors).all():
                    raise NonFiniteVectorError("the teacher returned NaN or infinity for a text")
                self._work.progress.advance(len(window))
                rest = encoded.tokens, encoded.truncated, encoder.provenance
                yield VectorBatch(window.keys, encoded.vectors, *rest)

    def _load(self, contract: Contract, shards: Sequence[Shard]) -> Encoder:
        """Return the encoder of a teacher, to compute as it did for some shards."""
        if self._encoder is None or self._encoder.teacher.contract != contract:
            known, computing = self._known_as(contract), self._work.computing
            self._work.progress.phase(f"load teacher {known.name}")
            spec = computing.teacher_model or self._cache.model_source(known)
            self._encoder = computing.encoder(contract, spec=spec, name=known.name, shards=shards)
        return self._encoder

    def _known_as(self, contract: Contract) -> CachedTeacher:
        for path in sorted((self._work.folder / "teachers" / contract.id / "names").glob("[!.]*.json")):
            with suppress(CorruptCacheError):
                return CachedTeacher(path.stem, contract, read_origin(path))
        if self._work.computing.teacher_model is None:
            raise TeacherError("no name says which model the teacher is: give it with --teacher-model")
        return CachedTeacher(contract.id[:12], contract, {})

    def _report(
        self, findings: Sequence[Finding], *, is_encoded: bool, without_text: int, made: Sequence[str]
    ) -> None:
        """List what became of the findings; texts that are gone count for the first of them."""
        for number, finding in enumerate(findings):
            if without_text and number == 0:
                self._work.done(finding, LOST, f"no sound corpus has the texts of {without_text:,} rows")
            elif finding.kind in (Kind.SEAL.value, Kind.STORE.value):
                self._work.done(finding, MADE)
            elif _name(finding) in made:
                self._work.done(finding, ENCODED, "identical")
            elif is_encoded:
                self._work.done(finding, ENCODED, "" if self._work.dry_run else "not identical")
            else:
                self._work.done(finding, MOVED, "no text lacks a vector without it")


def _name(finding: Finding) -> str:
    """Return the name of the shard or codebook of a finding."""
    return finding.path.partition("#")[2] or PurePosixPath(finding.path).stem
