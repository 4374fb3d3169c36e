"""Plan of a pull: the chosen files of a remote that a cache lacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from embedcache.cache import Cache
from embedcache.contract import Contract, describe_differences
from embedcache.corpus.corpus import Corpus, CorpusRef
from embedcache.corpus.view_record import RECIPE
from embedcache.errors import ContractMismatchError, InputError, RemoteError
from embedcache.fsio import parsed_json, sha256_file
from embedcache.inventory import Kind
from embedcache.share.files import Selection, missing_files
from embedcache.share.manifest import SharedFile, Stock
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
    def make(cls, source: Remote, stock: Stock, cache: Cache | None, selection: Selection) -> Plan:
        """Compare a remote with a cache, None for a new one.

        Raises:
            InputError: if something asked for is not on the remote, or clashes with what is in the cache.
            ContractMismatchError: if a teacher of the same name has another contract.
            RemoteError: if a contract cannot be read.
        """
        plan = cls()
        plan._add_corpora(source, stock, cache, selection)
        plan._add_teachers(source, stock, cache, selection)
        return plan

    def _add_corpora(self, source: Remote, stock: Stock, cache: Cache | None, selection: Selection) -> None:
        versions = stock.corpora()
        for asked in selection.corpora:
            choice = CorpusRef.parse(asked)
            if not any(one.startswith(choice.digest) for one in versions.get(choice.name, ())):
                known = ", ".join(f"{name}@{one[:12]}" for name, those in versions.items() for one in those)
                raise InputError(f"{source.url}: no corpus {asked!r} (it has {known or 'none'}).")
        here = set(cache.corpus_names()) if cache is not None else set()
        for name, digests in versions.items():
            wanted = [digest for digest in digests if selection.takes_corpus(name, digest)]
            own = cache.corpus(name) if cache is not None and name in here else None
            if not wanted:
                continue
            if own is None or selection.is_part:
                # The newest version.
                self.corpora[name] = wanted[0]
                older = [f"{name}@{digest[:12]}" for digest in wanted[1:]]
                self.left_out += [f"older versions: {', '.join(older)}"] if older else []
            elif own.info.digest in wanted:
                self.corpora[name] = own.info.digest
            else:
                self._leave_out(
                    source, f"corpus {name!r}: the cache has other rows under this name", selection
                )
                continue
            groups = stock.corpus_files(name, self.corpora[name])
            for view, files in groups.items():
                if own is None or selection.is_part or (view and self._lacks_view(own, view, files)):
                    self.texts += files

    def _lacks_view(self, own: Corpus, view: str, files: Iterable[SharedFile]) -> bool:
        if view not in own.view_names():
            return True
        recipes = {file.sha256 for file in files if file.entry.kind is Kind.RECIPE}
        if sha256_file(own.folder / "views" / view / RECIPE) not in recipes:
            self.left_out.append(f"view {view!r} of corpus {own.name!r}: the cache has another one")
        return False

    def _leave_out(self, source: Remote, reason: str, selection: Selection) -> None:
        if selection.corpora:
            raise InputError(f"{source.url}: {reason}. Pull it into another cache.")
        self.left_out.append(reason)

    def _add_teachers(self, source: Remote, stock: Stock, cache: Cache | None, selection: Selection) -> None:
        names = stock.teacher_names()
        for asked in selection.teachers:
            if not any(Selection([asked]).takes_teacher(called, one) for one, called in names.items()):
                known = sorted({name for called in names.values() for name in called})
                raise InputError(f"{source.url}: no teacher {asked!r} (it has {', '.join(known) or 'none'}).")
        self.teachers = {one: called for one, called in names.items() if selection.takes_teacher(called, one)}
        self._refuse_clashes(source, stock, cache)
        by_path = {file.path: file for file in reversed(stock.files()) if file.entry.teacher in self.teachers}
        missing = list(by_path.values()) if cache is None else missing_files(cache, by_path.values())
        self.shards = [file for file in missing if file.rows and selection.vectors]
        self.documents = [file for file in missing if not file.rows]
        # A codebook is needed beside shards that come, though the cache has it.
        coming = {file.entry.teacher for file in self.shards if file.codec == "pq"}
        books = [f for f in by_path.values() if f.entry.kind is Kind.CODEBOOK and f.entry.teacher in coming]
        self.documents += [book for book in books if book not in self.documents]

    def _refuse_clashes(self, source: Remote, stock: Stock, cache: Cache | None) -> None:
        known = {teacher.name: teacher.contract for teacher in cache.teachers()} if cache is not None else {}
        owner: dict[str, str] = {}
        for contract_id, called in self.teachers.items():
            for name in called:
                if name in owner:
                    first, second = (_contract(source, stock, one) for one in (owner[name], contract_id))
                    raise InputError(
                        f"{source.url}: two teachers are called {name!r} "
                        f"({describe_differences(first.differences(second))}). Choose one by its "
                        f"contract: --teacher {owner[name][:12]} or --teacher {contract_id[:12]}."
                    )
                owner[name] = contract_id
                if name in known and known[name].id != contract_id:
                    differences = known[name].differences(_contract(source, stock, contract_id))
                    raise ContractMismatchError(
                        f"the cache has {name!r} with another contract than {source.url} "
                        f"({describe_differences(differences)}). Choose others by name or contract, such as "
                        f"--teacher {known[name].id[:12]}, or pull into another cache.",
                        differences,
                    )


def _contract(source: Remote, stock: Stock, contract_id: str) -> Contract:
    path = f"teachers/{contract_id}/contract.json"
    file = next(file for file in stock.files() if file.path == path)
    try:
        return Contract.from_json(
            parsed_json(source.read(object_path(file.sha256), _MOST_CONTRACT_BYTES) or b"")
        )
    except ValueError as error:
        raise RemoteError(f"{source.url}: {path} is damaged ({error}).") from error
