"""What our sensors have in common: wait in the triggerer, in this task, or by rescheduling."""

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
    """Base of our sensors. Deferred and in `poke` mode they follow; in `reschedule` mode they look.

    :param deferrable: wait in the triggerer, holding no worker slot.
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
        if not self.deferrable and self.mode == "reschedule":
            with self._skip_on_soft_fail():
                return super().execute(context)
        self.push_link(context)
        timeout = timedelta(seconds=self.timeout)
        if self.deferrable:
            with self._skip_on_soft_fail():
                if (seen := self._quick_poke(context)) is not None:
                    return seen.xcom_value
            self.defer(
                trigger=self.build_trigger(), method_name="execute_complete", timeout=timeout
            )
        from airflow_provider_chasqui.triggers import _waiting

        with ChasquiHook(self.chasqui_conn_id) as hook:
            source = _waiting.QueueSource(self.chasqui_conn_id, self.resolve_queue_name(hook), hook)
            try:
                event = _waiting.wait_in_process(
                    self.wait(source), timeout, "what the sensor waits for"
                )
            except WaitTimeout as late:
                self._raise_timeout(late)
        return self.execute_complete(context, event)

    def _quick_poke(self, context: Context) -> PokeReturnValue | None:
        """Return what has ended already, or None if it is to be waited for.

        That is not deferred: a scheduler that hears of the end of this process only after the task
        was resumed takes the resumed one for killed.
        """
        try:
            seen = self.poke(context)
        except (RedisServerError, BatchNotFound, JobNotFound):
            return None  # the trigger has the patience, and the events, to find out
        return seen if isinstance(seen, PokeReturnValue) else None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the wait."""
        with self._skip_on_soft_fail(), ChasquiHook(self.chasqui_conn_id) as hook:
            return self.finish(context, hook, event)

    def finish(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        """The wait is over, one way or the other."""
        task_stats.record_wait(self.stat_name, context, self.resolve_queue_name(hook))
        return self.check_event(context, hook, event)

    def push_link(self, context: Context) -> None:
        """Push what the extra link needs."""

    def build_trigger(self) -> Any:
        raise NotImplementedError

    def wait(self, source: QueueSource) -> Any:
        raise NotImplementedError

    def check_event(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        raise NotImplementedError

    def resolve_queue_name(self, hook: ChasquiHook) -> str:
        return hook.queue(getattr(self, "queue_name", None)).name

    def _raise_timeout(self, error: WaitTimeout) -> None:
        from airflow.providers.common.compat.sdk import AirflowSensorTimeout, AirflowSkipException

        kind = AirflowSkipException if self.soft_fail else AirflowSensorTimeout
        raise kind(str(error)) from error

    @contextmanager
    def _skip_on_soft_fail(self) -> Iterator[None]:
        """With `soft_fail`, skip instead of failing."""
        try:
            yield
        except ChasquiError as error:
            if not self.soft_fail:
                raise
            from airflow.providers.common.compat.sdk import AirflowSkipException

            raise AirflowSkipException(str(error)) from error
