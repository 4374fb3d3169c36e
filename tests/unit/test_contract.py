"""The contract's id changes with every field and with nothing else; reading one back is strict."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError
from embedcache.testing import example_contract

CHANGES: dict[str, Any] = {
    "weights": "9" * 64,
    "tokenizer": "9" * 64,
    "architecture": "9" * 64,
    "pooling": "cls",
    "modules": '[{"type":"Dense"}]',
    "prompt": "query: ",
    "max_length": 65,
    "normalize": False,
    "dimension": 9,
    "output": "logits",
    "truncate_dim": 8,
    "quantization": "openvino-int8",
    "loading": '{"config":{"is_causal":false}}',
    "code": "9" * 64,
}


def test_the_id_of_a_contract_never_changes() -> None:
    # Every cache names its folders by these ids: another value here makes all of them unreadable.
    assert example_contract().id == "0fe60c019e2e4749c277b0888df3d801314059648937bd336ba42961678f2e3a"


@pytest.mark.parametrize("name", sorted({field.name for field in fields(Contract)} - {"version"}))
def test_every_field_changes_the_id(name: str) -> None:
    contract, changed = example_contract(), example_contract(**{name: CHANGES[name]})
    assert changed.id != contract.id
    assert contract.differences(changed) == {name: (getattr(contract, name), CHANGES[name])}


@pytest.mark.parametrize("quantization", [None, "openvino-int8"])
def test_a_contract_comes_back_from_json(quantization: str | None) -> None:
    contract = example_contract(prompt="Ünïcode: ", truncate_dim=4, quantization=quantization)
    again = Contract.from_json(contract.to_json())
    assert again == contract
    assert again.id == contract.id
    assert again.differences(contract) == {}


WHOLE = example_contract().to_json()


@pytest.mark.parametrize(
    "value",
    [
        {name: value for name, value in WHOLE.items() if name != "pooling"},
        {**WHOLE, "colour": "red"},
        *(None, 3, "text", [], [{}]),
    ],
)
def test_other_fields_are_refused(value: object) -> None:
    with pytest.raises(CorruptCacheError, match="fields"):
        Contract.from_json(value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("weights", None),
        ("max_length", "64"),
        ("max_length", True),
        ("normalize", 1),
        ("truncate_dim", "8"),
        ("prompt", ["a"]),
        ("version", 2),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: object) -> None:
    with pytest.raises(CorruptCacheError, match=name):
        Contract.from_json({**WHOLE, name: value})
