"""The licences that a push declares, beside those that the manifests of a remote declare."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from embedcache.errors import InputError
from embedcache.share.pushing.selection import Selection
from embedcache.share.remote.manifest import CorpusLine, Manifest, TeacherLine


@dataclass(frozen=True)
class Licence:
    """The licence of a model or of texts.

    Attributes:
        owner: what it is the licence of, for messages.
        id: the contract's id, or the digest of the corpus.
        text: the licence.
    """

    owner: str
    id: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        """What two declarations of the same have in common: names and capitals may differ."""
        return self.id, self.text.casefold()


def new_licences(selection: Selection, manifests: Iterable[Manifest]) -> list[Licence]:
    """Return the licences of what is pushed that no manifest declares.

    Args:
        selection: what is pushed.
        manifests: those that count.
    """
    known = {licence.key for licence in _declared(manifests)}
    return [licence for licence in _licences(selection) if licence.key not in known]


def licence_notes(licences: Sequence[Licence]) -> list[str]:
    """Return a note on licences that a manifest was written for, though it lists no new file."""
    if not licences:
        return []
    shown = ", ".join(f"{licence.text!r} of {licence.owner}" for licence in licences)
    return [f"no file was new: the manifest adds the licence {shown}"]


def contradiction_notes(
    where: str, manifests: Sequence[Manifest], selection: Selection, manifest: str
) -> list[str]:
    """Return notes on licences that are others than those that the remote had for the same.

    Args:
        where: the remote.
        manifests: those that were on it before.
        selection: what was pushed.
        manifest: id of the manifest that the push has written; empty where there was nothing to add.
    """
    if not manifest:
        return []
    notes = []
    for licence in new_licences(selection, manifests):
        others = sorted({known.text for known in _declared(manifests) if known.id == licence.id})
        if others:
            shown = ", ".join(map(repr, others))
            notes.append(
                f"{licence.owner}: this push declares the licence {licence.text!r}, and earlier ones on "
                f"{where} declare {shown}: both stay; if this one is wrong, take it back with 'embedcache "
                f"remote gc {where} --drop {manifest[:12]} --yes'"
            )
    return notes


def refuse_contradictions(
    where: str, manifests: Sequence[Manifest], selection: Selection, named: Collection[str]
) -> None:
    """Refuse a licence that others have declared differently for texts that were not named.

    Who gives ``--text-licence`` for all of a cache may not know what is in it, say what was pulled.

    Args:
        where: the remote.
        manifests: those that are on it.
        selection: what is to be pushed.
        named: the corpora that were named for the push: theirs may contradict.

    Raises:
        InputError: if there is such a licence.
    """
    declared = list(_declared(manifests))
    for line in selection.corpora:
        others = {known.text for known in declared if known.id == line.digest}
        is_news = line.licence and line.licence.casefold() not in map(str.casefold, others)
        if is_news and others and line.name not in named:
            shown = ", ".join(map(repr, sorted(others)))
            raise InputError(
                f"--text-licence {line.licence!r}: earlier pushes on {where} declare {shown} for corpus "
                f"{line.name!r}, and nothing was sent: name the corpora that it is the licence of with "
                f"--corpus; name {line.name!r} among them only to contradict on purpose"
            )


def unkept_notes(selection: Selection, *, message: str, text_licence: str, manifest: str) -> list[str]:
    """Return notes on what was given for the card of a push and stands nowhere.

    Args:
        selection: what was pushed.
        message, text_licence: as given.
        manifest: id of the manifest that the push has written; empty where there was nothing to add.
    """
    notes = []
    if message and not manifest:
        notes.append("--message was not kept: earlier manifests list all of this push")
    if text_licence and not selection.corpora:
        notes.append("--text-licence was not kept: no texts were pushed")
    return notes


def _declared(manifests: Iterable[Manifest]) -> Iterator[Licence]:
    for manifest in manifests:
        yield from _licences(manifest)


def _licences(source: Selection | Manifest) -> Iterator[Licence]:
    yield from (_of_teacher(line) for line in source.teachers if line.licence)
    yield from (_of_corpus(line) for line in source.corpora if line.licence)


def _of_teacher(line: TeacherLine) -> Licence:
    return Licence(f"teacher {', '.join(line.names)!r}", line.contract, line.licence)


def _of_corpus(line: CorpusLine) -> Licence:
    return Licence(f"corpus {line.name!r}", line.digest, line.licence)
