"""Teachers of today: prompts, last tokens, loading arguments, adapters, own code and routes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router
from teacher_folders import CODE, adapter, bidirectional, decoder, edit, own_code, router

import embedcache
from embedcache.cli.main import cli
from embedcache.contract import Contract
from embedcache.errors import ContractMismatchError, InputError, MissingExtraError, TeacherError
from embedcache.teacher.aliases import ALIASES
from embedcache.teacher.arguments import parse_arguments
from embedcache.teacher.encode import Encoder
from embedcache.teacher.lazy import LazyTeacher
from embedcache.teacher.load import Teacher, load_by_contract, load_teacher
from embedcache.teacher.model_folder import read_prompts
from embedcache.teacher.modules import quiet_transformers
from embedcache.teacher.options import EncodeOptions, TeacherOptions
from embedcache.testing import encode_texts, sentences, tiny_encoder

MEMORY = Path(__file__).parents[2] / "benchmarks" / "teacher_memory.py"
TEXTS = [*sentences(12), "a bird </s> <s> sees", "the " * 90]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a folder of each kind; read them, never write into them."""
    at = tmp_path_factory.mktemp("teachers")
    return {
        "decoder": decoder(at / "decoder"),
        "bidirectional": bidirectional(at / "bidirectional"),
        "adapter": adapter(at / "adapter", decoder(at / "base", seed=3)),
        "code": own_code(at / "code"),
        "router": router(at / "router"),
    }


def load(folder: Path, **settings: Any) -> Teacher:
    return load_teacher(folder, device="cpu", **settings)


def expected(folder: Path, texts: list[str], loading: dict[str, Any], **settings: Any) -> NDArray[Any]:
    """Return the vectors of sentence-transformers itself."""
    with quiet_transformers():
        model = SentenceTransformer(
            str(folder),
            device="cpu",
            model_kwargs={"dtype": torch.float32},
            trust_remote_code=True,
            **loading,
        )
    return np.asarray(model.encode(texts, **settings))


