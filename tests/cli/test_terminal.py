"""What people see: nothing is wider than the terminal, and what is to be copied is whole."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from rich.cells import cell_len

from airflow_provider_chasqui.queue import Queue
from tests.cli.conftest import Answer, make_front
from tests.cli.test_commands import work
from tests.conftest import Server

LONG_ID = "an-id-of-a-customer-that-is-rather-long-0123456789"


@pytest.fixture
def server(portable_server: Server) -> Server:
    return portable_server


@pytest.fixture
def full(queue: Queue, server: Server) -> Queue:
    """A queue with some of everything."""
    queue.add_many(
        [{"payload": "x" * 200, "job_name": "die", "job_id": f"dead-{n}"} for n in range(3)]
    )
    work(server, queue.name)
    queue.add({"to": "ada@example.org", "body": "y" * 300}, job_name="welcome", job_id=LONG_ID)
    queue.add("表" * 50, job_name="[red]markup[/red]", delay=timedelta(hours=30))
    queue.add_batch(range(5), batch_id="nightly-2030-01-31", job_name="embed")
    from airflow_provider_chasqui.core.cron import Cron, Every

    queue.repeat({"x": 1}, Every(60_000), job_name="tick")
    queue.repeat(None, Cron("0 2 * * *", "Europe/Berlin"), job_name="nightly-report")
    return queue


@pytest.mark.parametrize("width", [100, 60, 40])
@pytest.mark.parametrize(
    ("command", "whole"),
    [
        (["inspect"], ["stream depth"]),
        (["jobs"], [LONG_ID, "[red]markup[/red]"]),
        (["job", LONG_ID], ["waiting"]),
        (["batch", "nightly-2030-01-31"], ["0/5", "nightly-2030-01-31"]),
        (["batches"], ["nightly-2030-01-31"]),
        (["dlq", "peek"], ["unrecoverable", "die"]),
        (["repeat", "list"], ["tick::every:60000", "Europe/Berlin"]),
        (["consumers"], ["promoter"]),
        (["watch", "--count", "1"], ["stream depth"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else str(value),
)
def test_it_fits(
    command: list[str],
    whole: list[str],
    width: int,
    full: Queue,
    server: Server,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front: Callable[..., Answer] = make_front(server, capfd, monkeypatch)
    monkeypatch.setenv("COLUMNS", str(width))
    words = 2 if command[0] in ("dlq", "repeat") else 1
    said = front(*command[:words], full.name, *command[words:])
    assert said.code == 0, said.err
    too_wide = [line for line in said.out.splitlines() if cell_len(line.rstrip()) > width]
    assert not too_wide or width < 60, "\n".join(too_wide)
    shown = said.out if width >= 60 else said.out.replace("\n", "").replace(" ", "")
    for words_shown in whole:
        assert (words_shown if width >= 60 else words_shown.replace(" ", "")) in shown
