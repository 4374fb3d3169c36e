"""Plan of a pull: the chosen files of a remote that a cache lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from embedcache.cache import Cache
from embedcache.errors import InputError, RemoteError
from embedcache.share.files import Selection, missing_files
from embedcache.share.manifest import ManifestSet, SharedFile, manifest_names, names_beginning, read_manifests
from embedcache.share.remote import Remote
from embedcache.share.sign import require_signed


@dataclass
class Plan:
    """Files that a pull brings.

    Attributes:
        corpora: digest of each wanted corpus, here or missing, by name.
        teachers: names of the wanted teachers, by contract id.
        texts: files of the corpora that are missing or have missing views.
        documents: files of the teachers of which something is missing, but for shards.
        shards: missing shards.
        left_out: corpora of the remote under names that the cache uses for other rows.
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
            InputError: if something asked for is not on the remote, or the cache has another corpus under the
                name of one.
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
        every = listed.corpora()
        versions = [(name, digest) for name, digests in every.items() for digest in digests]
        for asked in selection.corpora:
            if not any(Selection(corpora=[asked]).takes_corpus(*version) for version in versions):
                known = ", ".join(f"{name}@{digest[:12]}" for name, digest in versions)
                raise InputError(f"{source.url}: no corpus {asked!r} (it has {known or 'none'}).")
        # Chosen rows become a corpus of another name.
        here = [] if cache is None or selection.where is not None else cache.corpora()
        own = {one.name: one for one in here}
        for name, digests in every.items():
            wanted = [digest for digest in digests if selection.takes_corpus(name, digest)]
            mine = own.get(name)
            if wanted and mine is not None and mine.info.digest not in wanted:
                reason = f"corpus {name!r}: the cache has other rows under this name"
                if selection.corpora:
                    raise InputError(f"{source.url}: {reason}. Pull it into another cache.")
                self.left_out.append(reason)
            elif wanted:
                # The newest version, where the cache has none of them.
                self.corpora[name] = wanted[0] if mine is None else mine.info.digest
                # The corpus itself, called "", comes first.
                groups = sorted(digests[self.corpora[name]].items())
                views = [] if mine is None else mine.view_names()
                missing = [files for view, files in groups if view not in views]
                if mine is None or len(missing) > 1:
                    self.texts += (file for files in missing for file in files)

    def _add_teachers(
        self, source: Remote, listed: ManifestSet, cache: Cache | None, selection: Selection
    ) -> None:
        names = listed.teacher_names()
        for asked in selection.teachers:
            if not any(Selection([asked]).takes_teacher(called, one) for one, called in names.items()):
                known = sorted({name for called in names.values() for name in called})
                raise InputError(f"{source.url}: no teacher {asked!r} (it has {', '.join(known) or 'none'}).")
        self.teachers = {one: called for one, called in names.items() if selection.takes_teacher(called, one)}
        newest = {file.path: file for file in reversed(listed.files()) if file.entry.teacher in self.teachers}
        files = [file for file in newest.values() if selection.vectors or not file.rows]
        missing = files if cache is None else missing_files(cache, files)
        self.shards = [file for file in missing if file.rows]
        touched = {file.entry.teacher for file in missing}
        self.documents = [file for file in files if not file.rows and file.entry.teacher in touched]


def select_manifests(
    source: Remote,
    cache: Cache | None,
    require_signature: str | Path | None = None,
    skip_manifests: Sequence[str] = (),
) -> ManifestSet:
    """Return the manifests that are signed as required and not skipped.

    Raises:
        InputError: if ``skip_manifests`` names none.
        RemoteError: if none is signed, or one cannot be used.
    """
    names = manifest_names(source)
    if not names:
        raise RemoteError(f"{source.url}: nothing was pushed there yet.")
    skipped = names_beginning(names, skip_manifests, source.url)
    names = [name for name in names if name not in skipped]
    if require_signature is not None:
        names = require_signed(source, names, require_signature)
    return read_manifests(source, cache, names)
