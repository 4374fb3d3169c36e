"""Test files cut to a size that two models encode in a minute, with every kind of file among them."""

from __future__ import annotations

import gzip
from pathlib import Path

SUITES = ("sts", "sts-multilingual", "transfer", "nli", "retrieval", "entities", "geometry")

# file -> beginning of a row ("" for any) -> (every how manyth such row, how many at most)
_CUTS = {
    "sts12_test.tsv": {"": (18, 160)},
    "sts13_test.tsv": {"": (9, 160)},
    "sts14_test.tsv": {"": (23, 160)},
    "stsb_test.tsv": {"": (1, 200)},
    "stsb_mt_de.tsv.gz": {"test": (1, 200)},
    "stsb_mt_es.tsv.gz": {"test": (1, 200)},
    "sick.tsv.gz": {"train": (20, 200), "trial": (5, 80), "test": (25, 200)},
    "senteval_mr.tsv.gz": {"": (40, 260)},
    "senteval_cr.tsv.gz": {"": (15, 240)},
    "senteval_trec.tsv": {"train": (15, 350), "test": (3, 160)},
    "senteval_mrpc.tsv.gz": {"train": (18, 190), "test": (12, 140)},
    "glue_sst2.tsv.gz": {"train": (220, 300), "dev": (9, 90), "test": (12, 150)},
    "snli_train100k.tsv.gz": {"": (250, 390)},
    "snli_dev_tokenized.tsv.gz": {"": (60, 150)},
    "flickr30k_captions5.tsv.gz": {"test": (20, 50)},
    "er_abt_buy_entities.tsv.gz": {"": (1, 2000)},
    "er_abt_buy_queries.tsv.gz": {"test": (2, 100), "valid": (4, 50)},
}


def cut_files(shared: Path, out: Path) -> Path:
    """Write the cut files of the folder ``shared`` into ``out``, unpacked, and return ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    for name, cuts in _CUTS.items():
        path = shared / name
        whole = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        header, *rows = whole.decode("utf-8").splitlines(keepends=True)
        taken = [
            row
            for beginning, (every, most) in cuts.items()
            for row in [row for row in rows if row.startswith(beginning)][::every][:most]
        ]
        (out / name.removesuffix(".gz")).write_text(header + "".join(taken), encoding="utf-8", newline="")
    return out


def sentences(shared: Path) -> list[str]:
    """Return sentences for the suite that compares vectors with a teacher's."""
    whole = (shared / "stsb_dev.tsv").read_text(encoding="utf-8")
    return [row.split("\t")[2] for row in whole.splitlines()[1:301]]
