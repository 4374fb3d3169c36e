"""Whole English sentences out of docstrings, reStructuredText and Markdown.

Strict on purpose: documentation is plentiful, so whatever might be code, a table or half a sentence is left
out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_MIN_WORDS, _MAX_WORDS = 4, 40

_UNDERLINE = re.compile(r"([=\-~^\"'`#*+.:_])\1{2,}")
_FENCE = re.compile(r"(```|~~~)")
_DIRECTIVE = re.compile(r"\.\. +(\|\w+\| +)?([\w:-]+)::")
_PROSE_DIRECTIVES = {"note", "warning", "tip", "important", "caution", "hint", "attention", "danger"}
_TABLE_ROW = re.compile(r"[|+]|.*\|\s*$|(=+|-+)( +(=+|-+))+$")
_BULLET = re.compile(r"(?:[-*+\u2022]|\d{1,2}[.)]|\(?[a-z]\))\s+")
# ":param x:" of reStructuredText, "x (int, optional):" of Google's style.
_FIELD = re.compile(r":[a-zA-Z][^:`]*:\s+|\*{0,2}`{0,2}\w+`{0,2}\s*(?:\([^)]*\)+)?:\s+")

_INLINE = (
    (re.compile(r"!\[[^\]]*\]\([^)]*\)"), ""),  # images
    (re.compile(r"\[([^\]\[]+)\]\([^)]*\)"), r"\1"),  # [text](target)
    (re.compile(r"\[\^?[\w.*-]+\]_?(?=[\s.,;:)]|$)"), ""),  # footnotes
    (re.compile(r":[\w:+-]+:`([^`<]+?)\s*<[^`>]*>`"), r"\1"),  # :role:`text <target>`
    (re.compile(r":[\w:+-]+:`[~!]?(?:[\w.]*\.)?([^`]+)`"), r"\1"),  # :role:`target`
    (re.compile(r"`([^`<]+?)\s*<[^`>]*>`_{0,2}"), r"\1"),  # `text <target>`_
    (re.compile(r"``?([^`]+)``?_{0,2}"), r"\1"),
    (re.compile(r"\*\*([^*]+)\*\*"), r"\1"),
    (re.compile(r"(?<![\w*])\*([^*\s][^*]*)\*(?!\w)"), r"\1"),
    (re.compile(r"(?<!\w)_{1,2}([^_\s][^_]*)_{1,2}(?!\w)"), r"\1"),
    (re.compile(r"</?[a-zA-Z][^>]*>"), ""),
    (re.compile(r"\s+([,.;:!?])(?=\s|$)"), r"\1"),
    (re.compile(r"\s+"), " "),
)
_ABBREVIATION = re.compile(
    r"\b(?:e\.g|i\.e|etc|vs|cf|al|resp|approx|incl|Fig|Eq|Sec|No|Mr|Mrs|Dr|St|[A-Z])\.$"
)
_SENTENCE_END = re.compile(r"(?<=[.?!])[\"')\]]*\s+(?=[\"'(]?[A-Z])")

_CODE_SIGN = re.compile(
    r"[_=<>{}\\|@#~^$*`\[\]&\u2026]|::|\(\)|://|www\.|\.\.|--|[!?]{2}"
    r"|[a-z]\.[a-zA-Z]|\w/\w+/|%[a-z(]|[a-z][A-Z]"
)
_PLAIN_WORD = re.compile(r"[\"'(]*[A-Za-z]+(?:['-][A-Za-z]+)*[\"')]*[,;:]?$")
_FUNCTION_WORD = re.compile(
    r"\b(?:the|a|an|is|are|was|be|will|can|may|must|of|to|in|for|with|that|this|it|if|and|not|by)\b"
)
# What is left where a reference was taken out: "... is described in."
_CUT_OFF = re.compile(r"\b(?:in|of|by|from|at|with|see|and|or|the|a|an|than|as)[.?!]$", re.IGNORECASE)
_LABEL = re.compile(r"^[\w ]{1,30}: ")


def sentences_in(text: str) -> Iterator[str]:
    """Yield the sentences of ``text`` that :func:`is_sentence` accepts, in their order."""
    for block in prose_blocks(text):
        yield from filter(is_sentence, split_sentences(strip_markup(block)))


def prose_blocks(text: str) -> Iterator[str]:
    """Yield the paragraphs and list items of ``text``, each on one line, without code, tables and titles."""
    block: list[str] = []
    indent, hanging = 0, False
    skipping: int | None = None  # inside a literal block: everything deeper than this
    fenced = doctest = False
    for raw in [*text.expandtabs(4).splitlines(), ""]:
        line = raw.strip()
        depth = len(raw) - len(raw.lstrip())
        if _FENCE.match(line):
            fenced = not fenced
            yield from _finished(block)
            continue
        doctest = line.startswith(">>>") or (doctest and bool(line))
        if skipping is not None and line and depth <= skipping:
            skipping = None
        if not line or fenced or doctest or skipping is not None or _TABLE_ROW.match(line):
            yield from _finished(block)
            continue
        if _UNDERLINE.fullmatch(line):
            block.clear()  # the line above was a title
            continue
        if line.startswith(".. "):
            yield from _finished(block)
            directive = _DIRECTIVE.match(line)
            if directive is None or directive.group(2).lower() not in _PROSE_DIRECTIVES:
                skipping = depth
            continue
        if line.startswith("#"):
            yield from _finished(block)
            continue
        item = _BULLET.match(line) or _FIELD.match(line)
        if item:
            yield from _finished(block)
            line, indent, hanging = line[item.end() :].strip(), depth, True
        elif block and depth != indent and not (hanging and depth > indent):
            yield from _finished(block)
            hanging = False
        if not block and not item:
            indent, hanging = depth, False
        block.append(line)
        if line.endswith("::"):
            skipping = indent
    yield from _finished(block)


def _finished(block: list[str]) -> Iterator[str]:
    if block:
        yield " ".join(block)
        block.clear()


def strip_markup(text: str) -> str:
    """Return ``text`` with inline reStructuredText, Markdown and HTML markup reduced to its words."""
    for pattern, replacement in _INLINE:
        text = pattern.sub(replacement, text)
    return text.strip()


def split_sentences(text: str) -> list[str]:
    """Split one line of prose into sentences; a full stop after a common abbreviation does not end one."""
    sentences: list[str] = []
    start = 0
    for boundary in _SENTENCE_END.finditer(text):
        head = text[start : boundary.start()]
        if _ABBREVIATION.search(head):
            continue
        sentences.append(text[start : boundary.end()].strip())
        start = boundary.end()
    sentences.append(text[start:].strip())
    return sentences


def is_sentence(text: str) -> bool:
    """Return whether ``text`` reads as one English sentence, judged by its words and signs alone.

    It has 4 to 40 words, nearly all plain and most in lower case, one of them a common function word; it
    starts with a capital letter and ends with a full stop, a question mark or an exclamation mark.
    """
    words = text.split()
    if not _MIN_WORDS <= len(words) <= _MAX_WORDS:
        return False
    if not text.isascii() or not ("A" <= text[0] <= "Z") or text[-1] not in ".?!":
        return False
    if _CODE_SIGN.search(text) or _LABEL.match(text) or _ABBREVIATION.search(text):
        return False
    if _CUT_OFF.search(text):
        return False
    if text.count("(") != text.count(")") or text.count('"') % 2:
        return False
    plain = sum(1 for word in words if _PLAIN_WORD.match(word.rstrip(".?!")))
    lower = sum(1 for word in words if word.islower())
    return plain >= 0.85 * len(words) and lower >= 0.6 * len(words) and bool(_FUNCTION_WORD.search(text))
