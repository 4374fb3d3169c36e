"""Remotes of strangers: nothing is written outside a cache, nothing wrong inside, no disk is filled."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from share_helpers import (
    TEXTS,
    assert_nothing_outside,
    content,
    files_of,
    make_cache,
    manifest_of,
    put_manifest,
    put_object,
)

from embedcache.arrow_file import read_batch
from embedcache.cache import Cache
from embedcache.corpus.part import part_bytes
from embedcache.errors import EmbedCacheError, RemoteError
from embedcache.fsio import sealed, spelled_json
from embedcache.share import PullChoice, list_remote, pull
from embedcache.share import push as push_cache
from embedcache.share.remote import remote as remote_module
from embedcache.share.remote.manifest import Manifest
from embedcache.testing import fake_teacher
from embedcache.views.plan import ViewOptions

ID = fake_teacher(8).contract.id
DIGEST = "ab" * 32

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a remote that is as it should be; copy it before it is changed."""
    folder = tmp_path_factory.mktemp("honest")
    push_cache(
        make_cache(folder / "cache", TEXTS[:100], views=ViewOptions(("crop",))), str(folder / "remote")
    )
    return folder / "remote"


@pytest.fixture
def remote(honest: Path, tmp_path: Path, no_pauses: None) -> Path:
    """Return a copy of the honest remote, beside a file that nobody may touch."""
    shutil.copytree(honest, tmp_path / "box" / "remote")
    (tmp_path / "outside").write_text("untouched")
    return tmp_path / "box" / "remote"


def assert_refused(remote: Path, *words: str, error: type[EmbedCacheError] = RemoteError) -> str:
    """Assert that a pull is refused, and has written nothing but what it may."""
    with pytest.raises(error) as found:
        pull(remote.parent / "cache", str(remote))
    for word in words:
        assert word in str(found.value), found.value
    cache = assert_nothing_outside(remote)
    if cache.exists():
        Cache(cache)
    return str(found.value)


def test_the_honest_remote_is_taken(remote: Path, tmp_path: Path) -> None:
    assert pull(tmp_path / "there", str(remote)).fetched > 0


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "/outside",
        "teachers/../../outside",
        f"teachers/{ID}/../../../outside",
        f"teachers/{ID}/shards/../../../../outside",
        f"teachers/{ID}/shards/{DIGEST}.arrow/../../x",
        f"teachers/{ID}/shards/{DIGEST}.arrow\n",
        f"teachers/{ID}/shards/.{DIGEST}.arrow",
        f"teachers/{ID}/vectors.mdb",
        f"teachers/{ID}/vectors.seal.json",
        f"teachers/{ID[:-1]}/contract.json",
        f"teachers/{ID}/names/.hidden.json",
        f"teachers/{ID}/names/{'n' * 300}.json",
        f"teachers/{ID}/code.py",
        "corpora/../corpus.json",
        "corpora/.hidden/corpus.json",
        "corpora/corpus/views/original/corpus.json",
        "corpora/a/b/corpus.json",
        "cache.json",
        "derived/models/x.json",
        f"derived/models/{ID}.json",
        f"derived/index/{ID}/checked.bin",
        f"derived/remotes/{'0' * 32}/sampled.json",
        "quarantine/x",
        ".tmp-x",
        "C:\\x",
        "",
        "corpora\\x\\corpus.json",
        "corpora/x\0/corpus.json",
    ],
    ids=lambda path: repr(path)[:30],
)
def test_paths_that_no_cache_has_are_refused(remote: Path, path: str) -> None:
    value = manifest_of(remote)
    value["files"] = sorted(
        [*value["files"], {"path": path, "sha256": DIGEST, "bytes": 5}], key=lambda file: file["path"]
    )
    put_manifest(remote, value)
    assert_refused(remote, "manifests/", "refused")
    assert not (remote.parent / "cache").exists()


