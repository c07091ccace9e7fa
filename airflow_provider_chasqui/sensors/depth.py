"""ChasquiQueueDepthSensor: back-pressure for producers. Wait until a queue is below its limits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.validation import parse_int
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.sensors._base import ChasquiSensorBase

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.triggers._waiting import DepthLimits, QueueSource

_LIMIT_NAMES = ("max_waiting", "max_running", "max_lag", "max_delayed", "max_dead")


class ChasquiQueueDepthSensor(ChasquiSensorBase):
    """Sensor that waits until no count of a queue exceeds its limit.

    Returns a mapping with the counts `waiting`, `running`, `delayed`, `dead` and `lag`. A limit
    that is None is not checked; at least one limit is required. The limits are an integer or
    decimal text, and are templated.

    :param queue_name: the queue. Default: the `queue_name` of the connection. (templated)
    :param max_waiting: the maximum number of waiting jobs: the entries of the stream minus the
        pending ones. Default: None.
    :param max_running: the maximum number of jobs that workers own. Default: None.
    :param max_lag: the maximum lag of the consumer group, as the server reports it. If the server
        does not know the lag, the number of waiting jobs is compared. Default: None.
    :param max_delayed: the maximum number of jobs that are not due yet. Default: None.
    :param max_dead: the maximum number of dead letters. Default: None.
    :param poke_interval: the time between two checks: a timedelta, a number of seconds, or text
        such as `5s`. Default: 5 seconds.
    :param deferrable: whether to wait in the triggerer, without a worker slot. Default: the
        `default_deferrable` option of Airflow's section `[operators]`.
    :param start_from_trigger: whether the scheduler defers the task without starting it on a worker
        first. Requires `deferrable` and a `queue_name`, and limits without templates. Default:
        False.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    template_fields: Sequence[str] = (
        "queue_name",
        "max_waiting",
        "max_running",
        "max_lag",
        "max_delayed",
        "max_dead",
        "chasqui_conn_id",
    )
    stat_name = "depth_wait"

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        max_waiting: int | str | None = None,
        max_running: int | str | None = None,
        max_lag: int | str | None = None,
        max_delayed: int | str | None = None,
        max_dead: int | str | None = None,
        poke_interval: timedelta | float | str = 5.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(poke_interval=parse_duration(poke_interval, "poke_interval"), **kwargs)
        self.queue_name = queue_name
        self.max_waiting = max_waiting
        self.max_running = max_running
        self.max_lag = max_lag
        self.max_delayed = max_delayed
        self.max_dead = max_dead
        if all(getattr(self, name) is None for name in _LIMIT_NAMES):
            raise InvalidArgument(
                f"at least one of {', '.join(_LIMIT_NAMES)} is required, because a sensor without "
                "a limit would not wait"
            )
        if self.start_from_trigger:
            self._set_start_trigger(queue_name)

    @property
    def _limit_values(self) -> dict[str, int | None]:
        values = {name: getattr(self, name) for name in _LIMIT_NAMES}
        return {
            name: None if value is None else parse_int(name, value)
            for name, value in values.items()
        }

    @property
    def _depth_limits(self) -> DepthLimits:
        from airflow_provider_chasqui.triggers._waiting import DepthLimits

        return DepthLimits(**self._limit_values)

    def build_trigger(self, queue_name: str, deadline: float | None) -> Any:
        from airflow_provider_chasqui.triggers.depth import ChasquiQueueDepthTrigger

        return ChasquiQueueDepthTrigger(
            queue_name=queue_name,
            poll_interval=float(self.poke_interval),
            deadline=deadline,
            chasqui_conn_id=self.chasqui_conn_id,
            **self._limit_values,
        )

    def wait(self, source: QueueSource, timeout: float) -> Any:
        from airflow_provider_chasqui.triggers._waiting import wait_depth

        interval = float(self.poke_interval)
        return wait_depth(source, self._depth_limits, interval, self.log.info, timeout=timeout)

    def check_event(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers._waiting import raise_from_event

        if event.get("status") != "below_limits":
            raise_from_event(event, self.resolve_queue_name(hook))
        return {name: count for name, count in event.items() if name != "status"}

    def poke(self, context: Context) -> bool | PokeReturnValue:
        """Return the counts of the queue if no limit is exceeded, otherwise False.

        :param context: the task's context.
        """
        from airflow_provider_chasqui.triggers._waiting import depth_event

        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            depth = queue.depth()
            if exceeded := self._depth_limits.exceeded(depth):
                self.log.info("Queue %r exceeds its limits: %s", queue.name, "; ".join(exceeded))
                return False
            return PokeReturnValue(True, self.finish(context, hook, depth_event(depth)))
