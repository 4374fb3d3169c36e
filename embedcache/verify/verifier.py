"""Verification of a whole cache: its files one by one, then what belongs together.

Nothing is written. Files in ``derived/`` are not checked: whatever reads them does that, and they are made
again where they are wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from embedcache.cache import read_contract, refuse_remote
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.description import DESCRIPTION, RECIPE, read_info, read_record
from embedcache.corpus.part import ORIGINAL
from embedcache.errors import CacheFormatError, CorruptCacheError, EmbedCacheError
from embedcache.fsio import require_directory, sha256_file
from embedcache.inventory import QUARANTINE, Entry, Kind, entry_at, list_files
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.projection import is_derived
from embedcache.store import MemoryShards, Shard, ShardStore
from embedcache.store.index import read_index
from embedcache.store.shard import ShardHeader
from embedcache.verify.files import RULES, FileChecks, bare_shard, damage, note, peek_file, peek_shard
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
        damaged: paths of the files that are not what they should be, once they have been read.
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
        self._paths = {entry.path for entry in self.entries}

    def check_file(self, path: str) -> list[Finding]:
        """Check the file at ``path``, relative to the cache, on its own."""
        return self.checks.check(entry_at(path, (self.folder / path).lstat().st_size))

    def run(self) -> Verification:
        """Check every file, and what belongs together."""
        started = time.perf_counter()
        # The largest first, or the last one read would leave the other threads idle.
        checked = sorted((one for one in self.entries if one.kind in RULES), key=lambda one: -one.size)
        self.progress.phase("verify", sum(entry.size for entry in checked), "bytes")
        with ThreadPoolExecutor() as pool:
            findings = [finding for found in pool.map(self.checks.check, checked) for finding in found]
        self.damaged = {finding.path.partition("#")[0] for finding in findings if finding.is_damage}
        if "cache.json" not in self._paths:
            findings.append(damage("cache.json", "it is missing"))
        findings += self._check_corpora()
        for contract_id in self.teacher_ids():
            findings += self._check_teacher(contract_id)
        findings.sort(key=lambda one: (not one.is_damage, one))
        size, seconds = sum(entry.size for entry in checked), time.perf_counter() - started
        return Verification(str(self.folder), tuple(findings), len(checked), size, seconds)

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
        whole = {**self.checks.shards[contract_id], **self.checks.undecodable[contract_id]}
        peeked = (peek_shard(data, name, "") for name, data in whole.items())
        return next((shard.header.contract for shard in peeked if shard is not None), None)

    def undecodable(self, contract_id: str) -> list[Shard]:
        """Return header and keys of a teacher's shards whose codebook is missing or damaged."""
        shards = (peek_shard(data, name, "") for name, data in self.checks.undecodable[contract_id].items())
        return [shard for shard in shards if shard is not None]

    def sound_store(self, contract: Contract) -> ShardStore:
        """Return a store of a teacher's sound shards, in memory."""
        container = MemoryShards()
        for name, data in self.checks.shards[contract.id].items():
            container.add(name, data)
        codebooks = self.folder / "teachers" / contract.id / "codebooks"
        return ShardStore(container, contract, codebooks=codebooks)

    def lost_shards(self, contract: Contract) -> list[Shard]:
        """Return shards that were here, by an index or in quarantine, and whose texts lack vectors now.

        They have a header and keys, but no vectors.
        """
        checks, folder = self.checks, self.folder / "derived" / "index" / contract.id
        present = {**checks.shards[contract.id], **checks.undecodable[contract.id]}.keys()
        found: dict[str, Shard] = {}
        for path in sorted(folder.glob("[!.]*.npy")):
            index = read_index(path)
            # It may have come with a copy of the cache, so it is not among the files noted on this machine.
            names = [name for name, _, _ in index.shards] if index is not None else []
            if index is None or present >= set(names) or sha256_file(path) != path.stem:
                continue
            with suppress(IndexError):
                for (name, codec, rows), keys in zip(index.shards, index.parts(), strict=True):
                    header = ShardHeader(contract, codec, None, rows, {}, {})
                    found.setdefault(name, bare_shard(name, path.as_posix(), header, keys))
        for entry in (one for one in self.entries if one.kind is Kind.QUARANTINED):
            if entry_at(entry.path.removeprefix(f"{QUARANTINE}/")).kind is Kind.SHARD:
                shard, _ = peek_file(self.folder / entry.path)
                if shard is not None and shard.header.contract == contract:
                    found.setdefault(entry.stem, shard)
        lost = [shard for name, shard in sorted(found.items()) if name not in present]
        if not lost:
            return []
        store = self.sound_store(contract)
        numbers, start, missed = find_rows([shard.keys for shard in lost], self.texts)[0], 0, []
        for shard in lost:
            if ((numbers[start : start + len(shard)] >= 0) & (store.locate(shard.keys) < 0)).any():
                missed.append(shard)
            start += len(shard)
        return missed

    def _check_corpora(self) -> Iterator[Finding]:
        names = sorted({one.corpus for one in self.entries if one.path.startswith("corpora/")} - {""})
        self.progress.phase("verify rows", sum(self._rows_of(name) for name in names))
        for name in names:
            folder = f"corpora/{name}"
            corpus, findings = self._check_texts(folder)
            yield from findings
            if corpus is not None and not self._has_damage(folder, findings):
                self.texts.append(corpus)
            for view in sorted({one.view for one in self.entries if one.corpus == name} - {""}):
                yield from self._check_view(f"{folder}/views/{view}", corpus)

    def _rows_of(self, corpus: str) -> int:
        with suppress(CorruptCacheError, CacheFormatError):
            return read_info(self.folder / "corpora" / corpus).rows
        return 0

    def _check_texts(self, folder: str) -> tuple[Corpus | None, list[Finding]]:
        """Check the files of a corpus or of a view against each other.

        Returns:
            The corpus, None where its description is missing or damaged; and the findings.
        """
        description = f"{folder}/{DESCRIPTION}"
        parts = {one.path for one in self.entries if one.folder == folder and one.path.endswith(".arrow")}
        if description not in self._paths:
            return None, [self._missing_description(description)]
        try:
            corpus = Corpus(self.folder / folder)
        except (CorruptCacheError, CacheFormatError):
            return None, []
        named = {f"{folder}/{part.file_name}" for part in corpus.parts}
        findings = [damage(path, "it is missing") for path in sorted(named - parts)]
        unnamed = f"{DESCRIPTION} does not name it"
        findings += [note(path, unnamed, "'embedcache gc' deletes it") for path in sorted(parts - named)]
        skip = {path.rpartition("/")[2] for path in (named - parts) | (named & self.damaged)}
        findings += [damage(f"{folder}/{name}", what) for name, what in check_rows(corpus, skip)]
        if not entry_at(description).view:
            self.progress.advance(len(corpus))
        return corpus, findings

    def _missing_description(self, path: str) -> Finding:
        entry = entry_at(path)
        recipes = (one.path for one in self.entries if one.kind is Kind.RECIPE)
        was_built = f"derived/sources/{entry.corpus}.json" in self._paths
        if entry.view or was_built or any(one.startswith(f"{entry.folder}/") for one in recipes):
            return damage(path, "it is missing")
        what = "it is missing: a build or a pull did not end"
        return note(path, what, "run that again, or 'embedcache gc' deletes the parts")

    def _check_view(self, folder: str, corpus: Corpus | None) -> Iterator[Finding]:
        path = f"{folder}/{RECIPE}"
        gc = "make the view again, or 'embedcache gc' deletes it"
        if path not in self._paths:
            yield note(path, "it is missing: the view was never finished", gc)
            return
        record = None
        with suppress(CorruptCacheError, CacheFormatError):
            record = read_record(self.folder / folder)
        if record is not None and corpus is not None and record.of != corpus.info.digest:
            yield note(path, "the view was made of other rows than the corpus has now", gc)
            return
        view, findings = self._check_texts(folder)
        if record is not None and view is not None:
            rows = len(view) if corpus is None else len(corpus)
            if (record.digest, rows, {ORIGINAL}) != (view.info.digest, len(view), set(view.info.columns)):
                findings.append(damage(f"{folder}/{DESCRIPTION}", f"it has other rows than {RECIPE} says"))
        yield from findings
        if corpus is not None and corpus in self.texts and not self._has_damage(folder, findings):
            with suppress(EmbedCacheError):
                self.texts.append(View(corpus, folder.rpartition("/")[2]))

    def _check_teacher(self, contract_id: str) -> Iterator[Finding]:
        folder = f"teachers/{contract_id}"
        mine = [one for one in self.entries if one.teacher == contract_id]
        # An empty LMDB file without a seal was made by a build that was killed at once.
        there = {one.kind for one in mine if one.size or one.kind is not Kind.STORE}
        findings = []
        if Kind.CONTRACT not in there:
            findings.append(damage(f"{folder}/contract.json", "it is missing"))
        if Kind.NAME not in there and there & {Kind.SHARD, Kind.STORE}:
            findings.append(damage(f"{folder}/names/NAME.json", "the teacher has no name to be found by"))
        if Kind.SHARD in there and Kind.STORE in there:
            findings.append(damage(f"{folder}/vectors.mdb", "there are shards in shards/ as well"))
        if Kind.SEAL in there and f"{folder}/vectors.mdb" not in self._paths:
            findings.append(damage(f"{folder}/vectors.mdb", "it is missing, and its seal is there"))
        for book in sorted({str(shard.header.codebook) for shard in self.undecodable(contract_id)}):
            path = f"{folder}/codebooks/{book}.npy"
            if path not in self._paths:
                findings.append(damage(path, "it is missing"))
        yield from findings
        contract = self.contract(contract_id)
        if contract is None:
            return
        lost = [] if Kind.STORE not in there and Kind.SEAL in there else self.lost_shards(contract)
        place = "vectors.mdb#{}" if Kind.STORE in there else "shards/{}.arrow"
        for path in (f"{folder}/{place.format(shard.name)}" for shard in lost):
            if not {path, path.partition("#")[0]} & self.damaged:
                yield damage(path, "it is missing: it was here, and texts have no vector without it")
        if lost or self._has_damage(folder, findings):
            return
        names = " or ".join(entry.stem for entry in self.files(contract_id, Kind.NAME))
        command = "distill kb project" if is_derived(contract) else "embedcache build"
        for texts, missing in rows_without_vector(self.texts, self.sound_store(contract)):
            what = f"{len(missing):,} of {missing.distinct:,} texts have no vector of teacher {names}"
            path = (texts.folder / DESCRIPTION).relative_to(self.folder).as_posix()
            yield note(path, what, f"'{command}' makes them, if they are wanted")

    def _has_damage(self, folder: str, findings: Iterable[Finding]) -> bool:
        """Return whether a file in ``folder`` is damaged or missing; views of a corpus do not count."""
        paths = [*self.damaged, *(finding.path for finding in findings if finding.is_damage)]
        inside = [path.removeprefix(f"{folder}/") for path in paths if path.startswith(f"{folder}/")]
        return any(not path.startswith("views/") for path in inside)
