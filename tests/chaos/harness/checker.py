"""The checker: a pure function from the history of a scenario to the guarantees that it violates.

It does not use the code under test. Each rule is one function that yields findings. A finding with
a cause is excused and counted; a finding without a cause is a violation.

An excuse needs a fault that hit the very process that ran the job, at a time when the server did
not have the outcome yet, and that was fatal or long enough to lose a claim. How long that is
follows from the settings of the workers: a claim is lost after `CLAIM_S` without a renewal, and
the last renewal before the fault is at most a third of that old. How long after its end a run may
be unacknowledged is measured in the same history, in runs that no fault disturbed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from tests.chaos.harness.history import BatchState, DeadLetter, FaultEvent, History, Run
from tests.chaos.harness.plan import (
    CLAIM_S,
    CLIENT_TIMEOUT_S,
    RETRY_DELAY_S,
    SNOOZE_S,
    TICK_MS,
    JobSpec,
)

# Workers renew their claims this often.
RENEW_S = CLAIM_S / 3
# Clients connect again within this time after a fault.
RECONNECT_S = 1.0
# Workers notice a cancellation within this time (docs/delivery.md), plus the time of an ack.
CANCEL_NOTICE_S = 1.0
# Due times have a resolution of a millisecond, and the clocks of the processes are read one after
# the other.
EARLY_S = 0.05
# Without a fault, a due job starts within this time.
LATE_S = 3.0
# The lock of a killed leader expires after 5 s; then another worker promotes.
LEADER_S = 6.0
# The limits of the measured bound, and its value in a history without measurements.
MIN_ACK_S, DEFAULT_ACK_S, MAX_ACK_S = 0.1, 0.3, 1.0
DEFAULT_MAX_ATTEMPTS = 25

# Faults during which a worker cannot renew its claims.
BLOCKING = {
    "stop_worker",
    "stall",
    "cut",
    "hold",
    "hold_requests",
    "hold_replies",
    "half_open",
    "kill_server",
    "stop_server",
    "pause",
    "read_only",
    "no_replicas",
    "busy_script",
    "max_clients",
}
# Faults of one process, which continues at once when they end.
OF_PROCESS = {"stop_worker", "stall"}
# Faults that end workers without giving them time to finish.
WORKER_KILLS = {"kill_worker", "kill_leader"}
# Faults that let workers finish, and interrupt what they have not finished then.
WORKER_STOPS = {"kill_supervisor"}
# Faults of the clocks of workers and producers.
CLOCKS = {"clock_back", "clock_ahead"}
# Faults that do not delay a reply of the server.
HARMLESS = {"flush_scripts", "kill_producer", "stop_producer", "stop_supervisor", *CLOCKS}
# Outcomes after which a job does not run again.
FINAL = ("ok", "dead")


@dataclass(frozen=True)
class Finding:
    """A job that does not follow a rule, and the fault that excuses it, if any."""

    rule: str
    job_id: str
    cause: str | None = None


@dataclass
class CheckResult:
    """The job ids that violate a rule, by rule, and the number of excuses by rule and cause."""

    violations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    excused: Counter[tuple[str, str]] = field(default_factory=Counter)
    ack_bound_s: float = 0.0

    def record(self, finding: Finding) -> None:
        if finding.cause is None:
            self.violations[finding.rule].append(finding.job_id)
        else:
            self.excused[finding.rule, finding.cause] += 1

    def count(self, rule: str) -> int:
        return len(self.violations.get(rule, ()))

    def __str__(self) -> str:
        return "; ".join(f"{len(ids)} {rule}: {ids[:5]}" for rule, ids in self.violations.items())


def check_history(history: History) -> CheckResult:
    """Return every violation of a guarantee in a history, and what is excused."""
    evidence = Evidence(history)
    result = CheckResult(ack_bound_s=evidence.ack_s)
    for rule in RULES:
        for finding in rule(evidence):
            result.record(finding)
    return result


# -- evidence ------------------------------------------------------------------------------------


class Evidence:
    """A history with indexes, and the bounds that follow from it."""

    def __init__(self, history: History):
        self.history = history
        self.specs = {spec.id: spec for spec in history.scenario.specs}
        self.runs: dict[str, list[Run]] = {}
        for run in sorted(history.runs, key=lambda run: run.start):
            self.runs.setdefault(run.job_id, []).append(run)
        self.dead_letters: dict[str, list[DeadLetter]] = {}
        for dead_letter in history.dead_letters:
            self.dead_letters.setdefault(dead_letter.job_id, []).append(dead_letter)
        self._first_adds: dict[str, float] = {}
        for add in history.adds:
            earlier = self._first_adds.get(add.job_id, add.began)
            self._first_adds[add.job_id] = min(earlier, add.began)
        self.faults = sorted(history.faults, key=lambda fault: fault.began)
        self._faults_of: dict[int, list[FaultEvent]] = {}
        self.ack_s = measure_ack_bound(history)
        # A fault this long may lose a claim: the last renewal before it was up to RENEW_S earlier.
        self.min_loss_s = CLAIM_S - RENEW_S - self.ack_s

    def hitting(self, pid: int) -> list[FaultEvent]:
        """Return the faults that hit a process."""
        if pid not in self._faults_of:
            self._faults_of[pid] = [
                fault for fault in self.faults if not fault.pids or pid in fault.pids
            ]
        return self._faults_of[pid]

    def runs_of(self, job_id: str) -> list[Run]:
        """Return the runs of a job, ordered by start."""
        return self.runs.get(job_id, [])

    def max_attempts(self, job_id: str) -> int:
        spec = self.specs.get(job_id)
        return spec.max_attempts if spec else DEFAULT_MAX_ATTEMPTS

    def first_add(self, job_id: str) -> float:
        """Return when the first call that adds the job began."""
        return self._first_adds.get(job_id, 0.0)

    def may_lose_claims(self, fault: FaultEvent) -> bool:
        """Return whether a fault is long enough for a worker to lose its claims."""
        return fault.kind in BLOCKING and _until(fault) - fault.began >= self.min_loss_s

    def latest_ack(self, run: Run) -> float:
        """Return when the server had the outcome of a run at the latest, if its worker survived."""
        if run.end is None:
            return float("inf")
        latest = run.end + self.ack_s
        for fault in self.hitting(run.pid):
            if fault.fatal or fault.kind in HARMLESS:
                continue
            if fault.began <= latest and _until(fault) >= run.end:
                latest = max(latest, _until(fault) + self.ack_s)
        return latest

    def disturbed(self, began: float, ended: float, pid: int | None = None) -> str | None:
        """Return a fault that delayed requests in an interval."""
        for fault in self.faults if pid is None else self.hitting(pid):
            if fault.kind not in HARMLESS and fault.began <= ended and _until(fault) >= began:
                return fault.kind
        return None

    def wrong_clock(self, began: float, ended: float) -> str | None:
        """Return a fault of the clocks in an interval."""
        for fault in self.faults:
            if fault.kind in CLOCKS and fault.began <= ended and fault.ended >= began:
                return fault.kind
        return None


def measure_ack_bound(history: History) -> float:
    """Return the time after which the server has the outcome of a run that no fault disturbed.

    It is three times the 99.9th percentile of the runs in this history.
    """
    latencies = sorted(
        acked - run.end
        for run in history.runs
        if run.outcome == "ok" and run.end is not None
        if (acked := history.acked_at.get((run.job_id, run.attempt))) is not None
        if not any(
            fault.began <= acked and _until(fault) >= run.start
            for fault in history.faults
            if fault.kind not in HARMLESS
        )
    )
    if not latencies:
        return DEFAULT_ACK_S
    percentile = latencies[min(len(latencies) - 1, int(len(latencies) * 0.999))]
    return min(MAX_ACK_S, max(MIN_ACK_S, 3 * percentile))


def _until(fault: FaultEvent) -> float:
    """Return when the processes that a fault hit have recovered from it."""
    if fault.kind in OF_PROCESS or fault.fatal:
        return fault.ended
    if fault.kind == "half_open":  # noticed when a request times out
        return fault.ended + CLIENT_TIMEOUT_S + RECONNECT_S
    return fault.ended + RECONNECT_S


# -- excuses -------------------------------------------------------------------------------------


def lost_claim(evidence: Evidence, run: Run, delivered: float) -> str | None:
    """Return the fault for which the server did not have the outcome of a run at a delivery.

    :param run: the run.
    :param delivered: when the job was delivered again.
    """
    latest = min(evidence.latest_ack(run), delivered)
    for fault in evidence.hitting(run.pid):
        if fault.began > latest:
            continue
        if fault.loses_writes and fault.ended >= run.start:
            return fault.kind
        if fault.fatal:
            held = fault.pending is None or run.job_id in fault.pending
            if fault.ended >= run.start and held and _is_expired(evidence, fault, delivered):
                return fault.kind
        elif (
            evidence.may_lose_claims(fault)
            and _until(fault) >= run.start
            and _is_expired(evidence, fault, delivered)
        ):
            return fault.kind
    return None


def _is_expired(evidence: Evidence, fault: FaultEvent, delivered: float) -> bool:
    """Return whether claims that were renewed before a fault have expired at a delivery."""
    if delivered >= fault.began + evidence.min_loss_s:
        return True
    # An earlier fault may have prevented the last renewals.
    return any(
        other is not fault
        and other.kind in BLOCKING
        and other.began <= fault.began
        and _until(other) >= fault.began - RENEW_S
        and delivered >= other.began + evidence.min_loss_s
        for other in evidence.faults
    )


def stale_start(evidence: Evidence, earlier: Run, following: Run) -> str | None:
    """Return the fault that held back the start of a job which another worker claimed and ran.

    The process received the job before the fault and starts it after the fault, before its
    heartbeat notices that the claim is lost. Its attempt number is therefore the lower one.
    """
    if following.pid == earlier.pid or following.attempt >= earlier.attempt:
        return None
    for fault in evidence.hitting(following.pid):
        noticed = _until(fault) + RENEW_S + evidence.ack_s
        if evidence.may_lose_claims(fault) and fault.began <= following.start <= noticed:
            return fault.kind
    return None


def deliveries_without_run(
    evidence: Evidence, job_id: str, after: float, before: float
) -> list[str]:
    """Return the faults that may have cost a delivery of a job which no handler had started."""
    return [
        fault.kind
        for fault in evidence.faults
        if fault.began <= before and _until(fault) >= after
        if fault.loses_writes or _may_cost_delivery(evidence, fault, job_id, before)
    ]


def _may_cost_delivery(
    evidence: Evidence, fault: FaultEvent, job_id: str, delivered: float
) -> bool:
    """Return whether a worker may have held a job when a fault hit it, and lost it."""
    held = fault.pending is None or job_id in fault.pending
    loses = fault.kind in WORKER_KILLS or evidence.may_lose_claims(fault)
    return held and loses and delivered >= fault.began + evidence.min_loss_s


def lost_writes(evidence: Evidence, began: float, ended: float) -> str | None:
    """Return the failover that lost writes of an interval."""
    for fault in evidence.faults:
        if fault.loses_writes and fault.began <= ended and _until(fault) >= began - evidence.ack_s:
            return fault.kind
    return None


def _lost_writes_of(evidence: Evidence, job_id: str) -> str | None:
    """Return the failover that lost writes during the runs of a job."""
    runs = evidence.runs_of(job_id)
    if not runs:
        return None
    return lost_writes(evidence, runs[0].start, evidence.latest_ack(runs[-1]))


# -- rules: no job is lost -----------------------------------------------------------------------


def finished(evidence: Evidence) -> Iterator[Finding]:
    """An acknowledged job completes, becomes a dead letter or is cancelled."""
    history = evidence.history
    remaining = set(history.remaining)
    cancelled = {cancel.job_id for cancel in history.cancels}
    for job_id in sorted(_acknowledged(evidence)):
        completed = any(run.outcome == "ok" for run in evidence.runs_of(job_id))
        if not (completed or evidence.dead_letters.get(job_id) or job_id in cancelled):
            yield Finding("unfinished" if job_id in remaining else "lost", job_id)


def drained(evidence: Evidence) -> Iterator[Finding]:
    """No job is left in the queue after the workers have run it."""
    for job_id in evidence.history.remaining:
        yield Finding("left in the queue", job_id)


def _acknowledged(evidence: Evidence) -> set[str]:
    history = evidence.history
    ids = {add.job_id for add in history.adds if add.outcome == "acked"}
    sent = set(history.batches_sent)
    return ids | {spec.id for spec in history.scenario.batch if spec.batch_id in sent}


# -- rules: dead letters -------------------------------------------------------------------------


def one_dead_letter(evidence: Evidence) -> Iterator[Finding]:
    """A job has at most one dead letter."""
    for job_id, dead_letters in evidence.dead_letters.items():
        if len(dead_letters) > 1:
            cause = lost_writes(evidence, dead_letters[0].at, dead_letters[-1].at)
            yield Finding("two dead letters", job_id, cause)


def completed_or_dead(evidence: Evidence) -> Iterator[Finding]:
    """A job that completed has no dead letter."""
    for dead_letter in evidence.history.dead_letters:
        for run in evidence.runs_of(dead_letter.job_id):
            if run.outcome == "ok":
                cause = lost_claim(evidence, run, dead_letter.at)
                yield Finding("completed and dead", dead_letter.job_id, cause)


def death_has_a_cause(evidence: Evidence) -> Iterator[Finding]:
    """A job dies because its handler said so, or because every attempt was used."""
    for dead_letter in evidence.history.dead_letters:
        runs = evidence.runs_of(dead_letter.job_id)
        if dead_letter.reason == "unrecoverable":
            if not any(run.outcome == "dead" for run in runs):
                yield Finding("dead without cause", dead_letter.job_id)
        elif dead_letter.reason != "retries_exhausted":
            yield Finding("dead without cause", dead_letter.job_id)
        elif dead_letter.attempts != evidence.max_attempts(dead_letter.job_id):
            cause = _lost_writes_of(evidence, dead_letter.job_id)
            yield Finding("dead before its budget", dead_letter.job_id, cause)
        else:
            yield from _every_attempt_was_used(evidence, dead_letter, runs)


def _every_attempt_was_used(
    evidence: Evidence, dead_letter: DeadLetter, runs: list[Run]
) -> Iterator[Finding]:
    used = {run.attempt for run in runs if run.outcome != "snoozed"}
    missing = dead_letter.attempts - len(used & set(range(dead_letter.attempts)))
    first = evidence.first_add(dead_letter.job_id)
    causes = deliveries_without_run(evidence, dead_letter.job_id, first, dead_letter.at)
    for number in range(missing):
        cause = causes[number] if number < len(causes) else None
        yield Finding("dead without cause", dead_letter.job_id, cause)
    for run in runs:
        # A failed attempt and a crash use an attempt; `ok` is judged by `completed_or_dead`.
        if run.outcome == "dead":
            cause = lost_claim(evidence, run, dead_letter.at)
            yield Finding("dead for another reason", dead_letter.job_id, cause)


# -- rules: runs ---------------------------------------------------------------------------------


def runs_once(evidence: Evidence) -> Iterator[Finding]:
    """A job does not run again after it completed, or after an unrecoverable error."""
    for job_id, runs in evidence.runs.items():
        for run, following in pairwise(runs):
            if run.outcome in FINAL and run.end is not None and run.end <= following.start:
                cause = lost_claim(evidence, run, following.start)
                cause = cause or stale_start(evidence, run, following)
                yield Finding("ran again after its end", job_id, cause)


def runs_alone(evidence: Evidence) -> Iterator[Finding]:
    """Two runs of a job do not overlap."""
    for job_id, runs in evidence.runs.items():
        longest: Run | None = None
        for run in runs:
            if longest is not None and longest.end is not None and run.start < longest.end:
                cause = lost_claim(evidence, longest, run.start)
                cause = cause or stale_start(evidence, longest, run)
                yield Finding("overlapping runs", job_id, cause)
            if longest is None or (run.end or 0.0) > (longest.end or 0.0):
                longest = run


def runs_end(evidence: Evidence) -> Iterator[Finding]:
    """A run has an end, unless its process was killed during the run."""
    for run in evidence.history.runs:
        if run.end is None:
            kills = [
                fault
                for fault in evidence.hitting(run.pid)
                if fault.fatal and fault.pids and fault.ended >= run.start
            ]
            cause = kills[0].kind if kills else None
            yield Finding("run without an end", run.job_id, cause)


def interruptions_have_a_cause(evidence: Evidence) -> Iterator[Finding]:
    """A run is interrupted only if its job is cancelled, or if its worker is stopped."""
    cancels = {cancel.job_id: cancel for cancel in reversed(evidence.history.cancels)}
    for run in evidence.history.runs:
        if run.outcome != "cut" or run.end is None:
            continue
        cancel = cancels.get(run.job_id)
        if cancel is not None and cancel.began <= run.end:
            continue
        stops = [
            fault.kind
            for fault in evidence.hitting(run.pid)
            if fault.kind in WORKER_STOPS and fault.pids and fault.began <= run.end
        ]
        yield Finding("interrupted without cause", run.job_id, stops[0] if stops else None)


def failed_runs_are_retried_once(evidence: Evidence) -> Iterator[Finding]:
    """A failed or interrupted run is not followed by a run of the same or a lower number."""
    for job_id, runs in evidence.runs.items():
        highest: Run | None = None
        for run in runs:
            if highest is None:
                yield from _check_number(evidence, run, 0, evidence.first_add(job_id))
            else:
                expected = highest.attempt + (highest.outcome != "snoozed")
                cause = stale_start(evidence, highest, run)
                if cause and run.attempt not in {other.attempt for other in runs if other != run}:
                    yield Finding("wrong attempt number", job_id, cause)
                    continue
                yield from _check_number(evidence, run, expected, highest.start)
            if highest is None or run.attempt >= highest.attempt:
                highest = run


def _check_number(evidence: Evidence, run: Run, expected: int, after: float) -> Iterator[Finding]:
    """Compare an attempt number with the expected one; a delivery without a run adds 1."""
    if run.attempt < expected:
        cause = lost_writes(evidence, after, run.start)
        same = any(other.attempt == run.attempt for other in evidence.runs_of(run.job_id))
        rule = "same attempt twice" if same else "wrong attempt number"
        yield Finding(rule, run.job_id, cause)
        return
    causes = deliveries_without_run(evidence, run.job_id, after, run.start)
    for number in range(run.attempt - expected):
        cause = causes[number] if number < len(causes) else None
        yield Finding("wrong attempt number", run.job_id, cause)


def attempt_limit(evidence: Evidence) -> Iterator[Finding]:
    """At most `max_attempts` attempts are started."""
    for job_id, runs in evidence.runs.items():
        limit = evidence.max_attempts(job_id)
        started = [run for run in runs if run.outcome != "snoozed"]
        if len(started) > limit or any(run.attempt >= limit for run in runs):
            yield Finding("over the attempt limit", job_id, _lost_writes_of(evidence, job_id))


# -- rules: adds and payloads --------------------------------------------------------------------


def only_added_jobs_run(evidence: Evidence) -> Iterator[Finding]:
    """Only jobs that were added run, with the payload that was added."""
    for job_id, runs in evidence.runs.items():
        spec = evidence.specs.get(job_id)
        for run in runs:
            if spec is None and run.name != "tick":
                yield Finding("never added", job_id)
                break
            if spec is not None and run.digest not in (None, spec.digest):
                yield Finding("wrong payload", job_id)
                break


def refused_jobs_do_not_run(evidence: Evidence) -> Iterator[Finding]:
    """A job that was refused does not run.

    If a fault disturbed the call, an earlier attempt of the same call may have added the job.
    """
    outcomes: dict[str, set[str]] = defaultdict(set)
    for add in evidence.history.adds:
        outcomes[add.job_id].add(add.outcome)
    for add in evidence.history.adds:
        if outcomes[add.job_id] == {"refused"} and evidence.runs_of(add.job_id):
            cause = evidence.disturbed(add.began, add.ended)
            yield Finding("refused but run", add.job_id, cause)


def unique_ids_are_created_once(evidence: Evidence) -> Iterator[Finding]:
    """Of several adds of a unique id, at most one creates the job."""
    created = Counter(
        add.job_id for add in evidence.history.adds if add.outcome == "acked" and add.created
    )
    for job_id, count in created.items():
        spec = evidence.specs.get(job_id)
        if count > 1 and spec is not None and spec.unique:
            yield Finding("unique id added twice", job_id, _lost_writes_of(evidence, job_id))


# -- rules: time ---------------------------------------------------------------------------------


def delays_are_kept(evidence: Evidence) -> Iterator[Finding]:
    """A delayed job does not start before it is due, by the clock of the producer."""
    skewed = {add.job_id for add in evidence.history.adds if add.skewed}
    for job_id, runs in evidence.runs.items():
        spec = evidence.specs.get(job_id)
        if spec is None or not spec.delay_ms:
            continue
        if runs[0].start < evidence.first_add(job_id) + spec.delay_ms / 1000 - EARLY_S:
            yield Finding("early", job_id, "clock of the producer" if job_id in skewed else None)


def retries_wait(evidence: Evidence) -> Iterator[Finding]:
    """A retry waits for its backoff, and a snoozed job for its delay, by the worker's clock."""
    waits = {"failed": RETRY_DELAY_S, "snoozed": SNOOZE_S}
    for job_id, runs in evidence.runs.items():
        for run, following in pairwise(runs):
            if run.outcome not in waits or run.end is None or run.end > following.start:
                continue
            if following.start < run.end + waits[run.outcome] - EARLY_S:
                cause = evidence.wrong_clock(run.end - 1.0, following.start)
                cause = cause or lost_claim(evidence, run, following.start)
                yield Finding("early retry", job_id, cause)


