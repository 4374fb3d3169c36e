"""A pruned tokenizer keeps the tokens of texts that it still can, and spells others with those left."""
# ruff: noqa: S106 - special tokens are not passwords

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import AutoTokenizer, ElectraConfig, PreTrainedTokenizerFast

from distill.errors import StudentError
from distill.students.vocabulary import prune_vocabulary
from embedcache.teacher.load import quiet_transformers
from embedcache.teacher.tokenize import FastTokenizer
from embedcache.testing import sentences

SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
CORPUS = [
    *sentences(120, seed=1),
    *("lower lowest newer newest wider widest " * 3 + str(i) for i in range(20)),
    *("unhappily rerunning the happiness of runners, un-stoppable!" for _ in range(10)),
]
OTHERS = ["rewide lowness, unrunning", "happi", "stoppability?", "the theriver seesees", "", " "]
KINDS = ["WordPiece", "BPE", "byte-level BPE", "Unigram", "Unigram with bytes"]


def around(kind: str) -> Any:
    """Post-processor that puts special tokens around a text, for each kind of tokenizer."""
    begin, end = ("<s>", 2), ("</s>", 3)
    if kind == "byte-level BPE":
        return processors.Sequence(
            [processors.ByteLevel(trim_offsets=False), processors.RobertaProcessing(end, begin)]
        )
    if kind == "BPE":
        return processors.BertProcessing(end, begin)
    return processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )


def trained(kind: str) -> PreTrainedTokenizerFast:
    """Return a small tokenizer of a kind, trained on ``CORPUS``; its special tokens begin the vocabulary."""
    shared: dict[str, Any] = {"special_tokens": SPECIAL, "show_progress": False, "vocab_size": 220}
    trainer: Any
    if kind == "WordPiece":
        tokenizer, trainer = (
            Tokenizer(models.WordPiece(unk_token="<unk>")),
            trainers.WordPieceTrainer(**shared),
        )
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    elif kind == "byte-level BPE":
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        tokenizer = Tokenizer(models.BPE())
        trainer = trainers.BpeTrainer(**{**shared, "vocab_size": 430}, initial_alphabet=alphabet)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    elif kind == "BPE":
        tokenizer, trainer = Tokenizer(models.BPE(unk_token="<unk>")), trainers.BpeTrainer(**shared)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    else:
        tokenizer, trainer = Tokenizer(models.Unigram()), trainers.UnigramTrainer(unk_token="<unk>", **shared)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainer)
    if kind == "Unigram with bytes":
        state = json.loads(tokenizer.to_str())
        state["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
        state["model"]["byte_fallback"] = True
        tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = around(kind)
    # One outside of the model's own vocabulary.
    tokenizer.add_tokens([AddedToken("<topic>", special=False)])
    tokenizer.enable_padding(pad_id=0, pad_token="<pad>")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        cls_token="<s>",
        sep_token="</s>",
        mask_token="<mask>",
        model_max_length=64,
    )


