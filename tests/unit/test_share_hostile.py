"""Hostile remotes: nothing enters the cache, nothing is written outside it, and there is one clear error."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import flip_middle
from sharing import (
    TEXTS,
    content,
    digests_of,
    edit,
    make_cache,
    make_key,
    manifests_of,
    objects_in,
    put_manifest,
    put_object,
    replace_object,
)

from embedcache.arrow_file import read_batch
from embedcache.corpus.part import part_bytes
from embedcache.errors import EmbedCacheError, InputError, RemoteError
from embedcache.fsio import sealed, spelled_json
from embedcache.share import pull, push
from embedcache.testing import fake_teacher

ID, OTHER_ID = fake_teacher(8).contract.id, fake_teacher(8, seed=4).contract.id
D = "ab" * 32
SHARD, PART, CORPUS, RECIPE = "/shards/", r"^corpora/corpus/[0-9a-f]{64}", "corpus/corpus.json", "recipe.json"

Attack = Callable[[Path], object]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a remote, and the cache that was pushed to it."""
    folder = tmp_path_factory.mktemp("honest")
    push(make_cache(folder / "cache", TEXTS[:100], views=["crop"]).folder, str(folder / "remote"))
    return folder


@pytest.fixture
def remote(honest: Path, tmp_path: Path) -> Path:
    """Return a copy of an honest remote, alone in a folder beside a file that must not change."""
    shutil.copytree(honest / "remote", tmp_path / "box" / "remote")
    (tmp_path / "outside").write_text("untouched")
    return tmp_path / "box" / "remote"


def refused(remote: Path, *words: str) -> None:
    """Assert that a pull is refused with one error, and has written nothing but ``derived/``."""
    box = remote.parent
    with pytest.raises(RemoteError) as found:
        pull(box / "cache", str(remote))
    assert all(word in str(found.value) for word in words), found.value
    assert str(found.value).isprintable()
    assert (box.parent / "outside").read_text() == "untouched"
    assert {path.name for path in box.parent.iterdir()} == {"box", "outside"}
    assert {path.name for path in box.iterdir()} <= {"remote", "cache"}
    if (box / "cache").exists():
        assert set(content(box / "cache")) == {"cache.json"}
        assert not [path for path in (box / "cache").rglob("*") if path.is_symlink()]


# What may be wrong with a manifest


def changed(change: Callable[[dict[str, Any]], object]) -> Attack:
    """Change the manifest."""

    def do(remote: Path) -> None:
        (value,) = manifests_of(remote)
        change(value)
        put_manifest(remote, value)

    return do


def shard(**fields: object) -> Attack:
    """Change fields of a shard in the manifest."""
    return lambda remote: edit(remote, SHARD, lambda file: file.update(fields))


def added(path: str, data: bytes = b"evil") -> Attack:
    """Add a file to the remote and the manifest."""

    def do(remote: Path) -> None:
        entry = {"path": path, "sha256": put_object(remote, data), "bytes": len(data)}
        changed(lambda value: value["files"].append(entry))(remote)

    return do


def without(pattern: str) -> Attack:
    """Leave files out of the manifest."""
    return changed(
        lambda value: value.update(files=[f for f in value["files"] if not re.search(pattern, f["path"])])
    )


