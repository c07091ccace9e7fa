"""A running worker logs in with the new password after a password change."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_chasqui.queue import Queue
from tests.cli.conftest import Worker, start_worker, wait_for
from tests.conftest import Server
from tests.redis_client.conftest import admin
from tests.support.servers import RedisServer, valkey_binary

__all__ = ["start_worker"]  # the fixture

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

MINUTE = timedelta(minutes=1)


def test_the_password_file_is_read_again_after_a_rejected_login(
    start_worker: Callable[..., Worker], queue_name: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text("monday-secret\n")
    with RedisServer.start(valkey_binary()) as process, admin(process) as client:
        rules = ("on", ">monday-secret", "~{chasqui:*", "+@all")
        client.execute_command("ACL", "SETUSER", "worker", *rules)
        worker = start_worker(
            Server(process.url, "portable"),
            *("-q", queue_name, "--store-results"),
            *("--username", "worker", "--password-file", str(file)),
        ).ready()
        with Queue(queue_name, process.url) as queue:
            assert queue.wait(queue.add("before").job_id, timeout=MINUTE) == [1, "before"]
            # The server rejects the old password before the file has the new one.
            client.execute_command("ACL", "SETUSER", "worker", "resetpass", ">tuesday-secret")
            client.execute_command("CLIENT", "KILL", "USER", "worker")
            job = queue.add("after")
            wait_for(lambda: "refused the login" in worker.log)
            file.write_text("tuesday-secret\n")
            assert queue.wait(job.job_id, timeout=MINUTE) == [1, "after"]
        worker.signal(signal.SIGTERM)
        assert worker.end() == 0, worker.log
    assert "secret" not in worker.log
