from __future__ import annotations

import pytest
from click.testing import CliRunner

from distill.cli.main import cli
from distill.errors import StudentError
from distill.students.spec import FORMS, is_from_teacher, parse_spec


@pytest.mark.parametrize(
    ("spec", "kind", "values"),
    [
        ("compact:e=128,layers=3", "compact", {"e": "128", "layers": "3"}),
        ("compact:e=8", "compact", {"e": "8"}),
        ("compact:layers=0+2+5, e=8,vocab=900", "compact", {"e": "8", "layers": "0+2+5", "vocab": "900"}),
        ("compact:e=8,layers=every:2", "compact", {"e": "8", "layers": "every:2"}),
        ("narrow:h=192,layers=6", "narrow", {"h": "192", "layers": "6"}),
        ("static:dim=256", "static", {"dim": "256"}),
        ("layers:0,2,5", "layers", {}),
        ("layers:=", "layers", {}),
        ("minilm-l3", "model", {}),
        ("organisation/compact", "model", {}),
        ("compact", "model", {}),
        ("runs/a=b/best", "model", {}),
    ],
)
def test_a_spec_is_taken_apart(spec, kind, values):
    parsed = parse_spec(spec)
    assert (parsed.kind, dict(parsed.values), parsed.text) == (kind, values, spec)
    assert parsed.from_teacher == is_from_teacher(spec) == (kind != "model")


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("compact:", "keys e, layers, copy, ff, vocab"),
        ("compact:layers=3", "e is missing"),
        ("compact:e=8,e=9", "e is given twice"),
        ("compact:e=8,width=3", "'width=3', expected KEY=VALUE with keys e, layers, copy, ff, vocab"),
        ("compact:e=", "'e=', expected KEY=VALUE"),
        ("compact:e", "'e', expected KEY=VALUE"),
        ("compact:e=8,", "'', expected KEY=VALUE"),
        ("compact:e=8,layers=0,2", "'2', expected KEY=VALUE"),
        ("narrow:e=8", "keys h, layers, as in narrow:h=192"),
        ("static:layers=2", "keys dim, vocab"),
        ("compact:e=8,ff=0", "ff=0, expected a whole number of at least 1"),
        ("compact:e=8,copy=maybe", "copy=maybe, expected yes or no"),
        ("static:dim=0", "dim=0, expected a whole number of at least 1"),
        ("compct:e=8", "no kind 'compct'.*compact:e=128,layers=3"),
    ],
)
def test_a_spec_that_is_wrong_is_refused_with_what_is_known(spec, told):
    with pytest.raises(StudentError, match=told) as refused:
        parse_spec(spec)
    assert repr(spec) in str(refused.value)


def test_numbers_are_whole_and_positive():
    assert parse_spec("compact:e=128").integer("e") == 128
    assert parse_spec("compact:e=128").optional_integer("vocab") is None
    assert parse_spec("compact:e=128,vocab=9").optional_integer("vocab") == 9
    for value in ("0", "-1", "1.5", "many", "1e3", "²"):
        with pytest.raises(StudentError, match="expected a whole number of at least 1"):
            parse_spec(f"compact:e={value}")


def test_every_kind_is_listed_for_help_with_all_its_keys():
    assert FORMS.endswith(
        "; compact:e=128,layers=3 (also copy, ff, vocab), narrow:h=192,layers=6, static:dim=256 (also vocab)"
    )
    assert FORMS.startswith("layers:K, ")
    help_of = {name: CliRunner().invoke(cli, [name, "--help"]).stdout for name in ("run", "sweep")}
    assert "(also copy, ff, vocab)" in " ".join(help_of["run"].split())
    assert "as for 'distill run'" in " ".join(help_of["sweep"].split())
