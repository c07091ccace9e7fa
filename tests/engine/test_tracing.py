"""Traces: from the span that hands a job off to the handler, over retries and delays."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.engine import tracing
from airflow_provider_chasqui.engine.handlers import Handlers
from airflow_provider_chasqui.operators._enqueue import EnqueueRequest, enqueue_once
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.queue_async import AsyncQueue
from tests.conftest import Server

STORY = Path(__file__).with_name("traced.py")
ROOT = Path(__file__).parents[2]


def told(server: Server, queue_name: str) -> dict[str, Any]:
    """What the program says; it is a process of its own, because the SDK is set up for good."""
    done = subprocess.run(
        [sys.executable, str(STORY), server.url, server.dialect, queue_name],
        capture_output=True, text=True, timeout=100, check=False, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.timeout(120)
def test_a_handler_runs_in_the_trace_of_who_handed_the_job_off(
    server: Server, queue_name: str
) -> None:
    story = told(server, queue_name)
    spans = {each["context"]["span_id"]: each for each in story["spans"]}
    (task,) = [each for each in spans.values() if each["name"] == "task"]
    runs = {
        f"{each['attributes']['messaging.message.id']}/{each['attributes']['chasqui.job.attempt']}":
            each
        for each in spans.values()
        if each["kind"] == "SpanKind.CONSUMER"
    }  # fmt: skip
    in_the_trace = {f"batch:b:0:{n}/0" for n in range(3)} | {
        "batch:again:0:0/0", "batch:again:0:0/1", "one/0", "mine/0",
    }  # fmt: skip
    assert set(runs) == in_the_trace | {"orphan/0", "batch:untraced:0:0/0"}
    for run, span in runs.items():
        inside = f"{span['context']['trace_id']}/{span['context']['span_id']}".replace("0x", "")
        assert story["seen"][run] == inside, "the handler was not inside its span"
        if run in in_the_trace:
            assert span["parent_id"] == task["context"]["span_id"], run
            assert span["context"]["trace_id"] == task["context"]["trace_id"]
        else:
            assert span["parent_id"] is None, run
    assert runs["batch:again:0:0/0"]["status"]["status_code"] == "ERROR"
    assert runs["batch:again:0:0/1"]["status"]["status_code"] == "UNSET"
    assert runs["mine/0"]["attributes"]["messaging.destination.name"] == queue_name


async def test_without_a_span_nothing_is_written_asked_or_wrapped(
    server: Server, queue: AsyncQueue, client: Any
) -> None:
    async def handle(job: Any) -> None:
        return None

    with Queue(queue.name, server.url, dialect=server.dialect) as sender:
        enqueue_once(sender, EnqueueRequest(payloads=[1], batch_id="b"))
        tracing.propagate_trace(sender, "one")
    assert not [key for key in client.keys(f"{queue.keys.hash_tag}*") if b":trace:" in key]
    handlers = Handlers(handle)
    assert tracing.wrap_handlers(handlers, queue) is handlers
