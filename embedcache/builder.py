"""Build: read a corpus, find what the cache lacks, encode exactly that, store it shard by shard.

Killed at any moment, a build loses at most the shard in flight: shards are cut from the missing rows in
corpus order and committed in that order, so the same command run again goes on where it stopped and cuts the
same shards.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedcache.build_outputs import Output, codec_of, encode_missing, groups, teachers_of
from embedcache.build_report import (
    BuildProgress,
    BuildSummary,
    OnProgress,
    RemoteSummary,
    TokenTableSummary,
)
from embedcache.cache import Cache
from embedcache.codecs import check_codec_name, pq
from embedcache.contract import describe_differences
from embedcache.corpus.corpus import check_name
from embedcache.corpus.readers import ReadOptions, expand_sources
from embedcache.corpus_build import SourceRows, read_corpus
from embedcache.errors import InputError
from embedcache.missing import DEFAULT_SHARD_ROWS
from embedcache.teacher.batching import EncodeTimes
from embedcache.teacher.outputs import EMBEDDING, parse_outputs
from embedcache.teacher.resolve import is_local, origin_of, resolve
from embedcache.teacher.token_table import TokenTable, table_path
from embedcache.view_build import make_views, plan
from embedcache.views.plan import ViewOptions

if TYPE_CHECKING:
    from embedcache.check.progress import CheckProgress, OnCheck
    from embedcache.share.read_through import ReadThrough, RemoteOptions
    from embedcache.teacher.encode import Encoder
    from embedcache.teacher.load import Teacher


def build(
    sources: str | Path | Sequence[str | Path],
    *,
    teacher: str | Path | Teacher,
    cache: str | Path,
    name: str | None = None,
    text_column: str | None = None,
    id_column: str | None = None,
    label_column: str | None = None,
    format: str | None = None,  # noqa: A002 - the word of the command line
    limit: int | None = None,
    text2_column: str | None = None,
    delimiter: str | None = None,
    rows: Sequence[str] = (),
    replace: bool = False,
    pooling: str | None = None,
    prompt: str | None = None,
    max_length: int | None = None,
    truncate_dim: int | None = None,
    normalize: bool | None = None,
    teacher_name: str | None = None,
    trust_remote_code: bool = False,
    output: str = EMBEDDING,
    codec: str | None = None,
    store: str | None = None,
    compute_dtype: str = "auto",
    device: str = "auto",
    batch_tokens: int | None = None,
    threads: int | None = None,
    shard_rows: int = DEFAULT_SHARD_ROWS,
    encoder: Encoder | None = None,
    views: ViewOptions | Sequence[str] | str = (),
    token_embeddings: bool = False,
    remote: RemoteOptions | str | None = None,
    on_progress: OnProgress | None = None,
) -> Cache:
    """Run a teacher once over a corpus and keep its vectors; return the cache.

    Only texts whose vectors the cache lacks are encoded. What was done is in :attr:`Cache.last_build`.

    Args:
        sources: files, globs or ``-`` for standard input.
        teacher: alias, hub id, folder, or a teacher already loaded.
        cache: the cache's folder; created where there is none.
        name: the corpus's name in the cache; default: from the first source's file name.
        text_column, id_column, label_column, format, limit, text2_column, delimiter, rows: see
            :class:`ReadOptions`.
        replace: replace a corpus of the same name that has other rows; vectors are kept.
        pooling, prompt, max_length, truncate_dim, normalize, trust_remote_code, device: see
            :func:`embedcache.teacher.load.load_teacher`.
        teacher_name: the teacher's name in the cache.
        output: what to keep: ``embedding``, ``logits`` (of the classifier in the teacher's folder) or both,
            with a comma between: one pass gives both. Logits are kept as teacher ``NAME.logits``.
        codec: ``float32``, ``float16``, ``int8`` or ``pq``; default: as the cache stores this teacher, or the
            same teacher at another ``max_length``, else ``float16``. Logits are kept as floats.
        store: ``arrow`` or ``lmdb``; default: as the cache keeps this teacher, else ``arrow``.
        compute_dtype, batch_tokens, threads: see :class:`embedcache.teacher.encode.Encoder`.
        shard_rows: vectors a shard; a killed build loses at most one shard.
        encoder: an encoder of the same teacher made before, in place of ``compute_dtype``, ``batch_tokens``
            and ``threads``; it saves preparing the model again when several corpora are built.
        views: other texts to make for every row, such as ``["crop", "delete-words*2"]``; with
            :class:`embedcache.views.plan.ViewOptions` also how, and which of them are encoded.
        token_embeddings: also keep the teacher's input token embeddings, unless they are there.
        remote: name or URL of a remote whose vectors are fetched in place of encoding; with
            :class:`embedcache.share.read_through.RemoteOptions` also which of them count.
        on_progress: called with a :class:`BuildProgress` as the build goes on.

    Raises:
        InputError: for sources or settings that cannot be used.
        TeacherError: if the teacher, or a model that makes a view, cannot be loaded, or it has no token
            embeddings that could be kept.
        CorruptCacheError: if something that is in the cache and needed is damaged.
        MissingExtraError: if a view needs something that is not installed.
        ContractMismatchError: if the cache knows the teacher's name with another contract.
        NonFiniteVectorError: if the teacher returns NaN or infinity; it names the row.
        StorageError: if the cache cannot be written; run again once there is room.
        RemoteError: if the remote cannot be reached, or what lies there is refused.
    """
    started = time.perf_counter()
    progress = BuildProgress()
    if shard_rows < 1:
        raise InputError(f"--shard-rows {shard_rows}: expected at least 1")
    if codec is not None:
        check_codec_name(codec)
    outputs = parse_outputs(output)
    codecs = [codec_of(one, codec, alone=len(outputs) == 1) for one in outputs]
    paths = expand_sources([sources] if isinstance(sources, (str, Path)) else list(sources))
    name = check_name(name or corpus_name_from(paths[0]))
    columns = (text_column, id_column, label_column)
    options = ReadOptions(*columns, format, limit, text2_column, tuple(rows), delimiter)

    # Everything that can be refused is refused before anything is written, and a teacher that is not there
    # before models of views are loaded.
    if isinstance(teacher, (str, Path)):
        resolve(teacher)
    if not isinstance(views, ViewOptions):
        views = ViewOptions([views] if isinstance(views, str) else list(views), device=device)
    folder = Path(cache).expanduser()
    planned = plan(views, paths, options, folder / "corpora" / name)
    settings: dict[str, Any] = {
        "pooling": pooling,
        "prompt": prompt,
        "max_length": max_length,
        "truncate_dim": truncate_dim,
        "normalize": normalize,
    }
    there = Cache(folder) if (folder / "cache.json").exists() else None
    # Opened before the teacher is loaded, which takes longer.
    through = None if remote is None else _open_remote(remote)
    if isinstance(teacher, (str, Path)):
        from embedcache.teacher.load import load_teacher

        teacher = load_teacher(
            teacher, **settings, name=teacher_name, device=device, trust_remote_code=trust_remote_code
        )
    else:
        _refuse_settings_of_a_loaded_teacher({**settings, "teacher_name": teacher_name})
    wanted = teachers_of(teacher, outputs)
    if encoder is None:
        from embedcache.teacher.encode import Encoder

        encoder = Encoder(
            wanted[0],
            compute_dtype=compute_dtype,
            batch_tokens=batch_tokens,
            threads=threads,
            also=wanted[1] if len(wanted) > 1 else None,
        )
    else:
        _refuse_other_encoder(encoder, wanted)
    encoder.times = EncodeTimes()
    table_file = table_path(folder, teacher.contract)
    table = _token_table(table_file, teacher) if token_embeddings else None
    source = SourceRows(paths, options)
    if there is not None:
        for one in wanted:
            there.refuse_other_contract(one.name, one.contract)
    else:
        # A build that cannot begin leaves no cache behind.
        source.look(1)
        _refuse_untrained(codecs[0], source, shard_rows)
    opened = Cache.create(cache)
    kept = [Output.open(opened, one, asked, store) for one, asked in zip(wanted, codecs, strict=True)]
    for goal in kept:
        # Another build may have made the cache just now.
        opened.refuse_other_contract(goal.teacher.name, goal.teacher.contract)
        if not goal.store.shards:
            _refuse_untrained(goal.store.codec_name, source, shard_rows)

    reading = time.perf_counter()
    corpus = read_corpus(opened, name, source, progress, on_progress, replace=replace)
    progress.busy["read"] = time.perf_counter() - reading
    made = make_views(corpus, planned, paths, options, progress, on_progress, replace=views.replace)
    # Their models are not needed any more, and the teacher can use the room.
    del planned

    corpora = [corpus, *map(corpus.view, views.embed)]
    for goal in kept:
        goal.look_up(corpora)
    # Register last, so a rejected build leaves no empty teacher.
    for one in wanted:
        opened.register_teacher(one.name, one.contract, origin_of(one.source))
        if is_local(one.source):
            opened.remember_model(one.contract, str(one.folder.resolve()))
    table_kept = _keep(table, table_file, teacher) if table is not None else None
    for goal in kept:
        # Re-list shards: gc may have removed some. From here on the corpus keeps them.
        goal.look_again(opened)
    encoded = truncated = 0
    encode_seconds = 0.0
    for texts in corpora:
        for goal in kept:
            goal.take_over(opened, texts, shard_rows, progress, on_progress)
            if through is not None:
                goal.fetch(opened, texts, encoder, through, _fetching(progress, on_progress))
        encode_started = time.perf_counter()
        for lacking, left in groups(kept, texts):
            encoded += len(left)
            truncated += encode_missing(texts, left, lacking, encoder, shard_rows, progress, on_progress)
        encode_seconds += time.perf_counter() - encode_started
    for goal in kept:
        goal.store.finish()
    first = kept[0]
    distinct = sum(found.distinct for found in first.missing.values())
    opened.last_build = BuildSummary(
        corpus=corpus.name,
        teacher=first.teacher.name,
        contract_id=first.teacher.contract.id,
        rows=len(corpus),
        distinct=distinct,
        encoded=encoded,
        carried=first.carried.rows,
        coarser_rows=first.carried.coarser_rows,
        reused=distinct - first.absent,
        truncated=truncated,
        skipped=dict(source.report.skipped),
        not_asked=source.report.not_asked,
        tokens=encoder.times.tokens,
        batches_halved=encoder.times.batches_halved,
        bytes_written=sum(goal.store.bytes_on_disk - goal.bytes_before for goal in kept),
        seconds=time.perf_counter() - started,
        encode_seconds=encode_seconds,
        busy=dict(progress.busy),
        views=made,
        embedded_views=list(views.embed),
        token_embeddings=table_kept,
        outputs=[goal.summary() for goal in kept],
        remote=None if through is None else _fetched(through),
    )
    return opened


def _open_remote(remote: RemoteOptions | str) -> ReadThrough:
    from embedcache.share.read_through import ReadThrough

    return ReadThrough.open(remote)


def _fetched(through: ReadThrough) -> RemoteSummary:
    verdicts = [f"{one.verdict} ({one.sampled:,} texts): {one.message}" for one in through.samples]
    return RemoteSummary(through.source.url, through.rows, through.bytes, verdicts)


def _fetching(progress: BuildProgress, on_progress: OnProgress | None) -> OnCheck:
    """Return a callback that shows what comes from a remote as the progress of a build."""

    def report(check: CheckProgress) -> None:
        progress.phase, progress.rows, progress.total = check.phase, check.files, check.total_files
        progress.seconds = check.seconds
        if on_progress is not None:
            on_progress(progress)

    return report


def _refuse_other_encoder(encoder: Encoder, wanted: Sequence[Teacher]) -> None:
    """Refuse an encoder that does not give exactly what is wanted."""
    if encoder.teacher.contract != wanted[0].contract:
        raise InputError(
            f"the encoder was made of another teacher than {wanted[0].name!r} "
            f"({describe_differences(encoder.teacher.contract.differences(wanted[0].contract))}): "
            "make one with Encoder(teacher)"
        )
    if [one.contract for one in encoder.teachers] != [one.contract for one in wanted]:
        raise InputError(
            f"the encoder gives {len(encoder.teachers)} outputs, this build needs {len(wanted)}: make one "
            "with Encoder(teacher, also=logits_teacher(teacher)), or leave it out"
        )


def _token_table(path: Path, teacher: Teacher) -> TokenTable:
    """Return the token embeddings of a teacher, from their file where there is one."""
    from embedcache.teacher.token_embeddings import token_table_of

    return TokenTable.read(path, teacher.contract) if path.exists() else token_table_of(teacher)


def _keep(table: TokenTable, path: Path, teacher: Teacher) -> TokenTableSummary:
    """Store token embeddings, unless they are there."""
    outcome = "there already" if path.exists() else "stored now"
    if not path.exists():
        table.write(path, teacher.contract)
    rows, width = table.word.shape
    return TokenTableSummary(rows, width, path.stat().st_size, outcome)


def _refuse_untrained(codec: str | None, source: SourceRows, shard_rows: int) -> None:
    """Refuse the codec ``pq`` where the first shard will hold too few vectors to learn a codebook from."""
    if codec == pq.NAME:
        pq.refuse_too_few(min(source.look(pq.LEAST_TRAINING_ROWS), shard_rows))


def _refuse_settings_of_a_loaded_teacher(settings: Mapping[str, object]) -> None:
    given = [name for name, value in settings.items() if value is not None]
    if given:
        raise InputError(
            f"{', '.join(given)} cannot be changed on a teacher that is already loaded: "
            "give it to load_teacher, or give build the teacher's name"
        )


def corpus_name_from(source: Path | str) -> str:
    """Return what a corpus is called of which this is the first source, where the user gives no name."""
    if source == "-":
        return "stdin"
    stem = Path(source).name.split(".")[0]
    return "".join(c if c.isalnum() or c in "_-" else "_" for c in stem) or "corpus"
