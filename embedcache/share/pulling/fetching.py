"""Fetching files in an order in which the cache they go into is valid at every moment."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from embedcache.cache import Cache
from embedcache.check.bench import Bench
from embedcache.check.findings import Kind
from embedcache.check.verify.corpora import check_rows
from embedcache.corpus.description import CorpusInfo
from embedcache.errors import RemoteError
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.layout import STAGES, stage_of
from embedcache.share.remote.remote import Remote
from embedcache.share.transfer import PULL_PATIENCE_SECONDS, run_all


def fetch_in_stages(
    source: Remote, cache: Cache, arrivals: Arrivals, missing: Sequence[Wanted], jobs: int
) -> None:
    """Fetch ``missing`` into ``cache``, what is needed before what needs it.

    Raises:
        RemoteError: if a file cannot be had or is refused; rows of a corpus are looked at before it is there.
        StorageError: if one cannot be written.
    """
    for number, kinds in enumerate(STAGES):
        batch = [one for one in missing if stage_of(one.entry) == number]
        if Kind.CORPUS in kinds:
            for one in batch:
                if one.info is not None:
                    folder = one.path.rpartition("/")[0]
                    refuse_wrong_rows(source, cache, folder, one.info, said=one.file.path)
        # The largest first, or the last one would leave the other threads idle.
        batch.sort(key=lambda one: -one.file.bytes)
        run_all(arrivals.fetch, batch, jobs=jobs, stop=source.stop, patience=PULL_PATIENCE_SECONDS)


def refuse_wrong_rows(
    source: Remote, cache: Cache, folder: str, info: CorpusInfo, *, said: str, absent: Collection[str] = ()
) -> None:
    """Look at all rows of a corpus or a view whose parts are there, before anybody reads them.

    Args:
        source: where it came from.
        cache: where it lies.
        folder: in that cache.
        info: its description.
        said: the path of that on the remote, for messages.
        absent: file names of parts that were not fetched.

    Raises:
        RemoteError: if a key is not that of its text, rows are missing, or others than described.
    """
    for finding in check_rows(Bench(cache.folder), folder, info, absent):
        raise RemoteError(
            f"{said} of {source.where} is refused ({finding.path}: {finding.found}): it is damaged or "
            "hostile; pull others alone, with --corpus ('embedcache gc' takes away what has arrived of it)"
        )
