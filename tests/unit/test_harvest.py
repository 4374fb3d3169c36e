from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from distill.demo.harvest import Harvest, harvest_sentences
from distill.demo.prose import is_sentence, sentences_in, split_sentences, strip_markup
from distill.errors import DataError


def put(root: Path, name: str, text: str | bytes) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    return path


def harvest(root: Path, **keywords: int) -> Harvest:
    return harvest_sentences(keywords.pop("minimum", 1), roots=[root], **keywords)


@pytest.fixture
def tree(tmp_path):
    put(
        tmp_path,
        "boats/sail.py",
        '''
        """Everything that keeps a boat moving in the wind.

        >>> The doctest is not a sentence of the text.
        """
        # The comment above a function is not documentation.
        import a_module_that_does_not_exist

        LABEL = "The short constant is a message and no documentation."
        HELP = """
        The long text of a help page is documentation too.

        It may span several paragraphs.
        """

        def hoist(sail):
            """Raise the sail until it is tight.  Returns the time that it took."""
        ''',
    )
    put(tmp_path, "boats/guide.md", "# The title of a guide.\n\nTake [the rope](x.html) in **both** hands.\n")
    put(
        tmp_path,
        "boats-1.0.dist-info/METADATA",
        "Name: boats\nSummary: The header is not a text.\n\nBoats float on the water.\n",
    )
    put(tmp_path, "boats-1.0.dist-info/entry_points.txt", "The entry points are not a text.\n")
    put(tmp_path, "LICENSE.txt", "The licence is the same in every package.\n")
    put(tmp_path, "boats/tests/test_sail.py", '"""The tests of a package are left out."""\n')
    return tmp_path


def test_docstrings_long_strings_documents_and_descriptions_are_found(tree):
    assert sorted(harvest(tree).sentences) == [
        "Boats float on the water.",
        "Everything that keeps a boat moving in the wind.",
        "It may span several paragraphs.",
        "Raise the sail until it is tight.",
        "Returns the time that it took.",
        "Take the rope in both hands.",
        "The long text of a help page is documentation too.",
    ]


def test_sources_count_what_each_package_gave(tree):
    put(tree, "cars/__init__.py", '"""Cars drive on the road."""\n')
    found = harvest(tree)
    assert found.sources == {"boats": 7, "cars": 1}
    assert sum(found.sources.values()) == len(found.sentences) == found.found


def test_modules_are_parsed_and_never_run(tmp_path):
    put(tmp_path, "loud.py", '"""Nothing here may ever be run."""\nraise SystemExit(3)\n')
    assert harvest(tmp_path).sentences == ["Nothing here may ever be run."]


def test_files_that_cannot_be_read_are_counted(tree):
    before = harvest(tree)
    put(tree, "bad/syntax.py", 'def broken(:\n    """The file cannot be parsed."""\n')
    put(tree, "bad/null.py", b'"""The file has a null byte."""\x00')
    put(tree, "bad/latin.md", "The caf\u00e9 is closed on Sunday.".encode("latin-1"))
    after = harvest(tree)
    assert (before.unreadable, after.unreadable) == (0, 3)
    assert after.files == before.files + 3
    assert after.sentences == before.sentences


def test_invalid_escapes_in_foreign_docstrings_do_not_warn(tmp_path):
    put(tmp_path, "escape.py", '"""The pattern \\d is no escape. A second sentence is fine here."""\n')
    assert harvest(tmp_path).sentences == ["A second sentence is fine here."]


def test_sentences_are_distinct_whatever_their_case(tmp_path):
    put(tmp_path, "a.md", "The Same sentence is there twice.\n")
    put(tmp_path, "b.md", "The same sentence is there twice.\n\nAnother one is there once.\n")
    assert harvest(tmp_path).found == 2


def test_the_same_files_give_the_same_list_and_a_sample_keeps_its_order(tmp_path):
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    for first in words:
        put(tmp_path, f"{first}.md", "\n\n".join(f"The {first} is not the {second}." for second in words))
    everything = harvest(tmp_path).sentences
    sample = harvest(tmp_path, maximum=30)
    assert len(everything) == sample.found == 100
    assert harvest(tmp_path).sentences == everything
    assert harvest(tmp_path, maximum=30) == sample
    assert len(sample.sentences) == sum(sample.sources.values()) == 30
    positions = [everything.index(sentence) for sentence in sample.sentences]
    assert positions == sorted(positions)
    assert positions != list(range(30))


def test_too_few_sentences_are_an_error_that_says_how_many_and_where(tree):
    with pytest.raises(DataError, match=rf"found 7 .* under {tree}.* at least 8"):
        harvest(tree, minimum=8)
    assert len(harvest(tree, minimum=7).sentences) == 7


def test_a_root_that_is_no_folder_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        harvest_sentences(1, roots=[tmp_path / "nowhere"])


