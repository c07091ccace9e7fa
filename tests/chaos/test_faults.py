"""Random faults from fixed seeds: no job is lost, and none runs twice without a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.harness.checker import CheckResult
from tests.chaos.harness.environment import TIMEOUT_S, Environment, run_scenario
from tests.chaos.harness.history import History, explain
from tests.chaos.harness.plan import Fault, generate_scenario
from tests.chaos.harness.recorder import job_id_of
from tests.support.servers import RedisServer, valkey_binary
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("chaos-harness"),
]


def describe(history: History, result: CheckResult) -> str:
    """Return the violations, with the timeline of one job per category."""
    timelines = [explain(history, ids[0]) for ids in result.violations.values()]
    return "\n\n".join([str(result), *timelines])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("dialect", ["native", "portable"])
def test_no_job_is_lost_or_duplicated_under_random_faults(
    request: pytest.FixtureRequest, tmp_path: Path, dialect: str, seed: int
) -> None:
    native = dialect == "native"
    binary = request.getfixturevalue("redis86_binary") if native else valkey_binary()
    with (
        RedisServer.start(binary, "--appendfsync", "always", aof=True) as server,
        Environment(server, dialect, tmp_path) as environment,
    ):
        history, result = run_scenario(
            environment, generate_scenario(seed, seconds=11, max_hold_s=6)
        )
    assert not result.violations, describe(history, result)
    assert len(history.faults) >= 10
    assert len({run.job_id for run in history.runs}) > 200
    assert sum(add.outcome == "acked" for add in history.adds) > 200


def test_the_checker_detects_a_copied_entry(tmp_path: Path) -> None:
    """Control test: the checker detects a real duplicate among real workers."""
    scenario = replace(generate_scenario(3, seconds=3), faults=(Fault("copy", 0.5, 0.0, 0),))
    with (
        RedisServer.start(valkey_binary()) as server,
        Environment(server, "portable", tmp_path) as environment,
    ):
        environment.hooks["copy"] = lambda: copy_an_entry(environment)
        _, result = run_scenario(environment, scenario)
    assert result.count("same attempt twice") == 1
    assert result.count("ran again after its end") + result.count("overlapping runs") == 1
    assert result.count("lost") == 0


def copy_an_entry(environment: Environment) -> None:
    """Add a job that will succeed a second time, under another entry id."""
    succeeding = {
        spec.id
        for spec in generate_scenario(3, seconds=3).jobs
        if not (spec.fail or spec.die or spec.snooze or spec.cancel_after_ms)
    }
    stream = f"{{chasqui:{environment.queue_name}}}:stream"

    def copy_one() -> bool:
        for _, fields in environment.client.xrange(stream, count=50):
            if job_id_of(fields[b"d"]) in succeeding:
                environment.client.xadd(stream, fields)
                return True
        return False

    wait_until(copy_one, TIMEOUT_S, "the stream has a job that will succeed", interval=0.05)
