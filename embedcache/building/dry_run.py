"""Dry run of a build: the rows it would encode, and estimates of their size and time.

The sources are read into a temporary cache, unless the cache has them unchanged; nothing is written into the
cache. The teacher runs for a second or two on a sample of the missing texts. Of a served teacher,
tokens and requests are estimated instead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from embedcache.building.encode import refuse_untrained
from embedcache.building.job import Job
from embedcache.building.result import BuildResult, Estimate, ViewResult
from embedcache.building.views import make_views
from embedcache.cache import Cache
from embedcache.codecs import CODEC_NAMES, FLOAT_CODECS, get_codec, pq
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray, KeyIndex
from embedcache.missing import MissingRows
from embedcache.progress import Progress
from embedcache.store.base import Positions
from embedcache.store.waiting import WaitingRows
from embedcache.teacher.options import LOGITS
from embedcache.teacher.served import ServedEncoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedcache.contract import Contract
    from embedcache.corpus.corpus import Corpus
    from embedcache.store import ShardStore

SAMPLE_TEXTS = 20_000
"""Missing texts whose tokens are counted."""
PROBE_SECONDS = 1.0
"""Least time of the measurement that the rate of encoding is taken from."""

# A key, a 32-bit count of tokens and one bit beside each vector.
_BYTES_BESIDE = KEY_BYTES + 4 + 1 / 8


@dataclass
class _Planned:
    """Keys that a store has, or will have by then."""

    store: ShardStore
    waiting: WaitingRows
    keys: KeyArray

    def locate(self, keys: KeyArray) -> Positions:
        """Return a number for each key, -1 where it is missing."""
        found = np.maximum(self.store.locate(keys), self.waiting.locate(keys))
        return np.maximum(found, KeyIndex(self.keys).locate(keys))


def estimate_build(job: Job, progress: Progress) -> BuildResult:
    """Return the plan and the cost of a build; raises the errors of reading, and of loading the teacher."""
    with TemporaryDirectory(prefix="embedcache-dry-run-") as folder:
        scratch = Cache.create(folder)
        store = job.open_store(job.cache or scratch)
        job.embed_as_before(store)
        texts, views = _texts(job, scratch, progress)
        distinct, wanted, cached, fetched, remote_bytes, lacking = 0, 0, 0, 0, 0, []
        waiting = (job.cache or scratch).waiting(store.contract)
        waiting.refresh()
        planned = _Planned(store, waiting, np.empty(0, dtype=KEY_DTYPE))
        for some in texts:
            progress.phase("look up", len(some))
            missing = MissingRows.of(some, planned, job.part)
            if some is texts[0]:
                refuse_untrained(store, min(len(missing), job.encode.shard_rows), job.split_by)
            rows, size = _rows_to_encode(job, store, missing, scratch)
            remote_bytes += size
            if len(texts) > 1:
                planned.keys = np.concatenate([planned.keys, missing.keys()])
            distinct, wanted = distinct + missing.distinct, wanted + missing.wanted
            cached, fetched = cached + missing.wanted - len(missing), fetched + len(missing) - len(rows)
            lacking.append(rows)
        count, estimate = sum(map(len, lacking)), None
        if count:
            estimate = _estimate(job, _sample(texts, lacking), count, progress)
        return job.result(
            texts,
            store,
            distinct=distinct,
            wanted=wanted,
            cached=cached,
            fetched=fetched,
            encoded=count,
            views=views,
            remote_bytes=remote_bytes,
            estimate=estimate,
            dry_run=True,
        )


def _texts(job: Job, scratch: Cache, progress: Progress) -> tuple[list[Corpus], tuple[ViewResult, ...]]:
    """Return the corpus with its views to encode (if no model has to make them), and all views."""
    stored = () if job.unchanged is None else job.unchanged.view_names()
    cheap = [
        view
        for view in job.planned
        if view.recipe.name in job.embed
        and not view.is_slow
        # Its source has the cells of the rows to add alone.
        and not (job.append and view.recipe.reads_source)
    ]
    if job.unchanged is not None and all(view.recipe.name in stored for view in cheap):
        corpus = job.unchanged
    else:
        # Views are made beside a scratch corpus: nothing is added to the cache's.
        corpus = job.read_corpus(scratch, progress)
        make_views(corpus, cheap, job.sources, job.read, progress=progress)
    holders = dict.fromkeys(stored, job.unchanged) | dict.fromkeys(corpus.view_names(), corpus)
    views = []
    for name in (view.recipe.name for view in job.planned):
        counted = "to make" if name in holders or name not in job.embed else "to make, not counted"
        views.append(ViewResult(name, "there already" if name in stored else counted))
    embedded = [holder.view(name) for name in job.embed if (holder := holders.get(name))]
    return [corpus, *embedded], tuple(views)


def _rows_to_encode(
    job: Job, store: ShardStore, missing: MissingRows, scratch: Cache
) -> tuple[NDArray[np.int64], int]:
    """Return the missing rows that no remote has, and the bytes that would be fetched for the others."""
    rows = np.flatnonzero(missing.mask)
    if job.remote is None:
        return rows, 0
    there, shards = job.remote.find(scratch, store.contract, store.codec_name, missing.keys())
    return rows[~there], sum(shard.bytes for shard in shards)


def _sample(texts: Sequence[Corpus], lacking: Sequence[NDArray[np.int64]]) -> list[str]:
    """Return a random sample of the texts to encode, the same one each time."""
    some, rows = max(zip(texts, lacking, strict=True), key=lambda pair: len(pair[1]))
    generator = np.random.default_rng(0)
    sample = some.texts(np.sort(generator.choice(rows, min(len(rows), SAMPLE_TEXTS), replace=False)))
    generator.shuffle(sample)
    return sample


def _estimate(job: Job, sample: list[str], count: int, progress: Progress) -> Estimate:
    """Return the cost of encoding ``count`` texts."""
    encoder = job.teacher.encoder
    size = _bytes(job.teacher.contract, count)
    if isinstance(encoder, ServedEncoder):
        of_sample, requests = encoder.estimate(sample)
        share = count / len(sample)
        return Estimate(share * of_sample, 0.0, size, None, math.ceil(share * requests))
    tokens, truncated = None, 0.0
    if encoder.tokenizer is not None:
        progress.phase("count tokens", len(sample), "texts")
        counted = encoder.tokenizer(sample)
        tokens, truncated = count * float(counted.lengths.mean()), float(counted.truncated.mean())
    progress.phase("time the teacher")
    texts, probe, seconds = cycle(sample), 32, 0.0
    encoder.encode(list(islice(texts, probe)))  # the first batch also sets things up
    while seconds < PROBE_SECONDS:
        probe *= 2
        chunk, started = list(islice(texts, probe)), time.perf_counter()
        encoder.encode(chunk)
        seconds = time.perf_counter() - started
    return Estimate(
        tokens=tokens,
        truncated_share=truncated,
        bytes=size,
        seconds=count * seconds / probe,
    )


def _bytes(contract: Contract, rows: int) -> dict[str, int]:
    """Return the size of ``rows`` stored vectors by codec, without the headers of shards."""
    sizes, width = {}, contract.dimension
    for name in FLOAT_CODECS if contract.output == LOGITS else CODEC_NAMES:
        is_pq = name == pq.NAME
        vector = pq.stored_width(width) if is_pq else get_codec(name).bytes_per_row(width)
        codebook = 4 * pq.CENTROIDS * width if is_pq else 0
        sizes[name] = round(rows * (vector + _BYTES_BESIDE) + codebook)
    return sizes