def _first(kind: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def find(value: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = next(file for file in value["files"] if re.search(kind, file["path"]))
        return found

    return find


PART_OF_CORPUS = r"corpora/corpus/[0-9a-f]{64}\.arrow"
SHARD, PART, DOCUMENT = _first("/shards/"), _first(PART_OF_CORPUS), _first("corpus.json")


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(version=2),
        lambda value: value.update(version="1"),
        lambda value: value.update(more=1),
        lambda value: value.pop("teachers"),
        lambda value: value.update(files=[]),
        lambda value: value.update(files={}),
        lambda value: value.update(files=[*value["files"], value["files"][-1]]),
        lambda value: value["files"].reverse(),
        lambda value: value.update(card="../x"),
        lambda value: value.update(by="\x1b]0;evil\x07"),
        lambda value: value.update(message="two\nlines"),
        lambda value: value.update(message="x" * 5000),
        lambda value: value.update(when="yesterday"),
        lambda value: value["teachers"][0].update(names=["\x1b[2J"]),
        lambda value: value["corpora"][0].update(rows=-1),
        lambda value: SHARD(value).update(bytes=0),
        lambda value: SHARD(value).update(bytes=-5),
        lambda value: SHARD(value).update(bytes=1.5),
        lambda value: SHARD(value).update(bytes=True),
        lambda value: SHARD(value).update(bytes=1 << 60),
        lambda value: SHARD(value).update(rows=10**30),
        lambda value: SHARD(value).update(sha256=DIGEST),
        lambda value: SHARD(value).update(sha256="x"),
        lambda value: SHARD(value).update(extra=1),
        lambda value: SHARD(value).pop("bytes"),
        lambda value: DOCUMENT(value).update(bytes=5 << 20),
    ],
)
def test_a_manifest_that_is_none_is_refused(remote: Path, change: Change) -> None:
    value = manifest_of(remote)
    change(value)
    put_manifest(remote, value)
    assert_refused(remote, "manifests/", "refused")
    found = list_remote(str(remote))
    assert (found.pushes, len(found.refused)) == ((), 1)
    assert all(why.isprintable() for why in found.refused.values())


@pytest.mark.parametrize(
    ("path", "size"),
    [
        (f"teachers/{ID}/codebooks/{DIGEST}.npy", 101 << 20),
        (f"teachers/{ID}/projection.safetensors", 513 << 20),
        (f"teachers/{ID}/names/more.json", 5 << 20),
    ],
)
def test_what_is_read_as_a_whole_has_to_be_small(remote: Path, path: str, size: int) -> None:
    value = manifest_of(remote)
    file = {"path": path, "sha256": DIGEST, "bytes": size}
    value["files"] = sorted([*value["files"], file], key=lambda one: str(one["path"]))
    put_manifest(remote, value)
    assert_refused(remote, "more than such a file may have")
    assert not (remote.parent / "cache").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
        b'{"version": 1}',
        b"\xff\xfe",
        b'{"version":NaN}',
    ],
    ids=lambda data: repr(data[:12]),
)
def test_nonsense_for_a_manifest_is_refused(remote: Path, data: bytes) -> None:
    put_manifest(remote, data)
    assert_refused(remote, "manifests/", "refused")


def test_another_spelling_of_a_manifest_is_refused(remote: Path) -> None:
    put_manifest(remote, json.dumps(manifest_of(remote), indent=1).encode())
    assert_refused(remote, "not spelled as manifests are")


def test_every_flipped_byte_of_a_manifest_is_found(remote: Path) -> None:
    ((name, data),) = files_of(remote, "manifests").items()
    for place in range(0, len(data), 97):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(ValueError, match="bytes are not those"):
            Manifest.from_bytes(bytes(changed), name.removesuffix(".json"))


def test_a_manifest_of_a_lying_name_is_refused(remote: Path) -> None:
    (path,) = (remote / "manifests").iterdir()
    path.rename(path.with_name(f"{DIGEST}.json"))
    assert_refused(remote, "its name is the sha256 of")


def test_manifests_without_end_are_not_read(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "MOST_MANIFEST_BYTES", 1000)
    assert_refused(remote, "more than 1,000 bytes")
    monkeypatch.undo()
    monkeypatch.setattr(remote_module, "MOST_MANIFESTS_BYTES", 1000)
    assert_refused(remote, "more than 1,000 bytes together")
    monkeypatch.undo()
    monkeypatch.setattr(remote_module, "MOST_MANIFESTS", 0)
    assert_refused(remote, "1 manifests, expected 0 at most")


