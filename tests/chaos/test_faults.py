"""Random faults from fixed seeds: nothing is lost, nothing is doubled without a reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.harness.environment import Stage, play, wait_for
from tests.chaos.harness.history import History, Verdict, explain, job_id_of
from tests.chaos.harness.plan import Fault, draw
from tests.support.servers import RedisServer, valkey_binary

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("chaos-harness"),
]


def told(history: History, verdict: Verdict) -> str:
    stories = [explain(history, ids[0]) for ids in verdict.broken.values()]
    return "\n\n".join([str(verdict), *stories])


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("dialect", ["native", "portable"])
def test_nothing_is_lost_and_nothing_is_doubled(
    request: pytest.FixtureRequest, tmp_path: Path, dialect: str, seed: int
) -> None:
    native = dialect == "native"
    binary = request.getfixturevalue("redis86_binary") if native else valkey_binary()
    with (
        RedisServer.start(binary, "--appendfsync", "always", aof=True) as server,
        Stage(server, dialect, tmp_path) as stage,
    ):
        history, verdict = play(stage, draw(seed, seconds=11))
    assert not verdict.broken, told(history, verdict)
    assert len(history.struck) >= 10
    assert len({run.job_id for run in history.runs}) > 200
    assert sum(add.outcome == "acked" for add in history.adds) > 200


def test_an_entry_that_somebody_copies_is_seen(tmp_path: Path) -> None:
    """The control: the judge sees a real double among real workers."""
    calm = replace(draw(3, seconds=3), faults=(Fault("copy", 0.5, 0.0, 0),))
    with (
        RedisServer.start(valkey_binary()) as server,
        Stage(server, "portable", tmp_path) as stage,
    ):
        stage.hooks["copy"] = lambda: copy_an_entry(stage)
        _, verdict = play(stage, calm)
    assert verdict.count("same attempt twice") == 1
    assert verdict.count("lost") == 0


def copy_an_entry(stage: Stage) -> None:
    """Add a job that will end well a second time, under another entry id."""
    ends_well = {wish.id for wish in draw(3, seconds=3).jobs if not (wish.fail or wish.die)}
    stream = f"{{chasqui:{stage.queue_name}}}:stream"

    def copied() -> bool:
        for _, fields in stage.client.xrange(stream, count=50):
            if job_id_of(fields[b"d"]) in ends_well:
                stage.client.xadd(stream, fields)
                return True
        return False

    wait_for(copied, "no job waits")