def due_jobs_start(evidence: Evidence) -> Iterator[Finding]:
    """A delayed job starts soon after it is due, unless a fault holds it back."""
    for add in evidence.history.adds:
        spec, runs = evidence.specs.get(add.job_id), evidence.runs_of(add.job_id)
        if spec is None or not spec.delay_ms or not runs or add.outcome != "acked":
            continue
        due = add.ended + spec.delay_ms / 1000
        if runs[0].start > due + LATE_S:
            cause = evidence.disturbed(add.began - LEADER_S, runs[0].start)
            cause = cause or ("clock of the producer" if add.skewed else None)
            yield Finding("late", add.job_id, cause)


def repeats_fire(evidence: Evidence) -> Iterator[Finding]:
    """A repeatable job fires as often as its limit, and never early."""
    history = evidence.history
    starts: dict[str, float] = {}
    for run in sorted(history.runs, key=lambda run: run.start):
        if run.name == "tick":
            starts.setdefault(run.job_id, run.start)
    lost = next((fault.kind for fault in history.faults if fault.loses_writes), None)
    planned = history.scenario.ticks
    if history.repeat_remains or len(starts) < planned:
        # A write concern applies to jobs, not to the definition of a repeat.
        cause = None if history.repeat_remains else lost
        yield Finding("missed fires of a repeat", f"{len(starts)} of {planned}", cause)
    elif len(starts) > planned:
        yield Finding("too many fires of a repeat", f"{len(starts)} of {planned}", lost)
    if history.repeat_added is not None:
        for number, (job_id, start) in enumerate(starts.items()):
            due = history.repeat_added + (number + 1) * TICK_MS / 1000
            if start < due - EARLY_S:
                cause = "clock of the producer" if history.repeat_skewed else lost
                yield Finding("early fire of a repeat", job_id, cause)


