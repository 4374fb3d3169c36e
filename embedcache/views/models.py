"""Views by models: mask-fill and translations.

Nothing is drawn from the output of a model. ``mask-fill`` masks a share of the words at once; into the place
of a word goes the likeliest token that is a word by itself, never the word that was there. Translation is
greedy, or by beams. Texts of a batch have one length: without padding, no text reaches another.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from embedcache.errors import InputError, MissingExtraError, TeacherError, first_line
from embedcache.fsio import json_digest, sha256_file
from embedcache.teacher import model_folder
from embedcache.teacher.load import quiet_transformers
from embedcache.teacher.model_folder import read_json
from embedcache.teacher.resolve import resolve
from embedcache.views.edits import CORE, Draw, put, words_of_share
from embedcache.views.recipe import Kept, Made, Maker, Recipe

BATCH_TOKENS = 2048
"""Tokens that a translator reads at once."""
_LONGEST = 512
MOST_LOGITS = 1 << 26
"""Logits of a forward pass of a masked language model: 256 MB."""
# What begins a token that continues a word, or one that begins one, in the usual vocabularies.
_CONTINUES, _BEGINS = "##", ("Ġ", "▁")
# A translation may be this many times as long, and some tokens more, before it is cut off as endless.
_GROWTH, _MORE = 2, 32

# Languages of a Marian model and of NLLB, as tokens.
_TARGET, _SCRIPT = re.compile(r">>[\w-]+<<"), re.compile(r"[a-z]{3}_[A-Z][a-z]{3}")

# Of these a tokenizer is made, whichever of them a model has.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "source.spm",
    "target.spm",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_VOLATILE_GENERATION = {"transformers_version", "_from_model_config", "max_length", "num_beams"}


@dataclass(frozen=True)
class ModelFolder:
    """A model: what the user typed, its folder, and the digest of all in it that makes a text."""

    spec: str
    folder: Path
    digest: str


def find_model(spec: str) -> ModelFolder:
    """Find a model by hub id or folder, and take its digest.

    Raises:
        TeacherError: if there is none, or its files cannot be read.
    """
    folder = resolve(spec).folder
    if not (folder / "config.json").exists():
        raise TeacherError(f"{folder} has no config.json: expected a model folder")
    files = model_folder.ModelFolder(folder)
    generation = read_json(folder / "generation_config.json")
    parts = {
        "weights": files.weights_digest()[0],
        "architecture": files.architecture_digest(),
        "generation": {k: v for k, v in generation.items() if k not in _VOLATILE_GENERATION},
        "tokenizer": {
            name: sha256_file(folder / name) for name in _TOKENIZER_FILES if (folder / name).exists()
        },
    }
    return ModelFolder(spec, folder, json_digest(parts))


def load_model(model: ModelFolder, kind: str, device: str) -> tuple[Any, Any]:
    """Return a model for inference, in float32, and its tokenizer.

    Args:
        model: its folder.
        kind: the name of the transformers class that loads it.
        device: ``auto``, ``cpu``, ``cuda`` ...

    Raises:
        TeacherError: if it cannot be loaded, or lacks weights for what it is to do.
        MissingExtraError: if its tokenizer needs a library that is not installed.
    """
    import torch
    import transformers

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        with quiet_transformers():
            tokenizer = transformers.AutoTokenizer.from_pretrained(model.folder, local_files_only=True)
            loaded, report = getattr(transformers, kind).from_pretrained(
                model.folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
    except ImportError as error:
        raise MissingExtraError(
            f"the tokenizer of {model.spec} needs more than is installed ({first_line(error)}); run: "
            "pip install 'embedcache-distill[views]'"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise TeacherError(
            f"cannot load {model.spec} as {kind} ({first_line(error)}); name another"
        ) from error
    # Gaps would be filled with random numbers: an encoder without a head guesses words by lot.
    if missing := sorted(report["missing_keys"]):
        raise TeacherError(
            f"{model.spec} holds no weights for {len(missing)} parameters of {kind} (first: {missing[0]}), "
            "which would be random: name a model that was trained for this"
        )
    return loaded.eval().requires_grad_(False).to(torch.device(device)), tokenizer


def batches_of_one_length(tokens: Mapping[int, Sequence[int]], most: int) -> Iterator[list[int]]:
    """Yield the places of token lists of one length, in batches of at most ``most`` tokens.

    Where nothing is padded, what stands beside a text cannot reach it through a mask.
    """
    places: dict[int, list[int]] = {}
    for place, ids in tokens.items():
        places.setdefault(len(ids), []).append(place)
    for length, found in sorted(places.items()):
        size = max(most // max(length, 1), 1)
        yield from (found[start : start + size] for start in range(0, len(found), size))


class _Masked(NamedTuple):
    """A text with masks in it; ``places`` are those of the words they hide, ``hidden`` the words."""

    text: str
    places: list[int]
    hidden: list[str]


class MaskFill:
    """Maker of a ``mask-fill`` view.

    Args:
        recipe: the recipe.
        model: the masked language model.
        device: its device.

    Raises:
        TeacherError: if the model cannot be loaded, or cannot fill masks.
        MissingExtraError: if its tokenizer needs a library that is not installed.
    """

    def __init__(self, recipe: Recipe, model: ModelFolder, device: str) -> None:
        import torch

        self._model, self._tokenizer = load_model(model, "AutoModelForMaskedLM", device)
        if self._tokenizer.mask_token is None:
            raise TeacherError(
                f"{model.spec} has no mask token, so it can fill none; name a masked language model"
            )
        self._share, self._salt = float(recipe.parameters["share"]), recipe.salt
        # RoBERTa and its kin number their positions from 2.
        self._longest = min(_longest(self._model, self._tokenizer, unused=2), _LONGEST)
        self._words = _whole_words(self._tokenizer, self._model.get_output_embeddings().weight.shape[0])
        self._refused = torch.tensor([word is None for word in self._words], device=self._model.device)
        self._numbers: dict[str, list[int]] = {}
        for number, word in enumerate(self._words):
            if word is not None:
                self._numbers.setdefault(word.casefold(), []).append(number)

    def __call__(self, texts: Sequence[str]) -> list[Made]:
        """Return each text with a share of its words replaced."""
        made: list[Made] = [Kept.NOTHING_TO_MASK] * len(texts)
        masked = {place: found for place, text in enumerate(texts) if (found := self._masked(text))}
        tokens = {
            place: self._tokenizer(one.text, truncation=True, max_length=self._longest)["input_ids"]
            for place, one in masked.items()
        }
        for batch in batches_of_one_length(tokens, max(MOST_LOGITS // len(self._words), 1)):
            filled = self._filled([tokens[one] for one in batch], [masked[one].hidden for one in batch])
            for one, new in zip(batch, filled, strict=True):
                words = texts[one].split()
                # Masks that were cut off have no word, and stay what they were.
                for place, word in zip(masked[one].places, new, strict=False):
                    put(words, place, word)
                if new:
                    made[one] = " ".join(words)
        return made

    def _masked(self, text: str) -> _Masked | None:
        mask = str(self._tokenizer.mask_token)
        words = text.split()[: self._longest]
        candidates = [
            place
            for place, core in enumerate(map(CORE.fullmatch, words))
            if core is not None and any(character.isalpha() for character in core[2])
        ]
        if mask in text or not candidates:
            return None
        count = min(words_of_share(len(words), self._share), len(candidates))
        places = sorted(candidates[one] for one in Draw(self._salt, text).sample(len(candidates), count))
        hidden = [words[place] for place in places]
        for place in places:
            words[place] = CORE.sub(lambda core: core[1] + mask + core[3], words[place], count=1)
        return _Masked(" ".join(words), places, hidden)

    def _filled(self, tokens: list[list[int]], hidden: list[list[str]]) -> list[list[str]]:
        """Return the words for the masks that each of some token lists of one length holds."""
        import torch

        ids = torch.tensor(tokens, device=self._model.device)
        is_mask = ids == self._tokenizer.mask_token_id
        owners = is_mask.nonzero()[:, 0].tolist()
        with torch.inference_mode():
            logits = self._model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[is_mask]
            logits = logits.masked_fill(self._refused, -torch.inf)
            # The word that was there is no choice, however it is spelled.
            old = [iter(words) for words in hidden]
            for mask, owner in enumerate(owners):
                core = CORE.fullmatch(next(old[owner]))
                logits[mask, self._numbers.get(core[2].casefold(), []) if core else []] = -torch.inf
            chosen = logits.argmax(dim=1).tolist()
        filled: list[list[str]] = [[] for _ in tokens]
        for owner, number in zip(owners, chosen, strict=True):
            filled[owner].append(self._words[number] or "")
        return filled


def _longest(model: Any, tokenizer: Any, *, unused: int = 0) -> int:
    """Return the tokens that a model reads at most, if some of its positions are unused."""
    positions = getattr(model.config, "max_position_embeddings", None) or _LONGEST
    return min(int(positions) - unused, int(tokenizer.model_max_length))


def _whole_words(tokenizer: Any, size: int) -> list[str | None]:
    """Return the word that each number of the vocabulary is, None where it is not a whole word."""
    tokens = [str(token or "") for token in tokenizer.convert_ids_to_tokens(range(min(size, len(tokenizer))))]
    begins = any(token.startswith(_BEGINS) for token in tokens)
    special = set(tokenizer.all_special_ids)
    words: list[str | None] = [None] * size
    for number, token in enumerate(tokens):
        is_word = token.startswith(_BEGINS) if begins else not token.startswith(_CONTINUES)
        if is_word and number not in special:
            word = tokenizer.decode([number]).strip()
            words[number] = word if word.isalpha() else None
    return words


def translation_maker(recipe: Recipe, models: Mapping[str, ModelFolder], device: str) -> Maker:
    """Return the maker of a ``translation`` or ``back-translation`` view.

    Args:
        recipe: the recipe.
        models: pair of languages -> its translator, in the order in which texts go through them.
        device: their device.

    Raises:
        TeacherError: if a model cannot be loaded.
        InputError: if a model knows several languages, and not those of its pair.
        MissingExtraError: if a tokenizer needs a library that is not installed.
    """
    language, beams = str(recipe.parameters["language"]), int(recipe.parameters["beams"])
    source = next(iter(models)).removesuffix(f"-{language}")
    loaded = {model.digest: load_model(model, "AutoModelForSeq2SeqLM", device) for model in models.values()}
    translators = [
        _Translator(model.spec, *loaded[model.digest], beams, pair)
        for model, pair in zip(models.values(), ((source, language), (language, source)), strict=False)
    ]

    def make(texts: Sequence[str]) -> list[Made]:
        made: list[Made] = list(texts)
        for translator in translators:
            left = list(dict.fromkeys(one for one in made if isinstance(one, str)))
            found = dict(zip(left, translator.translate(left), strict=True))
            made = [found[one] if isinstance(one, str) else one for one in made]
        return made

    return make


class _Translator:
    def __init__(self, spec: str, model: Any, tokenizer: Any, beams: int, pair: tuple[str, str]) -> None:
        self._model, self._tokenizer, self._beams = model, tokenizer, beams
        self._longest = _longest(model, tokenizer)
        self._source, self._prefix, self._steering = "", "", dict[str, int]()
        codes = _languages(tokenizer)
        self._codes = frozenset(codes.values())
        if not codes:
            return  # of one pair of languages
        if not hasattr(tokenizer, "src_lang"):
            self._prefix = f">>{_code(codes, pair[1], spec)}<< "
            return
        self._source = _code(codes, pair[0], spec)
        target = codes[_code(codes, pair[1], spec)]
        # The first mBART starts with the language itself; its successors are made to write it first.
        starts = model.generation_config.decoder_start_token_id in codes.values()
        self._steering = {"decoder_start_token_id" if starts else "forced_bos_token_id": target}

    def translate(self, texts: list[str]) -> list[Made]:
        """Return the translation of each text."""
        made: list[Made] = [Kept.TOO_LONG] * len(texts)
        if self._source:
            self._tokenizer.src_lang = self._source  # the way back may share the tokenizer
        tokens = {
            place: self._tokenizer(self._prefix + text, verbose=False)["input_ids"]
            for place, text in enumerate(texts)
        }
        fitting = {place: ids for place, ids in tokens.items() if len(ids) <= self._longest}
        for batch in batches_of_one_length(fitting, BATCH_TOKENS):
            for place, text in zip(batch, self._generated([tokens[one] for one in batch]), strict=True):
                made[place] = text if text and not text.isspace() else Kept.EMPTY_OUTPUT
        return made

    def _generated(self, tokens: list[list[int]]) -> list[str]:
        import torch

        ids = torch.tensor(tokens, device=self._model.device)
        room = min(self._longest, _GROWTH * ids.shape[1] + _MORE)
        with torch.inference_mode():
            generated = self._model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                num_beams=self._beams,
                do_sample=False,
                max_new_tokens=max(room - 1, 1),
                max_length=None,
                **self._steering,
            )
        # M2M100 does not count its languages among the special tokens.
        written = [[token for token in row if token not in self._codes] for row in generated.tolist()]
        texts: list[str] = self._tokenizer.batch_decode(written, skip_special_tokens=True)
        return [text.replace("\0", "") for text in texts]


def _languages(tokenizer: Any) -> dict[str, int]:
    """Return the tokens of the languages that a tokenizer can be set to, by code; none where it cannot.

    mBART and M2M100 list theirs, those of NLLB are special tokens. A Marian model of several target
    languages, and no other, has tokens such as ``>>fra<<``, which its texts begin with.
    """
    if not hasattr(tokenizer, "src_lang"):
        targets = {
            token: number for token, number in tokenizer.get_vocab().items() if _TARGET.fullmatch(token)
        }
        return {token[2:-2]: number for token, number in targets.items()}
    listed = getattr(tokenizer, "lang_code_to_id", None) or {
        token: tokenizer.convert_tokens_to_ids(token)
        for token in tokenizer.all_special_tokens
        if _SCRIPT.fullmatch(token)
    }
    return {code: number for code, number in listed.items() if number != tokenizer.unk_token_id}


def _code(codes: Mapping[str, int], language: str, spec: str) -> str:
    """Return a language as a tokenizer writes it: ``de`` is ``de_DE`` where no other begins with ``de_``."""
    if language in codes:
        return language
    regional = [code for code in codes if code.partition("_")[0] == language]
    if len(regional) == 1:
        return regional[0]
    begun = [code for code in codes if code[:2] == language[:2]]
    near = begun or get_close_matches(language, codes, cutoff=0.3) or list(codes)
    raise InputError(
        f"{spec} has no language {language!r} (near: {', '.join(near[:5])}). Name one that it has in "
        f"the view, and with the model, as in --translator en-CODE={spec}; --language is that of the texts"
    )