def test_links_are_not_followed_out_of_the_tree(tmp_path):
    put(tmp_path, "outside/text.md", "The text lies outside of the tree.\n")
    put(tmp_path, "inside/text.md", "The text lies inside of the tree.\n")
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
    assert harvest(tmp_path / "inside").sentences == ["The text lies inside of the tree."]


def test_the_standard_library_alone_gives_thousands():
    root = Path(os.__file__).parent
    found = harvest_sentences(1_500, 2_000, roots=[root])
    assert len(found.sentences) == len(set(found.sentences)) == 2_000
    assert found.sources == {"python": 2_000}
    assert all(is_sentence(sentence) for sentence in found.sentences)


def test_for_few_sentences_few_files_are_read_and_all_where_that_is_not_enough(tmp_path):
    for number in range(200):
        word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        put(tmp_path, f"boats/{number}.md", f"The boat of the {word} is in the harbour today.\n")
    few, all_of_them = (harvest(tmp_path, maximum=count) for count in (10, 200))
    assert len(few.sentences) == 10
    assert few.files < 60
    assert few.sentences == harvest(tmp_path, maximum=10).sentences
    assert (len(all_of_them.sentences), all_of_them.files) == (200, 200)
    # One file has all of them, and is more than would be read at first.
    lines = "\n\n".join(all_of_them.sentences)
    put(tmp_path / "large", "boats/all.md", f"{lines}\n")
    assert len(harvest(tmp_path / "large", maximum=10).sentences) == 10


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Use :class:`~a.b.Reader` to read the file.", ["Use Reader to read the file."]),
        ("See :ref:`the guide <guide>` for all of it.", ["See the guide for all of it."]),
        (
            "The ``name`` of *every* file is `kept <x>`_ as it is.",
            ["The name of every file is kept as it is."],
        ),
        ("He gave Mr. Smith the book of the year. It is new.", ["He gave Mr. Smith the book of the year."]),
        ("Was it cold? It was! The wind blew from the north.", ["The wind blew from the north."]),
        (":param x: The width of the box.", ["The width of the box."]),
        ("x (int, optional): The width of\n    the whole box.", ["The width of the whole box."]),
        (
            "- The first item of it.\n- The second item of it.",
            ["The first item of it.", "The second item of it."],
        ),
        (".. note::\n\n   The order is kept as it is.", ["The order is kept as it is."]),
        ("Title of the page.\n==================\nThe text of the page.", ["The text of the page."]),
    ],
)
def test_markup_is_reduced_to_the_words(text, sentences):
    assert list(sentences_in(text)) == sentences


@pytest.mark.parametrize(
    "text",
    [
        "```\nThe code of an example is here.\n```",
        ".. code-block:: text\n\n   The code of an example is here.\n\n   The second part is code too.",
        ">>> x\nThe output of a doctest is here.",
        "| The cell of a table. |\n|---|\n| The other cell of a table. |",
        "===== ===========================\nThe cell of a table is here.  |",
        "# The heading of the page is here.",
        ".. The comment is not part of the page.",
    ],
)
def test_code_tables_titles_and_comments_give_nothing(text):
    assert list(sentences_in(text)) == []


def test_text_after_a_literal_block_is_read_again():
    text = "The call looks like this::\n\n    The call is code here.\n\nThe text goes on after it."
    assert list(sentences_in(text)) == ["The text goes on after it."]


@pytest.mark.parametrize(
    "text",
    [
        "The file is small.",
        "Is the file in the folder?",
        "If it is empty (the default), the whole file is read.",
        "She didn't know that the well-known path was closed.",
        "The " + "very " * 35 + "long road is here.",
    ],
)
def test_plain_english_is_a_sentence(text):
    assert is_sentence(text)


@pytest.mark.parametrize(
    "text",
    [
        "The file is.",  # too short
        "The " + "very " * 36 + "long road is here.",  # too long
        "the file is small.",  # starts small
        "The file is small",  # does not end
        "The size of the_file is small.",
        "Call foo() to read the file.",
        "The value of numpy.float is small.",
        "The file is at https://example.org for all.",
        "Der Hund schl\u00e4ft in the house.",
        "Alle Hunde schlafen gern lange.",  # no English function word
        "The file (which is small is read.",
        "THE FILE IS READ BY ALL.",
        "The method is described in.",
        "Note: the file is read here.",
        "The vector of 1 2 3 4 5 6.",
    ],
)
def test_what_is_not_plain_english_is_no_sentence(text):
    assert not is_sentence(text)


def test_an_abbreviation_does_not_end_a_sentence():
    assert split_sentences("Ask Mr. Smith. He knows.") == ["Ask Mr. Smith.", "He knows."]


def test_strip_markup_keeps_plain_text_as_it_is():
    text = "A line (with brackets), 3 * 4 and 'quotes'."
    assert strip_markup(text) == text
