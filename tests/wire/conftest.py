from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.raw import plain_client


@pytest.fixture
def client(server: Any) -> Iterator[Any]:
    with plain_client(server.url) as client:
        yield client
