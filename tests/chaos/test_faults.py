"""Random faults from fixed seeds: nothing is lost, nothing is doubled without a reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.harness.history import History, Verdict, explain
from tests.chaos.harness.plan import draw
from tests.chaos.harness.stage import Stage, play
from tests.servers import RedisServer, valkey_binary

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
