"""Base class of the sensors: wait in the triggerer, in the task, or by rescheduling.

The waits themselves are in triggers/_waiting.py, for the triggerer and for the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_chasqui.core.errors import (
    BatchNotFound,
    ChasquiError,
    JobNotFound,
    RedisServerError,
    WaitTimeout,
)
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.triggers._waiting import QueueSource


class ChasquiSensorBase(BaseSensorOperator):
    """Base class of the sensors.

    A deferred sensor for a job or a batch, and one in `poke` mode, follows the events of the queue.
    The depth sensor reads the depth every `poke_interval`. A sensor in `reschedule` mode checks the
    state every `poke_interval`.

    :param deferrable: whether to wait in the triggerer, without a worker slot. Default: the
        `default_deferrable` option of Airflow's section `[operators]`.
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    ui_color = "#e3ecd8"
    stat_name = ""

    def __init__(
        self,
        *,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable
        self.chasqui_conn_id = chasqui_conn_id

    def execute(self, context: Context) -> Any:
        """Wait, or defer the task, and return the result of the sensor."""
        if not self.deferrable and self.mode == "reschedule":
            with self._skip_on_soft_fail():
                return super().execute(context)
        self.push_link(context)
        timeout = timedelta(seconds=self.timeout)
        if self.deferrable:
            with self._skip_on_soft_fail():
                if (result := self._quick_poke(context)) is not None:
                    return result.xcom_value
            self.defer(
                trigger=self.build_trigger(), method_name="execute_complete", timeout=timeout
            )
        from airflow_provider_chasqui.triggers import _waiting

        with ChasquiHook(self.chasqui_conn_id) as hook:
            source = _waiting.QueueSource(self.chasqui_conn_id, self.resolve_queue_name(hook), hook)
            try:
                event = _waiting.wait_in_process(
                    self.wait(source), timeout, f"the wait of the task {self.task_id!r}"
                )
            except WaitTimeout as error:
                self._raise_timeout(error)
        return self.execute_complete(context, event)

    def _quick_poke(self, context: Context) -> PokeReturnValue | None:
        """Return the result if the wait is already over, otherwise None.

        Such a sensor is not deferred. If the scheduler learns of the end of this process after the
        task was resumed, it marks the resumed task as killed.
        """
        try:
            result = self.poke(context)
        except (RedisServerError, BatchNotFound, JobNotFound):
            return None  # the trigger retries, and it can also find the job in the events
        return result if isinstance(result, PokeReturnValue) else None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Finish the task after the wait.

        :param context: the task's context.
        :param event: the event of the trigger.
        :return: the result of the sensor.
        """
        with self._skip_on_soft_fail(), ChasquiHook(self.chasqui_conn_id) as hook:
            return self.finish(context, hook, event)

    def finish(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        """Record the duration of the wait and return the result of `check_event`.

        :param context: the task's context.
        :param hook: an open hook.
        :param event: the event at the end of the wait.
        """
        task_stats.record_wait(self.stat_name, context, self.resolve_queue_name(hook))
        return self.check_event(context, hook, event)

    def push_link(self, context: Context) -> None:
        """Push the XCom of the extra link. A sensor without a link pushes nothing.

        :param context: the task's context.
        """

    def build_trigger(self) -> Any:
        """Return the trigger that waits in the triggerer."""
        raise NotImplementedError

    def wait(self, source: QueueSource) -> Any:
        """Return a coroutine that waits in the task and returns the event at the end.

        :param source: the queue.
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

    def _raise_timeout(self, error: WaitTimeout) -> None:
        from airflow.providers.common.compat.sdk import AirflowSensorTimeout, AirflowSkipException

        error_class = AirflowSkipException if self.soft_fail else AirflowSensorTimeout
        raise error_class(str(error)) from error

    @contextmanager
    def _skip_on_soft_fail(self) -> Iterator[None]:
        """Turn an error into a skip if `soft_fail` is set."""
        try:
            yield
        except ChasquiError as error:
            if not self.soft_fail:
                raise
            from airflow.providers.common.compat.sdk import AirflowSkipException

            raise AirflowSkipException(str(error)) from error
