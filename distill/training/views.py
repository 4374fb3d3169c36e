"""Which views of a corpus a run trains on."""

from __future__ import annotations

from distill.errors import ConfigError
from distill.losses.registry import get_loss
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL
from embedcache.errors import InputError
from embedcache.views.recipe import parse_views


def choose_views(loss: str, asked: list[str] | None, corpus: Corpus) -> list[str]:
    """Return the views to train on, the one that the teacher has encoded first.

    Args:
        loss: the name of the loss.
        asked: the views asked for; default: the original, and for losses of two views all others there are.
        corpus: the corpus.

    Raises:
        ConfigError: if the corpus lacks a view, or the loss takes another number of them.
    """
    there = [ORIGINAL, *corpus.view_names()]
    wanted = get_loss(loss).views
    chosen = asked or there[: 1 if wanted == 1 else None]
    if unknown := [name for name in chosen if name not in there]:
        raise ConfigError(
            f"corpus {corpus.name!r} has no view {unknown[0]!r}; it has {', '.join(there)}. "
            f"Name one of them, or add one: {_build(corpus, unknown[0])}",
            "training.views",
        )
    if repeated := [name for name in dict.fromkeys(chosen) if chosen.count(name) > 1]:
        raise ConfigError(f"{repeated[0]!r} stands more than once; name each view once", "training.views")
    if len(chosen) < wanted:
        raise ConfigError(
            f"loss {loss} trains on two views of each row, and "
            + (
                f"corpus {corpus.name!r} holds its original texts alone; add a view: "
                f"{_build(corpus, 'delete-words')}"
                if len(there) < wanted
                else f"training.views names {chosen[0]!r} alone: name another of {', '.join(there)}"
            )
        )
    if wanted == 1 and len(chosen) > 1:
        raise ConfigError(
            f"loss {loss} trains on one view of each row, and {len(chosen)} are named: name "
            "one, or choose a loss of two views ('distill list losses' lists them)",
            "training.views",
        )
    return chosen


def _build(corpus: Corpus, view: str) -> str:
    """Return the command that adds a view to a corpus; where its name does not say how, examples."""
    command = (
        f"embedcache build FILES --teacher TEACHER --cache {corpus.folder.parent.parent} "
        f"--name {corpus.name} --view"
    )
    # A column's view is called so unless it is given a name.
    column = "column-"
    spec = f"column:{view.removeprefix(column)}" if view.startswith(column) else view
    try:
        parse_views([spec])
    except InputError:
        return (
            f"'{command} crop', say, or '{command} column:NAME' for texts that are a column of the files "
            "('embedcache views' lists all ways)"
        )
    return f"'{command} {spec}'"
