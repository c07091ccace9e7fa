"""Fixtures with one ChasquiMQ process for all tests of a test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.interop.fleet import Peer


@pytest.fixture(scope="session")
def peer() -> Iterator[Peer]:
    with Peer.start() as started:
        yield started


@pytest.fixture
def queue(native_server: Server, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, native_server.url) as queue:
        yield queue
