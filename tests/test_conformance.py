"""Every server and both dialects give the same results and leave the same keys."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterReport
from airflow_provider_chasqui.core.job import EnqueueResult
from tests.conftest import SERVERS
from tests.support.queue_scenarios import SCENARIOS, Scenario, open_queue, run_scenario
from tests.support.redis_state import plain_client

MAX_LEN = 100
FULL = "[CMQ-300] the queue is full: max_len is 100 jobs; add workers or increase max_len"

# The expected results by scenario and step. Steps whose result depends on the clock are compared
# between the servers only, as are scenarios that are not listed.
EXPECTED: dict[str, dict[str, Any]] = {
    "fill_the_queue": {
        "add 98": 98,
        "add 3": f"{FULL}; 0 of 3 jobs were added (queue 'q')",
        "add 2": 2,
        "add 1": f"{FULL}; 0 of 1 jobs were added (queue 'q')",
    },
    "deduplicate": {
        "add u": EnqueueResult("u", created=True),
        "add u again": EnqueueResult("u", created=False),
        "add u a third time": EnqueueResult("u", created=False),
        "add d, delayed": EnqueueResult("d", created=True),
        "add d again": EnqueueResult("d", created=False),
        "cancel d": "cancelled",
        "add d after the cancel": EnqueueResult("d", created=True),
    },
    "cancel_jobs": {
        "cancel generated id": "cancelled",
        "cancel given id": "cancelled",
        "cancel again": "requested",
        "state of the cancelled": "unknown",
        "state of the other": "delayed",
    },
    "acknowledge_jobs": {
        "ack with results": [True, True],
        "ack one, and an unknown id": [True, False],
        "ack again": [False],
        "results": {"j0": {"r": 0}, "j1": {"r": 1}},
        "result of an unknown job": "none",
        "wait for a done job": {"r": 1},
        "states": ["done", "done", "unknown", "running", "running", "running", "unknown"],
        "wait for a running job": "CMQ-102",
    },
    "process_dead_letters": {
        "move four to the DLQ": [True, True, True, True],
        "move one again": [False],
        "move the fifth": [True],
        "filter by name": ["j0", "j2"],
        "two newest": [None, "j4"],
        "replay dry run": DeadLetterReport(matched=6, affected=5, unreadable=1, dry_run=True),
        "replay by name": DeadLetterReport(matched=2, affected=2),
        "the replayed die again": [True, True],
        "replay over the limit": DeadLetterReport(matched=1, max_replays_reached=1),
        "replay by text": DeadLetterReport(matched=1, affected=1),
        "purge by reason": DeadLetterReport(matched=1, affected=1),
        "purge dry run": DeadLetterReport(matched=1, affected=1, dry_run=True),
        "states": ["dead", "waiting", "dead", "dead", "dead"],
        "wait for a dead job": "CMQ-305",
    },
    "process_dead_letters_by_page": {
        "page 0": DeadLetterReport(matched=2, affected=2),
        "page 1": DeadLetterReport(matched=1, affected=1),
        "remaining": ["y", "y", "x", "x"],
        "replay by id": DeadLetterReport(matched=1, affected=1, missing=2),
        "replay by id again": DeadLetterReport(missing=3),
        "no ids": DeadLetterReport(),
        "limit 0": DeadLetterReport(),
    },
    "claim_entries_of_a_dead_worker": {
        "payloads and previous deliveries": [(0, 1), (1, 1), (2, 1)],
        "the dead worker renews its claims": [False, False, False],
        "running": 3,
    },
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_every_server_gives_the_same_results(
    request: Any, queue_name: str, scenario: Scenario
) -> None:
    outcomes = {}
    for label, (fixture, dialect) in SERVERS.items():
        try:
            url = request.getfixturevalue(fixture).url
        except pytest.skip.Exception:
            continue  # Redis 7 may not be installed
        name = f"{queue_name}-{label}"
        max_len = MAX_LEN if scenario.__name__ == "fill_the_queue" else None
        with plain_client(url) as client, open_queue(name, url, dialect, max_len) as queue:
            outcomes[label] = run_scenario(client, queue, scenario)
    assert len(outcomes) >= 3, f"only {list(outcomes)} ran"

    results, state = outcomes["valkey"]
    if scenario.__name__ in EXPECTED:
        expected = EXPECTED[scenario.__name__]
        assert results == {step: repr(value) for step, value in expected.items()}
    for label, (server_results, server_state) in outcomes.items():
        assert server_results == results, f"{label} and valkey gave different results"
        assert server_state == state, f"{label} and valkey left different keys"
    assert "{'keys': {}" not in state, "the scenario left no keys, so nothing was compared"
