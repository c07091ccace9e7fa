"""The checker of the fault tests detects every violation of a guarantee."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.harness.history import Add, FaultEvent, History, Run, check_history
from tests.chaos.harness.plan import KINDS, JobSpec, Scenario, generate_scenario

SPEC = JobSpec("j", 0, max_attempts=3)
ADD = Add("j", 1.0, 1.1, "acked")
RUN = Run("j", 0, pid=7, start=2.0, end=3.0, outcome="ok", name="job")
SECOND_RUN = Run("j", 1, pid=8, start=9.0, end=9.5, outcome="ok", name="job")


def history_of(*runs: Run, spec: JobSpec = SPEC, **fields: object) -> History:
    """Return the history of one job that was added once, unless `fields` differ."""
    adds = fields.pop("adds", [ADD])
    return replace(History(Scenario(1, (spec,), (), ticks=0), adds, list(runs)), **fields)  # type: ignore[arg-type]


def violations(history: History) -> dict[str, list[str]]:
    return dict(check_history(history).violations)


def test_a_job_that_ran_is_no_violation() -> None:
    assert violations(history_of(RUN)) == {}


def test_a_job_with_a_dead_letter_is_no_violation() -> None:
    assert violations(history_of(dead_letters=["j"])) == {}


def test_a_lost_job_is_detected() -> None:
    assert violations(history_of()) == {"lost": ["j"]}


def test_a_run_without_an_end_does_not_finish_a_job() -> None:
    assert violations(history_of(replace(RUN, end=None, outcome=""))) == {"lost": ["j"]}


def test_a_job_that_was_never_acknowledged_may_be_missing() -> None:
    assert violations(history_of(adds=[replace(ADD, outcome="unknown")])) == {}


def test_a_waiting_job_is_unfinished_but_not_lost() -> None:
    assert violations(history_of(remaining=["j"])) == {
        "unfinished": ["j"],
        "left in the queue": ["j"],
    }


def test_a_duplicated_job_is_detected() -> None:
    assert violations(history_of(RUN, SECOND_RUN)) == {"duplicated": ["j"]}


@pytest.mark.parametrize(
    "fault",
    [
        FaultEvent("kill_worker", 3.0, 3.0, (7,), fatal=True),
        FaultEvent("stop_worker", 2.5, 8.0, (7,)),
        FaultEvent("stop_worker", 1.0, 8.9, (8,)),
        FaultEvent("stop_server", 2.0, 8.0),
        FaultEvent("stall", 1.0, 8.0),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.pids}",
)
def test_a_fault_that_affects_the_run_explains_a_second_run(fault: FaultEvent) -> None:
    assert violations(history_of(RUN, SECOND_RUN, faults=[fault])) == {}


@pytest.mark.parametrize(
    "fault",
    [
        FaultEvent("kill_worker", 3.0, 3.0, (9,), fatal=True),  # another process
        FaultEvent("kill_worker", 8.5, 8.5, (7,), fatal=True),  # long after the ack
        FaultEvent("cut", 3.0, 3.5),  # the client sends its requests again
        FaultEvent("kill_server", 3.0, 3.8),
        FaultEvent("stop_worker", 0.1, 1.0, (7,)),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.began}",
)
def test_other_faults_do_not_explain_a_second_run(fault: FaultEvent) -> None:
    assert violations(history_of(RUN, SECOND_RUN, faults=[fault])) == {"duplicated": ["j"]}


def test_overlapping_runs_of_a_job_are_detected() -> None:
    assert violations(history_of(RUN, replace(SECOND_RUN, start=2.5))) == {"overlapping": ["j"]}


def test_a_retry_is_not_a_duplicate() -> None:
    assert violations(history_of(replace(RUN, outcome="failed"), SECOND_RUN)) == {}


def test_the_attempt_limit_and_the_attempt_numbers_are_exact() -> None:
    failed = [
        replace(RUN, attempt=n, start=2.0 + n, end=2.5 + n, outcome="failed") for n in range(3)
    ]
    assert violations(history_of(*failed, dead_letters=["j"])) == {}
    fourth = replace(SECOND_RUN, attempt=3)
    assert violations(history_of(*failed, fourth)) == {"over the attempt limit": ["j"]}
    same_number = replace(SECOND_RUN, attempt=0)
    assert violations(history_of(failed[0], same_number)) == {"same attempt twice": ["j"]}


def test_an_early_run_is_detected() -> None:
    delayed = replace(SPEC, delay_ms=5000)
    assert violations(history_of(RUN, spec=delayed)) == {"early": ["j"]}
    assert violations(history_of(RUN, spec=delayed, adds=[replace(ADD, skewed=True)])) == {}


def test_a_unique_id_that_was_created_twice_is_detected() -> None:
    unique = replace(SPEC, unique=True)
    assert violations(history_of(RUN, spec=unique, adds=[ADD, ADD])) == {
        "unique id added twice": ["j"]
    }
    duplicate = replace(ADD, created=False)
    assert violations(history_of(RUN, spec=unique, adds=[ADD, duplicate])) == {}


def test_a_run_of_a_refused_job_is_detected() -> None:
    refused = [replace(ADD, outcome="refused")]
    assert violations(history_of(RUN, adds=refused)) == {"refused but run": ["j"]}
    cut = FaultEvent("cut", 0.9, 1.05)
    assert violations(history_of(RUN, adds=refused, faults=[cut])) == {}
    assert violations(history_of(RUN, adds=[ADD, *refused])) == {}


def test_a_job_that_was_never_added_is_detected() -> None:
    unknown = replace(RUN, job_id="unknown")
    assert violations(history_of(RUN, unknown)) == {"never added": ["unknown"]}


def test_a_second_dead_letter_is_detected() -> None:
    assert violations(history_of(dead_letters=["j", "j"])) == {"two dead letters": ["j"]}


def test_the_bits_of_a_batch_and_the_fires_of_a_repeat_are_counted() -> None:
    batch = (JobSpec("b0", 0), JobSpec("b1", 0, die=True))
    runs = [replace(RUN, job_id="b0"), replace(RUN, job_id="b1", outcome="dead")]
    scenario = Scenario(1, (), (), ticks=1, batch=batch)
    tick = replace(RUN, job_id="t", name="tick")
    history = History(scenario, [], [*runs, tick], dead_letters=["b1"], batch_sent=True)
    assert violations(replace(history, batch_bits=(1, 1))) == {}
    wrong_bits = replace(history, batch_bits=(2, 0))
    assert "batch bits (2, 0), 1 dead letters" in violations(wrong_bits)
    without_tick = replace(history, batch_bits=(1, 1), runs=runs)
    assert "repeat fired 0 of 1" in violations(without_tick)


def test_a_seed_always_gives_the_same_scenario() -> None:
    assert generate_scenario(5) == generate_scenario(5)
    assert generate_scenario(5) != generate_scenario(6)
    assert {fault.kind for fault in generate_scenario(5, seconds=30).faults} == set(KINDS)
