"""A build that stops in the middle of a shard goes on with the batches that it had encoded."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import build, content, write_lines
from embedding_server import EmbeddingServer, embedding_server

import embedcache.probes
from embedcache.building import pending
from embedcache.cache import Cache
from embedcache.errors import ContractMismatchError, NonFiniteVectorError, ServedTeacherError, TeacherError
from embedcache.keys import key_array
from embedcache.store import VectorBatch
from embedcache.store.pieces import Pieces
from embedcache.teacher.batching import EncodedTexts
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher
from embedcache.teacher.served import ServedEncoder, load_served
from embedcache.testing import FakeEncoder, example_batch, fake_teacher, sentences

TEXTS = sentences(2000, seed=3)
SHARD_ROWS = 1500
"""One whole shard and a rest; a batch of ``FakeEncoder`` has 256 rows."""


@pytest.fixture(autouse=True)
def no_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the rows of a build alone; ``test_stored_probes`` holds what probes promise."""
    monkeypatch.setattr(embedcache.probes, "COUNT", 0)


class Stopping(FakeEncoder):
    """Encoder that raises an error in place of the batch of a number."""

    def __init__(self, after: int = 99, error: BaseException | None = None, nan: str = "") -> None:
        super().__init__(fake_teacher(8))
        self.after, self.error, self.nan = after, error or TeacherError("stopped"), nan

    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        if self.after == 0:
            raise self.error
        self.after -= 1
        encoded = super().encode(texts)
        encoded.vectors[[text == self.nan for text in texts]] = np.nan
        return encoded


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "corpus.txt", TEXTS)


Run = Callable[..., Cache]


@pytest.fixture
def run(tmp_path: Path, source: Path) -> Run:
    """Return a build of TEXTS with an encoder."""

    def built(encoder: Any, cache: str = "cache", **settings: Any) -> Cache:
        given = {"shard_rows": SHARD_ROWS, **settings}
        return build(source, tmp_path / cache, encoder.teacher, encoder=encoder, **given)

    return built


def pieces(cache: Path) -> list[Path]:
    return sorted(cache.glob("derived/pending/*/*.arrow"))


def stopped(run: Run, cache: Path, batches: int = 3) -> int:
    """Stop a build after some batches; return how many rows are pending."""
    with pytest.raises(TeacherError):
        run(Stopping(batches), cache.name)
    return batches * 256


