"""Tiny real models that make views, and a lexicon of a few words."""
# ruff: noqa: S106 - tokens of a vocabulary are not passwords

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedcache.testing import WORDS

LETTERS = tuple("abcdefghijklmnopqrstuvwxyz0123456789.,?!'()")

LEXICON = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE LexicalResource SYSTEM "http://globalwordnet.github.io/schemas/WN-LMF-1.1.dtd">
<LexicalResource xmlns:dc="https://globalwordnet.github.io/schemas/dc/">
  <Lexicon id="tiny" label="Tiny" language="en" email="nobody@example.org"
           license="https://creativecommons.org/publicdomain/zero/1.0/" version="1">
    {entries}
    {synsets}
  </Lexicon>
</LexicalResource>
"""
SYNONYMS = [
    ("n", {"small": 0, "little": 0, "tiny": 0}),
    ("n", {"house": 0, "home base": 0}),
    ("n", {"cat": 0, "puss": 0, "kitty": 0}),
    ("n", {"road": 0, "route": 0}),
]
COUNTED = [
    ("n", {"are": 0, "ar": 0}),
    ("n", {"he": 0, "helium": 0}),
    ("n", {"growing": 0, "ontogeny": 0}),
    ("n", {"man": 1, "valet": 3}),
    ("n", {"man": 9, "adult male": 0}),
    ("a", {"said": 1, "aforementioned": 0}),
    ("v", {"say": 50, "state": 9}),
    ("r", {"slowly": 3, "tardily": 0}),
]
"""Synsets: part of speech, and the words with their counts in tagged text; ``said`` is a form of ``say``."""


def lexicon_file(folder: Path, synonyms: Sequence[tuple[str, dict[str, int]]] = SYNONYMS) -> Path:
    """Write a lexicon called ``tiny:1`` and return its file."""
    entries = [
        f'<LexicalEntry id="tiny-{number}-{place}"><Lemma writtenForm="{word}" partOfSpeech="{pos}"/>'
        + ('<Form writtenForm="said"/>' if word == "say" else "")
        + f'<Sense id="tiny-s-{number}-{place}" synset="tiny-{number}">'
        + (f"<Count>{count}</Count>" if count else "")
        + "</Sense></LexicalEntry>"
        for number, (pos, words) in enumerate(synonyms)
        for place, (word, count) in enumerate(words.items())
    ]
    synsets = [
        f'<Synset id="tiny-{number}" ili="" partOfSpeech="{pos}"/>'
        for number, (pos, _) in enumerate(synonyms)
    ]
    path = folder / "lexicon.xml"
    path.write_text(LEXICON.format(entries="\n".join(entries), synsets="\n".join(synsets)))
    return path


def masked_model(folder: Path, *, seed: int = 0) -> Path:
    """Save a BERT with random weights and a head that fills masks, and return its folder."""
    import torch
    from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *LETTERS]
    unique = list(dict.fromkeys([*vocabulary, *(f"##{one}" for one in LETTERS)]))
    config = BertConfig(
        vocab_size=len(unique),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=66,
        initializer_range=0.4,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        BertForMaskedLM(config).save_pretrained(folder)
    BertTokenizerFast(vocab={word: i for i, word in enumerate(unique)}, model_max_length=64).save_pretrained(
        folder
    )
    return folder


def translator(folder: Path, *, seed: int = 0) -> Path:
    """Save a Marian model with random weights and a tokenizer of whole words, and return its folder."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import MarianConfig, MarianMTModel, PreTrainedTokenizerFast

    words = ["</s>", "<unk>", "<pad>", *WORDS, *LETTERS]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(words))}
    made = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    config = MarianConfig(
        vocab_size=len(vocabulary),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=24,
        init_std=1.0,
        pad_token_id=2,
        eos_token_id=0,
        decoder_start_token_id=2,
        forced_eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        MarianMTModel(config).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="</s>", unk_token="<unk>", pad_token="<pad>", model_max_length=24
    ).save_pretrained(folder)
    (folder / "generation_config.json").write_text(
        json.dumps(
            {"bad_words_ids": [[2]], "pad_token_id": 2, "eos_token_id": 0, "decoder_start_token_id": 2}
        )
    )
    return folder


def multilingual(folder: Path, family: str) -> Path:
    """Save a translator of several languages with random weights and a tiny vocabulary; return its folder.

    Args:
        folder: where.
        family: ``marian``, ``mbart``, ``mbart50``, ``m2m100`` or ``nllb``.
    """
    import torch
    import transformers

    folder.mkdir(parents=True)
    tokenizer = _multilingual_tokenizer(folder, family)
    kind = {"marian": "Marian", "mbart": "MBart", "mbart50": "MBart"}.get(family, "M2M100")
    config = getattr(transformers, f"{kind}Config")(
        # M2M100 does not count its hundred languages.
        vocab_size=len(tokenizer) + (108 if kind == "M2M100" else 0),
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=24,
        init_std=1.0,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=0,
        eos_token_id=tokenizer.eos_token_id,
        forced_eos_token_id=None,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids("fr_XX") if family == "mbart" else 2,
    )
    model = "MarianMTModel" if family == "marian" else f"{kind}ForConditionalGeneration"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        getattr(transformers, model)(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _multilingual_tokenizer(folder: Path, family: str) -> Any:
    import transformers

    if family == "nllb":
        letters = _numbered(["\u2581", *LETTERS])
        return transformers.NllbTokenizer(vocab=letters, merges=[], model_max_length=24)
    if family in ("mbart", "mbart50"):
        codes = ["de_DE", "en_XX", "fr_XX"]
        pieces = [(f"\u2581{word}", -1.0) for word in WORDS] + [(one, -9.0) for one in ("\u2581", *LETTERS)]
        special = [(one, 0.0) for one in ("<s>", "<pad>", "</s>", "<unk>")]
        kind = transformers.MBartTokenizer if family == "mbart" else transformers.MBart50Tokenizer
        vocabulary = [*special, *pieces, *((code, 0.0) for code in codes), ("<mask>", 0.0)]
        return kind(vocab=vocabulary, model_max_length=24)
    vocabulary_file = folder / "vocab.json"
    if family == "m2m100":
        pieces = _sentencepiece(folder / "sentencepiece.bpe.model")
        vocabulary_file.write_text(json.dumps(_numbered(pieces)))
        spm = folder / "sentencepiece.bpe.model"
        return transformers.M2M100Tokenizer(str(vocabulary_file), str(spm), model_max_length=24)
    spm = folder / "source.spm"
    vocabulary_file.write_text(json.dumps(_numbered([">>deu<<", ">>fra<<", *_sentencepiece(spm)])))
    shutil.copy(spm, folder / "target.spm")
    return transformers.MarianTokenizer(
        str(spm), str(folder / "target.spm"), str(vocabulary_file), model_max_length=24
    )


def _numbered(pieces: list[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces])}


def _sentencepiece(path: Path) -> list[str]:
    """Train a model of ``WORDS`` and return its pieces."""
    import sentencepiece

    with path.open("wb") as sink:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([*WORDS] * 20),
            model_writer=sink,
            vocab_size=60,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    trained = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [trained.id_to_piece(number) for number in range(3, len(trained))]