def counted(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> NDArray[np.int64]:
    fast = FastTokenizer(tokenizer, 0)
    return np.bincount(fast(texts).ids, minlength=fast.vocabulary_size)


def rows(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    found = FastTokenizer(tokenizer, 0)(texts)
    return [found.ids[a:b].tolist() for a, b in zip(found.offsets, found.offsets[1:], strict=False)]


def spelt(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> str:
    """The tokens, joined into a text."""
    return "".join(token.removeprefix("##") for token in tokenizer.convert_ids_to_tokens(ids))


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return trained(request.param)


@pytest.fixture(scope="module")
def least(tokenizer: PreTrainedTokenizerFast) -> int:
    """Tokens that have to stay, as the error says."""
    with pytest.raises(StudentError, match=r"vocab=6: .* give at least \d+") as found:
        prune_vocabulary(tokenizer, counted(tokenizer, CORPUS), 6)
    return int(str(found.value).rsplit(" ", 1)[1])


@pytest.fixture(scope="module")
def size(tokenizer: PreTrainedTokenizerFast, least: int) -> int:
    """A size that leaves some tokens of the corpus out."""
    return least + (len(tokenizer) - least) // 3


Pruned = tuple[PreTrainedTokenizerFast, NDArray[np.int64]]


@pytest.fixture(scope="module")
def pruned(tokenizer: PreTrainedTokenizerFast, size: int) -> Pruned:
    return prune_vocabulary(tokenizer, counted(tokenizer, CORPUS), size)


def test_texts_of_kept_tokens_stay_as_they_are_and_others_are_spelt(tokenizer, pruned, size) -> None:
    small, kept = pruned
    assert len(kept) == len(small) == size < len(tokenizer)
    assert small.convert_ids_to_tokens(range(size)) == tokenizer.convert_ids_to_tokens(kept.tolist())
    texts = [*CORPUS, *OTHERS]
    before, after = rows(tokenizer, texts), rows(small, texts)
    whole = [set(kept.tolist()).issuperset(row) for row in before]
    assert any(whole)
    assert not all(whole), "nothing was cut, so nothing is tested"
    for same, old, new in zip(whole, before, after, strict=True):
        mapped = kept[new].tolist()
        assert (mapped == old) is same
        # Special tokens stand where they stood, and what is between them says the same.
        assert (mapped[0], mapped[-1]) == (old[0], old[-1])
        assert spelt(small, new) == spelt(tokenizer, old)


def test_added_and_special_tokens_keep_their_role(tokenizer, pruned) -> None:
    small, kept = pruned
    for name in ("pad", "unk", "cls", "sep", "mask"):
        new = getattr(small, f"{name}_token_id")
        assert kept[new] == getattr(tokenizer, f"{name}_token_id")
    (row,) = rows(small, ["the <topic> sees <mask>"])
    assert {"<topic>", "<mask>"} <= set(small.convert_ids_to_tokens(row))
    assert small.backend_tokenizer.padding["pad_id"] == small.pad_token_id


def test_it_opens_again_beside_an_electra_model_and_gives_the_same_ids(pruned, tmp_path) -> None:
    small, kept = pruned
    small.save_pretrained(tmp_path)
    ElectraConfig(vocab_size=len(kept)).save_pretrained(tmp_path)
    with quiet_transformers():
        again = AutoTokenizer.from_pretrained(tmp_path)
    assert again([*CORPUS, *OTHERS])["input_ids"] == small([*CORPUS, *OTHERS])["input_ids"]
    assert again.backend_tokenizer.to_str() == small.backend_tokenizer.to_str()
    assert again.model_max_length == 64


def test_the_counts_decide_and_the_old_one_is_left_alone(tokenizer, pruned, size) -> None:
    before = tokenizer.backend_tokenizer.to_str()
    (one, kept), (again, _) = (prune_vocabulary(tokenizer, counted(tokenizer, CORPUS), size) for _ in "12")
    assert again.backend_tokenizer.to_str() == one.backend_tokenizer.to_str()
    assert kept.tolist() == pruned[1].tolist()
    assert prune_vocabulary(tokenizer, counted(tokenizer, CORPUS[:120]), size)[1].tolist() != kept.tolist()
    assert tokenizer.backend_tokenizer.to_str() == before


def test_sizes_without_room_or_effect_are_refused(tokenizer, least) -> None:
    counts = counted(tokenizer, CORPUS)
    # A table that is padded to a round number has rows without a token.
    assert len(prune_vocabulary(tokenizer, np.append(counts, np.int64(0)), least)[1]) == least
    for wrong in (least - 1, len(tokenizer)):
        with pytest.raises(StudentError, match=f"vocab={wrong}"):
            prune_vocabulary(tokenizer, counts, wrong)
    with pytest.raises(StudentError, match="corpus"):
        prune_vocabulary(tokenizer, None, least)


def test_a_merge_stays_with_what_it_is_made_of() -> None:
    tokenizer = trained("BPE")
    small, _ = prune_vocabulary(tokenizer, counted(tokenizer, CORPUS), 120)
    old, new = (json.loads(one.backend_tokenizer.to_str())["model"] for one in (tokenizer, small))
    made = [list(merge) for merge in old["merges"] if "".join(merge) in new["vocab"]]
    assert new["merges"] == made
    assert {part for merge in made for part in merge} <= set(new["vocab"])
    assert 0 < len(made) < len(old["merges"])


def test_bytes_are_always_there() -> None:
    tokenizer = trained("byte-level BPE")
    small, _ = prune_vocabulary(tokenizer, counted(tokenizer, CORPUS), 330)
    text = "žluť 漢字 🙂"
    (row,) = rows(small, [text])
    assert small.decode(row, skip_special_tokens=True) == text


def test_the_most_frequent_tokens_stay_and_unused_ones_go_first() -> None:
    words = ["[PAD]", "[UNK]", *(f"[unused{i}]" for i in range(20)), "the", "cat", "dog", *"thecadog"]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    backend = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(["[PAD]", "[UNK]"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
    counts, notes = counted(tokenizer, ["the cat", "the dog", "the [unused3]"]), list[str]()
    small, _ = prune_vocabulary(tokenizer, counts, len(vocabulary) - 20, notes.append)
    assert {"the", "cat", "dog"} <= set(small.get_vocab())
    assert "[unused0]" not in small.get_vocab()
    kept = sum(counts[vocabulary[word]] for word in small.get_vocab() if word not in ("[PAD]", "[UNK]"))
    assert f"{kept / counts[2:].sum():.2%} of the corpus" in notes[0]


def test_other_models_are_refused_by_name() -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    words = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    with pytest.raises(StudentError, match="WordLevel"):
        prune_vocabulary(words, np.array([2, 1, 0]), 2)
