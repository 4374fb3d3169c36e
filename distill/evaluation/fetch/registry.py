"""The registry of conversions."""

from __future__ import annotations

from collections.abc import Mapping

from distill.evaluation.fetch import readers, records
from distill.evaluation.fetch.readers import Reader

READERS: Mapping[str, Reader] = {
    "pairs-and-scores": readers.pairs_and_scores,
    "scored-pairs": readers.scored_pairs,
    "json-pairs": readers.json_pairs,
    "sts-benchmark": readers.sts_benchmark,
    "translated-pairs": readers.translated_pairs,
    "sick": readers.sick,
    "text-lines": readers.text_lines,
    "labelled-lines": readers.labelled_lines,
    "questions": readers.questions,
    "paraphrases": readers.paraphrases,
    "labelled-sentences": readers.labelled_sentences,
    "inferences": readers.inferences,
    "captions": readers.captions,
    "matched-queries": records.matched_queries,
    "matched-entities": records.matched_entities,
}
"""The conversions, by the name that the lists of sources use."""
