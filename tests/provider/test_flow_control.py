"""Pauses and rate limits from Airflow, against a real server."""

from __future__ import annotations

import pytest

from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.operators.pause import ChasquiPauseOperator, ChasquiResumeOperator
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import connect


def test_a_queue_and_a_job_name_are_paused_and_resumed(
    server: Server, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    connect(monkeypatch, server)
    for job_name in (None, "newsletter"):
        arguments = {"queue_name": queue.name, "job_name": job_name}
        pause = ChasquiPauseOperator(task_id="pause", **arguments)
        resume = ChasquiResumeOperator(task_id="resume", **arguments)
        for _ in range(2):  # a retry changes nothing
            pause.execute({})
            state = queue.paused()
            assert (state.queue, "newsletter" in state.job_names) == (not job_name, bool(job_name))
        for _ in range(2):
            resume.execute({})
            assert not queue.paused()


def test_the_hook_and_the_queue_share_a_rate_limit(
    server: Server, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    connect(monkeypatch, server)
    with ChasquiHook() as hook:
        with hook.rate_limit("api", "10/second", queue_name=queue.name) as grant:
            assert not grant.waited
        assert queue.rate_limit("api", "10/second").waited
