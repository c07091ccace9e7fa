"""The checker of the fault tests sees what it must see: each broken promise, told by a history."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.harness.history import Add, History, Run, Struck, judge
from tests.chaos.harness.plan import KINDS, Scenario, Wish, draw

WISH = Wish("j", 0, max_attempts=3)
ADD = Add("j", 1.0, 1.1, "acked")
RUN = Run("j", 0, pid=7, start=2.0, end=3.0, how="ok", name="job")


def told(*runs: Run, wish: Wish = WISH, **more: object) -> History:
    adds = more.pop("adds", [ADD])
    return replace(History(Scenario(1, (wish,), (), ticks=0), adds, list(runs)), **more)  # type: ignore[arg-type]


def broken(history: History) -> dict[str, list[str]]:
    return dict(judge(history).broken)


def test_a_job_that_ran_is_fine() -> None:
    assert broken(told(RUN)) == {}


def test_a_job_with_a_letter_is_fine() -> None:
    assert broken(told(letters=["j"])) == {}


def test_a_lost_job_is_seen() -> None:
    assert broken(told()) == {"lost": ["j"]}


def test_a_run_that_began_and_never_ended_is_no_end() -> None:
    assert broken(told(replace(RUN, end=None, how=""))) == {"lost": ["j"]}


def test_what_was_never_acknowledged_may_be_missing() -> None:
    assert broken(told(adds=[replace(ADD, outcome="unknown")])) == {}


def test_a_job_that_still_waits_is_not_lost_but_left_over() -> None:
    assert broken(told(left=["j"])) == {"unfinished": ["j"], "left over": ["j"]}


AGAIN = Run("j", 1, pid=8, start=9.0, end=9.5, how="ok", name="job")


def test_a_doubled_job_is_seen() -> None:
    assert broken(told(RUN, AGAIN)) == {"doubled": ["j"]}


@pytest.mark.parametrize(
    "fault",
    [
        Struck("kill_worker", 3.0, 3.0, (7,), fatal=True),
        Struck("stop_worker", 2.5, 8.0, (7,)),
        Struck("stop_worker", 1.0, 8.9, (8,)),
        Struck("stop_server", 2.0, 8.0),
        Struck("stall", 1.0, 8.0),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.pids}",
)
def test_a_fault_explains_a_second_run(fault: Struck) -> None:
    assert broken(told(RUN, AGAIN, struck=[fault])) == {}


@pytest.mark.parametrize(
    "fault",
    [
        Struck("kill_worker", 3.0, 3.0, (9,), fatal=True),  # somebody else
        Struck("kill_worker", 8.5, 8.5, (7,), fatal=True),  # long after it was settled
        Struck("cut", 3.0, 3.5),  # what is cut off is sent again
        Struck("kill_server", 3.0, 3.8),
        Struck("stop_worker", 0.1, 1.0, (7,)),
    ],
    ids=lambda fault: f"{fault.kind}-{fault.began}",
)
def test_other_faults_are_no_excuse(fault: Struck) -> None:
    assert broken(told(RUN, AGAIN, struck=[fault])) == {"doubled": ["j"]}


def test_a_job_beside_itself_is_seen() -> None:
    assert broken(told(RUN, replace(AGAIN, start=2.5))) == {"beside itself": ["j"]}


def test_a_retry_is_no_double() -> None:
    assert broken(told(replace(RUN, how="failed"), AGAIN)) == {}


def test_a_budget_and_its_numbers_are_exact() -> None:
    failed = [replace(RUN, attempt=n, start=2.0 + n, end=2.5 + n, how="failed") for n in range(3)]
    assert broken(told(*failed, letters=["j"])) == {}
    once_more = replace(AGAIN, attempt=3)
    assert broken(told(*failed, once_more)) == {"over budget": ["j"]}
    assert broken(told(failed[0], replace(AGAIN, attempt=0))) == {"same attempt twice": ["j"]}


def test_an_early_run_is_seen() -> None:
    later = replace(WISH, delay_ms=5000)
    assert broken(told(RUN, wish=later)) == {"early": ["j"]}
    assert broken(told(RUN, wish=later, adds=[replace(ADD, skewed=True)])) == {}


def test_a_unique_id_that_went_in_twice_is_seen() -> None:
    unique = replace(WISH, unique=True)
    assert broken(told(RUN, wish=unique, adds=[ADD, ADD])) == {"unique id added twice": ["j"]}
    assert broken(told(RUN, wish=unique, adds=[ADD, replace(ADD, fresh=False)])) == {}


def test_a_refusal_that_was_none_is_seen() -> None:
    refused = [replace(ADD, outcome="refused")]
    assert broken(told(RUN, adds=refused)) == {"refused but run": ["j"]}
    assert broken(told(RUN, adds=refused, struck=[Struck("cut", 0.9, 1.05)])) == {}
    assert broken(told(RUN, adds=[ADD, *refused])) == {}


def test_phantoms_and_second_letters_are_seen() -> None:
    ghost = replace(RUN, job_id="ghost")
    assert broken(told(RUN, ghost)) == {"phantom": ["ghost"]}
    assert broken(told(letters=["j", "j"])) == {"two letters": ["j"]}


def test_bits_of_a_batch_and_fires_are_counted() -> None:
    batch = (Wish("b0", 0), Wish("b1", 0, die=True))
    runs = [replace(RUN, job_id="b0"), replace(RUN, job_id="b1", how="dead")]
    scenario = Scenario(1, (), (), ticks=1, batch=batch)
    tick = replace(RUN, job_id="t", name="tick")
    history = History(scenario, [], [*runs, tick], letters=["b1"], batch_sent=True)
    assert broken(replace(history, batch_bits=(1, 1))) == {}
    assert "batch bits (2, 0), 1 letters" in broken(replace(history, batch_bits=(2, 0)))
    silent = replace(history, batch_bits=(1, 1), runs=runs)
    assert "repeat fired 0 of 1" in broken(silent)


def test_a_seed_is_a_scenario() -> None:
    assert draw(5) == draw(5)
    assert draw(5) != draw(6)
    assert {fault.kind for fault in draw(5, seconds=30).faults} == set(KINDS)
