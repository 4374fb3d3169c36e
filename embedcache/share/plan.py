"""Plan of a pull: the chosen files of a remote that a cache lacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from embedcache.cache import Cache
from embedcache.cached_teacher import read_contract
from embedcache.contract import Contract, describe_differences
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import RECIPE
from embedcache.errors import ContractMismatchError, InputError, RemoteError
from embedcache.fsio import parsed_json, sha256_file
from embedcache.inventory import Kind
from embedcache.share.files import Selection, missing_files
from embedcache.share.manifest import ManifestSet, SharedFile
from embedcache.share.remote import Remote, object_path

_MOST_CONTRACT_BYTES = 1 << 20


@dataclass
class Plan:
    """Files that a pull fetches.

    Attributes:
        corpora: digest of each wanted corpus, here or missing, by name.
        teachers: names of the wanted teachers, by contract id.
        texts: missing files of the corpora.
        documents: missing files of the teachers, but for shards.
        shards: missing shards.
        left_out: what the remote has under a name that the cache uses for something else.
    """

    corpora: dict[str, str] = field(default_factory=dict)
    teachers: dict[str, list[str]] = field(default_factory=dict)
    texts: list[SharedFile] = field(default_factory=list)
    documents: list[SharedFile] = field(default_factory=list)
    shards: list[SharedFile] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def make(cls, source: Remote, listed: ManifestSet, cache: Cache | None, selection: Selection) -> Plan:
        """Compare a remote with a cache, None for a new one.

        Raises:
            InputError: if something asked for is not on the remote, or clashes with what is in the cache.
            ContractMismatchError: if two teachers of one name have different contracts.
            RemoteError: if a contract cannot be read.
        """
        plan = cls()
        plan._add_corpora(source, listed, cache, selection)
        plan._add_teachers(source, listed, cache, selection)
        return plan

    @property
    def files(self) -> list[SharedFile]:
        """All files."""
        return [*self.texts, *self.documents, *self.shards]

    def _add_corpora(
        self, source: Remote, listed: ManifestSet, cache: Cache | None, selection: Selection
    ) -> None:
        versions = [(name, digest) for name, digests in listed.corpora().items() for digest in digests]
        for asked in selection.corpora:
            if not any(Selection(corpora=[asked]).takes_corpus(*version) for version in versions):
                known = ", ".join(f"{name}@{digest[:12]}" for name, digest in versions)
                raise InputError(f"{source.url}: no corpus {asked!r} (it has {known or 'none'}).")
        own = {corpus.name: corpus for corpus in cache.corpora()} if cache is not None else {}
        for name, digests in listed.corpora().items():
            wanted = [digest for digest in digests if selection.takes_corpus(name, digest)]
            mine = None if selection.is_part else own.get(name)
            if not wanted:
                continue
            if mine is not None and mine.info.digest not in wanted:
                reason = f"corpus {name!r}: the cache has other rows under this name"
                if selection.corpora:
                    raise InputError(f"{source.url}: {reason}. Pull it into another cache.")
                self.left_out.append(reason)
                continue
            # The newest version, where the cache has none of them.
            self.corpora[name] = wanted[0] if mine is None else mine.info.digest
            for view, files in listed.corpus_files(name, self.corpora[name]).items():
                if mine is None or (view and self._lacks_view(mine, view, files)):
                    self.texts += files

    def _lacks_view(self, own: Corpus, view: str, files: Iterable[SharedFile]) -> bool:
        if view not in own.view_names():
            return True
        recipes = {file.sha256 for file in files if file.entry.kind is Kind.RECIPE}
        if sha256_file(own.folder / "views" / view / RECIPE) not in recipes:
            self.left_out.append(f"view {view!r} of corpus {own.name!r}: the cache has another one")
        return False

    def _add_teachers(
        self, source: Remote, listed: ManifestSet, cache: Cache | None, selection: Selection
    ) -> None:
        names = listed.teacher_names()
        for asked in selection.teachers:
            if not any(Selection([asked]).takes_teacher(called, one) for one, called in names.items()):
                known = sorted({name for called in names.values() for name in called})
                raise InputError(f"{source.url}: no teacher {asked!r} (it has {', '.join(known) or 'none'}).")
        self.teachers = {one: called for one, called in names.items() if selection.takes_teacher(called, one)}
        self._refuse_clashes(source, listed, cache)
        by_path = {
            file.path: file for file in reversed(listed.files()) if file.entry.teacher in self.teachers
        }
        missing = list(by_path.values()) if cache is None else missing_files(cache, by_path.values())
        self.shards = [file for file in missing if file.rows and selection.vectors]
        # A codebook is needed beside shards that come, though the cache has it.
        documents = [file for file in missing if not file.rows] + listed.codebooks(self.shards)
        self.documents = list(dict.fromkeys(documents))

    def _refuse_clashes(self, source: Remote, listed: ManifestSet, cache: Cache | None) -> None:
        owner = {one.name: one.contract.id for one in cache.teachers()} if cache is not None else {}
        for contract_id, called in self.teachers.items():
            for name in called:
                other = owner.setdefault(name, contract_id)
                if other != contract_id:
                    first, second = (_contract(source, listed, cache, one) for one in (other, contract_id))
                    differences = first.differences(second)
                    raise ContractMismatchError(
                        f"two contracts are called {name!r}, {other[:12]} and that of {source.url}, "
                        f"{contract_id[:12]} ({describe_differences(differences)}). Choose by contract with "
                        "--teacher, or pull into another cache.",
                        differences,
                    )


def _contract(source: Remote, listed: ManifestSet, cache: Cache | None, contract_id: str) -> Contract:
    """Return a contract of the cache, or else of the remote."""
    path = f"teachers/{contract_id}/contract.json"
    if cache is not None and (cache.folder / path).is_file():
        return read_contract(cache.folder / path)
    file = next(file for file in listed.files() if file.path == path)
    try:
        data = source.read(object_path(file.sha256), _MOST_CONTRACT_BYTES)
        return Contract.from_json(parsed_json(data or b""))
    except ValueError as error:
        raise RemoteError(f"{source.url}: {path} is damaged ({error}).") from error