@pytest.mark.parametrize("kind", ["/shards/", "corpus/corpus.json", "views/crop/", "contract.json", "names/"])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda data: data[:-1], "arrived"),
        (lambda data: data + b"x", "arrived"),
        (lambda data: data + bytes(50 << 20), "arrived"),
        (lambda data: bytes([data[0] ^ 1]) + data[1:], "arrive"),
        (lambda data: b"", "arrived"),
        (None, "is not there though a manifest lists it"),
    ],
    ids=["cut", "longer", "endless", "flipped", "empty", "gone"],
)
def test_objects_that_are_others_never_enter(
    remote: Path, kind: str, change: Callable[[bytes], bytes] | None, told: str
) -> None:
    digest = _first(kind)(manifest_of(remote))["sha256"]
    place = remote / "objects" / digest[:2] / digest
    if change is None:
        place.unlink()
    else:
        place.write_bytes(change(place.read_bytes()))
    message = assert_refused(remote, told)
    assert digest[:12] in message or kind.strip("/") in message
    if (remote.parent / "cache").exists():
        assert digest not in content(remote.parent / "cache").values()


def test_links_and_pipes_on_a_remote_are_not_followed(remote: Path, tmp_path: Path) -> None:
    digest = SHARD(manifest_of(remote))["sha256"]
    place = remote / "objects" / digest[:2] / digest
    kept = place.with_name("kept")
    place.rename(kept)
    place.symlink_to(kept)
    assert_refused(remote, "symbolic link")
    place.unlink()
    os.mkfifo(place)
    assert_refused(remote, "no regular file")


def _replace(remote: Path, kind: str, data: bytes, path: Callable[[str, str], str] | None = None) -> None:
    """Put other bytes in the place of a file, with a manifest that says so."""
    value = manifest_of(remote)
    file = _first(kind)(value)
    digest = put_object(remote, data)
    new = path(file["path"], digest) if path else file["path"]
    file.update(path=new, sha256=digest, bytes=len(data))
    file.pop("index", None)
    value["files"].sort(key=lambda one: one["path"])
    put_manifest(remote, value)


def _object(remote: Path, kind: str) -> bytes:
    digest = _first(kind)(manifest_of(remote))["sha256"]
    return (remote / "objects" / digest[:2] / digest).read_bytes()


def by_digest(path: str, digest: str) -> str:
    return f"{path.rpartition('/')[0]}/{digest}.arrow"


