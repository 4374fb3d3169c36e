"""Dry run of a build: what it would encode, how large and how long that gets, and when it pays.

The sources are read into a temporary cache, unless the cache has them unchanged; nothing is written into the
cache. The teacher runs for some seconds on a sample of the missing texts.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from embedcache.building.job import Job
from embedcache.building.outputs import BuildOutput, refuse_untrained
from embedcache.building.result import BuildResult, Estimate, ViewResult
from embedcache.building.views import make_views
from embedcache.cache import Cache
from embedcache.codecs import CODEC_NAMES, FLOAT_CODECS, get_codec, pq
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyIndex
from embedcache.missing import MissingRows
from embedcache.progress import Progress
from embedcache.reuse import find_reusable
from embedcache.teacher.outputs import LOGITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedcache.contract import Contract
    from embedcache.corpus.corpus import Corpus
    from embedcache.teacher.encode import Encoder

SAMPLE_TEXTS = 20_000
"""Missing texts whose tokens are counted."""
PROBE_SECONDS = 4.0
"""Time the teacher runs, in each of two ways."""
LIVE_BATCH_ROWS = 128
"""Rows of a training step that runs the teacher itself."""
ROWS_READ_A_SECOND = 500_000
"""Vectors that a training reads from a cache."""

# A key, a 32-bit count of tokens and one bit beside each vector.
_BYTES_BESIDE = KEY_BYTES + 4 + 1 / 8
_NO_KEYS = np.empty(0, dtype=KEY_DTYPE)


def estimate_build(job: Job, progress: Progress) -> BuildResult:
    """Return what a build would do and cost; errors as those of reading, and of loading the teacher."""
    with TemporaryDirectory(prefix="embedcache-dry-run-") as folder:
        scratch = Cache.create(folder)
        texts, stored = _corpora(job, scratch, progress)
        names = [view.recipe.name for view in job.planned]
        views = [ViewResult(name, "there already" if name in stored else "to make") for name in names]
        counted = {one.name for one in texts[1:]}
        notes = [f"view {name!r} is not counted" for name in job.views.embed if name not in counted]

        outputs = [
            BuildOutput.open(job.cache or scratch, *named, job.encode)
            for named in job.teacher.contracts.items()
        ]
        lacking, distinct, remote_bytes = _look_up(job, outputs, texts, scratch, progress)
        count = sum(map(len, lacking))
        sample = _sample(texts, lacking)
        estimate = _estimate(job, outputs[0], sample, count, len(texts[0]), progress) if count else None
        return job.result(
            texts[0],
            [output.result for output in outputs],
            distinct=distinct,
            encoded=count,
            views=tuple(views),
            remote_bytes=remote_bytes,
            estimate=estimate,
            dry_run=True,
            notes=tuple(notes),
        )


def _corpora(job: Job, scratch: Cache, progress: Progress) -> tuple[list[Corpus], set[str]]:
    """Return the corpus, its views to encode (if no model has to make them), and all stored views."""
    known = job.unchanged
    stored = set(known.view_names()) if known is not None else set()
    cheap = [view for view in job.planned if view.recipe.name in job.views.embed and not view.is_slow]
    if known is not None and stored >= {view.recipe.name for view in cheap}:
        corpus, cheap = known, []
    else:
        # Views are made beside a corpus of their own: nothing is added to the cache's.
        corpus = replace(job, unchanged=None).store_corpus(scratch, progress)
        if job.cache is not None and job.name in job.cache.corpus_names():
            known = job.cache.corpus(job.name)
            stored = set(known.view_names()) if known.info.digest == corpus.info.digest else set()
        cheap = [view for view in cheap if view.recipe.name not in stored]
        make_views(corpus, cheap, job.sources, job.read, progress=progress)
    places = dict.fromkeys(stored, known) | {view.recipe.name: corpus for view in cheap}
    views = [(places.get(name), name) for name in job.views.embed]
    return [corpus, *(place.view(name) for place, name in views if place is not None)], stored


def _look_up(
    job: Job, outputs: Sequence[BuildOutput], corpora: Sequence[Corpus], scratch: Cache, progress: Progress
) -> tuple[list[NDArray[np.int64]], int, int]:
    """Return the rows of each corpus to encode, the number of distinct texts, and the bytes to fetch."""
    all_lacking, distinct, remote_bytes = [], 0, 0
    seen = _NO_KEYS
    for texts in corpora:
        progress.phase("look up", len(texts))
        is_lacking = np.zeros(len(texts), dtype=np.bool_)
        of_outputs = [MissingRows.of(texts, output.store) for output in outputs]
        if texts is corpora[0]:
            refuse_untrained(outputs, of_outputs, job.encode.shard_rows)
        for output, missing in zip(outputs, of_outputs, strict=True):
            rows, keys = np.flatnonzero(missing.mask), missing.keys()
            # A build would have stored those of the corpora before by then.
            is_new = KeyIndex(seen).locate(keys) < 0
            rows, keys = rows[is_new], keys[is_new]
            output.count(cached=missing.distinct - len(rows))
            store, contract = output.store, output.store.contract
            found = find_reusable(output.related, keys, contract.max_length, store.codec_name)
            output.count(reused=int((found.stores >= 0).sum()), coarser=int(found.coarser.sum()))
            rows, keys = rows[found.stores < 0], keys[found.stores < 0]
            if job.remote is not None:
                is_there, shards = job.remote.find(scratch, contract, store.codec_name, keys)
                output.count(fetched=int(is_there.sum()))
                remote_bytes += sum(shard.bytes for shard in shards)
                rows = rows[~is_there]
            output.count(encoded=len(rows))
            is_lacking[rows] = True
        all_lacking.append(np.flatnonzero(is_lacking))
        distinct += of_outputs[0].distinct
        if len(corpora) > 1:
            seen = np.concatenate([seen, *(missing.keys() for missing in of_outputs)])
    return all_lacking, distinct, remote_bytes


def _sample(corpora: Sequence[Corpus], lacking: Sequence[NDArray[np.int64]]) -> list[str]:
    """Return a random sample of the texts to encode, the same one each time."""
    generator = np.random.default_rng(0)
    total = sum(map(len, lacking))
    texts = []
    for corpus, rows in zip(corpora, lacking, strict=True):
        share = math.ceil(len(rows) * min(1.0, SAMPLE_TEXTS / max(total, 1)))
        texts += corpus.texts(np.sort(generator.choice(rows, share, replace=False)))
    generator.shuffle(texts)
    return texts


def _estimate(
    job: Job, output: BuildOutput, sample: list[str], count: int, rows: int, progress: Progress
) -> Estimate:
    encoder, contract = job.teacher.encoder, output.store.contract
    tokens, error, truncated = None, 0.0, 0.0
    if encoder.tokenizer is not None:
        progress.phase("count tokens", len(sample), "texts")
        counted = encoder.tokenizer(sample)
        tokens, truncated = count * float(counted.lengths.mean()), float(counted.truncated.mean())
        if 1 < len(sample) < count:
            deviation = float(counted.lengths.std(ddof=1))
            error = count * deviation / math.sqrt(len(sample)) * math.sqrt(1 - len(sample) / count)
    progress.phase("time the teacher")
    build = count / _rate(encoder.encode, sample)
    live = rows / _rate(_in_batches(encoder), sample)
    reading = rows / ROWS_READ_A_SECOND
    return Estimate(
        tokens=tokens,
        tokens_error=error,
        truncated_share=truncated,
        bytes=_bytes(contract, output.result.encoded + output.result.reused),
        build_seconds=build,
        live_epoch_seconds=live,
        cached_epoch_seconds=reading,
        epochs_to_pay=build / (live - reading) if live > reading else None,
    )


def _rate(encode: Callable[[list[str]], object], sample: Sequence[str]) -> float:
    """Return rows a second, of runs each twice as long as the one before, until one is long enough."""
    texts, size, seconds = cycle(sample), LIVE_BATCH_ROWS // 2, 0.0
    encode(list(islice(texts, 32)))
    while seconds < PROBE_SECONDS / 2:
        size *= 2
        chunk, started = list(islice(texts, size)), time.perf_counter()
        encode(chunk)
        seconds = time.perf_counter() - started
    return size / seconds


def _in_batches(encoder: Encoder) -> Callable[[list[str]], object]:
    """Return what encodes in batches of random texts, as a training loop does: not sorted by length."""
    # A shallow copy: the model is shared, the limit of a batch is not.
    live = copy.copy(encoder)
    live.batch_tokens = 1 << 40

    def encode(texts: list[str]) -> object:
        batches = [texts[i : i + LIVE_BATCH_ROWS] for i in range(0, len(texts), LIVE_BATCH_ROWS)]
        return list(live.encode_windows(batches))

    return encode


def _bytes(contract: Contract, rows: int) -> dict[str, int]:
    """Return the size of ``rows`` stored vectors by codec, without the headers of shards."""
    sizes, width = {}, contract.dimension
    for name in FLOAT_CODECS if contract.output == LOGITS else CODEC_NAMES:
        is_pq = name == pq.NAME
        vector = pq.stored_width(width) if is_pq else get_codec(name).bytes_per_row(width)
        codebook = 4 * pq.CENTROIDS * width if is_pq else 0
        sizes[name] = round(rows * (vector + _BYTES_BESIDE) + codebook)
    return sizes
