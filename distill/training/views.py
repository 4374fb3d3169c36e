"""Which views of a corpus a run trains on."""

from __future__ import annotations

from distill.errors import ConfigError
from distill.losses.registry import LOSSES
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL


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
    wanted = LOSSES[loss].views
    chosen = asked or there[: 1 if wanted == 1 else None]
    if unknown := [name for name in chosen if name not in there]:
        raise ConfigError(
            f"training.views: corpus {corpus.name!r} has no view {unknown[0]!r}; it has {', '.join(there)}. "
            f"Add it by building the corpus again with '--view {unknown[0]}'"
        )
    if repeated := [name for name in dict.fromkeys(chosen) if chosen.count(name) > 1]:
        raise ConfigError(f"training.views: {repeated[0]!r} stands more than once; name each view once")
    if len(chosen) < wanted:
        raise ConfigError(
            f"loss {loss} trains on two views of each row, and "
            + (
                f"corpus {corpus.name!r} holds its original texts alone: add a view by building it again "
                "with '--view delete-words', say ('embedcache build --help' lists the views)"
                if len(there) < wanted
                else f"training.views names {chosen[0]!r} alone: name another of {', '.join(there)}"
            )
        )
    if wanted == 1 and len(chosen) > 1:
        raise ConfigError(
            f"training.views: loss {loss} trains on one view of each row, and {len(chosen)} are named: name "
            "one, or choose a loss of two views ('distill losses' lists them)"
        )
    return chosen
