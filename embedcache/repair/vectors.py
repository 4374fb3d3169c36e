"""Repair of vectors: lost shards are encoded again, with the same bytes where the same machine does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from embedcache.cache import Cache, CachedTeacher, read_origin
from embedcache.codecs import pq
from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError, EmbedCacheError, NonFiniteVectorError, TeacherError
from embedcache.fsio import commit, temporary_sibling
from embedcache.inventory import Kind
from embedcache.projection import extend, is_derived, read_projection
from embedcache.repair.fixes import ENCODED, LEFT, LOST, MADE, MOVED, WRITTEN, Work
from embedcache.repair.lost import LostShards, Plan, Window, plan_windows
from embedcache.store import FolderShards, LmdbShards, Shard, VectorBatch
from embedcache.store.containers.lmdb import SEAL
from embedcache.verify import Finding
from embedcache.verify.files import UPGRADE, peek_file, peek_shard
from embedcache.verify.findings import first_line
from embedcache.verify.rows import rows_without_vector

if TYPE_CHECKING:
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

    def contract(self, contract_id: str) -> Contract | None:
        """Return a teacher's contract, by its file or a shard, damaged or not; None where nothing has it."""
        found = self._verifier.contract(contract_id)
        if found is None:
            lost = self._lost(contract_id)
            shards = [*lost.peeked, *(peek_shard(data, name, "") for name, data in lost.kept.items())]
            found = next((shard.header.contract for shard in shards if shard is not None), None)
        # The folder's name is the contract's digest, and proves it.
        return found if found is not None and found.id == contract_id else None

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
            from embedcache.teacher.token_embeddings import token_table_of

            table = token_table_of(self._load(contract, ()).teacher)
            self._work.move_aside(finding.path)
            table.write(self._work.folder / finding.path, contract)
        self._work.done(finding, WRITTEN, "from the model")

    def _learn_codebook(self, contract: Contract, finding: Finding) -> None:
        """Learn a codebook again from the first shard. If that gives another one, its shards are lost."""
        path, checks = self._work.folder / finding.path, self._verifier.checks
        users = [one for one in self._verifier.undecodable(contract.id) if one.header.codebook == path.stem]
        plan = plan_windows(LostShards(users), self._work.texts, self._verifier.sound_store(contract))
        if self._work.dry_run or not plan.windows:
            return
        (batch,) = self._encode(self._load(contract, users), plan.windows[:1])
        codec = pq.train(batch.vectors)
        if codec.codebook == path.stem:
            self._work.move_aside(finding.path)
            pq.save(path.parent, codec)
            for shard in users:
                data = checks.undecodable[contract.id].pop(shard.name)
                checks.shards[contract.id][shard.name] = data
            self._work.done(finding, MADE, "identical", len(batch.keys))

    def _restore_shards(self, contract: Contract) -> None:
        findings = self._work.damage(*_KINDS, folder=f"teachers/{contract.id}/")
        lost, shards = self._lost(contract.id, contract), self._verifier.checks.shards
        shards[contract.id] |= lost.kept
        store = self._verifier.sound_store(contract)
        plan = Plan([], 0) if is_derived(contract) else plan_windows(lost, self._work.texts, store)
        made: list[str] = []
        if not self._work.dry_run:
            encoder = self._load(contract, (*store.shards, *lost.peeked)) if plan.windows else None
            if is_derived(contract):
                read_projection(self._cache, self._known_as(contract))
            codec = lost.peeked[0].header.codec if lost.peeked and not store.shards else None
            # liblmdb does not open a file twice: let go of what was read.
            del store
            shards.pop(contract.id)
            self._clear(contract, findings, lost)
            made = self._store(contract, plan, encoder, codec, in_lmdb=lost.in_lmdb)
        self._report(findings, lost, plan, made)

    def _lost(self, contract_id: str, contract: Contract | None = None) -> LostShards:
        """Return the lost shards of a teacher."""
        folder, verifier = f"teachers/{contract_id}/", self._verifier
        lost = LostShards([] if contract is None else verifier.lost_shards(contract))
        known = {shard.name for shard in lost.peeked}
        for finding in self._work.damage(Kind.SHARD, folder=f"{folder}shards/"):
            path = self._work.folder / finding.path
            if not path.is_file() or path.stem in known:
                continue
            shard, digest = peek_file(path)
            if shard is not None and shard.header.contract.id == contract_id:
                lost.peeked.append(shard)
            elif digest != path.stem:
                lost.unknown += 1
        undecodable = {shard.name: shard for shard in verifier.undecodable(contract_id)}
        store, has_files = f"{folder}vectors.mdb", bool(verifier.files(contract_id, Kind.SHARD))
        has_store = bool(verifier.files(contract_id, Kind.STORE))
        is_missing = not has_store and bool(self._work.damage(Kind.STORE, folder=folder))
        if is_missing or (has_store and (store in verifier.damaged or undecodable or has_files)):
            lost.add_lmdb(self._work.folder / store)
            for name, data in list(lost.kept.items()):
                shard = peek_shard(data, name, store)
                if name in undecodable or shard is None or shard.header.contract.id != contract_id:
                    del lost.kept[name]
        lost.peeked += undecodable.values()
        return lost

    def _clear(self, contract: Contract, findings: Sequence[Finding], lost: LostShards) -> None:
        """Move aside what is damaged, so that the store can be opened."""
        work, folder = self._work, f"teachers/{contract.id}"
        for name in self._verifier.checks.undecodable[contract.id]:
            work.move_aside(f"{folder}/shards/{name}.arrow")
        for finding in findings:
            if finding.kind != Kind.STORE.value:
                work.move_aside(finding.path)
        if not lost.in_lmdb:
            return
        files = FolderShards(work.folder / folder / "shards")
        if files.names() or not lost.kept:
            # A teacher has one kind of store.
            for name, data in lost.kept.items():
                files.add(name, data)
            work.move_aside(f"{folder}/vectors.mdb")
            work.move_aside(f"{folder}/{SEAL}")
            return
        target = work.folder / folder / "vectors.mdb"
        with temporary_sibling(target) as temporary:
            container = LmdbShards(temporary)
            for name in sorted(lost.kept):
                container.add(name, lost.kept[name])
            container.close()
            temporary.with_name(f"{temporary.name}-lock").unlink(missing_ok=True)
            work.move_aside(f"{folder}/vectors.mdb")
            work.move_aside(f"{folder}/{SEAL}")
            commit(temporary, target)

    def _store(
        self, contract: Contract, plan: Plan, encoder: Encoder | None, codec: str | None, *, in_lmdb: bool
    ) -> list[str]:
        """Encode and store what is planned, and return the names of all shards."""
        files = FolderShards(self._cache.teacher_folder(contract) / "shards")
        store = self._cache.store(contract, codec, "lmdb" if in_lmdb and not files.names() else None)
        if encoder is not None:
            self._work.progress.phase("encode", plan.rows)
            for batch in self._encode(encoder, plan.windows):
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

    def _report(self, findings: Sequence[Finding], lost: LostShards, plan: Plan, made: Sequence[str]) -> None:
        """List what became of the findings; rows of no known shard count for the first of them."""
        rows = {window.shard: len(window) for window in plan.windows}
        names = [
            one.path.rpartition("#" if "#" in one.path else "/")[2].partition(".")[0] for one in findings
        ]
        rest, without_text = plan.rows - sum(rows.get(name, 0) for name in names), plan.without_text
        for finding, name in zip(findings, names, strict=True):
            own, rest = rows.get(name, 0) + rest, 0
            if without_text:
                detail = f"no sound corpus has the texts of {without_text:,} rows"
                self._work.done(finding, LOST, detail, own)
                without_text = 0
            elif finding.kind == Kind.SEAL.value:
                self._work.done(finding, WRITTEN)
            elif finding.kind == Kind.STORE.value and lost.in_lmdb:
                self._work.done(finding, MADE, f"of {len(lost.kept):,} whole shards", own)
            elif name in made:
                self._work.done(finding, ENCODED, "identical", own)
            elif own:
                self._work.done(finding, ENCODED, "" if self._work.dry_run else "not identical", own)
            else:
                self._work.done(finding, MOVED, "no text lacks a vector without it")
