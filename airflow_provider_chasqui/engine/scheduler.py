"""Fires repeats when they are due."""

from __future__ import annotations

import uuid
from dataclasses import replace

from airflow_provider_chasqui.core.config import SchedulerConfig
from airflow_provider_chasqui.core.errors import ChasquiError, DecodeError
from airflow_provider_chasqui.core.ids import Ulids
from airflow_provider_chasqui.core.op import Op, command
from airflow_provider_chasqui.core.ops import repeats
from airflow_provider_chasqui.core.repeat import decode_repeat, due
from airflow_provider_chasqui.engine.desk import Desk
from airflow_provider_chasqui.engine.health import log
from airflow_provider_chasqui.engine.leader import Leader


class Scheduler:
    """Leads, fires what is due, and sleeps until the next fire or until a new repeat may be there.

    A fire is gated on the score it answers, so even a leader that was paused fires nothing twice.
    """

    def __init__(self, desk: Desk, config: SchedulerConfig):
        self._desk = desk
        self._config = config
        holder = f"s-{uuid.uuid4()}"
        lock = desk.keys.scheduler_lock
        self._leader = Leader(desk, "scheduling", lock, holder, config.lock_life_s)
        self._ulids = Ulids()

    async def run(self) -> None:
        await self._leader.run(self._turn)

    async def _turn(self) -> float:
        poll_s = self._config.poll_ms / 1000
        if not await self._leader.lead():
            return poll_s
        desk = self._desk
        found = await desk.queue.drive.flow(
            repeats.due_keys(desk.keys, desk.clock(), self._config.at_most)
        )
        answers = await desk.queue.drive.attempt([self._op(*each) for each in found])
        refused = [answer for answer in answers if isinstance(answer, ChasquiError)]
        fires = [answer[0] for answer in answers if not isinstance(answer, ChasquiError)]
        desk.metrics.counts["fired"] += sum(max(0, fired) for fired in fires)
        if refused:
            raise refused[0]
        if len(found) >= self._config.at_most:
            return 0.0
        upcoming = await desk.queue.drive.run(repeats.next_fire(desk.keys))
        if upcoming is None:
            return poll_s
        return min(poll_s, max(0.001, (upcoming - desk.clock()) / 1000))

    def _op(self, key: str, score_ms: int, raw: bytes | None) -> Op[tuple[int, bool]]:
        """Fire a repeat, or drop it where it cannot be read."""
        keys, now_ms = self._desk.keys, self._desk.clock()
        try:
            # The name it is scored under counts, whatever its body calls it.
            repeat = replace(decode_repeat(raw or b""), key=key)
        except DecodeError as error:
            log.warning("scheduling: the repeat %r is dropped, it cannot be read: %s", key, error)
            member = key.encode("utf-8", "surrogateescape")
            return command("ZREM", keys.repeat, member, parse=lambda _: (0, True))
        plan = due(repeat, score_ms, now_ms)
        ids = [self._ulids.mint(now_ms) for _ in plan.fires_ms]
        return repeats.fire(keys, repeat, score_ms, plan, ids, now_ms)
