"""A pruned tokenizer reads what it still can as before, and spells all else with what is left."""
# ruff: noqa: S106 - special tokens are no passwords

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
from distill.students.registry import StudentOptions
from distill.students.vocabulary import PrunedVocabulary, prune_to_texts, prune_vocabulary, sample_usage
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
    """What puts special tokens around a text; each kind does it in a way of its own."""
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
    shared: dict[str, Any] = {"special_tokens": SPECIAL, "show_progress": False}
    if kind == "WordPiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=220, **shared)
    elif kind == "BPE":
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=220, **shared)
    elif kind == "byte-level BPE":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=430, initial_alphabet=alphabet, **shared)
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=220, unk_token="<unk>", **shared)
    tokenizer.train_from_iterator(CORPUS, trainer)
    if kind == "Unigram with bytes":
        state = json.loads(tokenizer.to_str())
        state["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
        state["model"]["byte_fallback"] = True
        tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.post_processor = around(kind)
    # One that is no part of the model's own vocabulary.
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
    """What the tokens say when they are written one after the other."""
    tokens: list[str] = tokenizer.convert_ids_to_tokens(ids)
    return "".join(token.removeprefix("##") for token in tokens)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    return trained(request.param)


def least_of(tokenizer: PreTrainedTokenizerFast) -> int:
    """How many tokens have to stay, as the message says it."""
    with pytest.raises(StudentError, match=r"vocab=6: .* give at least \d+") as found:
        prune_vocabulary(tokenizer, counted(tokenizer, CORPUS), 6)
    return int(str(found.value).rsplit(" ", 1)[1])


def size_of(tokenizer: PreTrainedTokenizerFast) -> int:
    """A size that leaves some tokens of the corpus out."""
    least = least_of(tokenizer)
    return least + (len(tokenizer) - least) // 3


@pytest.fixture(scope="module")
def pruned(tokenizer: PreTrainedTokenizerFast) -> PrunedVocabulary:
    return prune_vocabulary(tokenizer, counted(tokenizer, CORPUS), size_of(tokenizer))


def test_the_size_is_met_and_the_ids_stand_for_the_same_tokens(tokenizer, pruned) -> None:
    size = size_of(tokenizer)
    assert len(pruned.kept) == len(pruned.tokenizer) == size < len(tokenizer)
    assert pruned.kept.dtype == np.int64
    assert (np.diff(pruned.kept) > 0).all()
    old = tokenizer.convert_ids_to_tokens(pruned.kept.tolist())
    assert pruned.tokenizer.convert_ids_to_tokens(range(size)) == old


def test_texts_of_kept_tokens_stay_as_they_are_and_others_are_spelt(tokenizer, pruned) -> None:
    texts = [*CORPUS, *OTHERS]
    before, after = rows(tokenizer, texts), rows(pruned.tokenizer, texts)
    left = set(pruned.kept.tolist())
    kept = [left.issuperset(row) for row in before]
    assert any(kept)
    assert not all(kept), "nothing was cut, so nothing is tested"
    for text, whole, old, new in zip(texts, kept, before, after, strict=True):
        assert max(new) < len(pruned.kept)
        mapped = pruned.kept[new].tolist()
        assert (mapped == old) is whole, text
        # Special tokens stand where they stood, and what is between them says the same.
        assert (mapped[0], mapped[-1]) == (old[0], old[-1])
        assert spelt(pruned.tokenizer, new) == spelt(tokenizer, old)


def test_added_and_special_tokens_keep_their_place_and_their_role(tokenizer, pruned) -> None:
    for name in ("pad", "unk", "cls", "sep", "mask"):
        assert getattr(pruned.tokenizer, f"{name}_token") == getattr(tokenizer, f"{name}_token")
        new = getattr(pruned.tokenizer, f"{name}_token_id")
        assert pruned.kept[new] == getattr(tokenizer, f"{name}_token_id")
    (row,) = rows(pruned.tokenizer, ["the <topic> sees <mask>"])
    tokens = pruned.tokenizer.convert_ids_to_tokens(row)
    assert {"<topic>", "<mask>"} <= set(tokens)
    assert pruned.kept[-1] == tokenizer.convert_tokens_to_ids("<topic>")
    padding = pruned.tokenizer.backend_tokenizer.padding
    assert padding is not None
    assert padding["pad_id"] == pruned.tokenizer.pad_token_id


def test_it_opens_again_beside_an_electra_model_and_gives_the_same_ids(tokenizer, pruned, tmp_path) -> None:
    pruned.tokenizer.save_pretrained(tmp_path)
    ElectraConfig(vocab_size=len(pruned.kept)).save_pretrained(tmp_path)
    with quiet_transformers():
        again = AutoTokenizer.from_pretrained(tmp_path)
    texts = [*CORPUS, *OTHERS]
    assert again(texts)["input_ids"] == pruned.tokenizer(texts)["input_ids"]
    assert again.backend_tokenizer.to_str() == pruned.tokenizer.backend_tokenizer.to_str()
    assert (again.padding_side, again.model_max_length) == ("right", 64)


def test_the_same_counts_give_the_same_bytes_and_the_old_one_is_left_alone(tokenizer, pruned) -> None:
    before = tokenizer.backend_tokenizer.to_str()
    counts, size = counted(tokenizer, CORPUS), size_of(tokenizer)
    one, other = (prune_vocabulary(tokenizer, counts, size) for _ in range(2))
    assert one.tokenizer.backend_tokenizer.to_str() == other.tokenizer.backend_tokenizer.to_str()
    assert one.kept.tolist() == pruned.kept.tolist()
    assert tokenizer.backend_tokenizer.to_str() == before


def test_other_counts_keep_other_tokens(tokenizer, pruned) -> None:
    other = prune_vocabulary(tokenizer, counted(tokenizer, CORPUS[:120]), size_of(tokenizer))
    assert other.kept.tolist() != pruned.kept.tolist()


def test_too_few_tokens_are_refused_with_the_least(tokenizer) -> None:
    counts = counted(tokenizer, CORPUS)
    least = least_of(tokenizer)
    assert len(prune_vocabulary(tokenizer, counts, least).kept) == least
    with pytest.raises(StudentError, match=f"at least {least}"):
        prune_vocabulary(tokenizer, counts, least - 1)


def test_a_merge_stays_with_what_it_is_made_of() -> None:
    tokenizer = trained("BPE")
    pruned = prune_vocabulary(tokenizer, counted(tokenizer, CORPUS), size_of(tokenizer))
    old, new = (json.loads(one.backend_tokenizer.to_str())["model"] for one in (tokenizer, pruned.tokenizer))
    assert {part for merge in new["merges"] for part in (*merge, "".join(merge))} <= set(new["vocab"])
    kept = set(new["vocab"])
    made = [merge for merge in old["merges"] if "".join(merge) in kept]
    assert [list(merge) for merge in new["merges"]] == [list(merge) for merge in made]
    assert 0 < len(new["merges"]) < len(old["merges"])


def test_bytes_are_always_there() -> None:
    tokenizer = trained("byte-level BPE")
    pruned = prune_vocabulary(tokenizer, counted(tokenizer, CORPUS), size_of(tokenizer))
    text = "žluť 漢字 🙂"
    (row,) = rows(pruned.tokenizer, [text])
    assert pruned.tokenizer.decode(row, skip_special_tokens=True) == text


def test_unused_tokens_are_the_last_to_fill_the_room() -> None:
    words = ["[PAD]", "[UNK]", *(f"[unused{i}]" for i in range(20)), "the", "cat", "dog", *"thecadog"]
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(words))}
    backend = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.add_special_tokens(["[PAD]", "[UNK]"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")
    kept = prune_vocabulary(tokenizer, counted(tokenizer, ["the cat"]), len(vocabulary) - 20).tokenizer
    assert "dog" in kept.get_vocab()
    assert "[unused0]" not in kept.get_vocab()


def test_other_models_and_endings_are_refused_by_name() -> None:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    words = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    with pytest.raises(StudentError, match=r"is a WordLevel model.*WordPiece, BPE, Unigram"):
        prune_vocabulary(words, np.array([2, 1, 0]), 2)


def test_the_note_says_what_pruning_does_to_the_texts(tokenizer, pruned) -> None:
    counts, notes = counted(tokenizer, CORPUS), []
    options = StudentOptions(sample_texts=lambda: CORPUS, on_note=notes.append)
    prune_to_texts(tokenizer, counts, size_of(tokenizer), "compact", options)
    ordinary = np.ones(len(counts), dtype=bool)
    ordinary[tokenizer.convert_tokens_to_ids([*SPECIAL, "<topic>"])] = False
    left = np.isin(np.arange(len(counts)), pruned.kept)
    assert pruned.share == counts[ordinary & left].sum() / counts[ordinary].sum()
    before, after = (sample_usage(one, CORPUS) for one in (tokenizer, pruned.tokenizer))
    assert before[0] == pytest.approx(np.mean([len(row) - 2 for row in rows(tokenizer, CORPUS)]))
    assert after[0] > before[0]
    # No character of the corpus becomes unknown.
    assert after[1] == 0
    for text in (f"{pruned.share:.2%} of the corpus", f"{after[0]:.1f} tokens a text", f"{before[0]:.1f}"):
        assert text in notes[0]


def test_sizes_without_room_or_effect_are_refused(tokenizer) -> None:
    counts, options = counted(tokenizer, CORPUS), StudentOptions()
    for size in (len(tokenizer), len(tokenizer) + 1000):
        with pytest.raises(StudentError, match=f"vocab={size}"):
            prune_vocabulary(tokenizer, counts, size)
    with pytest.raises(StudentError, match="no corpus"):
        prune_to_texts(tokenizer, None, 200, "compact", options)
    # A table that is padded to a round number has rows without a token.
    padded = np.append(counts, np.int64(0))
    size = size_of(tokenizer)
    assert len(prune_vocabulary(tokenizer, padded, size).kept) == size
