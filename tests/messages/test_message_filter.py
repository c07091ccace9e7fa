"""Filters select messages by the values at given paths."""

from __future__ import annotations

import pytest

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.message_filter import check_filter, matches

ORDER = {
    "id": "1",
    "name": "order",
    "payload": {"kind": "paid", "lines": [{"sku": 7}], "gift": True},
}


@pytest.mark.parametrize(
    ("message_filter", "expected"),
    [
        (None, True),
        ({}, True),
        ({"name": "order"}, True),
        ({"name": "refund"}, False),
        ({"name": ["refund", "order"]}, True),
        ({"payload.kind": "paid"}, True),
        ({"payload.kind": "paid", "name": "refund"}, False),
        ({"payload.lines.0.sku": 7}, True),
        ({"payload.lines.1.sku": 7}, False),
        ({"payload.lines": [{"sku": 7}]}, True),
        ({"payload.gift": True}, True),
        ({"payload.gift": 1}, False),
        ({"payload.no.such": None}, False),
    ],
)
def test_a_message_matches_if_every_path_has_its_value(message_filter, expected):
    check_filter(message_filter)
    assert matches(message_filter, ORDER) is expected


@pytest.mark.parametrize("message_filter", [{"kind": "paid"}, ["name"], {"": 1}])
def test_an_invalid_filter_is_rejected(message_filter):
    with pytest.raises(InvalidArgument, match="path"):
        check_filter(message_filter)
