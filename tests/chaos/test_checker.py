"""The checker of the fault tests rejects every violation and excuses only what a fault explains."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness.checker import CheckResult, check_history
from tests.chaos.harness.history import (
    Add,
    BatchState,
    Cancel,
    DeadLetter,
    FaultEvent,
    History,
    Run,
)
from tests.chaos.harness.plan import KINDS, JobSpec, Scenario, generate_scenario
from tests.chaos.harness.recorder import read_runs

SPEC = JobSpec("j", 0, max_attempts=3)
ADD = Add("j", 1.0, 1.1, "acked")
RUN = Run("j", 0, pid=7, start=2.0, end=3.0, outcome="ok", name="job", result="r")
SECOND_RUN = replace(RUN, attempt=1, pid=8, start=9.0, end=9.5)
FAILED = replace(RUN, outcome="failed")
DEAD_LETTER = DeadLetter("j", "retries_exhausted", 3, at=20.0)
KILLED = FaultEvent("kill_worker", 3.0, 3.05, (7,), fatal=True)
STOPPED = FaultEvent("stop_worker", 2.5, 8.0, (7,))


def history_of(*runs: Run, spec: JobSpec = SPEC, **fields: Any) -> History:
    """Return the history of one job that was added once, unless `fields` differ."""
    scenario = Scenario(1, (spec,), (), ticks=0)
    return History(scenario, **{"adds": [ADD], "runs": list(runs), "results": {"j": "r"}} | fields)


def violations(history: History) -> dict[str, list[str]]:
    return dict(check_history(history).violations)


def excused(history: History) -> dict[tuple[str, str], int]:
    result = check_history(history)
    assert not result.violations
    return dict(result.excused)


def numbered(count: int, outcome: str = "failed") -> list[Run]:
    """Return runs with the attempts 0, 1, ... one after the other."""
    return [
        replace(RUN, attempt=n, start=2.0 + n, end=2.5 + n, outcome=outcome) for n in range(count)
    ]


# -- no job is lost ------------------------------------------------------------------------------


def test_a_job_that_ran_is_no_violation() -> None:
    assert excused(history_of(RUN)) == {}


def test_a_lost_job_is_detected() -> None:
    assert violations(history_of(results={})) == {"lost": ["j"]}


def test_a_job_that_was_never_acknowledged_may_be_missing() -> None:
    assert excused(history_of(adds=[replace(ADD, outcome="unknown")], results={})) == {}


def test_a_job_that_is_left_in_the_queue_is_detected() -> None:
    assert violations(history_of(remaining=["j"], results={})) == {
        "unfinished": ["j"],
        "left in the queue": ["j"],
    }


def test_a_cancelled_job_need_not_run() -> None:
    assert excused(history_of(cancels=[Cancel("j", 1.2, 1.3, "requested")], results={})) == {}


# -- the eight histories of the review, which the first checker accepted ---------------------------


def test_completed_and_dead_is_detected() -> None:
    history = history_of(RUN, dead_letters=[replace(DEAD_LETTER, attempts=1)])
    assert "completed and dead" in violations(history)


def test_a_dead_letter_without_any_run_is_detected() -> None:
    spec = replace(SPEC, max_attempts=25)
    history = history_of(spec=spec, dead_letters=[replace(DEAD_LETTER, attempts=25)], results={})
    assert violations(history) == {"dead without cause": ["j"] * 25}


def test_a_dead_letter_before_the_last_attempt_is_detected() -> None:
    history = history_of(FAILED, dead_letters=[replace(DEAD_LETTER, attempts=1)], results={})
    assert violations(history) == {"dead before its budget": ["j"]}
    lies = history_of(FAILED, dead_letters=[DEAD_LETTER], results={})
    assert violations(lies) == {"dead without cause": ["j", "j"]}


def test_a_healthy_job_of_a_batch_with_a_dead_letter_is_detected() -> None:
    healthy = JobSpec("batch:b:0:0", 0)
    history = History(
        Scenario(1, (), (), ticks=0, batch=(healthy,)),
        batches_sent=["b"],
        batches={"b": BatchState(1, frozenset(), frozenset({0}))},
        dead_letters=[DeadLetter(healthy.id, "retries_exhausted", 25, 20.0)],
    )
    assert set(violations(history)) == {"dead without cause"}


def test_an_interruption_without_a_stop_is_detected() -> None:
    history = history_of(replace(RUN, outcome="cut"), SECOND_RUN)
    assert violations(history) == {"interrupted without cause": ["j"]}


def test_a_stop_shorter_than_the_claim_excuses_nothing() -> None:
    stop = FaultEvent("stop_worker", 2.5, 3.5, (7,))
    history = history_of(RUN, SECOND_RUN, faults=[stop])
    assert violations(history) == {"ran again after its end": ["j"]}


def test_a_kill_long_after_the_ack_excuses_nothing() -> None:
    kill = FaultEvent("kill_worker", 7.9, 7.95, (7,), fatal=True)
    history = history_of(RUN, replace(SECOND_RUN, start=13.0, end=13.5), faults=[kill])
    assert violations(history) == {"ran again after its end": ["j"]}


def test_a_stall_of_the_tests_excuses_nothing() -> None:
    """Stalls are recorded by the worker processes themselves, with their pid and their length."""
    for stall in (FaultEvent("stall", 2.0, 3.01, (7,)), FaultEvent("stall", 2.0, 8.0, (99,))):
        history = history_of(RUN, SECOND_RUN, faults=[stall])
        assert violations(history) == {"ran again after its end": ["j"]}


# -- a second run --------------------------------------------------------------------------------


def test_a_second_run_after_a_completion_is_detected() -> None:
    assert violations(history_of(RUN, SECOND_RUN)) == {"ran again after its end": ["j"]}
    dead = [replace(RUN, outcome="dead"), SECOND_RUN]
    assert violations(history_of(*dead)) == {"ran again after its end": ["j"]}


@pytest.mark.parametrize(
    "fault",
    [
        KILLED,
        replace(KILLED, pending=frozenset({"j"})),
        STOPPED,
        FaultEvent("stall", 2.5, 8.0, (7,)),
        FaultEvent("stop_server", 2.0, 7.0),
        FaultEvent("hold", 2.0, 7.0, (7,)),
        FaultEvent("half_open", 2.0, 2.1, (7,)),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.pending}",
)
def test_a_fault_that_lost_the_claim_excuses_a_second_run(fault: FaultEvent) -> None:
    history = history_of(RUN, SECOND_RUN, faults=[fault])
    assert excused(history) == {("ran again after its end", fault.kind): 1}


@pytest.mark.parametrize(
    "fault",
    [
        replace(KILLED, pids=(9,)),  # another process
        replace(KILLED, pending=frozenset({"other"})),  # the server had the ack
        replace(KILLED, began=8.0, ended=8.0),  # the claim cannot have expired
        replace(STOPPED, pids=(9,)),
        replace(STOPPED, began=4.0, ended=8.9),  # after the ack
        FaultEvent("stop_worker", 0.1, 1.0, (7,)),
        FaultEvent("cut", 3.0, 3.5),  # the client sends its requests again
        FaultEvent("kill_server", 3.0, 3.8),
        FaultEvent("hold", 2.0, 7.0, (8,)),  # the link of another process
        FaultEvent("no_memory", 2.0, 8.0),  # claims are renewed without memory
        FaultEvent("slow", 2.0, 8.0),
        FaultEvent("flush_scripts", 2.0, 8.0),
        FaultEvent("clock_back", 2.0, 8.0),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.began}-{fault.pids}",
)
def test_other_faults_do_not_excuse_a_second_run(fault: FaultEvent) -> None:
    history = history_of(RUN, SECOND_RUN, faults=[fault])
    assert violations(history)["ran again after its end"] == ["j"]


def test_an_ack_that_an_outage_held_back_may_be_lost_later() -> None:
    """The worker could not write the outcome until the server replied, and was killed before."""
    held, kill = FaultEvent("hold", 2.9, 4.0, (7,)), replace(KILLED, began=4.1, ended=4.1)
    history = history_of(RUN, SECOND_RUN, faults=[held, kill])
    assert excused(history) == {("ran again after its end", "kill_worker"): 1}


def test_the_bound_of_the_ack_is_measured() -> None:
    late = FaultEvent("kill_worker", 3.4, 3.4, (7,), fatal=True)
    others = [replace(RUN, job_id="tick", name="tick", start=n, end=n + 0.5) for n in (20, 30)]
    runs = [RUN, SECOND_RUN, *others[:1]]
    slow_acks = history_of(*runs, faults=[late], acked_at={("tick", 0): 20.7})
    slow_acks.scenario = replace(slow_acks.scenario, ticks=1)
    assert excused(slow_acks) == {("ran again after its end", "kill_worker"): 1}
    fast_acks = replace(slow_acks, acked_at={("tick", 0): 20.501})
    assert violations(fast_acks) == {"ran again after its end": ["j"]}
    # A bound that grows without limit would excuse an engine that does not ack.
    assert check_history(replace(slow_acks, acked_at={("tick", 0): 99.0})).ack_bound_s == 1.0


def test_overlapping_runs_are_detected() -> None:
    overlapping = replace(SECOND_RUN, start=2.5, end=2.6)
    assert violations(history_of(RUN, overlapping)) == {"overlapping runs": ["j"]}
    long = replace(RUN, end=12.0)
    third = replace(SECOND_RUN, attempt=2, start=10.0, end=10.5)
    stop = FaultEvent("stop_worker", 2.5, 8.0, (7,))
    assert violations(history_of(long, SECOND_RUN, faults=[])) == {"overlapping runs": ["j"]}
    assert excused(history_of(long, SECOND_RUN, faults=[stop])) == {
        ("overlapping runs", "stop_worker"): 1
    }
    assert "ran again after its end" in violations(
        history_of(long, SECOND_RUN, third, faults=[stop])
    )


def test_overlapping_runs_of_an_attempt_in_one_process_are_recorded(tmp_path: Path) -> None:
    actions = [("start", 2.0), ("start", 2.5), ("ok", 3.0), ("ok", 3.5)]
    lines = [json.dumps([action, "j", 0, at, "job", None]) for action, at in actions]
    (tmp_path / "7.runs").write_text("\n".join(lines))
    runs = read_runs(tmp_path)
    assert [(run.start, run.end) for run in runs] == [(2.0, 3.0), (2.5, 3.5)]
    assert violations(history_of(*runs, results={"j": None}))["overlapping runs"] == ["j"]


def test_a_claim_cannot_expire_within_a_second() -> None:
    soon = replace(SECOND_RUN, start=4.0, end=4.5)
    history = history_of(RUN, soon, faults=[KILLED])
    assert violations(history) == {"ran again after its end": ["j"]}


def test_a_process_that_was_stopped_before_its_start_may_start_late() -> None:
    """Another worker claimed the job; the stopped one has the lower attempt number."""
    claimed = replace(RUN, attempt=1, pid=8, start=6.0, end=6.5)
    late = replace(RUN, attempt=0, pid=7, start=8.1, end=8.2)
    stop = FaultEvent("stop_worker", 1.5, 8.0, (7,))
    assert excused(history_of(claimed, late, faults=[stop])) == {
        ("ran again after its end", "stop_worker"): 1,
        ("wrong attempt number", "stop_worker"): 2,
    }
    assert "ran again after its end" in violations(history_of(claimed, late))
    much_later = replace(late, start=12.0, end=12.5)
    assert "ran again after its end" in violations(history_of(claimed, much_later, faults=[stop]))


def test_a_run_without_an_end_needs_a_kill() -> None:
    crashed = replace(RUN, end=None, outcome="", result=None)
    assert "run without an end" in violations(history_of(crashed, SECOND_RUN))
    assert excused(history_of(crashed, SECOND_RUN, faults=[KILLED])) == {
        ("run without an end", "kill_worker"): 1
    }


def test_an_interruption_is_excused_by_a_cancellation_or_a_stop() -> None:
    cut = replace(RUN, outcome="cut", result=None)
    cancels = [Cancel("j", 2.1, 2.2, "requested")]
    assert excused(history_of(cut, cancels=cancels, results={})) == {}
    stop = FaultEvent("kill_supervisor", 2.5, 2.5, (7,))
    assert excused(history_of(cut, SECOND_RUN, faults=[stop])) == {
        ("interrupted without cause", "kill_supervisor"): 1
    }
    other = replace(stop, pids=(9,))
    assert "interrupted without cause" in violations(history_of(cut, SECOND_RUN, faults=[other]))


# -- attempts and death --------------------------------------------------------------------------


def test_a_retry_is_no_violation() -> None:
    assert excused(history_of(FAILED, SECOND_RUN)) == {}


def test_the_attempt_limit_is_exact() -> None:
    assert excused(history_of(*numbered(3), dead_letters=[DEAD_LETTER], results={})) == {}
    fourth = replace(SECOND_RUN, attempt=3)
    assert "over the attempt limit" in violations(history_of(*numbered(3), fourth))


def test_wrong_attempt_numbers_are_detected() -> None:
    same = replace(SECOND_RUN, attempt=0)
    assert violations(history_of(FAILED, same)) == {"same attempt twice": ["j"]}
    skipped = replace(SECOND_RUN, attempt=2)
    assert violations(history_of(FAILED, skipped)) == {"wrong attempt number": ["j"]}
    assert violations(history_of(replace(RUN, attempt=1))) == {"wrong attempt number": ["j"]}


def test_a_snoozed_run_does_not_count() -> None:
    snoozed = replace(RUN, outcome="snoozed", result=None)
    again = replace(SECOND_RUN, attempt=0)
    assert excused(history_of(snoozed, again)) == {}
    assert violations(history_of(snoozed, SECOND_RUN)) == {"wrong attempt number": ["j"]}


def test_a_delivery_that_never_started_needs_a_fault() -> None:
    """A worker was killed after it had read the job and before it started it."""
    kill = FaultEvent("kill_worker", 1.5, 1.5, (9,), fatal=True, pending=frozenset({"j"}))
    skipped = replace(RUN, attempt=1, start=6.0, end=6.5)
    assert excused(history_of(skipped, faults=[kill])) == {
        ("wrong attempt number", "kill_worker"): 1
    }
    elsewhere = replace(kill, pending=frozenset({"other"}))
    assert violations(history_of(skipped, faults=[elsewhere])) == {"wrong attempt number": ["j"]}
    once = replace(SPEC, max_attempts=1)
    dead_letter = replace(DEAD_LETTER, attempts=1)
    death = history_of(spec=once, dead_letters=[dead_letter], results={}, faults=[kill])
    assert excused(death) == {("dead without cause", "kill_worker"): 1}


def test_a_completed_job_whose_ack_was_lost_may_die() -> None:
    once = replace(SPEC, max_attempts=1)
    death = history_of(
        RUN, spec=once, dead_letters=[replace(DEAD_LETTER, attempts=1)], faults=[KILLED]
    )
    assert excused(death) == {("completed and dead", "kill_worker"): 1}


def test_death_needs_a_known_reason() -> None:
    dead_letter = replace(DEAD_LETTER, reason="unrecoverable", attempts=1)
    assert "dead without cause" in violations(history_of(FAILED, dead_letters=[dead_letter]))
    dead = replace(RUN, outcome="dead", result=None)
    assert excused(history_of(dead, dead_letters=[dead_letter], results={})) == {}
    strange = replace(dead_letter, reason="decode_failed")
    assert "dead without cause" in violations(history_of(dead, dead_letters=[strange]))


def test_a_second_dead_letter_is_detected() -> None:
    history = history_of(*numbered(3), dead_letters=[DEAD_LETTER, DEAD_LETTER], results={})
    assert violations(history) == {"two dead letters": ["j"]}


# -- adds, payloads, results ---------------------------------------------------------------------


def test_a_unique_id_that_was_created_twice_is_detected() -> None:
    unique = replace(SPEC, unique=True)
    assert violations(history_of(RUN, spec=unique, adds=[ADD, ADD])) == {
        "unique id added twice": ["j"]
    }
    assert excused(history_of(RUN, spec=unique, adds=[ADD, replace(ADD, created=False)])) == {}


def test_a_run_of_a_refused_job_is_detected() -> None:
    refused = [replace(ADD, outcome="refused")]
    assert violations(history_of(RUN, adds=refused)) == {"refused but run": ["j"]}
    cut = FaultEvent("cut", 0.9, 1.05)
    assert excused(history_of(RUN, adds=refused, faults=[cut])) == {("refused but run", "cut"): 1}
    assert excused(history_of(RUN, adds=[ADD, *refused])) == {}


def test_a_job_that_was_never_added_is_detected() -> None:
    unknown = replace(RUN, job_id="unknown")
    assert violations(history_of(RUN, unknown)) == {"never added": ["unknown"]}


def test_a_changed_payload_is_detected() -> None:
    assert violations(history_of(replace(RUN, digest=1))) == {"wrong payload": ["j"]}
    assert excused(history_of(replace(RUN, digest=SPEC.digest))) == {}


def test_wrong_and_missing_results_are_detected() -> None:
    assert violations(history_of(RUN, results={"j": "other"})) == {"wrong result": ["j"]}
    assert violations(history_of(RUN, results={})) == {"no result": ["j"]}
    assert violations(history_of(*numbered(3), dead_letters=[DEAD_LETTER])) == {
        "wrong result": ["j"]
    }
    no_memory = FaultEvent("no_memory", 2.9, 3.4)
    assert excused(history_of(RUN, results={}, faults=[no_memory])) == {
        ("no result", "no_memory"): 1
    }


# -- time and order ------------------------------------------------------------------------------


def test_an_early_start_is_detected() -> None:
    delayed = replace(SPEC, delay_ms=5000)
    assert violations(history_of(RUN, spec=delayed)) == {"early": ["j"]}
    skewed = history_of(RUN, spec=delayed, adds=[replace(ADD, skewed=True)])
    assert excused(skewed) == {("early", "clock of the producer"): 1}


def test_a_late_start_is_detected() -> None:
    delayed, late = replace(SPEC, delay_ms=500), replace(RUN, start=9.0, end=9.1)
    assert violations(history_of(late, spec=delayed)) == {"late": ["j"]}
    outage = FaultEvent("stop_server", 1.5, 8.8)
    assert excused(history_of(late, spec=delayed, faults=[outage])) == {("late", "stop_server"): 1}


def test_an_early_retry_is_detected() -> None:
    early = replace(SECOND_RUN, start=3.02, end=3.5)
    assert violations(history_of(FAILED, early)) == {"early retry": ["j"]}
    clock = FaultEvent("clock_back", 2.5, 3.2)
    assert excused(history_of(FAILED, early, faults=[clock])) == {("early retry", "clock_back"): 1}


def test_the_fires_of_a_repeat_are_counted_and_timed() -> None:
    def fires(*starts: float, **fields: Any) -> History:
        ticks = [
            replace(RUN, job_id=f"t{start}", name="tick", start=start, end=start)
            for start in starts
        ]
        return History(Scenario(1, (), (), ticks=2), runs=ticks, repeat_added=1.0, **fields)

    assert excused(fires(1.3, 1.6)) == {}
    assert violations(fires(1.3)) == {"missed fires of a repeat": ["1 of 2"]}
    assert violations(fires(1.3, 1.6, 1.9)) == {"too many fires of a repeat": ["3 of 2"]}
    assert "early fire of a repeat" in violations(fires(1.1, 1.12))
    # The server's clock determines the fires, the producer's clock only the first one.
    clock = FaultEvent("clock_back", 1.0, 1.2)
    assert "early fire of a repeat" in violations(fires(1.1, 1.12, faults=[clock]))
    assert excused(fires(1.1, 1.6, repeat_skewed=True)) == {
        ("early fire of a repeat", "clock of the producer"): 1
    }
    assert "missed fires of a repeat" in violations(fires(1.3, 1.6, repeat_remains=True))


def test_a_wrong_order_is_detected() -> None:
    specs = tuple(JobSpec(job_id, 0, ordered=True) for job_id in "ab")
    adds = [Add("a", 1.0, 1.1, "acked"), Add("b", 1.2, 1.3, "acked")]
    runs = [replace(RUN, job_id="b"), replace(RUN, job_id="a", start=3.0, end=3.5)]
    history = History(
        Scenario(1, specs, (), ticks=0), adds=adds, runs=runs, results={"a": "r", "b": "r"}
    )
    assert violations(history) == {"wrong order": ["a"]}
    cut = FaultEvent("kill_clients", 1.5, 1.5)
    assert excused(replace(history, faults=[cut])) == {("wrong order", "kill_clients"): 1}
    kill_of_another_worker = replace(KILLED, began=1.5, ended=1.5, pids=(9,))
    assert violations(replace(history, faults=[kill_of_another_worker])) == {"wrong order": ["a"]}
    swapped = [replace(runs[0], job_id="a"), replace(runs[1], job_id="b")]
    assert excused(replace(history, runs=swapped)) == {}


# -- batches and cancellations -------------------------------------------------------------------


def batch_history(**fields: Any) -> History:
    """Return the history of a batch of which the second job dies."""
    batch = (JobSpec("batch:b:0:0", 0), JobSpec("batch:b:0:1", 0, die=True))
    runs = [
        replace(RUN, job_id=batch[0].id),
        replace(RUN, job_id=batch[1].id, outcome="dead", result=None),
    ]
    history = History(
        Scenario(1, (), (), ticks=0, batch=batch),
        runs=runs,
        batches_sent=["b"],
        dead_letters=[DeadLetter(batch[1].id, "unrecoverable", 1, 4.0)],
        batches={"b": BatchState(2, frozenset({0}), frozenset({1}))},
    )
    return replace(history, **fields)


def test_the_bits_of_a_batch_are_exact() -> None:
    assert excused(batch_history()) == {}
    none: frozenset[int] = frozenset()
    for done, dead in ((none, {1}), ({0}, none), ({0, 1}, none), ({0}, {0, 1}), ({1}, {0})):
        state = BatchState(2, frozenset(done), frozenset(dead))
        assert "wrong batch bit" in violations(batch_history(batches={"b": state}))
    unsent = BatchState(2, frozenset({0, 7}), frozenset({1}))
    assert "bit of a job that was not sent" in violations(batch_history(batches={"b": unsent}))
    assert violations(batch_history(batches={}))


def test_a_batch_with_a_lost_job_or_a_wrong_total_is_detected() -> None:
    history = batch_history(runs=batch_history().runs[1:])
    assert violations(history)["lost"] == ["batch:b:0:0"]
    wrong = BatchState(3, frozenset({0}), frozenset({1}))
    assert violations(batch_history(batches={"b": wrong})) == {"batch has the total 3 of 2": ["b"]}


def test_a_run_after_an_acknowledged_cancellation_is_detected() -> None:
    requested = [Cancel("j", 1.2, 1.3, "requested")]
    late = replace(RUN, start=4.0, end=4.5)
    assert violations(history_of(late, cancels=requested)) == {"ran after its cancellation": ["j"]}
    noticed = replace(RUN, start=2.0, end=2.1)  # within the documented delay
    assert excused(history_of(noticed, cancels=requested)) == {}
    removed = [Cancel("j", 1.2, 1.3, "cancelled")]
    assert violations(history_of(noticed, cancels=removed)) == {"ran after its cancellation": ["j"]}
    # A handler that runs is interrupted.
    long = replace(RUN, start=1.25, end=9.0)
    assert violations(history_of(long, cancels=requested)) == {"ran after its cancellation": ["j"]}
    outage = FaultEvent("stop_server", 1.4, 3.5)
    assert excused(history_of(late, cancels=requested, faults=[outage])) == {
        ("ran after its cancellation", "stop_server"): 1
    }
    elsewhere = FaultEvent("stop_worker", 1.4, 3.5, (9,))
    assert violations(history_of(late, cancels=requested, faults=[elsewhere])) == {
        "ran after its cancellation": ["j"]
    }
    unknown = [Cancel("j", 1.2, 1.3, "unknown")]
    assert excused(history_of(late, cancels=unknown)) == {}


# -- failover ------------------------------------------------------------------------------------


def test_a_failover_excuses_runs_with_the_same_number_but_no_lost_job() -> None:
    failover = FaultEvent("failover", 2.5, 4.0)
    again = replace(SECOND_RUN, attempt=0)
    assert excused(history_of(RUN, again, faults=[failover])) == {
        ("ran again after its end", "failover"): 1,
        ("same attempt twice", "failover"): 1,
    }
    assert violations(history_of(faults=[failover], results={})) == {"lost": ["j"]}
    much_later = replace(failover, began=20.0, ended=21.0)
    assert violations(history_of(RUN, again, faults=[much_later]))


# -- scenarios -----------------------------------------------------------------------------------


def test_a_result_shows_its_violations() -> None:
    result: CheckResult = check_history(history_of(results={}))
    assert str(result) == "1 lost: ['j']"


def test_a_seed_always_gives_the_same_scenario() -> None:
    assert generate_scenario(5) == generate_scenario(5)
    assert generate_scenario(5) != generate_scenario(6)
    assert {fault.kind for fault in generate_scenario(5, seconds=30).faults} == set(KINDS)
