"""Filters say by data which messages are wanted."""

from __future__ import annotations

import pytest

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.message_filter import check_filter, matches

ORDER = {
    "job_id": "1",
    "job_name": "order",
    "payload": {"kind": "paid", "lines": [{"sku": 7}], "gift": True},
}


@pytest.mark.parametrize(
    ("match", "fits"),
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
def test_a_message_fits_where_every_path_has_its_value(match, fits):
    check_filter(match)
    assert matches(match, ORDER) is fits


@pytest.mark.parametrize("match", [{"kind": "paid"}, ["name"], {"": 1}])
def test_a_filter_that_can_mean_nothing_is_refused(match):
    with pytest.raises(InvalidArgument, match="match="):
        check_filter(match)
