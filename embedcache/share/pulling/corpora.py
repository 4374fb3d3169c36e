"""Which version of a corpus is pulled, and under which name. No version is ever overwritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from embedcache.cache import Cache
from embedcache.corpus.choice import CorpusChoice
from embedcache.corpus.corpus import DESCRIPTION, Corpus
from embedcache.corpus.description import CorpusInfo
from embedcache.corpus.part import ORIGINAL
from embedcache.corpus.view_record import RECIPE, VIEWS, ViewRecord, is_recorded, read_record
from embedcache.errors import InputError, RemoteError
from embedcache.fsio import sealed, spelled_json
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.documents import Documents, listed_by
from embedcache.share.remote.manifest import SharedFile, Stock
from embedcache.sizes import counted

_LONGEST_STEM = 80


@dataclass(frozen=True)
class _Version:
    """One version of a corpus on the remote."""

    info: CorpusInfo
    file: SharedFile


class CorpusPlanner:
    """Plans which files of corpora are fetched.

    Args:
        stock: what the remote has.
        documents: reads its documents.
        cache: what is pulled into; None where there is no cache yet.
        where: the remote, for messages.
        into_mirror: whether ``cache`` is a mirror. A version that is in a mirror is not preferred to others,
            and a corpus whose name is taken there gets a name of its own.
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

    def plan(self, choices: Sequence[CorpusChoice], alias: str | None) -> list[Wanted]:
        """Return the files of corpora that are wanted, as they are to lie in the cache.

        Args:
            choices: which corpora.
            alias: what the only one of them is called in the cache; default: as on the remote.

        Raises:
            InputError: if a name is not there, or there are several versions and none was chosen, or the
                cache holds another one.
            RemoteError: if a description is refused.
        """
        for choice in choices:
            if choice.name not in self._stock.corpus_names:
                raise InputError(
                    f"no corpus {choice.name!r} on {self._where}: it has "
                    f"{', '.join(self._stock.corpus_names) or 'none'}"
                )
        names = {choice.name for choice in choices}
        described = [
            file
            for name in sorted(names)
            for file in self._stock.of_corpus(name)
            if file.path.endswith((DESCRIPTION, RECIPE))
        ]
        self._documents.fetch(described)
        several = [wanted for choice in choices for wanted in self._corpus(choice, alias or choice.name)]
        # Two names of the remote may be one corpus here.
        return list({wanted.path: wanted for wanted in several}.values())

    def _corpus(self, choice: CorpusChoice, name: str) -> list[Wanted]:
        versions = self._versions(choice)
        if self._into_mirror:
            chosen = self._only(choice, versions)
            name = self._name_in_mirror(name, chosen.info.digest)
        else:
            name, chosen = self._chosen(choice, name, versions)
        inside = f"corpora/{choice.name}"
        info = replace(chosen.info, name=name)
        data = spelled_json(sealed(info.to_json()))
        wanted = self._parts(inside, f"corpora/{name}", chosen.info)
        wanted.append(Wanted(chosen.file, f"corpora/{name}/{DESCRIPTION}", data=data, info=info))
        views = {file.entry.view for file in self._stock.of_corpus(choice.name)}
        for view in sorted(views - {""}):
            wanted += self._view(choice, name, view, chosen.info)
        return wanted

    def _versions(self, choice: CorpusChoice) -> dict[str, _Version]:
        """Return the versions that are asked for, by digest."""
        path = f"corpora/{choice.name}/{DESCRIPTION}"
        versions: dict[str, _Version] = {}
        for file in self._stock.versions(path):
            info = self._documents.info(file)
            if self._is_meant(choice, info.digest, file):
                versions.setdefault(info.digest, _Version(info, file))
        if not versions:
            what = (
                f"whose digest, or manifest's, begins with {choice.digest}" if choice.digest else "described"
            )
            raise InputError(f"no corpus {choice.name!r} {what} on {self._where}")
        return versions

    def _chosen(
        self, choice: CorpusChoice, name: str, versions: Mapping[str, _Version]
    ) -> tuple[str, _Version]:
        """Return what the corpus is called in the cache, and which version is meant.

        Args:
            choice: what was asked for.
            name: what the corpus is to be called, its own name or an alias.
            versions: the versions that were asked for, by digest.

        Raises:
            InputError: if several versions are possible, or the name is another corpus's in the cache.
        """
        local = self._local(name)
        if local is not None and local.info.digest not in versions and name == choice.name:
            # A version that was once pulled under another name goes on under that one.
            renamed = [corpus for corpus in self._corpora_here() if corpus.info.digest in versions]
            if renamed:
                local = renamed[0]
                self.told.append(
                    f"corpus {name!r} of {self._where} ({local.info.digest[:12]}) is called {local.name!r} "
                    f"in the cache, whose own {name!r} is another corpus"
                )
        if local is not None and local.info.digest in versions:
            if len(versions) > 1:
                self.told.append(
                    f"{self._where} has {counted(len(versions) - 1, 'more version')} of corpus "
                    f"{choice.name!r} than the one in the cache"
                )
            return local.name, versions[local.info.digest]
        if local is not None:
            digest = min(versions)[:12] if len(versions) == 1 else "DIGEST"
            raise InputError(
                f"the cache holds another corpus called {name!r} (digest {local.info.digest[:12]}, "
                f"{local.info.rows:,} rows; {self._where} has {self._shown(versions)}): take that under "
                f"another name with {self._command(f'--corpus {choice.name}@{digest} --as NAME')}, and later "
                "pulls and syncs keep both; or choose others with --corpus"
            )
        return name, self._only(choice, versions)

    def _only(self, choice: CorpusChoice, versions: Mapping[str, _Version]) -> _Version:
        if len(versions) > 1:
            command = self._command(f"--corpus {choice.name}@DIGEST")
            raise InputError(
                f"{self._where} has {len(versions)} corpora called {choice.name!r} "
                f"({self._shown(versions)}): choose one with {command}"
            )
        return next(iter(versions.values()))

    def _command(self, options: str) -> str:
        """Return how to pull with these options, for messages; a mirror is filled by other commands."""
        return options if self._into_mirror else f"'embedcache pull {self._where} {options}'"

    def _shown(self, versions: Mapping[str, _Version]) -> str:
        return "; ".join(
            f"{digest[:12]} with {version.info.rows:,} rows ({listed_by(self._stock, version.file)})"
            for digest, version in sorted(versions.items())
        )

    def _name_in_mirror(self, name: str, digest: str) -> str:
        """Return what a corpus is called in the mirror, or will be: ``name``, unless another has that."""
        digests = {corpus.name: corpus.info.digest for corpus in self._corpora_here()}
        same = [called for called in digests if digests[called] == digest]
        if same:
            return name if name in same else same[0]
        return f"{name[:_LONGEST_STEM]}-{digest[:12]}" if name in digests else name

    def _is_meant(self, choice: CorpusChoice, digest: str, file: SharedFile) -> bool:
        """Return whether a choice means this version, by its digest or that of a manifest."""
        if not choice.digest or digest.startswith(choice.digest):
            return True
        return any(manifest.id.startswith(choice.digest) for manifest in self._stock.listing(file))

    def _corpora_here(self) -> list[Corpus]:
        return [] if self._cache is None else self._cache.corpora()

    def _local(self, name: str) -> Corpus | None:
        if self._cache is None or name not in self._cache.corpus_names():
            return None
        return self._cache.corpus(name)

    def _parts(self, inside: str, target: str, info: CorpusInfo) -> list[Wanted]:
        wanted = []
        for part in info.parts:
            files = self._stock.versions(f"{inside}/{part.file_name}")
            if not files:
                raise RemoteError(
                    f"{inside}/{DESCRIPTION} of {self._where} names {part.file_name[:12]}…, and no manifest "
                    "lists it: the manifest is damaged or hostile; pull others alone, with "
                    f"{self._command('--corpus NAME')}"
                )
            wanted.append(Wanted(files[0], f"{target}/{part.file_name}", info=info))
        return wanted

    def _view(self, choice: CorpusChoice, name: str, view: str, corpus: CorpusInfo) -> list[Wanted]:
        inside, target = (f"corpora/{called}/{VIEWS}/{view}" for called in (choice.name, name))
        records: dict[str, tuple[ViewRecord, SharedFile]] = {}
        for file in self._stock.versions(f"{inside}/{RECIPE}"):
            record = self._documents.record(file)
            # A view of another version of the corpus is not wanted.
            if record.of == corpus.digest and self._is_meant(choice, corpus.digest, file):
                records.setdefault(record.digest, (record, file))
        if not records:
            return []
        if (local := self._local_view(name, view)) is not None:
            if local.of != corpus.digest or local.digest not in records:
                raise InputError(
                    f"the cache holds another view {view!r} of corpus {name!r} than {self._where}: take it "
                    "away with 'embedcache rm view', pull the corpus under another name with "
                    f"{self._command(f'--corpus {choice.name} --as NAME')}, or choose others with --corpus"
                )
            records = {local.digest: records[local.digest]}
        if len(records) > 1:
            shown = "; ".join(listed_by(self._stock, file) for _, file in records.values())
            raise InputError(
                f"{self._where} has {len(records)} views {view!r} of corpus {choice.name!r} ({shown}): "
                f"choose those of one manifest with {self._command(f'--corpus {choice.name}@MANIFEST')}"
            )
        ((record, file),) = records.values()
        descriptions = self._stock.versions(f"{inside}/{DESCRIPTION}")
        infos = [(self._documents.info(description), description) for description in descriptions]
        right = [(info, description) for info, description in infos if info.digest == record.digest]
        if not right or set(right[0][0].columns) != {ORIGINAL} or right[0][0].rows != corpus.rows:
            raise RemoteError(
                f"{inside} of {self._where} is refused: its recipe and its description do not fit together; "
                f"pull others alone, with {self._command('--corpus NAME')}"
            )
        info, described = right[0]
        wanted = self._parts(inside, target, info)
        if local is not None:
            # The documents here stay; parts may be missing.
            return wanted
        wanted.append(
            Wanted(described, f"{target}/{DESCRIPTION}", data=self._documents.data(described), info=info)
        )
        wanted.append(Wanted(file, f"{target}/{RECIPE}", data=self._documents.data(file)))
        return wanted

    def _local_view(self, name: str, view: str) -> ViewRecord | None:
        if self._cache is None:
            return None
        folder = self._cache.corpora_folder / name / VIEWS / view
        return read_record(folder) if is_recorded(folder) else None
