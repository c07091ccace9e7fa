"""What the fault harness found, each as a test of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.harness.stage import Stage, wait_for
from tests.servers import RedisServer, valkey_binary

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(200)]


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with (
        RedisServer.start(valkey_binary()) as server,
        Stage(server, "portable", tmp_path) as made,
    ):
        yield made


def test_a_stop_while_a_killed_process_is_being_replaced_is_no_trouble(stage: Stage) -> None:
    """The new process still imports and dies of SIGTERM; it holds nothing, so all is well."""
    stage.start_workers(1)
    (victim,) = stage.worker_pids()
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: stage.children() not in ([], [victim]), "no process takes its place")
    stage.stop_workers()
