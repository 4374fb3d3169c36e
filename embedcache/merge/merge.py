"""Merge: the union of caches, with an answer to every conflict before anything is written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from embedcache.cache import Cache
from embedcache.merge.conflicts import MergeConflictError
from embedcache.merge.corpora import plan_corpora
from embedcache.merge.files import Carrier
from embedcache.merge.result import MergedCorpus, MergedTeacher, MergeResult
from embedcache.merge.shards import Written
from embedcache.merge.sources import open_sources, rule
from embedcache.merge.target import Before, Target
from embedcache.merge.teachers import OnStep, plan_teachers


def merge_caches(
    caches: Sequence[str | Path],
    into: str | Path,
    *,
    prefer: str | Path | None = None,
    keep_both: bool = False,
    noise: float | None = None,
    link: bool = False,
    dry_run: bool = False,
    on_step: OnStep | None = None,
) -> MergeResult:
    """Make ``into`` the union of itself, where it is there, and of ``caches``, which stay as they are.

    Killed at any moment, the same call goes on from there; once done, it has nothing to do.

    Args:
        caches: folders of the caches, one or more.
        into: folder of the merged cache.
        prefer: whose word counts where they do not agree: ``first`` or ``last`` in the order of ``into`` and
            ``caches``, or one of these folders; default: nobody's, and a conflict is an error.
        keep_both: let corpora, views and names of teachers that lose keep a name of their own, and the first
            win where ``prefer`` is not given. It says nothing of vectors.
        noise: how much 1 - cosine of two vectors of a key may be; default: what the headers of their shards
            explain, see :mod:`embedcache.merge.noise`.
        link: give files a second name on the same disk instead of copying them.
        dry_run: only say what would be done, conflicts without an answer among it.
        on_step: called as the work goes on.

    Raises:
        MergeConflictError: if there is a conflict that nobody has decided; nothing was written then.
        InputError: if the folders or arguments do not fit together.
        CorruptCacheError: if a cache is damaged.
        StorageError: if ``into`` cannot be written.
    """
    started = time.perf_counter()
    report = on_step or (lambda *_: None)
    folder = Path(into).expanduser()
    sources = open_sources(caches, folder)
    ruling, ranked = rule(sources, prefer, keep_both=keep_both)
    before = Before.of(next((one.cache for one in sources if one.is_at(folder)), None))
    corpora = plan_corpora(ranked, ruling)
    teachers = plan_teachers(ranked, ruling, noise, report)
    conflicts = [*corpora.conflicts, *teachers.conflicts]
    undecided = [conflict for conflict in conflicts if not conflict.answer]
    if undecided and not dry_run:
        raise MergeConflictError(undecided)
    carrier = Carrier(link)
    shards: list[Written | None] = [None] * len(teachers.taken)
    if not dry_run:
        target = Target(Cache.create(folder), before, carrier, report)
        target.give_names(teachers.taken)
        # Vectors first: a corpus that is there should find those of its texts.
        shards = [target.write_teacher(one, ranked) for one in teachers.taken]
        target.write_corpora(corpora.taken)
    return MergeResult(
        folder,
        tuple(source.label for source in sources),
        tuple(map(MergedCorpus.of, corpora.taken)),
        tuple(map(MergedTeacher.of, teachers.taken, shards)),
        tuple(conflicts),
        (*corpora.told, *teachers.told),
        carrier.files,
        carrier.bytes,
        time.perf_counter() - started,
        written=not dry_run,
    )
