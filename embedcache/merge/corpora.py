"""Which corpora and views several caches make together, and where they do not agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.view_store import stale_views
from embedcache.errors import InputError
from embedcache.fsio import canonical_json
from embedcache.merge.conflicts import CORPUS, VIEW, Conflict, Side
from embedcache.merge.sources import Ruling, Source, label

_DIGITS = 8
_LONGEST_NAME = 100


@dataclass(frozen=True)
class TakenView:
    """A view that is taken, and what it is called then."""

    source: Source
    view: View
    name: str


@dataclass(frozen=True)
class TakenCorpus:
    """A corpus that is taken, what it is called then, and its views."""

    source: Source
    corpus: Corpus
    name: str
    views: tuple[TakenView, ...] = ()


@dataclass
class CorpusPlan:
    """Corpora to take; of what was left out, and why, ``told`` says a line each."""

    taken: list[TakenCorpus] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


def plan_corpora(sources: Sequence[Source], ruling: Ruling) -> CorpusPlan:
    """Return the corpora that ``sources`` make together; an earlier source wins.

    Raises:
        InputError: if a name to keep both under is taken.
        CorruptCacheError: if a description is damaged.
    """
    plan = CorpusPlan()
    found: dict[str, dict[str, list[tuple[Source, Corpus]]]] = {}
    for source in sources:
        for corpus in source.cache.corpora():
            found.setdefault(corpus.name, {}).setdefault(corpus.info.digest, []).append((source, corpus))
            plan.told += [
                f"view {name!r} of corpus {corpus.name!r} of {source.label} is left out: it was made of "
                "other rows than the corpus has now"
                for name in stale_views(corpus)
            ]
    for name, versions in list(found.items()):
        first, *others = versions
        if not others:
            continue
        names = {digest: f"{name[: _LONGEST_NAME - _DIGITS - 1]}-{digest[:_DIGITS]}" for digest in others}
        sides = [(label(held), _described(held[0][1])) for held in versions.values()]
        plan.conflicts.append(_conflict(CORPUS, name, sides, ruling, names.values()))
        found[name] = {first: versions[first]}
        for digest, other in names.items() if ruling.keep_both else ():
            # A merge that was killed may have stored it already.
            found.setdefault(other, {}).setdefault(digest, []).extend(versions[digest])
            if set(found[other]) != {digest}:
                raise InputError(
                    f"corpus {name!r} of {label(versions[digest])} would be called {other!r}, as another one "
                    "is: take that away with 'embedcache rm corpus', or leave --keep-both out"
                )
    for name, versions in found.items():
        (holders,) = versions.values()
        plan.taken.append(_with_views(name, holders, ruling, plan))
    return plan


def _with_views(
    name: str, holders: Sequence[tuple[Source, Corpus]], ruling: Ruling, plan: CorpusPlan
) -> TakenCorpus:
    views: dict[str, dict[str, list[TakenView]]] = {}
    for source, corpus in holders:
        for view in corpus.views():
            taken = TakenView(source, view, view.name)
            views.setdefault(view.name, {}).setdefault(identity(view), []).append(taken)
    chosen = []
    for view_name, versions in views.items():
        first, *others = versions
        chosen.append(versions[first][0])
        if not others:
            continue
        names = {one: f"{view_name[: _LONGEST_NAME - _DIGITS - 1]}-{one[:_DIGITS]}" for one in others}
        sides = [
            (
                ", ".join(one.source.label for one in same),
                f"{same[0].view.recipe.describe()}, digest {same[0].view.info.digest[:12]}",
            )
            for same in versions.values()
        ]
        plan.conflicts.append(_conflict(VIEW, f"{name}/{view_name}", sides, ruling, names.values()))
        if ruling.keep_both:
            for digest, other in names.items():
                if set(views.get(other, {})) - {digest}:
                    raise InputError(
                        f"view {view_name!r} of corpus {name!r} would be called {other!r}, as another one "
                        "is: take that away with 'embedcache rm view', or leave --keep-both out"
                    )
                if other not in views:
                    chosen.append(replace(versions[digest][0], name=other))
    source, corpus = holders[0]
    return TakenCorpus(source, corpus, name, tuple(chosen))


def identity(view: View) -> str:
    """Return what two views share that are the same but for their names."""
    recipe = {key: value for key, value in view.recipe.to_json().items() if key != "name"}
    return hashlib.sha256(canonical_json([recipe, view.info.digest])).hexdigest()


def _described(corpus: Corpus) -> str:
    return f"{len(corpus):,} rows, digest {corpus.info.digest[:12]}"


def _conflict(
    kind: str, what: str, sides: Sequence[tuple[str, str]], ruling: Ruling, names: Iterable[str]
) -> Conflict:
    answer = ""
    if ruling.decides:
        left = f"kept as {', '.join(names)}" if ruling.keep_both else "left out"
        answer = f"that of {sides[0][0]} has the name ({ruling.verdict}), the other is {left}"
    return Conflict(kind, what, tuple(Side(*side) for side in sides), answer)
