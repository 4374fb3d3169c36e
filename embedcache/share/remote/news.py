"""What was news in a push: that alone goes when the push is taken back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from embedcache.check.findings import Kind
from embedcache.share.remote.manifest import CorpusLine, Manifest, SharedFile, Stock, TeacherLine
from embedcache.share.remote.ranges import Ranges, ranges_of

_Owner: TypeAlias = tuple[str, str, str]
"""The contract id of a teacher, or the name of a corpus, and that of a view of it."""

# All others are needed to read these, or belong together, as the parts of a corpus.
_READ_ALONE = frozenset({Kind.SHARD, Kind.TABLE})
# What a teacher's vectors cannot be found or read without.
_DOCUMENTS = frozenset({Kind.CONTRACT, Kind.NAME, Kind.CODEBOOK, Kind.PROJECTION})


def news_among(files: Sequence[SharedFile], manifests: Sequence[Manifest]) -> Ranges:
    """Return the positions of those ``files`` that none of ``manifests`` lists."""
    stock = Stock(manifests)
    return ranges_of(position for position, file in enumerate(files) if not stock.lists(file))


def rests_of(
    dropped: Sequence[Manifest], remaining: Sequence[Manifest]
) -> Iterator[tuple[Manifest, Manifest]]:
    """Yield manifests that are taken back, each with one of the files of earlier pushes that it alone lists.

    Those are files that were not news in it, and that no other manifest lists any more: it stood for the ones
    that did, and they were deleted. With them stands what they cannot be read without, even if others list
    that too, or it was news: each manifest is complete in itself. Manifests of which nothing like that stays
    are left out.

    The other manifest says nothing of news: nobody knows any more which push declared which of its files.

    Args:
        dropped: all that are taken back together. What was news in any of them goes.
        remaining: all others of the remote.
    """
    stock = Stock(remaining)
    news = {_version(file) for manifest in dropped for file in manifest.new_files}
    # What one of the others keeps already.
    settled: set[tuple[str, str]] = set()
    for manifest in dropped:
        alone = {_version(file) for file in manifest.files if not stock.lists(file)} - news - settled
        if files := tuple(_with_needed(list(_with_documents(manifest, news)), alone)):
            settled.update(map(_version, files))
            yield (
                manifest,
                replace(
                    manifest,
                    files=files,
                    teachers=tuple(_teacher_lines(manifest.teachers, files)),
                    corpora=tuple(_corpus_lines(manifest.corpora, files)),
                    news=None,
                ),
            )


def _with_documents(manifest: Manifest, news: Collection[tuple[str, str]]) -> Iterator[SharedFile]:
    """Yield files of a manifest that are no news, and others' news that these cannot be read without.

    Of two pushes at once both declare a teacher's documents. If one is taken back, the other's vectors have
    to be readable.
    """
    own = {_version(file) for file in manifest.new_files}
    teachers: dict[str, set[Kind]] = {}
    for file in manifest.files:
        if file.entry.teacher and _version(file) not in news:
            teachers.setdefault(file.entry.teacher, set()).add(file.entry.kind)
    for file in manifest.files:
        kinds = teachers.get(file.entry.teacher, set())
        # Of codebooks each belongs to shards of its own.
        lacking = _DOCUMENTS - (kinds - {Kind.CODEBOOK}) if kinds & _READ_ALONE else frozenset[Kind]()
        if _version(file) not in news or (file.entry.kind in lacking and _version(file) not in own):
            yield file


def _with_needed(files: Sequence[SharedFile], kept: Collection[tuple[str, str]]) -> Iterator[SharedFile]:
    """Yield those of ``files`` that are kept, and those without which nobody could read them.

    Of a teacher, a corpus or a view that is not described among them nothing is kept: its description was
    news, so the parts were those of an earlier version, which was taken back before.
    """
    kinds: dict[_Owner, set[Kind]] = {}
    for file in files:
        kinds.setdefault(_owner(file), set()).add(file.entry.kind)
    owners = {
        owner
        for owner in {_owner(file) for file in files if _version(file) in kept}
        if all(needed <= kinds.get(above, set()) for above, needed in _described_by(owner))
    }
    owners |= {above for owner in owners for above, _ in _described_by(owner)}
    for file in files:
        if _owner(file) in owners and (_version(file) in kept or file.entry.kind not in _READ_ALONE):
            yield file


def _owner(file: SharedFile) -> _Owner:
    return file.entry.teacher, file.entry.corpus, file.entry.view


def _described_by(owner: _Owner) -> Iterator[tuple[_Owner, set[Kind]]]:
    """Yield what a teacher, a corpus or a view cannot be read without: whose documents, and which."""
    teacher, corpus, view = owner
    if teacher:
        yield owner, {Kind.CONTRACT}
    if corpus:
        yield (teacher, corpus, ""), {Kind.CORPUS}
    if view:
        yield owner, {Kind.VIEW, Kind.RECIPE}


def _version(file: SharedFile) -> tuple[str, str]:
    """Return what tells files apart; one may have been listed with and without a row index."""
    return file.path, file.sha256


def _teacher_lines(lines: Iterable[TeacherLine], files: Iterable[SharedFile]) -> Iterator[TeacherLine]:
    """Yield what a manifest says of teachers, as far as they have some of ``files``."""
    rows: dict[str, int] = {}
    names: dict[str, set[str]] = {}
    for file in files:
        if file.entry.teacher:
            rows[file.entry.teacher] = rows.get(file.entry.teacher, 0) + file.rows
            if file.entry.kind is Kind.NAME:
                names.setdefault(file.entry.teacher, set()).add(file.entry.stem)
    for line in lines:
        if line.contract in rows:
            left = tuple(name for name in line.names if name in names.get(line.contract, ()))
            yield replace(line, names=left, rows=rows[line.contract])


def _corpus_lines(lines: Iterable[CorpusLine], files: Iterable[SharedFile]) -> Iterator[CorpusLine]:
    """Yield what a manifest says of corpora, as far as their texts are among ``files``."""
    entries = [file.entry for file in files]
    corpora = {entry.corpus for entry in entries if entry.kind in (Kind.CORPUS, Kind.PART)}
    views = {(entry.corpus, entry.view) for entry in entries if entry.view}
    for line in lines:
        left = tuple(view for view in line.views if (line.name, view) in views)
        if line.name in corpora or left:
            yield replace(line, views=left)