@pytest.mark.parametrize(
    "data", [b"x", b"ARROW1\0\0" + bytes(100) + b"ARROW1", bytes(10_000)], ids=["x", "hollow", "zeros"]
)
def test_a_shard_that_is_none_never_enters(remote: Path, data: bytes) -> None:
    _replace(remote, "/shards/", data, by_digest)
    assert_refused(remote, "/shards/", "is refused")
    assert hashlib.sha256(data).hexdigest() not in content(remote.parent / "cache").values()


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("kind", ["/shards/", PART_OF_CORPUS])
def test_what_is_compressed_is_never_unpacked(remote: Path, kind: str, compression: str) -> None:
    import pyarrow as pa

    batch = read_batch(pa.py_buffer(_object(remote, kind)))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(
        sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    old = _first(kind)(manifest_of(remote))["sha256"]
    _replace(remote, kind, data, by_digest)
    if kind == PART_OF_CORPUS:
        described = _describe(remote, old, hashlib.sha256(data).hexdigest())
        _replace(remote, "corpora/corpus/corpus.json", described)
    assert_refused(remote, "is refused")
    assert hashlib.sha256(data).hexdigest() not in content(remote.parent / "cache").values()


def test_a_bomb_of_a_few_bytes_takes_no_memory(remote: Path) -> None:
    import pyarrow as pa

    batch = read_batch(pa.py_buffer(_object(remote, "/shards/")))
    fields = [pa.field("key", pa.binary(16)), pa.field("vector", pa.list_(pa.float32(), 8))]
    rows = 4_000_000
    columns = [pa.array([bytes(16)] * 1000), pa.array([[0.0] * 8] * 1000, fields[1].type)]
    bomb = pa.record_batch(
        [
            pa.concat_arrays([one.cast(field.type)] * (rows // 1000))
            for one, field in zip(columns, fields, strict=True)
        ],
        schema=pa.schema(fields, batch.schema.metadata),
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, bomb.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(bomb)
    data = sink.getvalue().to_pybytes()
    assert len(data) < rows
    del bomb, columns
    _replace(remote, "/shards/", data, by_digest)
    before = pa.total_allocated_bytes()
    peak = pa.default_memory_pool().max_memory()
    assert_refused(remote, "is refused")
    assert pa.total_allocated_bytes() <= before + (1 << 20)
    assert pa.default_memory_pool().max_memory() == peak


def test_a_shard_of_another_teacher_never_enters(remote: Path, tmp_path: Path) -> None:
    other = make_cache(tmp_path.parent / "other", TEXTS[:40], teacher=fake_teacher(8, seed=7))
    data = next(other.folder.glob("teachers/*/shards/*.arrow")).read_bytes()
    _replace(remote, "/shards/", data, by_digest)
    assert_refused(remote, "it belongs to the teacher")


def test_a_shard_whose_codebook_nobody_lists_never_enters(remote: Path, tmp_path: Path) -> None:
    other = make_cache(tmp_path.parent / "pq", [f"text {n}" for n in range(400)], codec="pq", shard_rows=400)
    data = next(other.folder.glob("teachers/*/shards/*.arrow")).read_bytes()
    _replace(remote, "/shards/", data, by_digest)
    assert_refused(remote, "codebook")


def _swap_texts(data: bytes) -> bytes:
    """Return a part whose texts stand beside the keys of others."""
    import pyarrow as pa

    batch = read_batch(pa.py_buffer(data))
    texts = batch.column("original").to_pylist()
    columns = {"key": batch.column("key"), "original": pa.array(texts[::-1], pa.large_string())}
    return bytes(part_bytes(0, columns, {"original": "large_string"}))


def _describe(remote: Path, old: str, new: str) -> bytes:
    """Return the description of the corpus with a part of another digest."""
    value = json.loads(_object(remote, "corpora/corpus/corpus.json"))
    value.pop("sha256")
    text = json.dumps(value).replace(old, new)
    return spelled_json(sealed(json.loads(text)))


def test_texts_beside_the_keys_of_others_are_never_described(remote: Path) -> None:
    old = PART(manifest_of(remote))["sha256"]
    data = _swap_texts(_object(remote, PART_OF_CORPUS))
    _replace(remote, PART_OF_CORPUS, data, by_digest)
    described = _describe(remote, old, hashlib.sha256(data).hexdigest())
    _replace(remote, "corpora/corpus/corpus.json", described)
    assert_refused(remote, "keys are not those of their texts")
    assert Cache(remote.parent / "cache").corpus_names() == []


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("corpora/corpus/corpus.json", b"{}"),
        ("corpora/corpus/corpus.json", spelled_json(sealed({"version": 2, "name": "corpus"}))),
        ("corpora/corpus/corpus.json", spelled_json(sealed({"version": 99, "name": "corpus"}))),
        ("recipe.json", b"[]"),
        ("recipe.json", spelled_json(sealed({"version": 1}))),
        ("names/fake.json", spelled_json(sealed({"spec": 1}))),
        ("names/fake.json", b'{"spec": "x"}'),
        ("contract.json", b"{}"),
        ("contract.json", spelled_json({**fake_teacher(8).contract.to_json(), "pooling": "cls"})),
    ],
    ids=str,
)
def test_documents_are_read_before_anything_is_written(remote: Path, kind: str, data: bytes) -> None:
    _replace(remote, kind, data)
    assert_refused(remote, kind.rpartition("/")[2], "refused")
    assert not (remote.parent / "cache").exists()


def test_a_description_of_parts_that_nobody_lists_is_refused(remote: Path) -> None:
    old = PART(manifest_of(remote))["sha256"]
    _replace(remote, "corpora/corpus/corpus.json", _describe(remote, old, DIGEST))
    assert_refused(remote, "no manifest lists it")
    assert not (remote.parent / "cache").exists()


def test_two_contracts_of_one_teacher_are_refused(remote: Path) -> None:
    value = manifest_of(remote)
    data = b"{}"
    _first("contract.json")(value).update(sha256=put_object(remote, data), bytes=len(data))
    honest = files_of(remote, "manifests")
    put_manifest(remote, value)
    for name, kept in honest.items():
        (remote / "manifests" / name).write_bytes(kept)
    assert_refused(remote, "has 2 contracts")


def test_a_link_in_the_cache_is_not_written_through(remote: Path, tmp_path: Path) -> None:
    pull(tmp_path / "box" / "cache", str(remote), PullChoice(text=False))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "box" / "cache" / "corpora").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EmbedCacheError, match="symbolic link"):
        pull(tmp_path / "box" / "cache", str(remote))
    assert list((tmp_path / "elsewhere").iterdir()) == []
