"""Real English sentences that are already on any machine with Python.

They come from the documentation of the standard library and of installed packages: docstrings and other long
texts in modules, which are parsed and never imported, package descriptions, and files in Markdown,
reStructuredText or plain text.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import random
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.demo.prose import sentences_in
from distill.errors import DataError

_SEED = 0
# Reading more of one package costs time and makes the corpus more of one kind.
_BYTES_PER_SOURCE = 3_000_000
# So much of each package for every sentence that is asked for is more than enough where there are dozens.
_BYTES_PER_SENTENCE = 150
_LARGEST_FILE = 1_000_000
_STANDARD_LIBRARY = "python"
_DOCUMENTS = {".md", ".rst", ".txt"}
_SKIPPED_FOLDERS = {
    "__pycache__",
    "test",
    "tests",
    "site-packages",
    "dist-packages",
    "node_modules",
    "licenses",
}
# Lists of words, names or versions, filler, and the same legal text again and again.
_SKIPPED_STEMS = (
    "license",
    "licence",
    "copying",
    "notice",
    "thirdparty",
    "vocab",
    "requirements",
    "top_level",
)
# Shorter string constants are values and messages; documentation that is no docstring spans lines.
_DOCUMENTATION_LINES = 3


@dataclass(frozen=True)
class Harvest:
    """Sentences found on this machine.

    Attributes:
        sentences: distinct sentences, in the order of the sources.
        sources: sentences taken from each package; the standard library is ``python``.
        found: distinct sentences before the sample was drawn.
        files: files that were read.
        unreadable: files that could not be read or parsed, and gave nothing.
    """

    sentences: list[str]
    sources: dict[str, int]
    found: int
    files: int
    unreadable: int


def harvest_sentences(
    minimum: int = 20_000, maximum: int = 60_000, *, roots: Sequence[Path] | None = None
) -> Harvest:
    """Collect distinct English sentences from the documentation under ``roots``.

    The same files give the same list.

    Args:
        minimum: fewer than this is an error.
        maximum: where more are found, a seeded sample of so many is returned.
        roots: folders to look in; default: the standard library and the installed packages.

    Raises:
        DataError: if fewer than ``minimum`` are found, or a root is no folder.
    """
    folders = list(_default_roots() if roots is None else roots)
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder} is no folder; name one that holds Python packages or documentation")
    # A few sentences are had from a part of each package, in a fraction of the time.
    bytes_per_source = min(_BYTES_PER_SENTENCE * maximum, _BYTES_PER_SOURCE)
    found = _read(folders, maximum, bytes_per_source)
    if found.found < maximum and bytes_per_source < _BYTES_PER_SOURCE:
        found = _read(folders, maximum, _BYTES_PER_SOURCE)
    if found.found < minimum:
        looked = ", ".join(str(folder) for folder in folders)
        raise DataError(
            f"found {found.found} distinct English sentences in {found.files} files under {looked}, "
            f"expected at least {minimum}; "
            "install the project with its dependencies, or build a corpus from your own text"
        )
    return found


def _read(folders: Sequence[Path], maximum: int, bytes_per_source: int) -> Harvest:
    """Collect sentences from at most so many bytes of each source, and draw a sample where there are more."""
    origin: dict[str, str] = {}
    spelling: dict[str, str] = {}
    files = unreadable = 0
    for source, path in _chosen_files(folders, bytes_per_source):
        files += 1
        texts = _texts_of(path)
        if texts is None:
            unreadable += 1
            continue
        for text in texts:
            for sentence in sentences_in(text):
                folded = sentence.casefold()
                spelling.setdefault(folded, sentence)
                origin.setdefault(folded, source)
    keys = list(spelling)
    if len(keys) > maximum:
        keys = [keys[i] for i in sorted(random.Random(_SEED).sample(range(len(keys)), maximum))]  # noqa: S311
    return Harvest(
        sentences=[spelling[key] for key in keys],
        sources=dict(Counter(origin[key] for key in keys)),
        found=len(spelling),
        files=files,
        unreadable=unreadable,
    )


def _default_roots() -> list[Path]:
    paths = sysconfig.get_paths()
    named = [Path(os.__file__).parent, Path(paths["purelib"]), Path(paths["platlib"])]
    return [folder for folder in dict.fromkeys(named) if folder.is_dir()]


def _chosen_files(roots: Sequence[Path], bytes_per_source: int) -> Iterator[tuple[str, Path]]:
    """Yield (source, file), source by source; of a large source an even part of its files, chosen by name."""
    for root in roots:
        by_source: dict[str, list[tuple[Path, int]]] = {}
        for path, size in _walk(root):
            by_source.setdefault(_source_of(path, root), []).append((path, size))
        for source in sorted(by_source):
            left = bytes_per_source
            for path, size in sorted(by_source[source], key=lambda entry: _shuffled(entry[0], root)):
                if size <= left:
                    left -= size
                    yield source, path


def _walk(root: Path) -> Iterator[tuple[Path, int]]:
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in _SKIPPED_FOLDERS and name[0] != ".")
        for name in sorted(names):
            path = Path(folder, name)
            if _is_documentation(path) and (size := path.lstat().st_size) <= _LARGEST_FILE:
                yield path, size


def _is_documentation(path: Path) -> bool:
    if path.name.lower().startswith(_SKIPPED_STEMS):
        return False
    if path.parent.suffix in {".dist-info", ".egg-info"}:
        return path.name in {"METADATA", "PKG-INFO"}
    return path.suffix == ".py" or path.suffix.lower() in _DOCUMENTS


def _source_of(path: Path, root: Path) -> str:
    if root == Path(os.__file__).parent:
        return _STANDARD_LIBRARY
    first = path.relative_to(root).parts[0]
    return first.split("-")[0] if first.endswith("-info") else first.removesuffix(".py")


def _shuffled(path: Path, root: Path) -> bytes:
    return hashlib.blake2b(
        path.relative_to(root).as_posix().encode("utf-8", "surrogateescape"), digest_size=8
    ).digest()


def _texts_of(path: Path) -> list[str] | None:
    """Return the documentation in a file; None where it cannot be read."""
    try:
        data = path.read_bytes()
        if path.suffix == ".py":
            return _documentation_in(data) if b'"""' in data or b"'''" in data else []
        text = data.decode("utf-8")
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    if path.name in {"METADATA", "PKG-INFO"}:
        text = text.partition("\n\n")[2]
    return [text]


def _documentation_in(data: bytes) -> list[str]:
    with warnings.catch_warnings():
        # Invalid escapes in other people's docstrings: a SyntaxWarning since Python 3.12, deprecated before.
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.filterwarnings("ignore", r"invalid escape sequence|.*invalid octal", DeprecationWarning)
        tree = ast.parse(data)
    texts: list[str] = []
    for node in _nodes(tree):
        # A string that is a statement (a docstring, say) documents something, however short; any other must
        # be long. A long one that is a statement is met again as the constant inside it.
        text = _string(node.value) if isinstance(node, ast.Expr) else _string(node)
        if text and _is_long(text) != isinstance(node, ast.Expr):
            texts.append(inspect.cleandoc(text))
    return texts


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node; ``ast.walk`` takes three times as long, which is most of a harvest."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        for value in reversed(vars(node).values()):
            if isinstance(value, ast.AST):
                stack.append(value)
            elif isinstance(value, list):
                stack.extend(child for child in reversed(value) if isinstance(child, ast.AST))


def _string(node: ast.AST) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_long(text: str) -> bool:
    return text.count("\n") >= _DOCUMENTATION_LINES
