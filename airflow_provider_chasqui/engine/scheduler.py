"""The scheduler: enqueues the runs of repeatable jobs when they are due."""

from __future__ import annotations

import uuid
from dataclasses import replace

from airflow_provider_chasqui.core.command import Command, redis_command
from airflow_provider_chasqui.core.commands import delayed
from airflow_provider_chasqui.core.config import SchedulerConfig
from airflow_provider_chasqui.core.errors import ChasquiError, DecodeError
from airflow_provider_chasqui.core.ids import UlidGenerator
from airflow_provider_chasqui.core.repeat import decode_repeat, due_fires
from airflow_provider_chasqui.engine.backoff import log
from airflow_provider_chasqui.engine.consumer_state import ConsumerState
from airflow_provider_chasqui.engine.leader import LeaderLock


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

    async def run(self) -> None:
        """Enqueue due repeats until the consumer stops."""
        await self._leader_lock.run(self._tick)

    async def _tick(self) -> float:
        poll_s = self._config.poll_interval.total_seconds()
        if not await self._leader_lock.acquire():
            return poll_s
        state, client = self._state, self._state.queue.client
        due = await client.run_flow(
            delayed.due_repeats(state.keys, state.clock(), self._config.max_per_poll)
        )
        replies = await client.pipeline_with_errors(
            [self._fire_command(key, score_ms, raw_spec) for key, score_ms, raw_spec in due]
        )
        errors = [reply for reply in replies if isinstance(reply, ChasquiError)]
        fired = [reply[0] for reply in replies if not isinstance(reply, ChasquiError)]
        state.metrics.counts["fired"] += sum(max(0, count) for count in fired)
        if errors:
            raise errors[0]
        if len(due) >= self._config.max_per_poll:
            return 0.0
        next_ms = await client.execute(delayed.next_repeat_ms(state.keys))
        if next_ms is None:
            return poll_s
        return min(poll_s, max(0.001, (next_ms - state.clock()) / 1000))

    def _fire_command(
        self, key: str, score_ms: int, raw_spec: bytes | None
    ) -> Command[tuple[int, bool]]:
        """Return the command that enqueues a due repeat, or drops it if it cannot be decoded."""
        keys, now_ms = self._state.keys, self._state.clock()
        try:
            # The key in the sorted set identifies the repeat, even if its definition has another.
            repeat = replace(decode_repeat(raw_spec or b""), key=key)
        except DecodeError as error:
            log.warning("scheduler: dropped repeat %r: invalid definition (%s)", key, error)
            member = key.encode("utf-8", "surrogateescape")
            return redis_command("ZREM", keys.repeat, member, parse=lambda _: (0, True))
        plan = due_fires(repeat, score_ms, now_ms)
        job_ids = [self._id_generator.next(now_ms) for _ in plan.fires_ms]
        return delayed.enqueue_due_repeats(keys, repeat, score_ms, plan, job_ids, now_ms)
