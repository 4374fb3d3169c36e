"""Served teachers: vectors of a server are stored as they came, and never mixed with another model's."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import write_lines
from click.testing import CliRunner
from embedding_server import Answer, EmbeddingServer, embedding_server

import embedcache
from embedcache import fsio, share
from embedcache.building import pending
from embedcache.building.build import grouped
from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.doctor import examine
from embedcache.doctor.deep import LIVE
from embedcache.errors import (
    ContractMismatchError,
    InputError,
    NonFiniteVectorError,
    ServedTeacherError,
    TeacherError,
)
from embedcache.gc import collect_garbage
from embedcache.info import list_contents
from embedcache.pairs import join_pair
from embedcache.repair import repair
from embedcache.teacher import canary
from embedcache.teacher.resolve import parse_server
from embedcache.teacher.served import ServedEncoder, load_served
from embedcache.testing import sentences

TEXTS = sentences(300)
Build = Callable[..., Cache]


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with embedding_server() as running:
        yield running


def encoder(server: EmbeddingServer, retries: int = 0, **settings: Any) -> ServedEncoder:
    given = {name: settings.pop(name) for name in ("prompt", "truncate_dim") if name in settings}
    return ServedEncoder(load_served(f"openai:m@{server.url}", retries=retries, **given), **settings)


@pytest.fixture
def build(server: EmbeddingServer, tmp_path: Path) -> Build:
    """Return a function that builds TEXTS, or others, with the server."""

    def result(texts: list[str] = TEXTS, retries: int = 0, **settings: Any) -> Cache:
        source = write_lines(tmp_path / f"corpus{len(texts)}.txt", texts)
        teacher = settings.pop("teacher", None) or encoder(server, retries)
        arguments = grouped({"cache": tmp_path / "cache", "shard_rows": 64, **settings, "teacher": ""})
        return embedcache.build(source, **{**arguments, "teacher": teacher})

    return result


def rows_in(folder: Path) -> int:
    """Return the number of vectors stored."""
    if not (folder / "teachers").exists():
        return 0
    cache = Cache(folder)
    return sum(len(cache.store(one.contract)) for one in cache.teachers())


# Vectors


@pytest.mark.parametrize("is_float", [False, True], ids=["base64", "numbers"])
def test_vectors_are_the_servers_in_order_and_identity_says_so(
    server: EmbeddingServer, build: Build, is_float: bool
) -> None:
    server.is_float = is_float
    cache = build(codec="float32")
    np.testing.assert_allclose(cache.lookup(TEXTS), server.vectors(TEXTS), atol=1e-6)
    (teacher,) = cache.teachers()
    contract = teacher.contract
    assert (teacher.name, contract.weights) == ("m", f"openai:m@{server.url}")
    assert (contract.is_served, contract.normalize, contract.dimension) == (True, True, 8)
    assert max(len(request["input"]) for request in server.requests) <= 32
    assert cache.result is not None
    assert cache.result.encoded == len(TEXTS)
    (row,) = list_contents(cache)["teachers"]
    assert "canary" in str(row["identity"])


def test_a_second_build_encodes_new_texts_and_stores_the_canary_once(
    server: EmbeddingServer, build: Build, tmp_path: Path
) -> None:
    build(TEXTS[:200])
    server.requests.clear()
    assert build().result.encoded == 100  # type: ignore[union-attr]
    assert not set(server.texts()) & set(TEXTS[:200])
    assert rows_in(tmp_path / "cache") == len(TEXTS) + len(canary.TEXTS)


def test_prompt_and_dimensions_reach_the_server(server: EmbeddingServer, build: Build) -> None:
    cache = build(TEXTS[:5], teacher=encoder(server, prompt="query: ", truncate_dim=4), codec="float32")
    prompted = [f"query: {text}" for text in TEXTS[:5]]
    np.testing.assert_allclose(cache.lookup(TEXTS[:5]), server.vectors(prompted, 4), atol=1e-6)
    assert cache.teacher().contract.truncate_dim == 4


def test_keys_come_from_the_environment_and_stay_with_their_host(
    server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "secret")
    encoder(server)
    assert "secret" not in str(server.headers)
    monkeypatch.setenv("EMBEDCACHE_API_KEY", "own")
    encoder(server)
    assert server.headers[-1]["authorization"] == "Bearer own"
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Key: secret")
    with pytest.raises(InputError, match="OPENAI_CUSTOM_HEADERS"):
        encoder(server)


@pytest.mark.parametrize(
    ("spec", "model", "url"),
    [
        ("openai:text-embedding-3-small", "text-embedding-3-small", "https://api.openai.com/v1"),
        ("openai:BAAI/bge-m3@http://host:8000/v1/", "BAAI/bge-m3", "http://host:8000/v1"),
        ("openai:@cf/baai/bge:1@https://host/a/v1", "@cf/baai/bge:1", "https://host/a/v1"),
        ("openai:m@http://user:pw@host/v1", None, None),
        ("openai:m@user:pw@host/v1", None, None),
        ("openai:m@http://host/v1?key=pw", None, None),
        ("openai:m@host:8000/v1", None, None),
        ("openai:", None, None),
    ],
)
def test_specs(spec: str, model: str | None, url: str | None) -> None:
    if model is None:
        with pytest.raises(TeacherError) as caught:
            parse_server(spec)
        assert "pw" not in str(caught.value)
        return
    found = parse_server(spec)
    assert (found.model, found.url) == (model, url)
    assert parse_server(found.spec) == found


@pytest.mark.parametrize(
    "settings",
    [
        {"pooling": "cls"},
        {"max_length": 64},
        {"normalize": True},
        {"trust_remote_code": True},
        {"output": "logits"},
        {"token_embeddings": True},
        {"compute_dtype": "bfloat16"},
        {"device": "cpu"},
        {"devices": "cpu,cpu"},
        {"engine": "ray"},
        {"backend": "openvino"},
        {"threads": 2},
    ],
    ids=str,
)
def test_settings_of_a_local_model_are_refused(
    server: EmbeddingServer, tmp_path: Path, settings: dict[str, Any]
) -> None:
    source = write_lines(tmp_path / "corpus.txt", TEXTS[:5])
    arguments = {"teacher": f"openai:m@{server.url}", "cache": tmp_path / "cache", **settings}
    with pytest.raises(InputError, match=next(iter(settings))):
        embedcache.build(source, **grouped(arguments))
    assert not server.requests


def test_a_server_takes_no_pairs(server: EmbeddingServer) -> None:
    with pytest.raises(InputError, match="pairs"):
        encoder(server).encode([join_pair("a", "b")])


# Faults

ONCE = [(500, {}, False), (200, {}, True), (429, {"Retry-After": "0.01"}, False)]


def test_errors_that_pass_are_tried_again(server: EmbeddingServer, build: Build) -> None:
    teacher = encoder(server, retries=1)
    server.statuses = list(ONCE)
    cache = build(teacher=teacher, codec="float32")
    np.testing.assert_allclose(cache.lookup(TEXTS), server.vectors(TEXTS), atol=1e-6)


CHANGES: dict[str, Callable[[Answer], object]] = {
    "too few": lambda answer: answer["data"].pop(),
    "index twice": lambda answer: answer["data"][0].update(index=1),
    "other width": lambda answer: [one.update(embedding=[0.5] * 9) for one in answer["data"]],
    "no base64": lambda answer: answer["data"][0].update(embedding="?"),
    "no data": lambda answer: answer.clear(),
    "NaN": lambda answer: answer["data"][0].update(embedding=[float("nan")] * 8),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_an_answer_that_cannot_be_used_is_one_error_and_nothing_of_it_is_stored(
    server: EmbeddingServer, build: Build, tmp_path: Path, change: Callable[[Answer], object]
) -> None:
    teacher = encoder(server)

    def late(answer: Answer) -> None:
        # The first shard is sound: 64 texts and the canary take three requests.
        if len(server.requests) > 6:
            change(answer)

    server.change = late
    with pytest.raises((ServedTeacherError, NonFiniteVectorError, ContractMismatchError)) as caught:
        build(teacher=teacher, codec="float32")
    assert "\n" not in str(caught.value)
    kept = rows_in(tmp_path / "cache")
    assert kept < len(TEXTS)
    assert kept % 64 == 0
    server.change = lambda answer: None
    cache = build(codec="float32")
    np.testing.assert_allclose(cache.lookup(TEXTS), server.vectors(TEXTS), atol=1e-6)
    assert cache.result is not None
    assert cache.result.encoded == len(TEXTS) - kept


def test_indices_in_another_order_are_sorted(server: EmbeddingServer, build: Build) -> None:
    server.change = lambda answer: answer["data"].reverse()
    np.testing.assert_allclose(build(codec="float32").lookup(TEXTS), server.vectors(TEXTS), atol=1e-6)


@pytest.mark.parametrize("status", [401, 500])
def test_a_refusal_names_status_and_server(server: EmbeddingServer, status: int) -> None:
    server.statuses = [(status, {}, False)]
    with pytest.raises(ServedTeacherError, match=rf"{server.url}.*{status}"):
        encoder(server)
    assert len(server.requests) == 1


# Another model under the same name


@pytest.mark.parametrize("codec", ["float16", "pq"])
def test_the_canary_stops_another_model_before_anything_is_encoded(
    server: EmbeddingServer, build: Build, tmp_path: Path, codec: str
) -> None:
    texts = sentences(600) if codec == "pq" else TEXTS
    build(texts, codec=codec, shard_rows=1000)
    build(texts[:10])  # the same model passes
    before, asked = rows_in(tmp_path / "cache"), len(server.requests)
    server.seed = 1
    with pytest.raises(ContractMismatchError, match="cosine") as caught:
        build(sentences(50, seed=2))
    assert set(caught.value.differences) == {"canary"}
    assert rows_in(tmp_path / "cache") == before
    # The canary alone was sent.
    assert set(server.texts()[asked:]) <= {*canary.TEXTS, *texts}
    server.seed, server.dimension = 0, 16
    with pytest.raises(ContractMismatchError, match="dimension 8 -> 16"):
        build(sentences(50, seed=2))


def test_a_cache_without_the_canary_is_compared_by_its_texts(
    server: EmbeddingServer, build: Build, tmp_path: Path
) -> None:
    teacher = encoder(server)

    def failing(answer: Answer) -> None:
        if len(server.requests) > 6:
            answer.clear()

    server.change = failing
    with pytest.raises(ServedTeacherError):
        build(teacher=teacher)
    server.change = lambda answer: None
    kept = rows_in(tmp_path / "cache")
    assert kept > 0
    server.seed = 1
    with pytest.raises(ContractMismatchError, match="cosine"):
        build()
    assert rows_in(tmp_path / "cache") == kept


def test_a_model_that_changes_while_a_build_runs_is_not_stored(
    server: EmbeddingServer, build: Build, tmp_path: Path
) -> None:
    teacher = encoder(server)
    server.seed = 1
    with pytest.raises(ContractMismatchError, match="at the start"):
        build(teacher=teacher)
    assert rows_in(tmp_path / "cache") == 0


# Everything that runs the teacher again


def live_level(cache: Cache) -> str:
    """Return the verdict of comparing stored vectors with the server's."""
    return next(one.level for one in examine(cache.folder, deep=20).findings if one.name == LIVE)


