"""Which files of teachers are pulled, and under which names."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.contract import Contract, describe_differences
from embedcache.derived import PROJECTION, projection_digest
from embedcache.errors import ContractMismatchError, InputError, RemoteError
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.documents import Documents, listed_by
from embedcache.share.remote.manifest import SharedFile, Stock

_LEAST_DIGITS = 6


class TeacherPlanner:
    """Plans which files of teachers are fetched.

    Args:
        stock: what the remote has.
        documents: reads its documents.
        cache: what is pulled into; None where there is no cache yet.
        where: the remote, for messages.
        into_mirror: whether ``cache`` is a mirror. A teacher that is in a mirror is not preferred to others
            of its name, so that every mirror reads the same.
    """

    def __init__(
        self,
        stock: Stock,
        documents: Documents,
        cache: Cache | None,
        where: str,
        *,
        into_mirror: bool = False,
    ) -> None:
        self._stock, self._documents, self._cache, self._where = stock, documents, cache, where
        self._into_mirror = into_mirror
        self.told: list[str] = []
        self.contracts: dict[str, Contract] = {}

    def choose(self, names: Collection[str], *, allow_local_names: bool = False) -> list[str]:
        """Return the contract ids of the teachers with these names or ids; of all where there are none.

        Of several teachers of one name, the one that the cache calls so is meant; the others are told of.

        Args:
            names: names, or the first six digits or more of contract ids.
            allow_local_names: whether those that the cache has and the remote lacks are left out.

        Raises:
            InputError: if there is no such teacher, or several.
        """
        known = self._stock.teacher_names
        namesakes = self._namesakes_of_own()
        chosen = set() if names else set(known) - set(namesakes)
        left_out = set() if names else set(namesakes)
        for name in names:
            by_name = {contract_id for contract_id, called in known.items() if name in called}
            by_digits = {contract_id for contract_id in known if _begins_with(contract_id, name)}
            if (own := self._own_contracts.get(name)) in by_name:
                left_out |= by_name - {own}
                by_name &= {own}
            matches = by_name or by_digits
            if not matches and allow_local_names and self._is_own(name):
                continue
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
        left_out -= chosen
        self.told += [self._left_out_note(contract_id, namesakes) for contract_id in sorted(left_out)]
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
        mine = {contract_id: self._stock.of_teacher(contract_id) for contract_id in ids}
        documents = (Kind.CONTRACT, Kind.NAME)
        self._documents.fetch(
            [file for files in mine.values() for file in files if file.entry.kind in documents]
        )
        wanted: list[Wanted] = []
        for contract_id, files in mine.items():
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
                f"hostile; pull other teachers alone, with {self._command('--teacher NAME')}"
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
                f"pull other teachers alone, with {self._command('--teacher NAME')}"
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
            return self._without_taken(contract_id, wanted)
        first = wanted[0]
        return [Wanted(first.file, f"teachers/{contract_id}/names/{alias}.json", data=first.data)]

    def _without_taken(self, contract_id: str, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Return the names of a teacher; if it has one in the cache, without those of others there."""
        own = self._own_contracts
        names_here = sorted(name for name, own_id in own.items() if own_id == contract_id)
        if not names_here:
            return list(wanted)
        taken = [file for file in wanted if own.get(file.entry.stem, contract_id) != contract_id]
        self.told += [
            f"teacher {file.entry.stem!r} of {self._where} ({contract_id[:12]}) is called {names_here[0]!r} "
            f"in the cache, whose own {file.entry.stem!r} is another teacher"
            for file in taken
        ]
        return [file for file in wanted if file not in taken]

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
                f"hostile; pull other teachers alone, with {self._command('--teacher NAME')}"
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

    @cached_property
    def _own_contracts(self) -> dict[str, str]:
        """The names of the cache's teachers, which are preferred, and their contract ids."""
        teachers = [] if self._cache is None or self._into_mirror else self._cache.teachers()
        return {teacher.name: teacher.contract.id for teacher in teachers}

    def _is_own(self, name: str) -> bool:
        """Return whether the cache has a teacher with this name, or with a contract id that begins so."""
        own = self._own_contracts
        return name in own or any(_begins_with(contract_id, name) for contract_id in own.values())

    def _namesakes_of_own(self) -> dict[str, str]:
        """Return teachers whose name is, here and on the remote, another teacher's: contract id -> name."""
        known, own = self._stock.teacher_names, self._own_contracts
        return {
            contract_id: name
            for contract_id, names in known.items()
            for name in sorted(names & set(own))
            if own[name] != contract_id
            and name in known.get(own[name], ())
            # A teacher that was once pulled under another name goes on under that one.
            and contract_id not in own.values()
        }

    def _left_out_note(self, contract_id: str, namesakes: Mapping[str, str]) -> str:
        name = namesakes[contract_id]
        command = self._command(f"--teacher {contract_id[:12]} --no-text --as NAME")
        return (
            f"{self._where} has another teacher called {name!r} ({self._shown(contract_id, name)}) than the "
            f"one in the cache ({self._own_contracts[name][:12]}): it is left out; to have both, pull it "
            f"with {command}"
        )

    def _shown(self, contract_id: str, name: str) -> str:
        """Return a teacher's contract id, and who has pushed it under this name."""
        (file,) = self._stock.versions(f"teachers/{contract_id}/names/{name}.json")[:1]
        return f"{contract_id[:12]}, {listed_by(self._stock, file)}"

    def _command(self, options: str) -> str:
        """Return how to pull with these options, for messages; a mirror is filled by other commands."""
        return options if self._into_mirror else f"'embedcache pull {self._where} {options}'"

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
                both = (owners[name], contract.id)
                shown = "; ".join(self._shown(contract_id, name) for contract_id in both)
                raise InputError(
                    f"{self._where} has two teachers called {name!r} ({shown}): pull one of them with "
                    f"{self._command('--teacher CONTRACT_ID')}; then that one is meant, and the other can be "
                    f"pulled with {self._command('--teacher CONTRACT_ID --no-text --as NAME')}. To take a "
                    f"push back: 'embedcache remote gc {self._where} --drop MANIFEST --yes'"
                )
            if name in local and local[name] != contract:
                differences = local[name].differences(contract)
                raise ContractMismatchError(
                    f"the cache holds {name!r} with another contract than {self._where} "
                    f"({describe_differences(differences)}): pull it under another name, with "
                    f"{self._command(f'--teacher {contract.id[:12]} --no-text --as NAME')}, and later pulls "
                    "and syncs keep both; or choose others with --teacher",
                    differences,
                )


def _begins_with(contract_id: str, digits: str) -> bool:
    return len(digits) >= _LEAST_DIGITS and contract_id.startswith(digits)