# -- rules: order --------------------------------------------------------------------------------


def order_is_kept(evidence: Evidence) -> Iterator[Finding]:
    """Jobs of the ordered queue start in the order in which they were added.

    That queue has one worker of concurrency 1. A lost reply or a crash requeues jobs.
    """
    adds = [
        add
        for add in evidence.history.adds
        if add.outcome == "acked" and (spec := evidence.specs.get(add.job_id)) and spec.ordered
    ]
    for add, following in pairwise(sorted(adds, key=lambda add: add.began)):
        runs, later = evidence.runs_of(add.job_id), evidence.runs_of(following.job_id)
        in_order = add.ended <= following.began or add.began == following.began  # or in one call
        if runs and later and in_order and runs[0].start > later[0].start:
            cause = evidence.disturbed(add.began, runs[0].start, runs[0].pid)
            cause = cause or evidence.disturbed(add.began, add.ended)  # of the producer
            yield Finding("wrong order", add.job_id, cause)


# -- rules: batches, results, cancellations ------------------------------------------------------


def batch_bits(evidence: Evidence) -> Iterator[Finding]:
    """Each job of a batch has the bit of its final state, and no other job has one."""
    cancelled = {cancel.job_id for cancel in evidence.history.cancels}
    batches: dict[str, dict[int, JobSpec]] = defaultdict(dict)
    for spec in evidence.history.scenario.batch:
        batches[spec.batch_id][spec.index] = spec
    for batch_id in evidence.history.batches_sent:
        specs = batches[batch_id]
        state = evidence.history.batches.get(batch_id) or BatchState(None, frozenset(), frozenset())
        if state.total != len(specs):
            yield Finding(f"batch has the total {state.total} of {len(specs)}", batch_id)
        for index in (state.done | state.dead) - set(specs):
            yield Finding("bit of a job that was not sent", f"batch:{batch_id}:0:{index}")
        for index, spec in specs.items():
            bits = (index in state.done, index in state.dead)
            completed = any(run.outcome == "ok" for run in evidence.runs_of(spec.id))
            dead = bool(evidence.dead_letters.get(spec.id))
            allowed = {(completed and not dead, dead)}
            if spec.id in cancelled:
                allowed |= {(False, True), (completed, False)}
            if bits not in allowed:
                yield Finding("wrong batch bit", spec.id, _lost_writes_of(evidence, spec.id))


