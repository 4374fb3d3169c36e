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


def fetch_in_stages(
    source: Remote, cache: Cache, arrivals: Arrivals, missing: Sequence[Wanted], jobs: int
) -> None:
    """Fetch ``missing`` into ``cache``, each file after those that it needs.

    Args:
        source: where the files come from.
        cache: where they go.
        arrivals: fetches them.
        missing: the files.
        jobs: transfers at once.

    Raises:
        RemoteError: if a file cannot be had or is refused. The rows of a corpus are checked before its
            description is fetched.
        StorageError: if one cannot be written.
    """
    for number, kinds in enumerate(STAGES):
        batch = [file for file in missing if stage_of(file.entry) == number]
        if Kind.CORPUS in kinds:
            for file in batch:
                if file.info is not None:
                    folder = file.path.rpartition("/")[0]
                    refuse_wrong_rows(source, cache, folder, file.info, said=file.file.path)
        # The largest first: a large one at the end would leave the other threads idle.
        batch.sort(key=lambda file: -file.file.bytes)
        arrivals.fetch_all(batch, jobs)


def refuse_wrong_rows(
    source: Remote, cache: Cache, folder: str, info: CorpusInfo, *, said: str, absent: Collection[str] = ()
) -> None:
    """Check all rows of a corpus or a view whose parts have arrived, before anybody reads them.

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
