"""Tests of tracing: handlers run in the trace of the producer, also after retries and delays."""

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

PROGRAM = Path(__file__).with_name("traced.py")
ROOT = Path(__file__).parents[2]


def run_program(server: Server, queue_name: str) -> dict[str, Any]:
    """Return the output of the program, a separate process because the SDK setup is global."""
    process = subprocess.run(
        [sys.executable, str(PROGRAM), server.url, server.dialect, queue_name],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return dict(json.loads(process.stdout.splitlines()[-1]))


@pytest.mark.timeout(120)
def test_a_handler_runs_in_the_trace_of_the_producer(server: Server, queue_name: str) -> None:
    output = run_program(server, queue_name)
    (task,) = [span for span in output["spans"] if span["name"] == "task"]
    runs = {
        _run_key(span["attributes"]): span
        for span in output["spans"]
        if span["kind"] == "SpanKind.CONSUMER"
    }
    traced = {f"batch:b:0:{n}/1" for n in range(3)} | {
        "batch:again:0:0/1",
        "batch:again:0:0/2",
        "one/1",
        "propagated/1",
    }
    assert set(runs) == traced | {"orphan/1", "batch:untraced:0:0/1"}
    for run, span in runs.items():
        span_ids = f"{span['context']['trace_id']}/{span['context']['span_id']}".replace("0x", "")
        assert output["seen"][run] == span_ids, "the handler was not inside its span"
        if run in traced:
            assert span["parent_id"] == task["context"]["span_id"], run
            assert span["context"]["trace_id"] == task["context"]["trace_id"]
        else:
            assert span["parent_id"] is None, run
    assert runs["batch:again:0:0/1"]["status"]["status_code"] == "ERROR"
    assert runs["batch:again:0:0/2"]["status"]["status_code"] == "UNSET"
    assert runs["propagated/1"]["attributes"]["messaging.destination.name"] == queue_name


def _run_key(attributes: dict[str, Any]) -> str:
    return f"{attributes['messaging.message.id']}/{attributes['chasqui.job.attempt']}"


async def test_without_a_span_no_trace_is_stored_and_no_handler_is_wrapped(
    server: Server, queue: AsyncQueue, client: Any
) -> None:
    async def handle(job: Any) -> None:
        return None

    with Queue(queue.name, server.url, dialect=server.dialect) as producer:
        enqueue_once(producer, EnqueueRequest(payloads=lambda: [1], batch_id="b"))
        tracing.propagate_trace(producer, "one")
    assert not [key for key in client.keys(f"{queue.keys.hash_tag}*") if b":trace:" in key]
    handlers = Handlers(handle)
    assert tracing.wrap_handlers(handlers, queue) is handlers
