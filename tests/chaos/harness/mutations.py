"""Deliberate errors in the engine, with which the tests prove that the harness detects them.

Each mutation changes a method of the engine, in the worker processes of one test only. It applies
only to jobs whose id contains the name of the mutation, so that one run shows all of them and jobs
of other names show that nothing else is reported.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.commands import delayed
from airflow_provider_chasqui.core.payload import encode_payload
from airflow_provider_chasqui.engine import outcome_writer
from airflow_provider_chasqui.engine.cancellations import Cancellations
from airflow_provider_chasqui.engine.heartbeat import Heartbeat
from airflow_provider_chasqui.engine.outcome_writer import OutcomeWriter
from airflow_provider_chasqui.engine.outcomes import OutcomeHandler
from airflow_provider_chasqui.engine.promoter import Promoter
from airflow_provider_chasqui.engine.reader import StreamReader
from airflow_provider_chasqui.engine.recovery import StalledJobRecovery
from airflow_provider_chasqui.engine.scheduler import Scheduler

MUTATIONS: dict[str, Callable[[str], None]] = {}


def mutation(install: Callable[[str], None]) -> Callable[[str], None]:
    """Register a function that installs the mutation of its name."""
    MUTATIONS[install.__name__] = install
    return install


def apply_all() -> None:
    """Install every mutation."""
    for name, install in MUTATIONS.items():
        install(name)


def _wrap(owner: Any, method: str, wrapper: Callable[..., Any]) -> None:
    """Replace a method; the wrapper receives the original one first."""
    original = getattr(owner, method)

    @functools.wraps(original)
    def replacement(*args: Any, **options: Any) -> Any:
        return wrapper(original, *args, **options)

    setattr(owner, method, replacement)


def _is_job_of(name: str, entry: Any) -> bool:
    """Return whether a mutation applies to an entry, which may be unreadable."""
    return name in getattr(getattr(entry, "job", None), "id", "")


def _on_completion(name: str, instead: Callable[[Any, Any], None]) -> None:
    """Do something else instead of the completion of the jobs of a mutation."""

    def complete(original: Any, writer: Any, entry: Any, value: Any) -> None:
        if name in entry.job.id:
            instead(writer, entry)
        else:
            original(writer, entry, value)

    def complete_many(original: Any, writer: Any, entries: Any) -> None:
        others = []
        for entry, value in entries:
            if name in entry.job.id:
                instead(writer, entry)
            else:
                others.append((entry, value))
        original(writer, others)

    _wrap(OutcomeWriter, "complete", complete)
    _wrap(OutcomeWriter, "complete_many", complete_many)


def _on_dispatch(name: str, instead: Callable[[Any, Any], Any]) -> None:
    """Do something before the jobs of a mutation start; drop those for which it returns true."""

    def dispatch(original: Any, reader: Any, entries: Any) -> None:
        original(
            reader,
            [
                entry
                for entry in entries
                if not _is_job_of(name, entry) or not instead(reader, entry)
            ],
        )

    _wrap(StreamReader, "_dispatch", dispatch)


# -- jobs that get lost or die ---------------------------------------------------------------------


@mutation
def ack_without_run(name: str) -> None:
    def ack(reader: Any, entry: Any) -> bool:
        reader._writer.complete(entry, None)
        return True

    _on_dispatch(name, ack)


@mutation
def ack_failure(name: str) -> None:
    def handle(original: Any, outcomes: Any, entry: Any, *args: Any, **options: Any) -> None:
        if name in entry.job.id:
            outcomes._writer.complete(entry, None)
        else:
            original(outcomes, entry, *args, **options)

    _wrap(OutcomeHandler, "retry_or_dead_letter", handle)


@mutation
def death_without_run(name: str) -> None:
    def dead_letter(reader: Any, entry: Any) -> bool:
        reader._outcomes._dead_letter(entry, "retries_exhausted", "mutation", 25)
        return True

    _on_dispatch(name, dead_letter)


@mutation
def death_before_budget(name: str) -> None:
    def handle(original: Any, outcomes: Any, entry: Any, *args: Any, **options: Any) -> None:
        if name in entry.job.id:
            attempts = entry.job.attempt + 1
            outcomes._dead_letter(entry, "retries_exhausted", "mutation", attempts)
        else:
            original(outcomes, entry, *args, **options)

    _wrap(OutcomeHandler, "retry_or_dead_letter", handle)


@mutation
def completion_and_death(name: str) -> None:
    def dead_letter(writer: Any, entry: Any) -> None:
        OutcomeHandler(writer._state, writer)._dead_letter(
            entry, "retries_exhausted", "mutation", 25
        )

    _on_completion(name, dead_letter)


@mutation
def second_dead_letter(name: str) -> None:
    def moved(original: Any, writer: Any, dead_letters: Any, flags: Any) -> None:
        original(writer, dead_letters, flags)
        for dead_letter, _ in dead_letters:
            if name in dead_letter.job_id:
                fields = dead_letter.fields()
                command = redis_command("XADD", writer._state.keys.dlq, "*", *fields, parse=as_raw)
                writer.mutation_task = asyncio.create_task(writer._client.execute(command))

    _wrap(OutcomeWriter, "_on_dead_lettered", moved)


# -- runs ----------------------------------------------------------------------------------------


@mutation
def run_after_completion(name: str) -> None:
    def requeue_once(writer: Any, entry: Any) -> None:
        if entry.job.attempt == 0:
            writer.requeue(entry, 1)
        else:
            writer._acks.items.append(entry.id)
            writer._wake.set()

    _on_completion(name, requeue_once)


@mutation
def no_renewal(name: str) -> None:
    async def renew(original: Any, heartbeat: Any) -> None:
        state = heartbeat._state
        held = {
            entry_id: state.in_flight.pop(entry_id)
            for entry_id, entry in [*state.in_flight.items()]
            if _is_job_of(name, entry)
        }
        try:
            await original(heartbeat)
        finally:
            state.in_flight.update(held)

    async def claim_and_read(original: Any, recovery: Any, count: int) -> Any:
        # A claim by the worker that runs the jobs would renew them.
        if any(_is_job_of(name, entry) for entry in recovery._state.in_flight.values()):
            return []
        return await original(recovery, count)

    _wrap(Heartbeat, "_renew_claims", renew)
    _wrap(StalledJobRecovery, "claim_and_read", claim_and_read)


@mutation
def interruption(name: str) -> None:
    def started(original: Any, outcomes: Any, run: Any) -> None:
        original(outcomes, run)
        if name in run.entry.job.id and run.entry.job.attempt == 0 and run.interrupt is not None:
            asyncio.get_running_loop().call_later(0.05, run.interrupt)

    _wrap(OutcomeHandler, "run_started", started)


def _change_attempt(name: str, change: int) -> None:
    """Change the number of the next attempt, once per job and process."""
    changed: set[str] = set()

    def reschedule(
        original: Any, writer: Any, entry: Any, attempt: int, delay_ms: int, failed: bool
    ) -> None:
        if name in entry.job.id and entry.job.id not in changed:
            changed.add(entry.job.id)
            attempt += change
        original(writer, entry, attempt, delay_ms, failed)

    _wrap(OutcomeWriter, "reschedule", reschedule)


@mutation
def attempt_skipped(name: str) -> None:
    _change_attempt(name, 1)


@mutation
def attempt_repeated(name: str) -> None:
    _change_attempt(name, -1)


@mutation
def attempt_too_many(name: str) -> None:
    def handle(original: Any, outcomes: Any, entry: Any, *args: Any, **options: Any) -> None:
        if name in entry.job.id and entry.job.retry is not None:
            retry = entry.job.retry
            entry.job.retry = replace(retry, max_attempts=retry.max_attempts + 1)
        original(outcomes, entry, *args, **options)

    _wrap(OutcomeHandler, "retry_or_dead_letter", handle)


@mutation
def payload_change(name: str) -> None:
    def change(_: Any, entry: Any) -> bool:
        entry.job.body = encode_payload({"text": "mutation"})
        return False

    _on_dispatch(name, change)


# -- results, batches, cancellations ---------------------------------------------------------------


@mutation
def wrong_result(name: str) -> None:
    def encode(original: Any, value: Any) -> bytes:
        wrong = isinstance(value, list) and name in value[0]
        return encode_payload(["wrong"]) if wrong else original(value)

    _wrap(outcome_writer, "_encode_result", encode)


@mutation
def missing_result(name: str) -> None:
    def ack(writer: Any, entry: Any) -> None:
        writer._acks.items.append(entry.id)
        writer._wake.set()

    _on_completion(name, ack)


@mutation
def missing_bit(name: str) -> None:
    missing_result(name)


@mutation
def wrong_bit(name: str) -> None:
    _on_completion(name, lambda writer, entry: writer.ack_cancelled(entry))


@mutation
def ignored_cancel(name: str) -> None:
    async def find(original: Any, cancellations: Any, client: Any, entries: Any) -> Any:
        cancelled = await original(cancellations, client, entries)
        return [entry for entry in cancelled if name not in entry.job.id]

    _wrap(Cancellations, "find", find)


# -- time and order --------------------------------------------------------------------------------


@mutation
def early_promotion(name: str) -> None:
    async def tick(original: Any, promoter: Any) -> Any:
        client, key = promoter._state.queue.client, promoter._state.keys.delayed
        members = await client.execute(redis_command("ZRANGE", key, 0, -1, parse=as_raw))
        for member in members:
            if name.encode() in member:
                await client.execute(redis_command("ZADD", key, "XX", 1, member, parse=as_raw))
        return await original(promoter)

    _wrap(Promoter, "_tick", tick)


@mutation
def early_retry(name: str) -> None:
    def reschedule(
        original: Any, writer: Any, entry: Any, attempt: int, delay_ms: int, failed: bool
    ) -> None:
        original(writer, entry, attempt, 0 if name in entry.job.id else delay_ms, failed)

    _wrap(OutcomeWriter, "reschedule", reschedule)


@mutation
def late_start(name: str) -> None:
    """Postpone delayed jobs by four seconds when they are due."""
    postponed: set[bytes] = set()

    async def tick(original: Any, promoter: Any) -> Any:
        client, key = promoter._state.queue.client, promoter._state.keys.delayed
        members = await client.execute(redis_command("ZRANGE", key, 0, -1, parse=as_raw))
        for member in members:
            if name.encode() in member and member not in postponed:
                postponed.add(member)
                due = time.time_ns() // 1_000_000 + 4_500
                await client.execute(redis_command("ZADD", key, "XX", due, member, parse=as_raw))
        return await original(promoter)

    _wrap(Promoter, "_tick", tick)


@mutation
def early_tick(name: str) -> None:
    """Let the clock by which the scheduler fires run four times as fast."""
    began_ms = current_time_ms()

    def server_time(original: Any) -> Any:
        command = original()
        return replace(command, parse=lambda reply: 4 * command.parse(reply) - 3 * began_ms)

    async def tick(original: Any, scheduler: Any) -> Any:
        return await original(scheduler) / 4

    _wrap(delayed, "server_time_ms", server_time)
    _wrap(Scheduler, "_tick", tick)


@mutation
def order_change(name: str) -> None:
    seen: set[str] = set()

    def requeue_some(reader: Any, entry: Any) -> bool:
        if entry.job.id.endswith(("3", "6")) and entry.job.id not in seen:
            seen.add(entry.job.id)
            reader._writer.requeue(entry, entry.job.attempt)
            return True
        return False

    _on_dispatch(name, requeue_some)
