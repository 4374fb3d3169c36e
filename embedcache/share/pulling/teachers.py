"""Which files of teachers are pulled, and under which names."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.contract import Contract, describe_differences
from embedcache.derived import PROJECTION, projection_digest
from embedcache.errors import ContractMismatchError, InputError, RemoteError
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.documents import Documents
from embedcache.share.remote.manifest import SharedFile, Stock

_LEAST_DIGITS = 6


class TeacherPlanner:
    """Plans which files of teachers are fetched.

    Args:
        stock: what the remote has.
        documents: reads its documents.
        cache: what is pulled into; None where there is no cache yet.
        where: the remote, for messages.
    """

    def __init__(self, stock: Stock, documents: Documents, cache: Cache | None, where: str) -> None:
        self._stock, self._documents, self._cache, self._where = stock, documents, cache, where
        self.told: list[str] = []
        self.contracts: dict[str, Contract] = {}

    def choose(self, names: Collection[str]) -> list[str]:
        """Return the contract ids of the teachers with these names or ids; of all where there are none.

        Raises:
            InputError: if there is no such teacher, or several.
        """
        known = self._stock.teacher_names
        chosen = set() if names else set(known)
        for name in names:
            by_name = {contract_id for contract_id, called in known.items() if name in called}
            by_digits = {
                contract_id
                for contract_id in known
                if len(name) >= _LEAST_DIGITS and contract_id.startswith(name)
            }
            matches = by_name or by_digits
            if not matches:
                names_there = sorted({called for names_of in known.values() for called in names_of})
                raise InputError(
                    f"no teacher {name[:80]!r} on {self._where}: it has {', '.join(names_there) or 'none'}"
                )
            if len(matches) > 1:
                raise InputError(
                    f"{self._where} has several teachers {name!r}: choose by contract id, "
                    + " or ".join(contract_id[:12] for contract_id in sorted(matches))
                )
            chosen |= matches
        return sorted(chosen)

    def plan(self, ids: Sequence[str], alias: str | None) -> list[Wanted]:
        """Return the files of teachers that are wanted, as they are to lie in the cache.

        Args:
            ids: contract ids.
            alias: what the only one of them is called in the cache; default: as on the remote.

        Raises:
            ContractMismatchError: if a name is another teacher's in the cache.
            InputError: if a name stands for two of them.
            RemoteError: if what the remote has of a teacher is refused.
        """
        mine = [file for file in self._stock if file.entry.teacher in set(ids)]
        self._documents.fetch([file for file in mine if file.entry.kind in (Kind.CONTRACT, Kind.NAME)])
        wanted: list[Wanted] = []
        for contract_id in ids:
            files = [file for file in mine if file.entry.teacher == contract_id]
            wanted += self._contract(contract_id, files)
            wanted += self._names(contract_id, files, alias)
            wanted += self._rest(self.contracts[contract_id], files)
        self._refuse_shared_names(wanted)
        return wanted

    def _contract(self, contract_id: str, files: Sequence[SharedFile]) -> list[Wanted]:
        versions = [file for file in files if file.entry.kind is Kind.CONTRACT]
        if len(versions) != 1:
            what = f"has {len(versions)} contracts" if versions else "has no contract"
            raise RemoteError(
                f"teacher {contract_id[:12]} of {self._where} {what}, expected one: a manifest is damaged or "
                "hostile; pull other teachers alone, with --teacher"
            )
        self.contracts[contract_id] = self._documents.contract(versions[0])
        return [self._document(versions[0])]

    def _names(self, contract_id: str, files: Sequence[SharedFile], alias: str | None) -> list[Wanted]:
        versions: dict[str, list[SharedFile]] = {}
        for file in files:
            if file.entry.kind is Kind.NAME:
                versions.setdefault(file.path, []).append(file)
        if not versions:
            raise RemoteError(
                f"teacher {contract_id[:12]} of {self._where} has no name: a manifest is damaged or hostile; "
                "pull other teachers alone, with --teacher"
            )
        wanted = []
        for path, same_path in sorted(versions.items()):
            for file in same_path:
                self._documents.origin(file)
            data_here = self._bytes_at(path)
            if data_here is not None and any(data_here != self._documents.data(file) for file in same_path):
                self.told.append(
                    f"teacher {same_path[0].entry.stem!r} is said to come from elsewhere on {self._where}: "
                    "the note in the cache stays"
                )
            wanted.append(self._document(same_path[0]))
        if alias is None:
            return wanted
        first = wanted[0]
        return [Wanted(first.file, f"teachers/{contract_id}/names/{alias}.json", data=first.data)]

    def _bytes_at(self, path: str) -> bytes | None:
        if self._cache is None or not (self._cache.folder / path).is_file():
            return None
        return (self._cache.folder / path).read_bytes()

    def _rest(self, contract: Contract, files: Sequence[SharedFile]) -> list[Wanted]:
        kinds: dict[Kind, list[SharedFile]] = {}
        for file in files:
            kinds.setdefault(file.entry.kind, []).append(file)
        tables = kinds.get(Kind.TABLE, [])
        if len(tables) > 1 and not self._is_there(tables[0].path):
            raise RemoteError(
                f"{self._where} has {len(tables)} different {tables[0].path}: one of them is damaged or "
                "hostile; pull other teachers alone, with --teacher"
            )
        plain = [*kinds.get(Kind.CODEBOOK, []), *kinds.get(Kind.SHARD, []), *tables[:1]]
        if (digest := projection_digest(contract)) is not None:
            right = [file for file in kinds.get(Kind.PROJECTION, []) if file.sha256 == digest]
            if not right:
                raise RemoteError(
                    f"teacher {contract.id[:12]} of {self._where} lacks the {PROJECTION} that its contract "
                    "names: push it again from a cache that has it"
                )
            plain += right
        return [Wanted(file, file.path) for file in plain]

    def _is_there(self, path: str) -> bool:
        return self._cache is not None and (self._cache.folder / path).is_file()

    def _document(self, file: SharedFile) -> Wanted:
        return Wanted(file, file.path, data=self._documents.data(file))

    def _refuse_shared_names(self, wanted: Sequence[Wanted]) -> None:
        """Refuse a name that would stand for two teachers: nobody could tell which one is meant."""
        teachers = [] if self._cache is None else self._cache.teachers()
        local = {teacher.name: teacher.contract for teacher in teachers}
        owners: dict[str, str] = {}
        for file in wanted:
            if file.entry.kind is not Kind.NAME:
                continue
            name, contract = file.entry.stem, self.contracts[file.entry.teacher]
            if owners.setdefault(name, contract.id) != contract.id:
                raise InputError(
                    f"{self._where} has two teachers called {name!r}, {owners[name][:12]} and "
                    f"{contract.id[:12]}: pull one of them with --teacher CONTRACT_ID, the other with --as "
                    "NAME too"
                )
            if name in local and local[name] != contract:
                differences = local[name].differences(contract)
                raise ContractMismatchError(
                    f"the cache holds {name!r} with another contract than {self._where} "
                    f"({describe_differences(differences)}): pull it under another name, with --teacher "
                    f"{contract.id[:12]} --as NAME",
                    differences,
                )
