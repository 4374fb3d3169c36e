"""The deep check: stored vectors beside the live teacher's, and both beside the teacher's own noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from check_helpers import TEXTS, build_with, copy_of, write_source
from click.testing import CliRunner

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.doctor.deep import DeepCheck, check_deep, compare_vectors
from embedcache.errors import ContractMismatchError, CorruptCacheError, InputError, TeacherError
from embedcache.keys import key_array
from embedcache.live import Computing
from embedcache.store import VectorBatch
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.testing import FakeEncoder, fake_teacher, tiny_encoder

ON_CPU = Computing(device="cpu", threads=1)


@pytest.fixture(scope="module")
def encoder(loaded_teacher: Teacher) -> Encoder:
    return Encoder(loaded_teacher, compute_dtype="float32", threads=1)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, encoder: Encoder) -> Path:
    """Return a cache built with the tiny encoder; not to be changed."""
    folder = tmp_path_factory.mktemp("deep")
    return build_with(folder / "cache", write_source(folder), encoder).folder


def line_of(check: DeepCheck, measure: str) -> float:
    (found,) = [line.stored for line in check.lines if line.measure == measure]
    return found


@pytest.mark.parametrize("codec", ["float32", "float16", "int8", "pq"])
def test_a_right_cache_is_as_near_as_the_teacher_is_to_itself(
    tmp_path: Path, encoder: Encoder, codec: str
) -> None:
    cache = build_with(tmp_path / "cache", write_source(tmp_path), encoder, codec=codec).folder
    (check,) = check_deep(cache, sample=200, computing=ON_CPU)
    assert check.worst == "ok"
    assert check.sampled == 200
    assert check.vectors == len(TEXTS)
    assert check.compute_dtypes == ("float32",)
    assert check.compute_dtype == "float32"
    for line in check.lines:
        assert line.stored == pytest.approx(line.noise, rel=0.3, abs=1e-6), line.measure
    # What a codec loses is not held against the store, but it is seen.
    lost = line_of(check, "1 - mean cosine")
    least = {"float32": 0.0, "float16": 1e-9, "int8": 1e-6, "pq": 1e-4}
    assert lost >= least[codec]


def put_vectors_of(model: Teacher, cache: Path, teacher: Teacher, share: float) -> None:
    """Store the texts' vectors under ``teacher``'s contract, a share of them computed by ``model``."""
    opened = Cache.create(cache)
    opened.register_teacher(teacher.name, teacher.contract, {"spec": "tiny"})
    opened.remember_model(teacher.contract, str(teacher.folder))
    strangers = int(len(TEXTS) * share)
    store = opened.store(teacher.contract, "float32")
    for texts, source in ((TEXTS[:strangers], model), (TEXTS[strangers:], teacher)):
        if texts:
            one = Encoder(source, compute_dtype="float32", threads=1)
            encoded = one.encode(texts)
            store.put(
                VectorBatch(
                    key_array(texts), encoded.vectors, encoded.tokens, encoded.truncated, one.provenance
                )
            )
    store.finish()


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_vectors_of_another_teacher_are_caught(
    built: Path, loaded_teacher: Teacher, tmp_path: Path, share: float
) -> None:
    other = load_teacher(tiny_encoder(tmp_path / "other", seed=1), device="cpu")
    assert other.contract != loaded_teacher.contract
    cache = tmp_path / "cache"
    put_vectors_of(other, cache, loaded_teacher, share)
    (cache / "corpora").mkdir()
    copy_of(built / "corpora" / "corpus", cache / "corpora" / "corpus")
    (check,) = check_deep(cache, computing=ON_CPU)
    assert check.sampled == len(TEXTS)
    assert check.worst == "bad"
    verdicts = {line.measure: line.verdict for line in check.lines}
    assert verdicts["1 - worst cosine"] == "bad"
    assert verdicts["1 - mean cosine"] == "bad"
    assert line_of(check, "1 - worst cosine") > 0.1


def test_another_compute_dtype_is_worth_a_look_and_no_more(tmp_path: Path, tiny_teacher: Path) -> None:
    build(
        write_source(tmp_path),
        teacher=tiny_teacher,
        cache=tmp_path / "cache",
        text_column="text",
        codec="float32",
        compute_dtype="bfloat16",
        device="cpu",
        threads=1,
    )
    (same,) = check_deep(tmp_path / "cache", computing=ON_CPU)
    assert (same.compute_dtype, same.worst) == ("bfloat16", "ok")
    (finer,) = check_deep(
        tmp_path / "cache", computing=Computing(device="cpu", threads=1, compute_dtype="float32")
    )
    assert (finer.compute_dtypes, finer.compute_dtype) == (("bfloat16",), "float32")
    assert finer.worst == "look"


def test_another_model_is_refused_by_field(built: Path, tmp_path: Path) -> None:
    other = tiny_encoder(tmp_path / "other", seed=1)
    with pytest.raises(ContractMismatchError, match="weights") as caught:
        check_deep(built, computing=Computing(teacher_model=other, device="cpu"))
    assert "--teacher-model" in str(caught.value)


def test_the_sample_is_a_function_of_its_seed(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    encode = Encoder.encode
    monkeypatch.setattr(
        Encoder, "encode", lambda self, texts: seen.append(list(texts)) or encode(self, texts)
    )
    for seed in (0, 0, 1):
        check_deep(built, sample=50, seed=seed, computing=ON_CPU)
    # Each check encodes the sample at once, and then in other batches.
    calls = len(seen) // 3
    once, again, other = seen[::calls]
    shuffled = [text for batch in seen[1:calls] for text in batch]
    assert once == again
    assert once != shuffled
    assert sorted(once) == sorted(shuffled)
    assert 0 < len(set(once) & set(other)) < 50


def test_what_cannot_be_compared_is_refused(built: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--sample 11"):
        check_deep(built, sample=11)
    with pytest.raises(InputError, match="no corpus 'no'"):
        check_deep(built, corpus="no")
    with pytest.raises(InputError, match="no teacher 'no'"):
        check_deep(built, teacher="no")
    with pytest.raises(InputError, match="holds no vectors"):
        check_deep(Cache.create(tmp_path / "empty").folder)
    few = tmp_path / "few.txt"
    few.write_text("\n".join(TEXTS[:5]))
    teacher = fake_teacher(16)
    build(few, teacher=teacher, encoder=FakeEncoder(teacher), cache=tmp_path / "few")
    with pytest.raises(InputError, match="5 texts of the corpora have a vector"):
        check_deep(tmp_path / "few")


def test_a_damaged_cache_is_refused(built: Path, tmp_path: Path) -> None:
    cache = copy_of(built, tmp_path / "cache")
    shard = min(cache.glob("teachers/*/shards/*"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(CorruptCacheError, match="repair"):
        check_deep(cache, computing=ON_CPU)


def test_the_command_shows_the_deep_check_and_its_verdict(built: Path, tmp_path: Path) -> None:
    arguments = ["verify", "--cache", str(built), "--deep", "--sample", "40", "--seed", "3"]
    arguments += ["--device", "cpu", "--threads", "1"]
    done = CliRunner().invoke(cli, arguments, env={"COLUMNS": "200"})
    assert done.exit_code == 0
    assert "1 - mean cosine" in done.output
    assert "tiny: 40 of 640 vectors, computed in float32, encoded again in float32" in done.output
    told = json.loads(CliRunner().invoke(cli, [*arguments, "--json"]).output)
    assert told["sound"] is True
    assert [check["worst"] for check in told["deep"]] == ["ok"]
    cache = copy_of(built, tmp_path / "cache")
    (cache / "cache.json").write_text("{}")
    done = CliRunner().invoke(cli, [*arguments[:2], str(cache), *arguments[3:]], env={"COLUMNS": "200"})
    assert done.exit_code == 1
    assert "--deep was left out" in done.output


def test_the_command_names_the_shards_of_a_bad_sample(
    built: Path, loaded_teacher: Teacher, tmp_path: Path, tiny_teacher: Path
) -> None:
    other = load_teacher(tiny_encoder(tmp_path / "other", seed=1), device="cpu")
    cache = tmp_path / "cache"
    put_vectors_of(other, cache, loaded_teacher, 1.0)
    (cache / "corpora").mkdir()
    copy_of(built / "corpora" / "corpus", cache / "corpora" / "corpus")
    arguments = ["verify", "--cache", str(cache), "--deep", "--device", "cpu", "--threads", "1"]
    done = CliRunner().invoke(cli, [*arguments, "--teacher-model", str(tiny_teacher)])
    assert done.exit_code == 1
    (name,) = [shard.stem for shard in cache.glob("teachers/*/shards/*.arrow")]
    assert f"wrong vectors show in 1 shard: {name[:12]}; delete them from teachers/" in done.output
    assert f"{cache}: its files are sound, " in done.output


def test_where_the_model_is_not_found_the_option_for_it_is_named(built: Path, tmp_path: Path) -> None:
    cache = Cache(copy_of(built, tmp_path / "cache"))
    cache.remember_model(cache.teacher().contract, str(tmp_path / "gone"))
    with pytest.raises(TeacherError, match=r"; or say where its folder is with --teacher-model$"):
        check_deep(cache.folder, computing=ON_CPU)


def test_noise_is_measured_through_the_codec_of_each_row(tmp_path: Path, encoder: Encoder) -> None:
    source, cache = write_source(tmp_path), tmp_path / "cache"
    build_with(cache, source, encoder, codec="float32")
    build_with(tmp_path / "coarse", source, encoder, codec="int8")
    fine, coarse = (sorted(folder.glob("teachers/*/shards/*")) for folder in (cache, tmp_path / "coarse"))
    fine[0].unlink()
    for shard in coarse:
        (fine[0].parent / shard.name).write_bytes(shard.read_bytes())
    (check,) = check_deep(cache, computing=ON_CPU)
    assert check.worst == "ok"
    assert np.isclose(check.lines[0].stored, check.lines[0].noise, rtol=0.5)
    assert check.lines[0].noise > 1e-7


@pytest.mark.parametrize(
    ("stored_in", "run_in", "turned", "verdict"),
    [
        ("bfloat16", "bfloat16", 1e-4, "ok"),
        ("bfloat16", "float32", 1e-4, "look"),
        ("float32", "float32", 1e-4, "look"),
        ("bfloat16", "bfloat16", 3e-3, "look"),
        ("bfloat16", "bfloat16", 3e-2, "bad"),
    ],
)
def test_two_runs_in_one_dtype_may_differ_as_much_as_in_a_diff(
    tmp_path: Path, stored_in: str, run_in: str, turned: float, verdict: str
) -> None:
    rng = np.random.default_rng(0)
    live = rng.standard_normal((len(TEXTS), 256))
    live /= np.linalg.norm(live, axis=1, keepdims=True)
    aside = rng.standard_normal(live.shape)
    aside -= np.einsum("nd,nd->n", aside, live)[:, None] * live
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    near = ((1 - turned) * live + np.sqrt(1 - (1 - turned) ** 2) * aside).astype(np.float32)
    teacher = fake_teacher(256)
    store = Cache.create(tmp_path / "cache").store(teacher.contract, "float32")
    lengths = np.full(len(TEXTS), 5, dtype=np.uint16)
    keys = key_array(TEXTS)
    store.put(VectorBatch(keys, near, lengths, lengths > 9, {"compute_dtype": stored_in}))
    store.finish()
    exact = live.astype(np.float32)
    lines = compare_vectors(store, store.locate(keys), exact, exact, run_in)
    verdicts = {line.measure: line.verdict for line in lines}
    assert verdicts["1 - worst cosine"] == verdict
    assert verdicts["1 - mean cosine"] == verdict
