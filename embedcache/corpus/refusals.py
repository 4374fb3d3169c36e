"""What to say of a file that cannot be read: what it is instead, in plain words, and what to do."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from embedcache.corpus.sources import ONE_JSON_VALUE, recognised

# How files of the formats begin; the last is a stream.
_PARQUET_MAGICS = (b"PAR1", b"PARE")
_ARROW_MAGICS = (b"ARROW1", b"\xff\xff\xff\xff")
_SHOWN = 40
_SHOWN_BYTES = 16
_OTHER_JSON = {
    "[": ("a JSON list", ONE_JSON_VALUE),
    "{": ("an object that does not end there", "Write each on one line: jq -c . FILE > FILE.jsonl"),
}


def json_trouble(line: bytes) -> str:
    """Return what a line is that is no JSON object, and what to do."""
    shown = line.decode("utf-8", "backslashreplace").strip()
    shown = repr(shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…")
    if shown[1] in _OTHER_JSON:
        kind, remedy = _OTHER_JSON[shown[1]]
        return f"begins {kind}: {shown}. {remedy}"
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return f"is no JSON: {shown}; pass the right --format, or convert the file"
    return f"is the bare value {shown}; write an object for each text, or pass --format text"


def csv_trouble(error: csv.Error) -> str:
    """Return in plain words what Python's reader of CSV objects to, and what to do."""
    words = str(error)
    if "new-line character" in words:
        return "a carriage return stands alone in it; end lines with LF or CRLF"
    if "expected after" in words:
        return 'text follows a closing quote; write a quote inside quotes as ""'
    if "unexpected end" in words:
        return 'a quote was left open; close it, and write a quote inside quotes as ""'
    return f"{words}; put quotes around fields that hold commas, quotes or line breaks"


def columnar_trouble(path: Path, kind: str, error: Exception) -> str:
    """Return what a file is that the reader of ``kind``, parquet or arrow, refused with ``error``."""
    with path.open("rb") as file:
        head = file.read(4096)
        size = file.seek(0, 2)
        file.seek(max(size - 4, 0))
        tail = file.read(4)
    if not head:
        return "it is empty; write or download it again"
    magics = _PARQUET_MAGICS if kind == "parquet" else _ARROW_MAGICS
    if not head.startswith(magics):
        look = recognised(head)
        begins = repr(head[:_SHOWN_BYTES].decode("utf-8", "replace"))
        shown = f"it looks like {look}" if look else f"it begins with the text {begins}"
        return f"{shown}, and not as {kind} begins; pass the right --format, or convert it"
    if kind == "parquet" and tail not in _PARQUET_MAGICS:
        return f"its end is missing, after {size:,} bytes; copy, download or write it again"
    reason = " ".join(str(error).split())
    return f"it is cut off or damaged ({reason}); copy, download or write it again"
