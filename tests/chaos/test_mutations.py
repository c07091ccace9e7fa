"""The harness detects an engine with deliberate errors, one per guarantee."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.harness.checker import CheckResult
from tests.chaos.harness.environment import Environment, run_scenario
from tests.chaos.harness.history import History, explain
from tests.chaos.harness.mutations import MUTATIONS
from tests.chaos.harness.plan import JobSpec, Scenario
from tests.support.servers import RedisServer, valkey_binary

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(200),
    pytest.mark.xdist_group("chaos-harness"),
]

# The rule that must reject each mutation.
RULES = {
    "ack_without_run": "lost",
    "ack_failure": "lost",
    "death_without_run": "dead without cause",
    "death_before_budget": "dead before its budget",
    "completion_and_death": "completed and dead",
    "second_dead_letter": "two dead letters",
    "run_after_completion": "ran again after its end",
    "no_renewal": "overlapping runs",
    "interruption": "interrupted without cause",
    "attempt_skipped": "wrong attempt number",
    "attempt_repeated": "same attempt twice",
    "attempt_too_many": "over the attempt limit",
    "payload_change": "wrong payload",
    "wrong_result": "wrong result",
    "missing_result": "no result",
    "missing_bit": "wrong batch bit",
    "wrong_bit": "wrong batch bit",
    "ignored_cancel": "ran after its cancellation",
    "early_promotion": "early",
    "early_retry": "early retry",
    "late_start": "late",
    "early_tick": "early fire of a repeat",
    "order_change": "wrong order",
}
# How the jobs of a mutation differ from jobs that only succeed.
OPTIONS: dict[str, dict[str, object]] = {
    "ack_failure": {"fail": 1},
    "death_before_budget": {"fail": 1, "max_attempts": 3},
    "second_dead_letter": {"die": True},
    "no_renewal": {"work_ms": 9000},
    "interruption": {"work_ms": 300},
    "attempt_skipped": {"fail": 1},
    "attempt_repeated": {"fail": 2},
    "attempt_too_many": {"fail": 9, "max_attempts": 2},
    "ignored_cancel": {"work_ms": 3000, "cancel_after_ms": 50},
    "early_promotion": {"delay_ms": 1000},
    "early_retry": {"fail": 1},
    "late_start": {"delay_ms": 200},
    "order_change": {"ordered": True, "work_ms": 20},
}
COUNT = 8


def jobs_of(name: str, at_s: float, **options: object) -> list[JobSpec]:
    return [
        JobSpec(f"{name}-{number}", at_s, **options)  # type: ignore[arg-type]
        for number in range(COUNT)
    ]


def broken_scenario() -> Scenario:
    """Return a scenario without faults: jobs of every mutation, and jobs of none."""
    jobs: list[JobSpec] = []
    for number, name in enumerate(RULES):
        if not name.endswith(("_bit", "_tick")):
            jobs += jobs_of(name, 0.5 + number / 20, **OPTIONS.get(name, {}))
    healthy = {"": {}, "fail": {"fail": 1}, "die": {"die": True}, "delay": {"delay_ms": 300}}
    for name, options in healthy.items():
        jobs += jobs_of(f"healthy-{name}", 2.0, **options)
    batches = [
        JobSpec(f"batch:{name}:0:{index}", 0, producer=producer)
        for producer, name in enumerate(("missing_bit", "wrong_bit"))
        for index in range(COUNT)
    ]
    jobs += [JobSpec("healthy-second-producer", 1.0, producer=1)]
    jobs.sort(key=lambda spec: (spec.at_s, spec.ordered))
    return Scenario(1, tuple(jobs), (), ticks=6, batch=tuple(batches), producers=2)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[History, CheckResult]]:
    with (
        RedisServer.start(valkey_binary()) as server,
        Environment(
            server, "portable", tmp_path_factory.mktemp("broken"), mutations=True
        ) as environment,
    ):
        yield run_scenario(environment, broken_scenario(), drain_s=60)


def test_every_mutation_has_a_rule() -> None:
    assert set(RULES) == set(MUTATIONS)


@pytest.mark.parametrize("name", RULES)
def test_the_mutation_is_detected(broken: tuple[History, CheckResult], name: str) -> None:
    history, result = broken
    detected = result.violations.get(RULES[name], [])
    example = explain(history, f"{name}-1")
    assert any(name in job_id or name == "early_tick" for job_id in detected), example


def test_nothing_else_is_reported(broken: tuple[History, CheckResult]) -> None:
    """Jobs that no mutation changes are not blamed, and without a fault nothing is excused."""
    history, result = broken
    for rule, ids in result.violations.items():
        for job_id in ids:
            known = any(name in job_id for name in RULES) or rule == "early fire of a repeat"
            assert known, f"{rule}\n{explain(history, job_id)}"
    assert not [cause for _, cause in result.excused if cause != "stall"]
    assert len([run for run in history.runs if run.job_id.startswith("healthy")]) >= 33