# fmt: off
PATHS = [
    "../outside", "/outside", "", "C:\\x", ".tmp-x", "cache.json", f"derived/models/{ID}.json",
    f"teachers/{ID}/../../../outside", f"teachers/{ID}/shards/{D}.arrow/../../x", "corpora/../corpus.json",
    f"teachers/{ID}/shards/{D}.arrow\n", f"teachers/{ID}/vectors.mdb", f"teachers/{ID[:-1]}/contract.json",
    f"teachers/{ID}/names/.hidden.json", f"teachers/{ID}/modeling.py", "corpora/x\0/corpus.json",
    "corpora/corpus/views/original/corpus.json",
]
RAW = [
    b"", b"[]", b"\xff\xfe", b'{"files":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"version":' + b"9" * 5000 + b"}", b'{"files":[],"version":1e999,"when":"2026-01-31T12:00:00Z"}',
]
# fmt: on
MANIFESTS: dict[str, Attack] = {
    **{f"path {path!r}"[-40:]: added(path) for path in PATHS},
    **{f"raw {data[:10]!r}": lambda remote, data=data: put_manifest(remote, data) for data in RAW},  # type: ignore[misc]
    "older version": changed(lambda value: value.update(version=1)),
    "unknown field": changed(lambda value: value.update(more=1)),
    "long message": changed(lambda value: value.update(message="x" * 5000)),
    "negative bytes": shard(bytes=-5),
    "endless bytes": shard(bytes=1 << 60),
    "digest of another path": shard(sha256=D),
    "no rows": shard(rows=0),
    "rows of no shard": changed(lambda value: value["files"][0].update(rows=5)),
    "name is not its digest": lambda remote: flip_middle(next((remote / "manifests").iterdir())),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_is_wrong_is_refused_by_its_digest(remote: Path, name: str) -> None:
    MANIFESTS[name](remote)
    (digest,) = digests_of(remote)
    refused(remote, digest[:12], "skip_manifests")


def test_a_giant_manifest_is_not_read(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.share.manifest.MOST_MANIFEST_BYTES", 1000)
    refused(remote, "1,000 bytes")


def test_a_refused_manifest_stops_pushes_and_is_left_out_by_its_digest(remote: Path, honest: Path) -> None:
    digest = put_manifest(remote, b"{}", alone=False)
    with pytest.raises(RemoteError, match=digest[:12]):
        push(honest / "cache", str(remote))
    assert pull(remote.parent / "cache", str(remote), skip_manifests=[digest[:12]]).vectors == {"fake": 100}
    for wrong in ("", "000000", digest[:3]):
        with pytest.raises(InputError):
            pull(remote.parent / "cache", str(remote), skip_manifests=[wrong])


# What may be wrong with an object


def harmed(kind: str, harm: Callable[[Path], object]) -> Attack:
    """Change an object and nothing else."""
    return lambda remote: harm(objects_in(remote)[edit(remote, kind, lambda file: None)["sha256"]])


def instead(kind: str, make: Callable[[Path], object]) -> Attack:
    """Put something else in the place of an object."""
    return harmed(kind, lambda path: (path.unlink(), make(path)))


def replaced(kind: str, change: Callable[[bytes], bytes]) -> Attack:
    """Give a file other bytes, and describe it so."""
    return lambda remote: replace_object(remote, kind, change)


def shard_of_another_teacher(remote: Path) -> None:
    other = make_cache(remote.parents[2] / "other", TEXTS[:40], teacher=fake_teacher(8, seed=4))
    replace_object(remote, SHARD, lambda data: next(other.folder.rglob("shards/*.arrow")).read_bytes())


def texts_of_others(remote: Path) -> None:
    """Give the corpus a part whose texts stand beside the keys of others."""

    def swapped(data: bytes) -> bytes:
        batch = read_batch(pa.py_buffer(data))
        texts = pa.array(batch.column("original").to_pylist()[::-1], pa.large_string())
        columns = {"key": batch.column("key"), "original": texts}
        return bytes(part_bytes(0, columns, {"original": "large_string"}))

    def described(data: bytes) -> bytes:
        value = json.loads(data)
        del value["sha256"]
        value["parts"][0]["sha256"] = Path(path).stem
        return spelled_json(sealed(value))

    path = replace_object(remote, PART, swapped)
    replace_object(remote, CORPUS, described)


class Evil:
    """Unpickled, it writes to the file outside."""

    def __init__(self, remote: Path) -> None:
        self.target = remote.parents[1] / "outside"

    def __reduce__(self) -> Any:
        return Path.write_text, (self.target, "touched")


def evil_codebook(remote: Path) -> None:
    """Add a codebook that is an array with a pickle inside."""
    stream = io.BytesIO()
    np.save(stream, np.array([Evil(remote)], dtype=object), allow_pickle=True)
    data = stream.getvalue()
    added(f"teachers/{ID}/codebooks/{put_object(remote, data)}.npy", data)(remote)


TENSORS = (1 << 40).to_bytes(8, "little") + b"{}"
OBJECTS: dict[str, Attack] = {
    "cut": harmed(SHARD, lambda path: os.truncate(path, 300)),
    "much longer": harmed(RECIPE, lambda path: path.write_bytes(bytes(8 << 20))),
    "flipped": harmed(RECIPE, flip_middle),
    "missing": harmed(SHARD, Path.unlink),
    "link outside": instead(SHARD, lambda path: path.symlink_to(path.parents[4] / "outside")),
    "link to a device": instead(RECIPE, lambda path: path.symlink_to("/dev/zero")),
    "fifo": instead(SHARD, os.mkfifo),
    "shard with zeros": replaced(SHARD, lambda data: data[:300] + bytes(40) + data[340:]),
    "shard of another teacher": shard_of_another_teacher,
    "nonsense for a part": replaced(PART, lambda data: b"x" * len(data)),
    "texts of others": texts_of_others,
    "empty description": replaced(CORPUS, lambda data: b"{}"),
    "deep description": replaced(CORPUS, lambda data: b"[" * 50_000),
    "other contract": replaced("contract.json", lambda data: data.replace(b": 64", b": 65")),
    "contract under another id": changed(
        lambda value: [file.update(path=file["path"].replace(ID, OTHER_ID)) for file in value["files"]]
    ),
    "broken seal": replaced("names/", lambda data: data.replace(b"fake", b"evil")),
    "more rows": shard(rows=41),
    "missing keys": shard(keys="cd" * 32),
    "keys of others": lambda remote: shard(keys=put_object(remote, bytes(16 * 40)))(remote),
    "codebook of objects": evil_codebook,
    "projection": added(f"teachers/{ID}/projection.safetensors", TENSORS),
    "token table": added(f"teachers/{ID}/token_embeddings.safetensors", TENSORS),
    "corpus without its part": without(PART),
    "view without its files": added("corpora/corpus/views/evil/recipe.json"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_wrong_content_never_enters(remote: Path, name: str) -> None:
    OBJECTS[name](remote)
    refused(remote)


@pytest.mark.parametrize("attack", [OBJECTS["texts of others"], None], ids=["texts", "name of another"])
def test_nothing_enters_a_cache_that_is_in_use(remote: Path, attack: Attack | None) -> None:
    teacher = fake_teacher(8, seed=0 if attack else 4)
    mine = make_cache(remote.parent / "cache", TEXTS[100:140], name="mine", teacher=teacher)
    before = content(mine.folder)
    if attack:
        attack(remote)
    with pytest.raises(EmbedCacheError):
        pull(mine.folder, str(remote))
    assert content(mine.folder) == before


def test_a_shard_of_no_teacher_belongs_to_nothing(remote: Path) -> None:
    edit(remote, SHARD, lambda file: file.update(path=file["path"].replace(ID, OTHER_ID)))
    assert pull(remote.parent / "cache", str(remote)).vectors == {"fake": 60}
    assert [path.name for path in (remote.parent / "cache" / "teachers").iterdir()] == [ID]


# Signatures


@pytest.fixture
def signed(tmp_path: Path, honest: Path) -> tuple[Path, Path]:
    """Return a remote with one signed manifest, and the public key."""
    private, public = make_key(tmp_path, "ann")
    push(honest / "cache", str(tmp_path / "remote"), sign=private)
    return tmp_path / "remote", public


def test_only_signed_manifests_count(signed: tuple[Path, Path], honest: Path, tmp_path: Path) -> None:
    """Others do not matter, even one that cannot be used."""
    remote, public = signed
    put_manifest(remote, b"{}", alone=False)
    _, other = make_key(tmp_path, "bob")
    (keys := tmp_path / "keys").write_bytes(b"# team\n\n%s\n%s\n" % (other.read_bytes(), public.read_bytes()))
    pull(tmp_path / "mine", str(remote), require_signature=keys)
    assert content(tmp_path / "mine") == content(honest / "cache")


def forged(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "signature": "00" * 64}))


def of_another_manifest(path: Path) -> None:
    remote = path.parents[2]
    digest = put_manifest(remote, {**manifests_of(remote)[0], "by": "Mallory"})
    path.parent.rename(path.parent.with_name(digest))


@pytest.mark.parametrize("attack", [Path.unlink, flip_middle, forged, of_another_manifest, None])
def test_manifests_without_a_right_signature_are_refused(
    signed: tuple[Path, Path], tmp_path: Path, attack: Attack | None
) -> None:
    """The last is signed with a key that is not asked for."""
    remote, public = signed
    (signature,) = remote.glob("signatures/*/*.json")
    keys = public if attack else make_key(tmp_path, "bob")[1]
    if attack:
        attack(signature)
    with pytest.raises(RemoteError, match="signed by SHA256:"):
        pull(tmp_path / "mine", str(remote), require_signature=keys)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("line", [b'command="sh" %s', b"%s\nssh-rsa AAAA x", b"", b"# %s", b"nonsense"])
def test_files_with_anything_but_public_keys_are_refused(
    signed: tuple[Path, Path], tmp_path: Path, line: bytes
) -> None:
    remote, public = signed
    (tmp_path / "keys").write_bytes(line.replace(b"%s", public.read_bytes()))
    for keys in ("keys", "ann", "none"):
        with pytest.raises(InputError):
            pull(tmp_path / "mine", str(remote), require_signature=tmp_path / keys)
