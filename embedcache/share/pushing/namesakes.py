"""Warn when a remote has another corpus or another teacher of the same name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from embedcache.share.remote.manifest import CorpusLine, Manifest, TeacherLine
from embedcache.sizes import counted

_OTHERWISE = "to share this one under another name"


def namesake_notes(
    where: str,
    manifests: Sequence[Manifest],
    corpora: Iterable[CorpusLine],
    teachers: Iterable[TeacherLine],
    manifest: str,
) -> list[str]:
    """Warn of names that a push has given a second meaning on a remote.

    Names that had this meaning there before the push are left out: taking this push back would not help.

    Args:
        where: the remote.
        manifests: those that were on it before, as far as they can be read.
        corpora: the corpora that were pushed.
        teachers: the teachers that were pushed.
        manifest: id of the manifest that the push has written; empty where there was nothing to add.
    """
    if not manifest:
        return []
    undo = f"embedcache remote gc {where} --drop {manifest[:12]} --yes"
    notes = [
        f"{clash}; {_OTHERWISE}, push what {_split(corpus)} makes, once '{undo}' has taken this push back"
        for corpus, clash in _corpus_clashes(where, manifests, corpora)
    ]
    for teacher, clash in _teacher_clashes(where, manifests, teachers):
        get = _pull(where, teacher)
        notes.append(
            f"{clash}; {_OTHERWISE}, get it so with {get}, take this push back with '{undo}', and push NEW"
        )
    return notes


def namesake_warnings(
    where: str,
    manifests: Sequence[Manifest],
    corpora: Iterable[CorpusLine],
    teachers: Iterable[TeacherLine],
) -> list[str]:
    """Warn of names that a push is about to give a second meaning on a remote.

    Args:
        where, manifests: as for :func:`namesake_notes`.
        corpora: the corpora that are to be pushed.
        teachers: the teachers that are to be pushed.
    """
    notes = [
        f"{clash}; {_OTHERWISE}, stop this push and push what {_split(corpus)} makes"
        for corpus, clash in _corpus_clashes(where, manifests, corpora)
    ]
    for teacher, clash in _teacher_clashes(where, manifests, teachers):
        get = _pull("FOLDER", teacher)
        notes.append(
            f"{clash}; {_OTHERWISE}, stop this push, push to a new FOLDER, get it so with {get}, and push NEW"
        )
    return notes


def _split(corpus: CorpusLine) -> str:
    return f"'embedcache split CACHE --corpus {corpus.name} --as NAME --out DIR'"


def _pull(where: str, teacher: TeacherLine) -> str:
    return f"'embedcache pull {where} --cache NEW --teacher {teacher.contract[:12]} --as NAME'"


def _corpus_clashes(
    where: str, manifests: Sequence[Manifest], corpora: Iterable[CorpusLine]
) -> Iterator[tuple[CorpusLine, str]]:
    """Yield corpora that are new to a remote that has others of their names, each with what follows."""
    known = {(line.name, line.digest) for listed in manifests for line in listed.corpora}
    fresh = [corpus for corpus in corpora if (corpus.name, corpus.digest) not in known]
    for corpus, shown in _namesakes(manifests, fresh):
        clash = (
            f"corpus {corpus.name!r}: {where} has another of that name ({shown}) than this one "
            f"({corpus.digest[:12]}): who has neither is refused a pull there without --corpus "
            f"{corpus.name}@DIGEST"
        )
        yield corpus, clash


def _teacher_clashes(
    where: str, manifests: Iterable[Manifest], teachers: Iterable[TeacherLine]
) -> Iterator[tuple[TeacherLine, str]]:
    """Yield teachers that are new to a remote under a name that is another's, each with what follows."""
    owners: dict[str, set[str]] = {}
    for listed in manifests:
        for line in listed.teachers:
            for name in line.names:
                owners.setdefault(name, set()).add(line.contract)
    for teacher in teachers:
        for name in teacher.names:
            others = owners.get(name, set())
            if others and teacher.contract not in others:
                shown = ", ".join(contract[:12] for contract in sorted(others))
                clash = (
                    f"teacher {name!r}: {where} has another of that name ({shown}) than this one "
                    f"({teacher.contract[:12]}): a pull or a sync there is refused without --teacher "
                    "CONTRACT_ID"
                )
                yield teacher, clash


def difference_notes(where: str, manifests: Iterable[Manifest], here: Iterable[CorpusLine]) -> list[str]:
    """Note the corpora of a cache of whose name the remote has another.

    Args:
        where: the remote.
        manifests: those on it.
        here: the corpora of the cache.
    """
    return [
        f"corpus {corpus.name!r}: {where} has another of that name ({shown}) than the cache "
        f"({corpus.digest[:12]} with {counted(corpus.rows, 'row')}); both are in the one line"
        for corpus, shown in _namesakes(manifests, here)
    ]


def _namesakes(
    manifests: Iterable[Manifest], corpora: Iterable[CorpusLine]
) -> Iterator[tuple[CorpusLine, str]]:
    """Yield corpora that have namesakes, each with the text that lists those."""
    lines = {line for manifest in manifests for line in manifest.corpora}
    for corpus in corpora:
        # Lines on one version may differ in views and licences.
        others = {line.digest: line.rows for line in lines if line.name == corpus.name}
        others.pop(corpus.digest, None)
        if others:
            shown = (f"{digest[:12]} with {counted(rows, 'row')}" for digest, rows in sorted(others.items()))
            yield corpus, "; ".join(shown)
