"""ChasquiQueueDepthSensor: back-pressure, wait until a queue has room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.sensors._base import ChasquiSensorBase

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.triggers._waiting import DepthLimits, QueueSource


class ChasquiQueueDepthSensor(ChasquiSensorBase):
    """Waits until a queue is no deeper than every limit that is given; returns the depth.

    :param max_waiting: jobs that no worker has taken yet.
    :param max_running: jobs that workers hold.
    :param max_lag: jobs that the consumer group has not read yet.
    :param max_delayed: jobs that are not yet due.
    :param max_dead: dead letters.
    """

    template_fields: Sequence[str] = (
        "queue_name", "max_waiting", "max_running", "max_lag", "max_delayed", "max_dead",
        "chasqui_conn_id",
    )  # fmt: skip
    stat_name = "depth_wait"

    def __init__(
        self,
        *,
        queue_name: str,
        max_waiting: int | None = None,
        max_running: int | None = None,
        max_lag: int | None = None,
        max_delayed: int | None = None,
        max_dead: int | None = None,
        poke_interval: float = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=poke_interval, **kwargs)
        self.queue_name = queue_name
        self.max_waiting = max_waiting
        self.max_running = max_running
        self.max_lag = max_lag
        self.max_delayed = max_delayed
        self.max_dead = max_dead

    @property
    def _limit_values(self) -> dict[str, int | None]:
        names = ("max_waiting", "max_running", "max_lag", "max_delayed", "max_dead")
        given = {name: getattr(self, name) for name in names}
        return {name: None if value is None else int(value) for name, value in given.items()}

    @property
    def _depth_limits(self) -> DepthLimits:
        from airflow_provider_chasqui.triggers._waiting import DepthLimits

        return DepthLimits(**self._limit_values)

    def build_trigger(self) -> Any:
        from airflow_provider_chasqui.triggers.depth import ChasquiQueueDepthTrigger

        return ChasquiQueueDepthTrigger(
            queue_name=self.queue_name,
            poll_interval=float(self.poke_interval),
            chasqui_conn_id=self.chasqui_conn_id,
            **self._limit_values,
        )

    def wait(self, source: QueueSource) -> Any:
        from airflow_provider_chasqui.triggers._waiting import wait_depth

        return wait_depth(source, self._depth_limits, float(self.poke_interval), self.log.info)

    def check_event(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers._waiting import raise_from_event

        if event.get("status") != "below_limits":
            raise_from_event(event, self.queue_name)
        return {name: count for name, count in event.items() if name != "status"}

    def poke(self, context: Context) -> bool | PokeReturnValue:
        from airflow_provider_chasqui.triggers._waiting import depth_event

        with ChasquiHook(self.chasqui_conn_id) as hook:
            depth = hook.queue(self.queue_name).depth()
            over = self._depth_limits.exceeded(depth)
            if over:
                self.log.info("The queue %r has no room yet: %s", self.queue_name, ", ".join(over))
                return False
            return PokeReturnValue(True, self.finish(context, hook, depth_event(depth)))
