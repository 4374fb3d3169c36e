"""The files that each suite looks for, as ``distill list suites`` lists them.

The suites themselves read them; a test holds this list against what they ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

_PAIRS = ("subset", "score", "sentence1", "sentence2")
_LABELLED = ("label", "text")


@dataclass(frozen=True)
class SuiteFile:
    """A test file: tab-separated, a header line, UTF-8, no quoting; ``.tsv`` or ``.tsv.gz``.

    Attributes:
        stem: its name without ending; words in capitals stand for any name.
        columns: the columns that it has to have.
        sets: the sets it is for, as tables call them.
        note: what else there is to know.
    """

    stem: str
    columns: tuple[str, ...]
    sets: tuple[str, ...] = ()
    note: str = ""


SUITE_FILES: dict[str, tuple[SuiteFile, ...]] = {
    "sts": (
        *(SuiteFile(f"sts{year}_test", _PAIRS, (f"STS{year}",)) for year in range(12, 17)),
        SuiteFile("stsb_test", _PAIRS, ("STS-B",)),
        SuiteFile("sick", _PAIRS, ("SICK-R",), "subset test"),
    ),
    "sts-multilingual": (
        SuiteFile("sts17_LANG1-LANG2", ("score", "sentence1", "sentence2"), ("STS 2017",)),
        SuiteFile(
            "stsb_mt_LANG",
            ("split", "score", "sentence1", "sentence2"),
            ("translated STS-B",),
            "split test; rows of two languages and of stsb_test are aligned",
        ),
    ),
    "transfer": (
        *(SuiteFile(f"senteval_{name}", _LABELLED, (name.upper(),)) for name in ("mr", "cr", "subj", "mpqa")),
        SuiteFile("glue_sst2", ("split", *_LABELLED), ("SST2",), "else senteval_sst2_sentences"),
        SuiteFile("senteval_trec", ("split", *_LABELLED), ("TREC",)),
        SuiteFile("senteval_mrpc", ("split", *_LABELLED, "text2"), ("MRPC",)),
    ),
    "nli": (
        SuiteFile("sick", ("subset", "sentence1", "sentence2", "entailment"), ("SICK-E",)),
        SuiteFile(
            "snli_train", ("label", "premise", "hypothesis"), ("SNLI",), "else snli_train100k; to learn from"
        ),
        SuiteFile(
            "snli_test",
            ("label", "premise", "hypothesis"),
            ("SNLI",),
            "else snli_dev, else snli_dev_tokenized; is scored",
        ),
    ),
    "retrieval": (
        SuiteFile("NAME_queries", ("query_id", "text"), ("NAME",)),
        SuiteFile("NAME_corpus", ("doc_id", "text"), ("NAME",)),
        SuiteFile("NAME_qrels", ("query_id", "doc_id", "score"), ("NAME",)),
        SuiteFile(
            "NAME_captionsN", ("split", "image_index", "caption1", "...", "captionN"), ("NAME_captionsN",)
        ),
    ),
    "entities": (
        SuiteFile("er_NAME_queries", ("split", "query_id", "text", "gold_entity_ids"), ("NAME",)),
        SuiteFile("er_NAME_entities", ("entity_id", "text"), ("NAME",)),
    ),
    "geometry": (SuiteFile("stsb_test", _PAIRS, ("STS-B",), "else stsb_dev"),),
    "latency": (SuiteFile("stsb_test", _PAIRS, ("STS-B",)),),
    "fidelity": (),
}
"""Suite -> its files."""
