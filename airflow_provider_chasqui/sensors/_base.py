"""Base class of the sensors: wait in the triggerer, in the task, or by rescheduling.

The waits themselves are in triggers/_waiting.py, for the triggerer and for the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.triggers.base import StartTriggerArgs

from airflow_provider_chasqui.core.errors import (
    BatchCancelled,
    BatchFailed,
    ChasquiError,
    InvalidArgument,
    JobFailed,
    RedisServerError,
    WaitTimeout,
)
from airflow_provider_chasqui.core.validation import require_choice
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.operators._task_identity import is_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.queue import Queue
    from airflow_provider_chasqui.triggers._waiting import QueueSource

COUNTS_XCOM_KEY = "counts"
OnRetryOfSensor = Literal["reattach", "replay"]


class ChasquiSensorBase(BaseSensorOperator):
    """Base class of the sensors.

    A deferred sensor for a job or a batch, and one in `poke` mode, follows the events of the queue.
    The depth sensor reads the depth every `poke_interval`. A sensor in `reschedule` mode checks the
    state every `poke_interval`. With `soft_fail` or `never_fail` an error or a timeout skips the
    task instead of failing it.

    :param deferrable: whether to wait in the triggerer, without a worker slot. Default: the
        `default_deferrable` option of Airflow's section `[operators]`.
    :param start_from_trigger: whether the scheduler defers the task without starting it on a worker
        first. Requires `deferrable` and a `queue_name`. Default: False.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    ui_color = "#e3ecd8"
    stat_name = ""
    # What a later try does about dead jobs: "reattach" or "replay".
    on_retry: OnRetryOfSensor = "reattach"

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        start_from_trigger: bool = False,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self.start_from_trigger = start_from_trigger and deferrable
        self.chasqui_conn_id = chasqui_conn_id

    def _set_start_trigger(self, queue_name: str | None) -> None:
        """Let the scheduler start the trigger. The triggerer renders the templates.

        :param queue_name: the queue.
        :raises InvalidArgument: if the queue is missing.
        """
        if not isinstance(queue_name, str):
            raise InvalidArgument(
                "start_from_trigger requires queue_name, because the task that reads the "
                "connection is not started"
            )
        from airflow_provider_chasqui.triggers._waiting import AIRFLOW_TIMEOUT_MARGIN

        trigger_cls, trigger_kwargs = self.build_trigger(queue_name, None).serialize()
        # As in `defer_timeouts`: the error of the trigger contains the state, that of Airflow not.
        margin = AIRFLOW_TIMEOUT_MARGIN
        self.start_trigger_args = StartTriggerArgs(
            trigger_cls=trigger_cls,
            trigger_kwargs=trigger_kwargs | {"timeout_margin": margin.total_seconds()},
            next_method="execute_complete",
            timeout=timedelta(seconds=self.timeout) + margin,
        )

    def _set_on_retry(self, on_retry: OnRetryOfSensor) -> None:
        """Check and set `on_retry`."""
        require_choice("on_retry", on_retry, ("reattach", "replay"))
        if on_retry == "replay" and self.start_from_trigger:
            raise InvalidArgument(
                "on_retry='replay' does not support start_from_trigger, because the task that "
                "replays the jobs is not started"
            )
        self.on_retry = on_retry

    def replay_dead_jobs(self, queue: Queue) -> None:
        """Replay the dead jobs that the sensor waits for.

        :param queue: the queue.
        """
        raise NotImplementedError

    def _replay_on_retry(self, context: Context) -> None:
        # A sensor in reschedule mode is executed several times in one try.
        is_first_poke = not context.get("task_reschedule_count", 0)
        if self.on_retry == "replay" and is_first_poke and is_retry(context["ti"]):
            with ChasquiHook(self.chasqui_conn_id) as hook:
                self.replay_dead_jobs(hook.queue(getattr(self, "queue_name", None)))

    def execute(self, context: Context) -> Any:
        """Wait, or defer the task, and return the result of the sensor."""
        with self._errors_as_sensor_errors():
            self._replay_on_retry(context)
        if not self.deferrable and self.mode == "reschedule":
            with self._errors_as_sensor_errors():
                return super().execute(context)
        from airflow_provider_chasqui.triggers import _waiting

        if self.deferrable:
            with self._errors_as_sensor_errors():
                if (result := self._quick_poke(context)) is not None:
                    return result.xcom_value
                with ChasquiHook(self.chasqui_conn_id) as hook:
                    queue_name = self.resolve_queue_name(hook)
            self.push_link(context, queue_name)
            deadline, timeout = _waiting.defer_timeouts(timedelta(seconds=self.timeout))
            self.defer(
                trigger=self.build_trigger(queue_name, deadline),
                method_name="execute_complete",
                timeout=timeout,
            )
        with ChasquiHook(self.chasqui_conn_id) as hook, self._errors_as_sensor_errors():
            queue_name = self.resolve_queue_name(hook)
            self.push_link(context, queue_name)
            source = _waiting.QueueSource(self.chasqui_conn_id, queue_name, hook)
            event = _waiting.wait_in_process(self.wait(source, self.timeout))
        return self.execute_complete(context, event)

    def _quick_poke(self, context: Context) -> PokeReturnValue | None:
        """Return the result if the wait is already over, otherwise None.

        Such a sensor is not deferred. If the scheduler learns of the end of this process after the
        task was resumed, it marks the resumed task as killed.
        """
        try:
            result = self.poke(context)
        except RedisServerError:
            return None  # the trigger connects again
        return result if isinstance(result, PokeReturnValue) else None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Finish the task after the wait.

        :param context: the task's context.
        :param event: the event of the trigger.
        :return: the result of the sensor.
        """
        with self._errors_as_sensor_errors(), ChasquiHook(self.chasqui_conn_id) as hook:
            self.push_link(context, self.resolve_queue_name(hook))
            return self.finish(context, hook, event)

    def finish(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        """Record the duration of the wait and return the result of `check_event`.

        :param context: the task's context.
        :param hook: an open hook.
        :param event: the event at the end of the wait.
        """
        task_stats.record_wait(self.stat_name, context, self.resolve_queue_name(hook))
        return self.check_event(context, hook, event)

    def push_link(self, context: Context, queue_name: str) -> None:
        """Push the XCom of the extra link. A sensor without a link pushes nothing.

        :param context: the task's context.
        :param queue_name: the queue.
        """

    def build_trigger(self, queue_name: str, deadline: float | None) -> Any:
        """Return the trigger that waits in the triggerer.

        :param queue_name: the queue.
        :param deadline: when the wait times out, in seconds since the epoch; None for never.
        """
        raise NotImplementedError

    def wait(self, source: QueueSource, timeout: float) -> Any:
        """Return a coroutine that waits in the task and returns the event at the end.

        :param source: the queue.
        :param timeout: how long to wait, in seconds.
        """
        raise NotImplementedError

    def check_event(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        """Return the result of the sensor, or raise the error in the event.

        :param context: the task's context.
        :param hook: an open hook.
        :param event: the event at the end of the wait.
        """
        raise NotImplementedError

    def resolve_queue_name(self, hook: ChasquiHook) -> str:
        """Return the sensor's queue, or the default queue of the connection.

        :param hook: an open hook.
        """
        return hook.queue(getattr(self, "queue_name", None)).name

    @contextmanager
    def _errors_as_sensor_errors(self) -> Iterator[None]:
        """Turn an error into a skip if `soft_fail` or `never_fail` is set.

        Otherwise a timeout becomes that of a sensor, which Airflow does not retry. Dead jobs fail
        the task without its retries, unless a retry replays them.
        """
        from airflow.providers.common.compat.sdk import (
            AirflowFailException,
            AirflowSensorTimeout,
            AirflowSkipException,
        )

        try:
            yield
        except ChasquiError as error:
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            if isinstance(error, WaitTimeout):
                raise AirflowSensorTimeout(str(error)) from error
            is_dead = isinstance(error, BatchFailed | JobFailed) and self.on_retry == "reattach"
            if is_dead or isinstance(error, BatchCancelled):
                raise AirflowFailException(str(error)) from error
            raise
