"""The shape of the code, read from its imports: one direction, no circles, small files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import distill
import embedcache

ROOTS = {package.__name__: Path(str(package.__file__)).parent for package in (embedcache, distill)}
LONGEST = 400

# From the ground up; a module imports from its own floor and from those below it.
FLOORS = [
    ["errors", "os_errors"],
    ["lazy", "keys", "pairs", "fsio", "arrow_file", "sizes", "progress", "notebook", "filesystems"],
    ["folders", "codecs", "contract"],
    ["store", "corpus", "teacher", "views"],
    ["scan", "cache_documents"],
    ["cache"],
    [
        "inventory",
        "missing",
        "projection",
        "querying",
    ],
    [
        "copying",
        "doctor",
        "explain",
        "exporting",
        "gc",
        "info",
        "live",
        "probes",
        "testing",
        "verify",
    ],
    ["share"],
    ["building", "parallel", "repair"],
    ["vector_files", "importing"],
    ["cli", "__main__"],
]


def module_name(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path, root): path for root in ROOTS.values() for path in sorted(root.rglob("*.py"))}


class Imports(ast.NodeVisitor):
    """Imports of a module, inside functions too.

    Attributes:
        found: its imports at run time.
        with_types: that, and what it imports for type checkers.
    """

    def __init__(self, path: Path) -> None:
        self.found: set[str] = set()
        self.with_types: set[str] = set()
        self._for_types = False
        self.visit(ast.parse(path.read_text(encoding="utf-8")))

    def visit_If(self, node: ast.If) -> None:
        self._for_types = isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for one in node.body:
            self.visit(one)
        self._for_types = False
        for one in node.orelse:
            self.visit(one)

    def visit_Import(self, node: ast.Import) -> None:
        self._add(*(alias.name for alias in node.names))

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, "relative import"
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            self._add(whole if whole in MODULES else str(node.module))

    def _add(self, *names: str) -> None:
        self.with_types.update(names)
        if not self._for_types:
            self.found.update(names)


@pytest.fixture(scope="module")
def read() -> dict[str, Imports]:
    """Return the imports of every module, by its name."""
    return {name: Imports(path) for name, path in MODULES.items()}


Graph = dict[str, set[str]]


@pytest.fixture(scope="module")
def imports(read: dict[str, Imports]) -> Graph:
    """Return what every module imports when it runs."""
    return {name: one.found for name, one in read.items()}


def test_the_modules_are_read(imports: Graph) -> None:
    # Otherwise everything below holds of nothing.
    assert {"embedcache.building.build", "embedcache.store.store", "distill.training.trainer"} <= set(MODULES)
    assert "embedcache.store" in imports["embedcache.cache"]
    assert "embedcache.building.build" in imports["embedcache.cli.build"]
    assert "embedcache.building.build" not in imports["embedcache.cache"]


def test_embedcache_never_imports_distill(imports: Graph) -> None:
    guilty = {
        name
        for name, imported in imports.items()
        if name.startswith("embedcache") and any(one.split(".")[0] == "distill" for one in imported)
    }
    assert guilty == set()


def test_only_command_lines_know_click(imports: Graph) -> None:
    guilty = {
        name
        for name, imported in imports.items()
        if "cli" not in name.split(".") and any(one.split(".")[0] == "click" for one in imported)
    }
    assert guilty == set()


def cycles(graph: Graph) -> Iterator[list[str]]:
    done: set[str] = set()
    path: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        if name in path:
            yield [*path[path.index(name) :], name]
        elif name not in done:
            path.append(name)
            for below in sorted(graph[name] & graph.keys()):
                yield from visit(below)
            path.pop()
            done.add(name)

    for name in sorted(graph):
        yield from visit(name)


def test_there_are_no_import_cycles(imports: Graph) -> None:
    assert list(cycles(imports)) == []


def test_types_close_no_circle(read: dict[str, Imports]) -> None:
    assert list(cycles({name: one.with_types for name, one in read.items()})) == []


def test_a_circle_would_be_found() -> None:
    assert list(cycles({"a": {"b"}, "b": {"c", "x"}, "c": {"a"}, "d": {"a"}})) == [["a", "b", "c", "a"]]
    assert list(cycles({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()})) == []


def floor_of(module: str) -> int:
    name = module.removeprefix("embedcache.")
    (floor,) = [
        number
        for number, names in enumerate(FLOORS)
        if any(f"{name}.".startswith(f"{one}.") for one in names)
    ]
    return floor


def test_every_import_of_embedcache_points_downwards(imports: Graph) -> None:
    upwards = [
        (name, one)
        for name, imported in imports.items()
        for one in imported & MODULES.keys()
        if name.startswith("embedcache.") and one.startswith("embedcache.") and floor_of(one) > floor_of(name)
    ]
    assert upwards == []


def test_teachers_stores_and_corpora_do_not_know_each_other(imports: Graph) -> None:
    rooms = ("embedcache.store", "embedcache.corpus", "embedcache.teacher")
    across = [
        (name, one)
        for name, imported in imports.items()
        for one in imported
        for here in rooms
        for there in rooms
        if here != there and name.startswith(here) and one.startswith(there)
    ]
    assert across == []


def test_no_file_is_long() -> None:
    lines = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > LONGEST} == {}


def test_the_init_of_a_folder_only_passes_on() -> None:
    for name, path in MODULES.items():
        if path.name != "__init__.py" or "." not in name:
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            # What is passed on may be loaded when it is first used.
            is_names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in (
                "__all__",
                "__getattr__",
            )
            is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            is_import = isinstance(node, (ast.Import, ast.ImportFrom))
            assert is_docstring or is_names or is_typing or is_import, f"{name}: {ast.unparse(node)}"