def results_are_stored(evidence: Evidence) -> Iterator[Finding]:
    """The stored result of a job is what a completed run of it returned."""
    for job_id, spec in evidence.specs.items():
        if not spec.stores_result:
            continue
        completed = [run for run in evidence.runs_of(job_id) if run.outcome == "ok"]
        stored = evidence.history.results.get(job_id)
        if stored is None:
            if completed and not evidence.dead_letters.get(job_id):
                last = completed[-1]
                lost = lost_writes(evidence, last.start, evidence.latest_ack(last))
                yield Finding("no result", job_id, _no_memory(evidence, last) or lost)
        elif stored not in [run.result for run in completed]:
            yield Finding("wrong result", job_id)


def _no_memory(evidence: Evidence, run: Run) -> str | None:
    """Return the fault for which the server had no memory for the result of a run."""
    for fault in evidence.faults:
        overlaps = fault.began <= evidence.latest_ack(run) and _until(fault) >= (run.end or 0.0)
        if fault.kind == "no_memory" and overlaps:
            return fault.kind
    return None


def cancelled_jobs_do_not_run(evidence: Evidence) -> Iterator[Finding]:
    """A job does not run after its cancellation was acknowledged and workers could notice it."""
    skewed = {add.job_id for add in evidence.history.adds if add.skewed}
    for cancel in evidence.history.cancels:
        if cancel.outcome == "unknown":
            continue
        notice_s = CANCEL_NOTICE_S + evidence.ack_s if cancel.outcome == "requested" else 0.0
        for run in evidence.runs_of(cancel.job_id):
            if run.start > cancel.ended + notice_s or (run.end or 0.0) > cancel.ended + notice_s:
                began = min(cancel.began, run.start)
                cause = evidence.disturbed(began, run.end or run.start, run.pid)
                cause = cause or ("clock of the producer" if cancel.job_id in skewed else None)
                yield Finding("ran after its cancellation", cancel.job_id, cause)


Rule = Callable[[Evidence], Iterable[Finding]]
RULES: tuple[Rule, ...] = (
    finished,
    drained,
    one_dead_letter,
    completed_or_dead,
    death_has_a_cause,
    runs_once,
    runs_alone,
    runs_end,
    interruptions_have_a_cause,
    failed_runs_are_retried_once,
    attempt_limit,
    only_added_jobs_run,
    refused_jobs_do_not_run,
    unique_ids_are_created_once,
    delays_are_kept,
    retries_wait,
    due_jobs_start,
    repeats_fire,
    order_is_kept,
    batch_bits,
    results_are_stored,
    cancelled_jobs_do_not_run,
)
