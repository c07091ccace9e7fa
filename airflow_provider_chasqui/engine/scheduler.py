"""Fires repeats when they are due."""

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
    """Leads, fires what is due, and sleeps until the next fire or until a new repeat may be there.

    A fire is gated on the score it answers, so even a leader that was paused fires nothing twice.
    """

    def __init__(self, state: ConsumerState, config: SchedulerConfig):
        self._state = state
        self._config = config
        holder = f"s-{uuid.uuid4()}"
        lock = state.keys.scheduler_lock
        self._leader_lock = LeaderLock(state, "scheduling", lock, holder, config.lock_ttl)
        self._id_generator = UlidGenerator()

    async def run(self) -> None:
        await self._leader_lock.run(self._tick)

    async def _tick(self) -> float:
        poll_s = self._config.poll_interval.total_seconds()
        if not await self._leader_lock.acquire():
            return poll_s
        desk = self._state
        found = await desk.queue.client.run_flow(
            delayed.due_repeats(desk.keys, desk.clock(), self._config.max_per_poll)
        )
        answers = await desk.queue.client.pipeline_with_errors(
            [self._fire_command(*each) for each in found]
        )
        refused = [answer for answer in answers if isinstance(answer, ChasquiError)]
        fires = [answer[0] for answer in answers if not isinstance(answer, ChasquiError)]
        desk.metrics.counts["fired"] += sum(max(0, fired) for fired in fires)
        if refused:
            raise refused[0]
        if len(found) >= self._config.max_per_poll:
            return 0.0
        upcoming = await desk.queue.client.execute(delayed.next_repeat_ms(desk.keys))
        if upcoming is None:
            return poll_s
        return min(poll_s, max(0.001, (upcoming - desk.clock()) / 1000))

    def _fire_command(
        self, key: str, score_ms: int, raw_spec: bytes | None
    ) -> Command[tuple[int, bool]]:
        """Fire a repeat, or drop it where it cannot be read."""
        keys, now_ms = self._state.keys, self._state.clock()
        try:
            # The name it is scored under counts, whatever its body calls it.
            repeat = replace(decode_repeat(raw_spec or b""), key=key)
        except DecodeError as error:
            log.warning("scheduling: the repeat %r is dropped, it cannot be read: %s", key, error)
            member = key.encode("utf-8", "surrogateescape")
            return redis_command("ZREM", keys.repeat, member, parse=lambda _: (0, True))
        plan = due_fires(repeat, score_ms, now_ms)
        ids = [self._id_generator.next(now_ms) for _ in plan.fires_ms]
        return delayed.enqueue_due_repeats(keys, repeat, score_ms, plan, ids, now_ms)
