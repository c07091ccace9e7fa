"""Output fits the terminal, and values that users copy are not truncated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from rich.cells import cell_len

from airflow_provider_chasqui.queue import Queue
from tests.cli.conftest import CliResult, make_cli
from tests.cli.test_commands import run_worker
from tests.conftest import Server

LONG_ID = "an-id-of-a-customer-that-is-rather-long-0123456789"


@pytest.fixture
def server(portable_server: Server) -> Server:
    return portable_server


@pytest.fixture
def filled_queue(queue: Queue, server: Server) -> Queue:
    """A queue with jobs in every state, a batch and repeatable jobs."""
    queue.add_many(
        [{"payload": "x" * 200, "job_name": "die", "job_id": f"dead-{n}"} for n in range(3)]
    )
    run_worker(server, queue.name)
    queue.add({"to": "ada@example.org", "body": "y" * 300}, job_name="welcome", job_id=LONG_ID)
    queue.add("表" * 50, job_name="[red]markup[/red]", delay=timedelta(hours=30))
    queue.add_batch(range(5), batch_id="nightly-2030-01-31", job_name="embed")
    from airflow_provider_chasqui.core.cron import Cron, Every

    queue.repeat({"x": 1}, Every(60_000), job_name="tick")
    queue.repeat(None, Cron("0 2 * * *", "Europe/Berlin"), job_name="nightly-report")
    return queue


@pytest.mark.parametrize("width", [100, 60, 40])
@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["inspect"], ["waiting"]),
        (["jobs"], [LONG_ID, "[red]markup[/red]"]),
        (["job", LONG_ID], ["waiting"]),
        (["batch", "show", "nightly-2030-01-31"], ["0/5", "nightly-2030-01-31"]),
        (["batch", "list"], ["nightly-2030-01-31"]),
        (["dlq", "peek"], ["unrecoverable", "die"]),
        (["repeat", "list"], ["tick::every:60000", "Europe/Berlin"]),
        (["consumers"], ["promoter"]),
        (["watch", "--count", "1"], ["waiting"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_output_fits_the_terminal(
    command: list[str],
    expected: list[str],
    width: int,
    filled_queue: Queue,
    server: Server,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cli: Callable[..., CliResult] = make_cli(server, capfd, monkeypatch)
    monkeypatch.setenv("COLUMNS", str(width))
    words = 2 if command[0] in ("batch", "dlq", "repeat") else 1
    result = cli(*command[:words], filled_queue.name, *command[words:])
    assert result.code == 0, result.err
    too_wide = [line for line in result.out.splitlines() if cell_len(line.rstrip()) > width]
    assert not too_wide or width < 60, "\n".join(too_wide)
    printed = result.out if width >= 60 else result.out.replace("\n", "").replace(" ", "")
    for text in expected:
        assert (text if width >= 60 else text.replace(" ", "")) in printed
