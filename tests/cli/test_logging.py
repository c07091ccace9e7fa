"""Log records of workers: masked, bounded, and one record per line that looks like one."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from airflow_provider_chasqui.core.masking import mask_passwords
from airflow_provider_chasqui.supervisor import logging_setup

pytestmark = pytest.mark.unit


@pytest.fixture(params=[False, True], ids=["text", "json"])
def log(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Any:
    """Log one error with its traceback and return what the worker writes."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level

    def write(message: str) -> tuple[bool, str]:
        logging_setup.configure("info", request.param, 1)
        try:
            raise ValueError(message)
        except ValueError:
            logging.getLogger("chasqui").exception("job failed: %s", message)
        return request.param, capsys.readouterr().err

    yield write
    root.handlers = handlers
    root.setLevel(level)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("unit", ["a.", "a://", "a://b:", "x@", "a://b:c@", "://", "password="])
def test_masking_takes_linear_time(unit: str) -> None:
    """With a quadratic pattern, a megabyte takes an hour."""
    mask_passwords(unit * (1_000_000 // len(unit)))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("redis://user:pw@host/0", "redis://user:***@host/0"),
        ("--url=rediss://:p@ss@h1:1,h2:2/0", "--url=rediss://:***@h1:1,h2:2/0"),
        ("redis://h/0?sentinel_password=x&db=1", "redis://h/0?sentinel_password=***&db=1"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("mail ada@host, see http://host/a:b", "mail ada@host, see http://host/a:b"),
        ("a redis://u:one@h b redis://u:two@h c", "a redis://u:***@h b redis://u:***@h c"),
        ("http://h/x,redis://u:pw@h", "http://h/x,redis://u:***@h"),
    ],
)
def test_passwords_are_masked(text: str, masked: str) -> None:
    assert mask_passwords(text) == masked


def test_a_long_error_text_is_shortened(log: Any) -> None:
    _, text = log("start " + "x" * 1_000_000 + " end")
    assert len(text) < 45_000
    assert "start" in text
    assert "characters omitted" in text
    assert "end" in text


def test_an_error_text_cannot_imitate_a_log_record(log: Any) -> None:
    forged = "oops\n2030-01-01T00:00:00.000Z INFO    chasqui[0] all is well\x1b[2J"
    as_json, text = log(forged)
    assert "\x1b" not in text
    if as_json:
        (line,) = text.splitlines()
        assert forged in json.loads(line)["message"]
    else:
        assert [line for line in text.splitlines() if not line.startswith("  ")] == [
            text.splitlines()[0]
        ]


def test_a_password_in_a_traceback_is_masked(log: Any) -> None:
    _, text = log("no connection to redis://ada:S3cret@host/0")
    assert "S3cret" not in text
    assert "redis://ada:***@host/0" in text
