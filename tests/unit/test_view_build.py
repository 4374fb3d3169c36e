"""Views in a build: made, reused, remade or refused, encoded where asked, and shown."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import view_helpers

import embedcache
import embedcache.keys
from embedcache.build_report import BuildProgress, BuildSummary
from embedcache.cache import Cache
from embedcache.cli.main import main
from embedcache.errors import InputError, MissingInputError, MissingVectorsError, TeacherError
from embedcache.show import show_rows
from embedcache.teacher.load import Teacher
from embedcache.testing import sentences, tiny_encoder
from embedcache.views import models as masked
from embedcache.views.plan import ViewOptions

TEXTS = sentences(30)
Build = Callable[..., Cache]


@pytest.fixture
def build(tmp_path: Path, loaded_teacher: Teacher) -> Build:
    """Return ``embedcache.build`` with the tiny teacher, of ``TEXTS`` unless told otherwise."""

    def run(source: Any = None, *views: str, cache: str = "cache", **settings: Any) -> Cache:
        if source is None:
            source = tmp_path / "corpus.txt"
            source.write_text("".join(f"{text}\n" for text in TEXTS))
        options = {
            name: settings.pop(name)
            for name in ("seed", "replace", "embed", "via", "translators", "mask_model")
            if name in settings and name != "replace"
        }
        return embedcache.build(
            source,
            teacher=loaded_teacher,
            cache=tmp_path / cache,
            views=ViewOptions(views, replace=settings.pop("replace_views", False), **options),
            **{"compute_dtype": "float32", **settings},
        )

    return run


def summary(cache: Cache) -> BuildSummary:
    assert cache.last_build is not None
    return cache.last_build


def outcomes(cache: Cache) -> dict[str, str]:
    return {view.name: view.outcome for view in summary(cache).views}


def test_views_are_made_once_and_added_to(build: Build) -> None:
    cache = build(None, "crop", "delete-words*2")
    assert outcomes(cache) == {"crop": "made", "delete-words-1": "made", "delete-words-2": "made"}
    assert summary(cache).views[0].counts == {"changed": 30}
    assert cache.corpus().view_names() == ["crop", "delete-words-1", "delete-words-2"]
    before = {path: path.stat().st_mtime_ns for path in cache.corpora_folder.rglob("*") if path.is_file()}
    again = build(None, "crop", "delete-words*3")
    assert list(outcomes(again).values()) == ["reused", "reused", "reused", "made"]
    after = {path: path.stat().st_mtime_ns for path in cache.corpora_folder.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    # A build that names no views leaves those that are there.
    assert summary(build()).views == []
    assert len(cache.corpus().view_names()) == 4


def test_a_list_of_specs_will_do(tmp_path: Path, loaded_teacher: Teacher) -> None:
    (tmp_path / "a.txt").write_text("one two\nthree four\n")
    cache = embedcache.build(
        tmp_path / "a.txt",
        teacher=loaded_teacher,
        cache=tmp_path / "cache",
        views=["crop", "delete-one-word"],
    )
    assert cache.corpus().view_names() == ["crop", "delete-one-word"]


def test_the_teacher_encodes_the_original_unless_asked(build: Build) -> None:
    cache = build(None, "crop", "delete-words")
    assert summary(cache).encoded == 30
    texts = {name: cache.corpus().view(name).texts() for name in ("crop", "delete-words")}
    with pytest.raises(MissingVectorsError):
        cache.lookup(texts["crop"])
    again = build(None, "crop", embed=["crop"])
    assert (summary(again).encoded, summary(again).reused) == (30, 30)
    assert (summary(again).distinct, summary(again).embedded_views) == (60, ["crop"])
    assert again.lookup(texts["crop"]).shape == (30, 16)
    with pytest.raises(MissingVectorsError):
        again.lookup(texts["delete-words"])
    # A view made before can be encoded without being named again.
    new = set(texts["delete-words"]) - set(texts["crop"])
    assert summary(build(None, embed=["crop", "delete-words"])).encoded == len(new) > 25


def test_texts_that_views_have_in_common_are_encoded_once(tmp_path: Path, build: Build) -> None:
    source = tmp_path / "short.txt"
    source.write_text("one\ntwo\nthree four\n")
    cache = build(source, "crop", "copy=crop", embed=["crop", "copy"])
    # Of the view only the crop of the third row is new, and of its copy nothing.
    assert summary(cache).encoded == 4
    assert (summary(cache).distinct, summary(cache).reused) == (9, 5)


def test_a_view_that_nobody_makes_cannot_be_encoded(tmp_path: Path, build: Build) -> None:
    with pytest.raises(InputError, match="--embed-views crop: there is no such view; there are none"):
        build(None, embed=["crop"])
    with pytest.raises(InputError, match="there will be delete-words"):
        build(None, "delete-words", embed=["original"])
    assert not (tmp_path / "cache").exists()


def test_another_seed_is_refused_before_a_teacher_is_noted(build: Build) -> None:
    build(None, "crop")
    with pytest.raises(InputError, match=r"seed 0, not 1.*--overwrite"):
        build(None, "crop", seed=1)
    again = build(None, "crop", seed=1, replace_views=True)
    assert outcomes(again) == {"crop": "remade"}
    assert again.corpus().view("crop").recipe.seed == 1
    assert outcomes(build(None, "crop", seed=1)) == {"crop": "reused"}


def test_the_same_seed_gives_the_same_files_in_another_cache(tmp_path: Path, build: Build) -> None:
    build(None, "crop*2", seed=3)
    build(None, "crop*2", seed=3, cache="other", shard_rows=7)

    def files(name: str) -> dict[str, bytes]:
        folder = tmp_path / name / "corpora"
        return {
            str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }

    assert files("cache") == files("other")


def test_a_text_makes_the_same_view_in_any_corpus(tmp_path: Path, build: Build) -> None:
    whole = build(None, "delete-words").corpus().view("delete-words").texts()
    few = tmp_path / "few.txt"
    few.write_text("\n".join(reversed(TEXTS[5:9])))
    cache = build(few, "delete-words", name="few")
    assert cache.corpus("few").view("delete-words").texts() == whole[5:9][::-1]


def test_replacing_a_corpus_takes_its_views_away_or_makes_them_anew(tmp_path: Path, build: Build) -> None:
    build(None, "crop", "delete-words")
    (tmp_path / "corpus.txt").write_text("one two three\nfour five six\n")
    with pytest.raises(InputError, match="--overwrite"):
        build(tmp_path / "corpus.txt", "crop")
    assert Cache(tmp_path / "cache").corpus().view_names() == ["crop", "delete-words"]
    cache = build(tmp_path / "corpus.txt", "crop", replace=True)
    assert outcomes(cache) == {"crop": "remade", "delete-words": "removed"}
    assert cache.corpus().view_names() == ["crop"]
    assert len(cache.corpus().view("crop")) == 2


def csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "pairs.csv"
    path.write_text(text, encoding="utf-8")
    return path


PAIRS = 'text,fr,n\nA cat sleeps.,Un chat dort.,1\n,skipped,2\nHello there,"  ",3\nA dog,"Un, chien",4\n'


def test_a_column_of_the_source_is_a_view(tmp_path: Path, build: Build) -> None:
    cache = build(csv(tmp_path, PAIRS), "column:fr", text_column="text")
    view = cache.corpus().view("column-fr")
    assert view.texts() == ["Un chat dort.", "Hello there", "Un, chien"]
    assert summary(cache).views[0].counts == {"changed": 2, "empty cell": 1}
    assert outcomes(build(csv(tmp_path, PAIRS), "column:fr", text_column="text")) == {"column-fr": "reused"}


def test_a_column_that_changed_is_noticed(tmp_path: Path, build: Build) -> None:
    build(csv(tmp_path, PAIRS), "column:fr", text_column="text")
    changed = PAIRS.replace("Un chat dort.", "Le chat dort.")
    with pytest.raises(InputError, match=r"holds other texts than its column.*--overwrite"):
        build(csv(tmp_path, changed), "column:fr", text_column="text")
    cache = build(csv(tmp_path, changed), "column:fr", text_column="text", replace_views=True)
    assert cache.corpus().view("column-fr").texts()[0] == "Le chat dort."


def test_rows_that_are_skipped_for_their_id_or_label_are_skipped_in_the_column(
    tmp_path: Path, build: Build
) -> None:
    rows: list[dict[str, Any]] = [
        {"text": "a b", "id": "1", "label": 0, "de": "A"},
        {"text": "c d", "id": None, "label": 0, "de": "-"},
        {"text": "e f", "id": "2", "label": [], "de": "-"},
        {"text": "g h", "id": "3", "label": 1},
        {"text": "i j", "id": "4", "label": 1, "de": None},
        {"text": "k l", "id": "5", "label": 1, "de": "nul\0"},
        {"text": "m n", "id": "6", "label": 1, "de": "M\ud800"},
        {"text": "o p", "id": "7", "label": 1, "de": "O Ü"},
        {"text": "q r", "id": "8", "label": 1, "de": 5},
    ]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:4], *rows[4:]]) + "no json\n")
    cache = build(
        source, "translation:column=de", text_column="text", id_column="id", label_column="label", limit=6
    )
    assert cache.corpus().view("translation-de").texts() == ["A", "g h", "i j", "k l", "m n", "O Ü"]
    assert summary(cache).views[0].counts == {"changed": 2, "empty cell": 2, "unusable cell": 2}


@pytest.mark.parametrize("kind", ["parquet", "tsv", "csv.gz"])
def test_a_column_is_read_from_any_format_that_has_columns(tmp_path: Path, build: Build, kind: str) -> None:
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / f"pairs.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"text": TEXTS, "other": TEXTS[::-1], "n": range(30)}), path)
    else:
        mark = "\t" if kind == "tsv" else ","
        lines = "".join(
            f"{a}{mark}{b}{mark}{n}\n" for n, (a, b) in enumerate(zip(TEXTS, TEXTS[::-1], strict=True))
        )
        data = f"text{mark}other{mark}n\n{lines}".encode()
        path.write_bytes(gzip.compress(data) if kind == "csv.gz" else data)
    second = tmp_path / f"second.{kind}"
    second.write_bytes(path.read_bytes())
    cache = build([path, second], "column:other", text_column="text")
    assert cache.corpus().view("column-other").texts() == TEXTS[::-1] * 2
    if kind == "parquet":
        with pytest.raises(
            InputError, match=r"column 'n' holds int64, expected text; pass --view column:NAME"
        ):
            build(path, "column:n", text_column="text")


def test_a_column_that_cannot_be_read_is_refused_before_anything_is_written(
    tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        MissingInputError, match="no column 'de'; found: text, fr, n; pass --view column:NAME"
    ):
        build(csv(tmp_path, PAIRS), "column:de", text_column="text")
    with pytest.raises(MissingInputError, match="plain text has no columns; leave --view column:NAME out"):
        build(None, "column:de")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(PAIRS.encode())))
    with pytest.raises(InputError, match="a second time"):
        build("-", "column:fr", format="csv", text_column="text")
    assert not (tmp_path / "cache").exists()


def test_models_make_views_and_are_told_apart(tmp_path: Path, build: Build) -> None:
    first = view_helpers.masked_model(tmp_path / "first")
    second = view_helpers.masked_model(tmp_path / "second", seed=1)
    translators = {
        "en-de": str(view_helpers.translator(tmp_path / "en-de", seed=2)),
        "de-en": str(view_helpers.translator(tmp_path / "de-en", seed=3)),
    }
    settings: dict[str, Any] = {"translators": translators, "via": "de", "device": "cpu"}
    cache = build(None, "mask-fill", "back-translation", mask_model=str(first), **settings)
    assert cache.corpus().view_names() == ["back-translation-de", "mask-fill"]
    assert not list(cache.corpora_folder.rglob(".tmp-*"))
    with pytest.raises(InputError, match=r"another view called 'mask-fill' \(model mask-fill \w+, not \w+\)"):
        build(None, "mask-fill", mask_model=str(second))
    cache = build(None, "mask-fill", "second=mask-fill", mask_model=str(first))
    assert outcomes(cache) == {"mask-fill": "reused", "second": "made"}


def test_a_model_that_cannot_do_its_work_is_refused_before_anything_is_written(
    tmp_path: Path, build: Build
) -> None:
    plain = tiny_encoder(tmp_path / "plain", plain=True)
    with pytest.raises(TeacherError, match="would be random"):
        build(None, "mask-fill", mask_model=str(plain))
    assert not (tmp_path / "cache").exists()


def test_a_view_that_is_there_needs_no_model_in_memory(
    tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = view_helpers.masked_model(tmp_path / "masked")
    build(None, "mask-fill", mask_model=str(folder))

    def never(*arguments: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(masked, "load_model", never)
    assert outcomes(build(None, "mask-fill", mask_model=str(folder))) == {"mask-fill": "reused"}


def test_progress_tells_of_views(build: Build) -> None:
    seen: list[tuple[str, int, int]] = []

    def watch(progress: BuildProgress) -> None:
        seen.append((progress.phase, progress.rows, progress.total))

    build(None, "crop", embed=["crop"], on_progress=watch)
    assert ("view crop", 30, 30) in seen
    assert [one for one in seen if one[0] == "encode"][-1] == ("encode", 30, 30)
    assert all(rows <= total for phase, rows, total in seen if phase != "read")


def test_a_row_is_shown_with_all_that_is_known_of_it(tmp_path: Path, build: Build) -> None:
    cache = build(
        csv(tmp_path, PAIRS), "column:fr", "crop", text_column="text", id_column="n", embed=["crop"]
    )
    last, first = show_rows(cache, cache.corpus(), [2, 0])
    assert (last.row, last.id, last.label) == (2, "4", None)
    assert list(first.views) == ["original", "column-fr", "crop"]
    assert first.views["original"].text == "A cat sleeps."
    assert first.views["column-fr"].text == "Un chat dort."
    assert first.views["column-fr"].recipe == "column fr"
    assert first.views["crop"].recipe == "crop, share 0.1, seed 0"
    assert len(first.views["crop"].text.split()) == 2
    assert first.views["original"].tokens.keys() == first.views["crop"].tokens.keys() != set()
    assert first.views["column-fr"].tokens == {}
    assert bytes.fromhex(first.views["original"].key) == embedcache.keys.key("A cat sleeps.")
    for row in (-1, 3):
        with pytest.raises(InputError, match=f"no row {row} in corpus 'pairs': it has 3"):
            show_rows(cache, cache.corpus(), [row])
    assert np.array_equal(
        cache.corpus().view("crop").keys(), cache.corpus().view("crop").keys_of(np.arange(3))
    )


class Shell:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["embedcache", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return (code, *self.capsys.readouterr())


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    monkeypatch.setenv("COLUMNS", "80")
    return Shell(monkeypatch, capsys)


def test_the_command_line_makes_and_shows_views(tmp_path: Path, tiny_teacher: Path, shell: Shell) -> None:
    source = csv(tmp_path, PAIRS)
    build = [
        "build",
        source,
        "--text-column",
        "text",
        "--teacher",
        tiny_teacher,
        "--cache",
        tmp_path / "cache",
    ]
    code, out, err = shell(*build, "--view", "crop*2", "--view", "column:fr", "--embed-views", "crop-1")
    assert (code, err) == (0, "")
    assert "view crop-1" in out
    assert "made; 2 changed, 1 empty cell" in out
    assert "original, crop-1" in out
    code, out, _ = shell(*build, "--view", "crop*2", "--json")
    assert [(view["name"], view["outcome"]) for view in json.loads(out)["views"]] == [
        ("crop-1", "reused"),
        ("crop-2", "reused"),
    ]
    code, _, err = shell(*build, "--view", "crop*2", "--view-seed", "1")
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    code, out, _ = shell(*build, "--view", "crop*2", "--view-seed", "1", "--replace-views")
    assert "remade" in out

    code, out, _ = shell("show", "--cache", tmp_path / "cache", "--row", 2, "--rows", "0:2")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert [line.split()[1] for line in out.splitlines() if line.startswith("row ")] == ["2", "0", "1"]
    assert "Un, chien" in out
    code, out, _ = shell("show", "--cache", tmp_path / "cache", "--rows", ":2", "--json")
    assert [row["views"]["column-fr"]["text"] for row in json.loads(out)] == ["Un chat dort.", "Hello there"]
    assert shell("show", "--cache", tmp_path / "cache", "--row", 9)[0] == 2
    assert shell("show", "--cache", tmp_path / "cache")[0] == 2
    for rows in ("2", "a:b", "0:", "0:99999", "-1:2"):
        assert shell("show", "--cache", tmp_path / "cache", "--rows", rows)[0] == 2
    assert shell(*build, "--view", "crop", "--translator", "de")[0] == 2


def test_the_views_that_there_are_can_be_listed(shell: Shell) -> None:
    code, out, _ = shell("views")
    assert code == 0
    for kind in ("crop", "delete-words", "mask-fill", "back-translation", "column", "synonym"):
        assert f"{kind}: " in out
    assert max(map(len, out.splitlines())) <= 80
    assert json.loads(shell("views", "--json")[1])["crop"]["arguments"] == {"share": 0.1}