def cosines(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
    return (x * y).sum(axis=1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)


KINDS = [
    ("decoder", {}, {}, {}),
    ("decoder", {"prompt_name": "query"}, {}, {"prompt_name": "query"}),
    ("decoder", {"arguments": ["config.hidden_act=relu"]}, {"config_kwargs": {"hidden_act": "relu"}}, {}),
    (
        "decoder",
        {"arguments": ["tokenizer.padding_side=right"]},
        {"processor_kwargs": {"padding_side": "right"}},
        {},
    ),
    ("bidirectional", {"prompt_name": "query"}, {}, {"prompt_name": "query"}),
    ("adapter", {}, {}, {}),
    ("code", {}, {}, {}),
    ("code", {"task": "retrieval"}, {}, {"task": "retrieval"}),
    ("router", {"task": "query"}, {}, {"task": "query"}),
    ("router", {}, {}, {"task": "document"}),
]


@pytest.mark.parametrize(("kind", "settings", "loading", "call"), KINDS, ids=str)
def test_vectors_are_those_of_sentence_transformers_and_their_contract_finds_them_again(
    folders: dict[str, Path],
    kind: str,
    settings: dict[str, Any],
    loading: dict[str, Any],
    call: dict[str, Any],
) -> None:
    folder, trust = folders[kind], kind == "code"
    teacher = load(folder, trust_remote_code=trust, **settings)
    wanted = expected(folder, TEXTS, loading, **call)
    encoder = Encoder(teacher, compute_dtype="float32")
    assert cosines(encoder.encode(TEXTS).vectors, wanted).min() >= 0.999999
    singly = np.concatenate([encoder.encode([text]).vectors for text in TEXTS])
    assert cosines(singly, wanted).min() >= 0.999999
    again = load_by_contract(
        folder, teacher.contract, name="again", remedy="", dtype=torch.float32, trust_remote_code=trust
    )
    assert again.contract == Contract.from_json(json.loads(json.dumps(teacher.contract.to_json())))
    np.testing.assert_allclose(encode_texts(again, TEXTS), wanted, atol=1e-5)


def test_settings_of_these_teachers_are_contracts_of_their_own(folders: dict[str, Path]) -> None:
    ids = [
        load(folders[kind], trust_remote_code=kind == "code", **settings).contract.id
        for kind, settings, _, _ in KINDS
    ]
    assert len(set(ids)) == len(ids)


def with_weights(folder: Path, donor: Path) -> None:
    for path in donor.glob("*.safetensors"):
        shutil.copyfile(path, folder / path.name)


Change = Callable[[Path], object]
TWINS: dict[str, tuple[str, Change]] = {
    "config_kwargs": (
        "decoder",
        lambda one: edit(one / "sentence_bert_config.json", config_kwargs={"hidden_act": "relu"}),
    ),
    "processor_kwargs": (
        "decoder",
        lambda one: edit(one / "sentence_bert_config.json", processor_kwargs={"padding_side": "right"}),
    ),
    "processing_kwargs": (
        "decoder",
        lambda one: edit(
            one / "sentence_bert_config.json", processing_kwargs={"text": {"add_special_tokens": False}}
        ),
    ),
    "older name": (
        "code",
        lambda one: (
            (one / "sentence_bert_config.json").rename(one / "sentence_roberta_config.json")
            and edit(one / "sentence_roberta_config.json", tokenizer_args={"unk_token": "cat"})
        ),
    ),
    "code": (
        "code",
        lambda one: (one / "steps.py").write_text(CODE.replace("STEPS", "5")),
    ),
    "data of code": ("code", lambda one: (one / "table.bin").write_bytes(b"1")),
    "adapter_config": ("adapter", lambda one: edit(one / "adapter_config.json", lora_alpha=16)),
    "adapter's base": (
        "adapter",
        lambda one: edit(
            one / "adapter_config.json", base_model_name_or_path=str(decoder(one.with_name("base2"), seed=9))
        ),
    ),
}


@pytest.mark.parametrize("twin", TWINS)
def test_whatever_changes_a_vector_changes_the_contract(
    folders: dict[str, Path], tmp_path: Path, twin: str
) -> None:
    kind, change = TWINS[twin]
    before = load(folders[kind], trust_remote_code=kind == "code").contract
    folder = Path(shutil.copytree(folders[kind], tmp_path / "twin"))
    assert load(folder, trust_remote_code=kind == "code").contract == before
    change(folder)
    assert load(folder, trust_remote_code=kind == "code").contract.id != before.id


def test_code_of_an_adapters_base_is_covered(folders: dict[str, Path], tmp_path: Path) -> None:
    base = Path(shutil.copytree(folders["adapter"].with_name("base"), tmp_path / "base"))
    model = "from transformers import Qwen3Model\n\n\nclass Model(Qwen3Model):\n    pass\n"
    (base / "model.py").write_text(model)
    edit(base / "config.json", auto_map={"AutoModel": "model.Model"})
    folder = Path(shutil.copytree(folders["adapter"], tmp_path / "adapter"))
    edit(folder / "adapter_config.json", base_model_name_or_path=str(base))
    before = load(folder, trust_remote_code=True).contract
    (base / "model.py").write_text(model + "    new = 1\n")
    assert load(folder, trust_remote_code=True).contract.code != before.code is not None


@pytest.mark.parametrize(
    "setting",
    [
        *("model.weights_only=false", "tokenizer.vocab_file=/etc/passwd", "model.gguf_file=x"),
        *("config.rms_norm_eps=NaN", "config.rms_norm_eps=1e999", "config.num_hidden_layers=5"),
        *("tokenizer.add_eos_tokn=true", "config.is_casual=false", "model.foo=1"),
    ],
)
def test_arguments_that_do_not_fit_the_model_are_refused(folders: dict[str, Path], setting: str) -> None:
    with pytest.raises(TeacherError, match=r"teacher arg|TeacherOptions.arguments"):
        load(folders["decoder"], arguments=[setting])


def test_values_are_read_as_json_or_python() -> None:
    given = ["tokenizer.a=True", "tokenizer.b=true", "config.c=relu", 'config.d={"e": [1, 2.5]}']
    assert parse_arguments(given) == {
        "tokenizer": {"a": True, "b": True},
        "config": {"c": "relu", "d": {"e": [1, 2.5]}},
    }
    assert TeacherOptions("x", arguments="tokenizer.a=1") == TeacherOptions("x", arguments=["tokenizer.a=1"])


@pytest.mark.parametrize("loading", ["x", '{"config":[]}', '{"model":{"weights_only":false}}'])
def test_a_contract_with_a_foreign_loading_is_one_error(folders: dict[str, Path], loading: str) -> None:
    contract = replace(load(folders["decoder"]).contract, loading=loading)
    with pytest.raises(TeacherError):
        load_by_contract(folders["decoder"], contract, name="x", remedy="")


@pytest.mark.parametrize("processor", ["template", "sequence"])
def test_an_argument_for_one_end_keeps_the_other(tmp_path: Path, processor: str) -> None:
    folder = decoder(tmp_path / "words", ends=False)
    edit(folder / "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    if processor == "sequence":
        own = json.loads((folder / "tokenizer.json").read_text())["post_processor"]
        edit(folder / "tokenizer.json", post_processor={"type": "Sequence", "processors": [own]})
    loaded = load(folder), load(folder, arguments=["tokenizer.add_eos_token=true"])
    before, after = (one.model.preprocess(["a cat"])["input_ids"][0].tolist() for one in loaded)
    assert before[0] == 1
    assert after == [*before, 2]


def test_unread_files_do_not_change_the_contract(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["code"], tmp_path / "code"))
    for name in ("README.md", "figure.png", "onnx/model.onnx", "optimizer.pt", "pytorch_model.bin"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    contracts = [load(one, trust_remote_code=True).contract for one in (folder, folders["code"])]
    assert contracts[0] == contracts[1]


def test_own_code_needs_trust_and_its_files(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(TeacherError, match=r"steps\.Steps.*trust_remote_code"):
        load(folders["code"])
    folder = Path(shutil.copytree(folders["code"], tmp_path / "code"))
    (folder / "steps.py").unlink()
    with pytest.raises(TeacherError, match="cannot load"):
        load(folder, trust_remote_code=True)


def test_an_adapter_needs_peft(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"\[peft\]"):
        load(folders["adapter"])


@pytest.mark.parametrize("base", ["", "/no/such/folder"])
def test_a_base_that_is_missing_is_one_error(folders: dict[str, Path], tmp_path: Path, base: str) -> None:
    folder = Path(shutil.copytree(folders["adapter"], tmp_path / "adapter"))
    edit(folder / "adapter_config.json", base_model_name_or_path=base)
    with pytest.raises(TeacherError, match="base model"):
        load(folder)


def test_an_adapter_with_other_weights_than_it_names_is_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(folders["adapter"], tmp_path / "adapter"))
    weights = load_file(folder / "adapter_model.safetensors")
    for changed in (dict(list(weights.items())[1:]), weights | {"base_model.model.x": torch.zeros(1)}):
        save_file(changed, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        with pytest.raises(TeacherError, match="adapter"):
            load(folder)
    # Adapters of causal models have one name more in front.
    renamed = {
        name.replace("base_model.model.", "base_model.model.model."): weights[name] for name in weights
    }
    save_file(renamed, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    np.testing.assert_array_equal(
        encode_texts(load(folder), TEXTS), encode_texts(load(folders["adapter"]), TEXTS)
    )


def test_a_tokenizer_in_another_place_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    for setting in ({"tokenizer_name_or_path": "x"}, {"processor_kwargs": {"tokenizer_file": "x"}}):
        folder = Path(shutil.copytree(folders["decoder"], tmp_path / next(iter(setting))))
        edit(folder / "sentence_bert_config.json", **setting)
        with pytest.raises(TeacherError, match="another place"):
            load(folder)


def test_own_arguments_are_replayed_as_they_are(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(folders["decoder"], tmp_path / "decoder"))
    edit(folder / "sentence_bert_config.json", processor_kwargs={"add_eos_token": True})
    contract = load(folder).contract
    assert load_by_contract(folder, contract, name="x", remedy="").contract == contract


def test_a_text_takes_the_route_of_texts(tmp_path: Path) -> None:
    parts = [tiny_encoder(tmp_path / name, seed=seed) for seed, name in enumerate(("first", "second"))]
    with quiet_transformers():
        first, second = (list(SentenceTransformer(str(part), device="cpu").children()) for part in parts)
        for name, given in (
            ("text", {"sub_modules": {"image": first, "text": second}}),
            (
                "mapped",
                {
                    "sub_modules": {"a": first, "b": second},
                    "route_mappings": {(None, "text"): "b", ("query", "text"): "a"},
                },
            ),
        ):
            model = SentenceTransformer(modules=[Router(**given)], device="cpu")
            model.save_pretrained(str(tmp_path / name), create_model_card=False)
    assert load(tmp_path / "text").contract == load(parts[1]).contract
    assert load(tmp_path / "mapped").contract == load(parts[1]).contract
    asked = load(tmp_path / "mapped", task="query")
    assert asked.contract == load(parts[0]).contract
    assert load_by_contract(tmp_path / "mapped", asked.contract, name="x", remedy="").route == "a"


def test_a_route_has_the_contract_of_its_plain_model(folders: dict[str, Path]) -> None:
    folder = folders["router"]
    for task in ("query", "document"):
        assert load(folder, task=task).contract == load(folder.with_name(task)).contract
    with pytest.raises(TeacherError, match="query or document"):
        load(folder, task="queries")


def test_a_last_token_that_is_a_word_is_warned_of(
    tmp_path: Path, folders: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    def encoder(folder: Path, *arguments: str) -> object:
        return LazyTeacher(TeacherOptions(folder, arguments=arguments), EncodeOptions()).encoder

    encoder(folders["decoder"])
    assert not caplog.records
    folder = decoder(tmp_path / "words", ends=False)
    edit(folder / "tokenizer_config.json", tokenizer_class="LlamaTokenizer", add_eos_token=True)
    encoder(folder)
    assert "add_eos_token=true" in caplog.text
    caplog.clear()
    encoder(folder, "tokenizer.add_eos_token=true")
    assert not caplog.records


def test_a_contract_of_another_model_is_refused(folders: dict[str, Path]) -> None:
    contract = load(folders["router"], task="query").contract
    with pytest.raises(ContractMismatchError, match="weights"):
        load_by_contract(folders["router"].with_name("document"), contract, name="x", remedy="")


# Prompts


def test_a_prompt_is_chosen_by_its_name(folders: dict[str, Path]) -> None:
    folder = folders["decoder"]
    query, document = (load(folder, prompt_name=name) for name in ("query", "document"))
    assert (query.name, query.contract.prompt) == ("decoder.query", "find the bird:\n")
    assert document.contract == load(folder).contract
    assert load(folder, prompt_name="query", name="mine").name == "mine"
    assert load(folder, prompt="find the bird:\n").contract == query.contract
    with pytest.raises(TeacherError, match="document, query"):
        load(folder, prompt_name="passage")
    for settings in ({"prompt": "x", "prompt_name": "query"}, {"prompt_name": "logits"}):
        with pytest.raises(InputError):
            load(folder, **settings)


def test_a_build_says_which_prompts_there_are(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a cat\nthe dog sees\n")

    def build(*options: str) -> str:
        arguments = ["build", str(tmp_path / "in.txt"), "--teacher", str(folders["decoder"])]
        done = CliRunner().invoke(cli, [*arguments, "--cache", str(tmp_path / "cache"), *options])
        return f"{done.exit_code} {done.output}"

    for _ in range(2):  # the second time the model is not loaded
        said = build()
        assert "--prompt-name takes" in said
        assert all(name in said for name in ("query", "document"))
    assert repr("find the bird:\n") in build("--prompt-name", "query")
    names = [one.name for one in embedcache.Cache(tmp_path / "cache").teachers()]
    assert names == ["decoder", "decoder.query"]
    said = build("--prompt", r"find the bird:\n", "--teacher-name", "typed")
    assert said.startswith("2")
    assert "--prompt-name" in said


def test_the_route_of_a_loaded_teacher_is_shown(folders: dict[str, Path], tmp_path: Path) -> None:
    teacher = load(folders["router"], task="query")
    cache = embedcache.build(TEXTS, teacher=teacher, cache=tmp_path / "cache", name="x")
    assert cache.result is not None
    assert cache.result.route == "query; --task takes document"


def test_the_table_of_aliases_is_theirs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "teachers.md").read_text()
    rows = page.partition("| alias | queries |")[2].partition("\n\n")[0]
    known = [name for name, alias in ALIASES.items() if alias.parameters > 100 and alias.prompts]
    for name in known:
        family = name.removesuffix("-4b").removesuffix("-8b")
        assert f"`{family}" in rows
        assert f"{ALIASES[name].parameters * 2 / 1000:.1f}" in rows


def test_placeholders_are_no_prompts(tiny_teacher: Path) -> None:
    assert json.loads((tiny_teacher / "config_sentence_transformers.json").read_text())["prompts"]
    assert read_prompts(tiny_teacher) == {}


# One copy of the weights


def test_a_teacher_is_computed_in_the_dtype_it_is_loaded_in(folders: dict[str, Path]) -> None:
    lazy = LazyTeacher(folders["decoder"], EncodeOptions(compute_dtype="float32", backend="torch"))
    assert {one.dtype for one in lazy.encoder.teacher.model.parameters()} <= {torch.float32}
    assert lazy.encoder._model is lazy.encoder.teacher.model  # type: ignore[attr-defined]
    # A teacher that is given is left as it is.
    given = load(folders["decoder"])
    before = {name: value.clone() for name, value in given.model.state_dict().items()}
    LazyTeacher(given, EncodeOptions(compute_dtype="float32", backend="torch")).vectors(TEXTS)
    after = given.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_build_has_one_copy_of_the_weights(tmp_path: Path, dtype: str) -> None:
    folder = decoder(tmp_path / "large", layers=16, width=768)
    command = [sys.executable, "-W", "ignore", str(MEMORY), str(folder), "--compute-dtype", dtype]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["weights"] > 1e8
    assert found["ratio"] <= 1.25


def test_token_embeddings_are_not_rounded(tiny_teacher: Path, tmp_path: Path) -> None:
    encode = EncodeOptions(token_embeddings=True, compute_dtype="bfloat16")
    cache = embedcache.build(TEXTS, teacher=tiny_teacher, cache=tmp_path / "cache", name="x", encode=encode)
    stored = cache.token_table(cache.teacher("tiny")).word
    with quiet_transformers():
        model = SentenceTransformer(str(tiny_teacher), device="cpu")
    np.testing.assert_array_equal(stored, model[0].model.get_input_embeddings().weight.detach().numpy())


# More tokens than positions, and flags of a tokenizer


def test_texts_are_cut_to_the_positions_that_a_model_has(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path / "short")
    edit(folder / "sentence_bert_config.json", max_seq_length=70)
    teacher = load(folder)
    assert teacher.contract.max_length == 70
    encoded = Encoder(teacher, compute_dtype="float32").encode(["the " * 90, "a cat"])
    assert encoded.tokens.tolist() == [64, 4]
    assert encoded.truncated.tolist() == [True, False]
    again = load_by_contract(folder, teacher.contract, name="again", remedy="")
    assert again.contract == teacher.contract


def test_rotary_positions_have_no_end(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "rotary")
    edit(folder / "sentence_bert_config.json", max_seq_length=100)
    encoded = Encoder(load(folder), compute_dtype="float32").encode(["the " * 90])
    assert (encoded.tokens.tolist(), encoded.truncated.tolist()) == ([92], [False])


def test_a_model_without_a_length_is_cut_to_its_positions(tmp_path: Path) -> None:
    folder = tiny_encoder(tmp_path / "endless")
    edit(folder / "sentence_bert_config.json", max_seq_length=10_000_000)
    teacher = load(folder)
    assert teacher.contract.max_length == 0
    encoded = Encoder(teacher, compute_dtype="float32").encode(["the " * 90])
    assert (encoded.tokens.tolist(), encoded.truncated.tolist()) == ([64], [True])


def test_special_tokens_in_a_text_are_split_where_the_tokenizer_says_so(tmp_path: Path) -> None:
    folder, texts = tiny_encoder(tmp_path / "split"), ["a [SEP] cat [MASK] dog", "the dog"]
    whole = encode_texts(load(folder), texts)
    edit(folder / "tokenizer_config.json", split_special_tokens=True)
    found = encode_texts(load(folder), texts)
    np.testing.assert_allclose(found, expected(folder, texts, {}), atol=1e-5)
    assert not np.allclose(found[0], whole[0], atol=1e-2)
