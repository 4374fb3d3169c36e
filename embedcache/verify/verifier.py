"""Verification of a whole cache: its files one by one, then what belongs together.

Nothing is written. Files in ``derived/`` are not checked: their readers check them and make them again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np

from embedcache.cache import read_contract, refuse_remote
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.description import DESCRIPTION, RECIPE, read_record
from embedcache.errors import CacheFormatError, CorruptCacheError, EmbedCacheError
from embedcache.fsio import require_directory, sha256_file
from embedcache.inventory import QUARANTINE, Entry, Kind, entry_at, list_files
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import PROJECTION, is_derived
from embedcache.store import FolderShards, MemoryShards, Shard, ShardStore
from embedcache.store.index import read_index
from embedcache.store.shard import ShardHeader
from embedcache.verify.files import MISSING, RULES, FileChecks, bare_shard, damage, note, peek_shard
from embedcache.verify.findings import Finding, Verification
from embedcache.verify.rows import check_rows, find_rows, rows_without_vector


def verify(cache: str | Path, *, progress: Progress = NO_PROGRESS) -> Verification:
    """Read every byte of a cache outside ``derived/`` and return what is wrong with it.

    Raises:
        MissingInputError: if there is no such folder.
        CacheFormatError: if it holds nothing of a cache, or is a remote.
    """
    return Verifier(cache, progress).run()


class Verifier:
    """Verification of a cache; arguments and errors are those of :func:`verify`.

    Attributes:
        folder: the cache's folder.
        entries: its files.
        checks: checks of single files, and the sound shards.
        texts: sound corpora, and sound views of their rows.
        damaged: paths of the files found damaged or missing so far.
    """

    def __init__(self, cache: str | Path, progress: Progress = NO_PROGRESS) -> None:
        self.folder = require_directory(Path(cache).expanduser(), "cache")
        if not (self.folder / "cache.json").exists():
            refuse_remote(self.folder)
        self.entries = list_files(self.folder)
        if not any(entry.kind is Kind.MARKER or entry.corpus or entry.teacher for entry in self.entries):
            raise CacheFormatError(
                f"{self.folder} is no cache: it has no cache.json, no corpora and no teachers"
            )
        self.progress = progress
        self.checks = FileChecks(self.folder, progress)
        self.texts: list[Corpus] = []
        self.damaged: set[str] = set()
        self._findings: list[Finding] = []
        self._paths = {entry.path for entry in self.entries}

    def run(self) -> Verification:
        """Check every file, and what belongs together."""
        started = time.perf_counter()
        # The largest first, or the last one read would leave the other threads idle.
        checked = sorted((one for one in self.entries if one.kind in RULES), key=lambda one: -one.size)
        size = sum(entry.size for entry in checked)
        self.progress.phase("verify", size, "bytes")
        with ThreadPoolExecutor() as pool:
            self._add(finding for found in pool.map(self.checks.check, checked) for finding in found)
        if "cache.json" not in self._paths:
            self._add([damage("cache.json", MISSING)])
        self.progress.phase("verify rows")
        for name in sorted({one.corpus for one in self.entries if one.path.startswith("corpora/")} - {""}):
            self._check_corpus(name)
        for contract_id in self.teacher_ids():
            self._add(self._check_teacher(contract_id))
        findings = tuple(sorted(set(self._findings), key=lambda one: (not one.is_damage, one)))
        seconds = time.perf_counter() - started
        return Verification(str(self.folder), findings, len(checked), size, seconds)

    def _add(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self._findings.append(finding)
            if finding.is_damage:
                self.damaged.add(finding.path.partition("#")[0])

    def teacher_ids(self) -> list[str]:
        """Return the contract ids of all teachers that have a file."""
        return sorted({entry.teacher for entry in self.entries} - {""})

    def files(self, contract_id: str, kind: Kind) -> list[Entry]:
        """Return the files of a kind that belong to a teacher."""
        return [one for one in self.entries if one.kind is kind and one.teacher == contract_id]

    def contract(self, contract_id: str) -> Contract | None:
        """Return a teacher's contract, by its file or else by the header of a sound shard."""
        with suppress(CorruptCacheError):
            return read_contract(self.folder / "teachers" / contract_id / "contract.json")
        whole = (peek_shard(data, name, "") for name, data in self.checks.shards[contract_id].items())
        shards = (*self.checks.lost[contract_id].values(), *whole)
        return next((shard.header.contract for shard in shards if shard is not None), None)

    def sound_store(self, contract: Contract) -> ShardStore:
        """Return a store of a teacher's sound shards, in memory."""
        container = MemoryShards()
        for name, data in self.checks.shards[contract.id].items():
            container.add(name, data)
        codebooks = self.folder / "teachers" / contract.id / "codebooks"
        return ShardStore(container, contract, codebooks=codebooks)

    def gone_shards(self, contract: Contract) -> list[Shard]:
        """Return header and keys of shards that are gone, and whose texts lack vectors now.

        An index in ``derived/``, or the quarantine, says that they were here.
        """
        present = {*self.checks.shards[contract.id], *self.checks.lost[contract.id]}
        found: dict[str, Shard] = {}
        for path in sorted((self.folder / "derived" / "index" / contract.id).glob("[!.]*.npy")):
            index = read_index(path)
            # It may have come with a copy of the cache, so it is not among the files noted on this machine.
            names = [name for name, _, _ in index.shards] if index is not None else []
            if index is None or present >= set(names) or sha256_file(path) != path.stem:
                continue
            with suppress(IndexError):
                for (name, codec, rows), keys in zip(index.shards, index.parts(), strict=True):
                    header = ShardHeader(contract, codec, None, rows, {}, {})
                    found.setdefault(name, bare_shard(name, path.as_posix(), header, keys))
        for entry in self.entries:
            if entry_at(entry.path.removeprefix(f"{QUARANTINE}/")).kind is Kind.SHARD:
                file = self.folder / entry.path
                with suppress(CorruptCacheError):
                    shard = peek_shard(FolderShards(file.parent).open(file.stem), file.stem, entry.path)
                    if shard is not None and shard.header.contract == contract:
                        found.setdefault(file.stem, shard)
        gone = [shard for name, shard in sorted(found.items()) if name not in present]
        store = self.sound_store(contract)
        has_text = find_rows([shard.keys for shard in gone], self.texts)[0] >= 0
        parts = np.split(has_text, np.cumsum([len(shard) for shard in gone]))
        pairs = zip(gone, parts, strict=False)
        return [shard for shard, known in pairs if (known & (store.locate(shard.keys) < 0)).any()]

    def _check_corpus(self, name: str) -> None:
        folder = f"corpora/{name}"
        corpus = self._check_texts(folder)
        if corpus is not None and self._is_sound(folder):
            self.texts.append(corpus)
        for view in sorted({one.view for one in self.entries if one.corpus == name} - {""}):
            self._check_view(f"{folder}/views/{view}", corpus)

    def _check_texts(self, folder: str) -> Corpus | None:
        """Check the files of a corpus or of a view against each other, and return it if it can be read."""
        description = f"{folder}/{DESCRIPTION}"
        parts = {one.path for one in self.entries if one.folder == folder and one.path.endswith(".arrow")}
        if description not in self._paths:
            entry = entry_at(description)
            if entry.view or f"derived/sources/{entry.corpus}.json" in self._paths:
                self._add([damage(description, MISSING)])
            else:
                fix = "run that again, or 'embedcache gc' deletes the parts"
                self._add([note(description, "it is missing: a build or a pull did not end", fix)])
            return None
        try:
            corpus = Corpus(self.folder / folder)
        except (CorruptCacheError, CacheFormatError):
            return None
        named = {f"{folder}/{part.file_name}" for part in corpus.parts}
        self._add(damage(path, MISSING) for path in named - parts)
        unnamed = f"{DESCRIPTION} does not name it"
        self._add(note(path, unnamed, "'embedcache gc' deletes it") for path in parts - named)
        skip = {path.rpartition("/")[2] for path in named & self.damaged}
        self._add(damage(f"{folder}/{name}", what) for name, what in check_rows(corpus, skip))
        return corpus

    def _check_view(self, folder: str, corpus: Corpus | None) -> None:
        path = f"{folder}/{RECIPE}"
        gc = "make the view again, or 'embedcache gc' deletes it"
        if path not in self._paths:
            self._add([note(path, "it is missing: the view was never finished", gc)])
            return
        record = None
        with suppress(CorruptCacheError, CacheFormatError):
            record = read_record(self.folder / folder)
        if record is not None and corpus is not None and record.of != corpus.info.digest:
            self._add([note(path, "the view was made of other rows than the corpus has now", gc)])
            return
        view = self._check_texts(folder)
        rows = None if corpus is None else len(corpus)
        if record and view and (record.digest != view.info.digest or len(view) != (rows or len(view))):
            self._add([damage(f"{folder}/{DESCRIPTION}", f"it has other rows than {RECIPE} says")])
        if corpus is not None and corpus in self.texts and self._is_sound(folder):
            with suppress(EmbedCacheError):
                self.texts.append(View(corpus, folder.rpartition("/")[2]))

    def _is_sound(self, folder: str) -> bool:
        """Return whether no file of a corpus or of a view is damaged or missing."""
        return not any(path.rpartition("/")[0] == folder for path in self.damaged)

    def _check_teacher(self, contract_id: str) -> Iterator[Finding]:
        folder = f"teachers/{contract_id}"
        mine = [one for one in self.entries if one.teacher == contract_id]
        # An empty LMDB file without a seal was made by a build that was killed at once.
        there = {one.kind for one in mine if one.size or one.kind is not Kind.STORE}
        contract = self.contract(contract_id)
        if Kind.CONTRACT not in there:
            yield damage(f"{folder}/contract.json", MISSING)
        if Kind.NAME not in there and there & {Kind.SHARD, Kind.STORE}:
            yield damage(f"{folder}/names/NAME.json", "the teacher has no name to be found by")
        if Kind.SHARD in there and Kind.STORE in there:
            yield damage(f"{folder}/vectors.mdb", "there are shards in shards/ as well")
        if Kind.SEAL in there and f"{folder}/vectors.mdb" not in self._paths:
            yield damage(f"{folder}/vectors.mdb", "it is missing, and its seal is there")
        if Kind.STORE in there and Kind.SEAL not in there:
            what = "it has no seal: its last writer did not end"
            yield note(f"{folder}/vectors.mdb", what, "the next build seals it")
        if contract is None:
            return
        if is_derived(contract) and Kind.PROJECTION not in there:
            yield damage(f"{folder}/{PROJECTION}", MISSING)
        place = "vectors.mdb#{}" if there & {Kind.STORE, Kind.SEAL} else "shards/{}.arrow"
        for path in (f"{folder}/{place.format(shard.name)}" for shard in self.gone_shards(contract)):
            if not {path, path.partition("#")[0]} & self.damaged:
                yield damage(path, "it is missing: it was here, and texts have no vector without it")
        if any(path.startswith(f"{folder}/") for path in self.damaged):
            return
        names = " or ".join(entry.stem for entry in self.files(contract_id, Kind.NAME))
        command = "distill project --apply" if is_derived(contract) else "embedcache build"
        for texts, missing in rows_without_vector(self.texts, self.sound_store(contract)):
            what = f"{len(missing):,} of {missing.distinct:,} texts have no vector of teacher {names}"
            path = (texts.folder / DESCRIPTION).relative_to(self.folder).as_posix()
            yield note(path, what, f"'{command}' makes them, if they are wanted")
