"""The scheduler: enqueues the runs of repeatable jobs when they are due."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import replace

from airflow_provider_chasqui.core.command import Command, as_score_ms, redis_command
from airflow_provider_chasqui.core.commands import delayed
from airflow_provider_chasqui.core.config import SchedulerConfig
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.ids import UlidGenerator
from airflow_provider_chasqui.core.repeat import decode_repeat, due_fires
from airflow_provider_chasqui.engine.backoff import log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.leader import LeaderLock

_MAX_WARNINGS = 1000


class Scheduler:
    """Enqueues due repeats while it is the leader, and sleeps until the next one is due.

    It also wakes every `poll_interval`, because a new repeat may be due earlier than the known
    ones. The script that enqueues a run checks the score the run was planned from, so a leader
    that was paused enqueues nothing twice.
    """

    def __init__(self, state: ConsumerState, config: SchedulerConfig):
        self._state = state
        self._config = config
        self._leader_lock = LeaderLock(
            state, "scheduler", state.keys.scheduler_lock, f"s-{uuid.uuid4()}", config.lock_ttl
        )
        self._id_generator = UlidGenerator()
        self._warned: set[str] = set()

    async def run(self) -> None:
        """Enqueue due repeats until the consumer stops."""
        await self._leader_lock.run(self._tick)

    async def _tick(self) -> float:
        poll_s = self._config.poll_interval.total_seconds()
        if not await self._leader_lock.acquire():
            return poll_s
        state, client = self._state, self._state.queue.client
        # The server's clock: with the worker's own, a wrong clock would skip or hurry runs.
        now_ms, read_at = await client.execute(delayed.server_time_ms()), time.monotonic()
        remaining_due = 0
        while not state.stopping.is_set():
            due = await client.run_flow(
                delayed.due_repeats(state.keys, now_ms, remaining_due, self._config.max_per_poll)
            )
            remaining_due += await self._fire(due, now_ms)
            if len(due) < self._config.max_per_poll:
                break
        next_ms = await client.execute(delayed.next_repeat_ms(state.keys, now_ms))
        if next_ms is None:
            return poll_s
        elapsed_s = time.monotonic() - read_at
        return min(poll_s, max(0.001, (next_ms - now_ms) / 1000 - elapsed_s))

    async def _fire(self, due: Sequence[tuple[str, bytes, bytes | None]], now_ms: int) -> int:
        """Enqueue due repeats; return how many of them stay due because they are unusable.

        :raises ChasquiError: if the server refuses all of them.
        """
        state = self._state
        commands: dict[str, Command[tuple[int, bool]]] = {}
        unusable = 0
        for key, score, raw_spec in due:
            try:
                commands[key] = self._fire_command(key, score, raw_spec, now_ms)
            except Exception as error:  # one unusable definition must not stop the others
                unusable += 1
                self._warn(key, f"invalid definition ({error})")
        replies = await state.queue.client.pipeline_with_errors(list(commands.values()))
        errors = [reply for reply in replies if isinstance(reply, ChasquiError)]
        if errors and len(errors) == len(due):
            raise errors[0]
        for key, reply in zip(commands, replies, strict=True):
            if isinstance(reply, ChasquiError):
                unusable += 1
                self._warn(key, str(reply))
            else:
                state.metrics.counts["fired"] += max(0, reply[0])
        return unusable

    def _fire_command(
        self, key: str, score: bytes, raw_spec: bytes | None, now_ms: int
    ) -> Command[tuple[int, bool]]:
        """Return the command that enqueues a due repeat, or removes it if it has no definition.

        :raises DecodeError: if the definition cannot be decoded. It is kept, because it may be that
            of a newer version.
        """
        keys = self._state.keys
        if raw_spec is None:
            log.warning("scheduler: dropped repeat %r: it has no definition", key)
            member = key.encode("utf-8", "surrogateescape")
            return redis_command("ZREM", keys.repeat, member, parse=lambda _: (0, True))
        # The key in the sorted set identifies the repeat, even if its definition has another.
        repeat = replace(decode_repeat(raw_spec), key=key)
        scheduled_ms = as_score_ms(score)
        plan = due_fires(repeat, scheduled_ms if scheduled_ms >= 0 else now_ms, now_ms)
        job_ids = [self._id_generator.next(now_ms) for _ in plan.fires_ms]
        return delayed.enqueue_due_repeats(keys, repeat, score, plan, job_ids, now_ms)

    def _warn(self, key: str, reason: str) -> None:
        """Log once per repeat why it does not fire."""
        if key not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(key)
            log.warning("scheduler: repeat %r does not fire: %s", key, reason)