@pytest.mark.parametrize("seconds", [0.0, 999.0], ids=["kept all the time", "kept at the end"])
def test_only_the_rest_is_encoded_to_the_same_bytes(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(pending, "KEEP_SECONDS", seconds)
    stopped(run, tmp_path / "cache")
    assert pieces(tmp_path / "cache")
    # It stops again, after the first batch of the second shard.
    stopped(run, tmp_path / "cache", 4)
    again = Stopping()
    done = run(again).result
    assert done is not None
    assert (done.cached, done.resumed, done.encoded) == (SHARD_ROWS, 256, again.rows_encoded)
    assert done.cached + done.resumed + done.encoded == len(TEXTS)
    assert not pieces(tmp_path / "cache")
    assert content(tmp_path / "cache") == content(run(Stopping(), "peace").folder)


def test_a_quick_build_writes_no_piece(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pieces, "add", None)
    assert len(run(Stopping()).lookup(TEXTS)) == len(TEXTS)


def test_ctrl_c_says_how_much_is_kept(run: Run, tmp_path: Path) -> None:
    # A piece of another build does not count.
    contract = fake_teacher(8).contract
    Pieces(tmp_path / "cache" / "derived" / "pending" / contract.id, contract).add(example_batch(["other"]))
    Cache.create(tmp_path / "cache" / "derived" / "x")
    (tmp_path / "cache" / "cache.json").write_bytes(
        (tmp_path / "cache" / "derived" / "x" / "cache.json").read_bytes()
    )
    for batches, kept in ((3, "768"), (1, "1,024")):
        with pytest.raises(KeyboardInterrupt, match=f"{kept} rows"):
            run(Stopping(batches, KeyboardInterrupt()))
    done = run(Stopping()).result
    assert done is not None
    assert done.resumed == 1024


def test_a_damaged_piece_is_written_again(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        stopped(run, tmp_path / "cache", 1)
        (piece,) = pieces(tmp_path / "cache")
        sound = piece.read_bytes()
        flip(piece)
    stopped(run, tmp_path / "cache", 1)
    assert piece.read_bytes() == sound


def flip(piece: Path) -> None:
    data = bytearray(piece.read_bytes())
    data[len(data) // 2] ^= 1
    piece.write_bytes(data)


def cut(piece: Path) -> None:
    piece.write_bytes(piece.read_bytes()[:-9])


def link(piece: Path) -> None:
    elsewhere = piece.parents[4] / "elsewhere"
    piece.rename(elsewhere)
    piece.symlink_to(elsewhere)


def replace_with(texts: list[str], **changes: Any) -> Callable[[Path], None]:
    """Return a function that replaces a piece by a sound piece of other rows, or of another teacher."""

    def change(piece: Path) -> None:
        piece.unlink()
        contract = fake_teacher(8, **changes).contract
        batch = example_batch(texts)
        (other := Pieces(piece.parent, contract)).add(batch)
        assert len(list(other.open(other.names()))) == 1

    return change


def spoil(piece: Path) -> None:
    """Put a sound piece of NaN, or of a provenance without a spelling, beside the same rows."""
    folder = Pieces(piece.parent, fake_teacher(8).contract)
    (found,) = folder.open([piece.stem])
    rows = VectorBatch(
        found.keys,
        np.full_like(found.stored.vector, np.nan),
        found.tokens,
        found.truncated,
        found.header.provenance,
    )
    piece.unlink()
    folder.add(rows)


FIRST = TEXTS[:256]


@pytest.mark.parametrize(
    "change",
    [
        flip,
        cut,
        link,
        Path.unlink,
        lambda piece: shutil.rmtree(piece.parents[2]),
        spoil,
        replace_with(FIRST, seed=1),
        replace_with(sentences(256, seed=9)),
        # Its provenance is another one.
        replace_with(FIRST),
    ],
    ids=[
        "flipped",
        "cut",
        "link",
        "deleted",
        "no derived",
        "NaN",
        "other teacher",
        "other rows",
        "other machine",
    ],
)
def test_a_piece_that_is_not_what_it_was_is_not_taken(
    run: Run, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    stopped(run, tmp_path / "cache", 1)
    (piece,) = pieces(tmp_path / "cache")
    change(piece)
    encoder = Stopping()
    done = run(encoder).result
    assert done is not None
    assert (encoder.rows_encoded, done.resumed) == (len(TEXTS), 0)
    assert content(tmp_path / "cache") == content(run(Stopping(), "peace").folder)


def test_batches_of_other_sizes_are_not_taken(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(run, tmp_path / "cache")
    monkeypatch.setattr("embedcache.testing._BATCH", 128)
    done = run(Stopping()).result
    assert done is not None
    assert (done.resumed, done.encoded) == (0, len(TEXTS))
    assert not pieces(tmp_path / "cache")


def test_a_batch_with_nan_is_not_kept(run: Run, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteVectorError):
        run(Stopping(nan=TEXTS[300]))
    done = run(Stopping()).result
    assert done is not None
    assert done.resumed == SHARD_ROWS - 256


def test_a_piece_that_cannot_be_written_does_not_stop_the_build(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "KEEP_SECONDS", 0.0)
    (tmp_path / "cache").mkdir()
    Cache.create(tmp_path / "cache").derived_folder.mkdir()
    (tmp_path / "cache" / "derived" / "pending").write_text("no folder")
    assert len(run(Stopping()).lookup(TEXTS)) == len(TEXTS)


def test_no_piece_takes_the_room_of_the_shard(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "KEEP_SECONDS", 0.0)
    nearly_full = shutil.disk_usage(tmp_path)._replace(free=SHARD_ROWS * 8 * 4)
    monkeypatch.setattr("shutil.disk_usage", lambda path: nearly_full)
    stopped(run, tmp_path / "cache")
    assert not pieces(tmp_path / "cache")


def test_a_real_teacher_goes_on_to_the_same_bytes(
    source: Path, tmp_path: Path, loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def built(cache: str) -> Cache:
        encoder = Encoder(loaded_teacher, compute_dtype="float32", threads=2, batch_tokens=512)
        return build(source, tmp_path / cache, loaded_teacher, encoder=encoder)

    forward, calls = Encoder.forward, list[int]()

    def stops(self: Encoder, features: dict[str, Any]) -> np.ndarray:
        if len(calls) >= 20:
            raise TeacherError("stopped")
        calls.append(len(features["input_ids"]))
        return forward(self, features)

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "forward", stops)
        with pytest.raises(TeacherError):
            built("cache")
    done = built("cache").result
    assert done is not None
    # A batch that was being forwarded when the error came is kept as well.
    assert done.resumed == sum(calls) > 200
    assert content(tmp_path / "cache") == content(built("peace").folder)


# Served teachers


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with embedding_server() as running:
        yield running


def served(server: EmbeddingServer) -> ServedEncoder:
    return ServedEncoder(load_served(f"openai:m@{server.url}", retries=0), requests=1)


def test_an_answer_that_was_paid_for_is_not_asked_for_again(
    run: Run, tmp_path: Path, server: EmbeddingServer
) -> None:
    encoder = served(server)
    server.statuses = [(200, {}, False)] * 20 + [(500, {}, False)]
    with pytest.raises(ServedTeacherError):
        run(encoder)
    first = len(server.requests)
    run(served(server))
    asked = [text for request in server.requests for text in request["input"] if text in set(TEXTS)]
    # The texts of the request that failed.
    assert len(asked) - len(set(asked)) <= 32
    assert first > 20
    assert content(tmp_path / "cache") == content(run(served(server), "peace").folder)


def test_nothing_of_a_server_that_changed_is_kept(
    run: Run, tmp_path: Path, server: EmbeddingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "KEEP_SECONDS", 0.0)
    encoder = served(server)
    server.seed = 1
    with pytest.raises(ContractMismatchError):
        run(encoder)
    assert not pieces(tmp_path / "cache")


# Several processes


def test_what_stopped_workers_left_is_stored_first(run: Run, tmp_path: Path) -> None:
    kept = stopped(run, tmp_path / "cache")
    cache = Cache(tmp_path / "cache")
    store = cache.store(fake_teacher(8).contract)
    pending.store_pending(cache.derived_folder, store, 500, "float32")
    assert not store.shards
    pending.store_pending(cache.derived_folder, store, 500)
    assert sorted(len(shard) for shard in store.shards) == [kept - 500, 500]
    assert (store.locate(key_array(TEXTS[:kept])) >= 0).all()
    assert not pieces(tmp_path / "cache")
    done = run(Stopping()).result
    assert done is not None
    assert (done.encoded, done.resumed) == (len(TEXTS) - kept, 0)
