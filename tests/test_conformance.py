"""The same story, told to every server and in both dialects, ends the same way."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterReport
from airflow_provider_chasqui.core.job import EnqueueResult
from tests.conftest import SERVERS
from tests.support.queue_scenarios import STORIES, open_queue, told
from tests.support.redis_state import plain_client

FULL = "[CMQ-300] the queue is full: it may hold 100 jobs; add workers or raise max_len"


def report(*numbers: int, dry_run: bool = False) -> DeadLetterReport:
    return DeadLetterReport(*numbers, dry_run=dry_run)


# What must have been answered, where it does not depend on the clock.
EXPECTED = {
    "full": [
        *(98, f"{FULL}; 0 of 3 jobs were added (queue 'q')"),
        *(2, f"{FULL}; 0 of 1 jobs were added (queue 'q')"),
    ],
    "unique": [
        *(EnqueueResult("u", True), EnqueueResult("u", False), EnqueueResult("u", False)),
        *(
            EnqueueResult("d", True),
            EnqueueResult("d", False),
            "cancelled",
            EnqueueResult("d", True),
        ),
    ],
    "cancelled": ["cancelled", "cancelled", "asked", "unknown", "delayed"],
    "settled": [
        *([True, True], [True, False], [False], {"j0": {"r": 0}, "j1": {"r": 1}}, "none", {"r": 1}),
        ["done", "done", "unknown", "running", "running", "running", "unknown"],
        "CMQ-102",
    ],
    "buried": [
        *([True, True, True, True], [False], [True], ["j0", "j2"], [None, "j4"]),
        *(report(6, 5, 0, 1, 0, dry_run=True), report(2, 2), [True, True]),
        *(report(1, 0, 1), report(1, 1), report(1, 1), report(1, 1, dry_run=True)),
        *("dead", "waiting", "dead", "dead", "dead", "CMQ-305"),
    ],
    "taken_over": [[(0, 1), (1, 1), (2, 1)], [False, False, False], 3],
}
EXPECTED = {name: repr(answers) for name, answers in EXPECTED.items()}


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_every_server_tells_the_same_story(request: Any, queue_name: str, story: Any) -> None:
    endings = {}
    for label, (fixture, dialect) in SERVERS.items():
        try:
            url = request.getfixturevalue(fixture).url
        except pytest.skip.Exception:
            continue  # a Redis 7 is not on every machine
        name = f"{queue_name}-{label}"
        max_len = 100 if story.__name__ == "full" else None
        with plain_client(url) as client, open_queue(name, url, dialect, max_len) as queue:
            endings[label] = told(client, queue, story)
    answers, left = endings["valkey"]
    assert answers == EXPECTED.get(story.__name__, answers)
    assert len(endings) >= 3
    for label, ending in endings.items():
        assert ending[0] == answers, label
        assert ending[1] == left, label
    assert "{'keys': {}" not in left
