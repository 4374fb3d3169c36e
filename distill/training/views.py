"""Views of a corpus that a run trains on."""

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
    there, wanted = [ORIGINAL, *corpus.view_names()], get_loss(loss).views
    chosen = asked or there[: 1 if wanted == 1 else None]
    if unknown := [name for name in chosen if name not in there]:
        raise ConfigError(
            f"corpus {corpus.name!r} has no view {unknown[0]!r} (views: {', '.join(there)}). "
            f"Name one of them, or add it: {_build_command(corpus, unknown[0])}",
            "training.views",
        )
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"{', '.join(chosen)}; name each view once", "training.views")
    if len(chosen) < wanted:
        raise ConfigError(
            f"loss {loss} takes two views of each row, found {', '.join(chosen)} of "
            f"{', '.join(there)}; name another, or add one: {_build_command(corpus, 'delete-words')}",
            "training.views",
        )
    if wanted == 1 and len(chosen) > 1:
        raise ConfigError(
            f"loss {loss} takes one view of each row, {len(chosen)} are named: name one, or "
            "choose a loss of two views ('distill list losses')",
            "training.views",
        )
    return chosen


def _build_command(corpus: Corpus, view: str) -> str:
    """Return the command that adds a view to a corpus; an example where its name is not its recipe."""
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
        return f"'{command} crop', say ('embedcache views' lists all)"
    return f"'{command} {spec}'"
