"""Warn when a remote has another corpus of the same name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from embedcache.share.remote.manifest import CorpusLine, Manifest
from embedcache.sizes import counted


def namesake_notes(
    where: str, manifests: Iterable[Manifest], pushed: Iterable[CorpusLine], manifest: str
) -> list[str]:
    """Warn of corpora that were pushed while the remote has another of the same name.

    Args:
        where: the remote.
        manifests: those on it that can be read.
        pushed: the corpora.
        manifest: id of the manifest that the push has written; empty where there was nothing to add.
    """
    undo = f", once 'embedcache remote gc {where} --drop {manifest[:12]} --yes' has taken this push back"
    told = []
    for corpus, shown in _namesakes(manifests, pushed):
        told.append(
            f"corpus {corpus.name!r}: {where} has another of that name ({shown}) than this one "
            f"({corpus.digest[:12]}): who has neither is refused a pull there without --corpus "
            f"{corpus.name}@DIGEST; to share this one under another name, push what 'embedcache split CACHE "
            f"--corpus {corpus.name} --as NAME --out DIR' makes{undo if manifest else ''}"
        )
    return told


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
