"""Tiny real models that make views, and a lexicon of a few words."""
# ruff: noqa: S106 - tokens of a vocabulary are not passwords

from __future__ import annotations

import json
from pathlib import Path

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
SYNONYMS = (("small", "little", "tiny"), ("house", "home base"), ("cat", "puss", "kitty"), ("road", "route"))


def lexicon_file(folder: Path) -> Path:
    """Write a lexicon called ``tiny:1`` of ``SYNONYMS`` and return its file."""
    entries = [
        f'<LexicalEntry id="tiny-{number}-{place}"><Lemma writtenForm="{word}" partOfSpeech="n"/>'
        f'<Sense id="tiny-s-{number}-{place}" synset="tiny-{number}-n"/></LexicalEntry>'
        for number, words in enumerate(SYNONYMS)
        for place, word in enumerate(words)
    ]
    synsets = [f'<Synset id="tiny-{number}-n" ili="" partOfSpeech="n"/>' for number in range(len(SYNONYMS))]
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