def test_commands_that_run_the_teacher_again_ask_the_server(
    server: EmbeddingServer, build: Build, tmp_path: Path
) -> None:
    cache = build()
    np.testing.assert_allclose(cache.encode(["new"]), server.vectors(["new"]), atol=1e-3)
    assert live_level(cache) == "ok"
    largest = max((tmp_path / "cache" / "teachers").glob("*/shards/*"), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 1
    largest.write_bytes(data)
    repair(tmp_path / "cache")
    np.testing.assert_allclose(Cache(tmp_path / "cache").lookup(TEXTS), server.vectors(TEXTS), atol=1e-3)
    server.seed = 1
    with pytest.raises(ContractMismatchError):
        cache.encode(["newer"])
    assert live_level(cache) == "bad"


def test_a_server_that_a_stranger_names_is_not_asked(
    server: EmbeddingServer, build: Build, tmp_path: Path
) -> None:
    build(TEXTS[:5])
    own = tmp_path / "own"
    embedcache.copy([tmp_path / "cache"], own)
    shutil.rmtree(own / "derived")  # as it comes from elsewhere
    server.requests.clear()
    cache = Cache(own)
    with pytest.raises(TeacherError, match="openai:m@"):
        cache.encode(["my own text"])
    assert not server.requests
    cache.encode(["my own text"], teacher=f"openai:m@{server.url}")
    assert "my own text" in server.texts()


def test_a_pull_is_compared_with_the_server_that_this_machine_has_built_with(
    server: EmbeddingServer, build: Build, tmp_path: Path
) -> None:
    remote, mine = str(tmp_path / "remote"), tmp_path / "mine"
    share.push(build().folder, remote)
    server.requests.clear()
    share.pull(tmp_path / "stranger", remote)
    assert not server.requests
    build(TEXTS[:20], cache=mine)
    assert [sample.verdict for sample in share.pull(mine, remote).samples] == ["ok"]
    assert set(server.texts()) & set(TEXTS[20:])
    other = tmp_path / "other"
    server.seed = 1
    build(TEXTS[:1], cache=other)
    assert share.pull(other, remote).is_bad


def test_a_dry_run_asks_for_the_canary_alone_and_prints_the_cost(
    server: EmbeddingServer, tmp_path: Path
) -> None:
    source = write_lines(tmp_path / "corpus.txt", TEXTS)
    spec, cache = f"openai:m@{server.url}", str(tmp_path / "cache")
    command = ["build", str(source), "--teacher", spec, "--cache", cache]
    done = CliRunner().invoke(cli, [*command, "--dry-run", "--price-per-million", "20"])
    assert done.exit_code == 0, done.output
    assert set(server.texts()) == set(canary.TEXTS)
    assert "about" in done.output
    assert "USD" in done.output
    built = CliRunner().invoke(cli, [*command, "--dimensions", "4", "--requests", "2"])
    assert built.exit_code == 0, built.output
    assert Cache(cache).teacher().contract.dimension == 4


# A model that changes between two processes, before anything is stored


def killed_at(where: str, call: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a call that ends right after its first file in a folder of a name was written."""

    class Killed(BaseException):
        pass

    def step(name: str, path: Path) -> None:
        if name == "recorded" and where in path.parts:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(fsio, "on_write_step", step)
        patch.setattr(pending, "KEEP_SECONDS", 0.0)
        with pytest.raises(Killed):
            call()


def test_kept_batches_of_another_model_are_not_taken(
    server: EmbeddingServer, build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.change = lambda answer: time.sleep(0.3)
    killed_at("pending", lambda: build(shard_rows=300), monkeypatch)
    assert list((tmp_path / "cache").glob("derived/pending/*/*.arrow"))
    server.change, server.seed = lambda answer: None, 1
    cache = build(shard_rows=300)
    assert cache.result is not None
    assert cache.result.resumed == 0
    np.testing.assert_allclose(cache.lookup(TEXTS), server.vectors(TEXTS), atol=1e-3)


@pytest.mark.parametrize(("texts", "where"), [(TEXTS[:10], "waiting"), (sentences(1500), "shards")])
def test_texts_encoded_by_another_model_are_not_mixed(
    server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str], where: str
) -> None:
    cache, spec = Cache.create(tmp_path / "cache"), f"openai:m@{server.url}"
    killed_at(where, lambda: cache.encode(texts, spec), monkeypatch)
    server.seed = 1
    for call in (
        lambda: Cache(cache.folder).encode([*texts, "new"], spec),
        lambda: embedcache.build([*texts, "new"], teacher=spec, cache=cache.folder, name="x"),
    ):
        with pytest.raises(ContractMismatchError, match="another model"):
            call()


def test_the_canary_stays_as_long_as_other_vectors(server: EmbeddingServer, tmp_path: Path) -> None:
    cache, spec = Cache.create(tmp_path / "cache"), f"openai:m@{server.url}"
    cache.encode(sentences(1500), spec)
    for path in cache.folder.rglob("*"):
        os.utime(path, (1e9, 1e9))
    cache.encode(["young"], spec)
    collect_garbage(cache, unused=True)
    server.seed = 1
    with pytest.raises(ContractMismatchError, match="another model"):
        Cache(cache.folder).encode(["younger"], spec)


def test_the_first_build_chooses_the_codec_though_texts_were_encoded_before(
    server: EmbeddingServer, tmp_path: Path
) -> None:
    cache, spec = Cache.create(tmp_path / "cache"), f"openai:m@{server.url}"
    cache.encode(TEXTS[:10], spec)
    settings = grouped({"teacher": spec, "cache": cache.folder, "codec": "int8", "store": "lmdb"})
    built = embedcache.build(TEXTS, **settings, name="x")
    assert built.result is not None
    assert (built.result.encoded, built.result.codec) == (290, "int8")
    np.testing.assert_allclose(built.lookup(TEXTS), server.vectors(TEXTS), atol=2e-2)
