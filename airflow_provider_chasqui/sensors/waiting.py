"""What our sensors have in common: wait in the triggerer, in this task, or by rescheduling."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseSensorOperator, PokeReturnValue

from airflow_provider_chasqui.core.errors import (
    ChasquiError,
    StoreError,
    UnknownBatch,
    UnknownJob,
    WaitTimeout,
)
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.hooks.stats import in_task

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.triggers.waits import Source


class WaitingSensor(BaseSensorOperator):
    """Base of our sensors. Deferred and in `poke` mode they follow; in `reschedule` mode they look.

    :param deferrable: wait in the triggerer, holding no worker slot.
    """

    ui_color = "#e3ecd8"
    timed_as = ""

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
            with self._soft():
                return super().execute(context)
        self.announce(context)
        timeout = timedelta(seconds=self.timeout)
        if self.deferrable:
            with self._soft():
                if (seen := self._looked(context)) is not None:
                    return seen.xcom_value
            self.defer(trigger=self.trigger(), method_name="execute_complete", timeout=timeout)
        from airflow_provider_chasqui.triggers import waits

        with ChasquiHook(self.chasqui_conn_id) as hook:
            source = waits.Source(self.chasqui_conn_id, self.resolved_queue(hook), hook)
            try:
                event = waits.here(self.wait(source), timeout, "what the sensor waits for")
            except WaitTimeout as late:
                self._raise_timeout(late)
        return self.execute_complete(context, event)

    def _looked(self, context: Context) -> PokeReturnValue | None:
        """Return what has ended already, or None if it is to be waited for.

        That is not deferred: a scheduler that hears of the end of this process only after the task
        was resumed takes the resumed one for killed.
        """
        try:
            seen = self.poke(context)
        except (StoreError, UnknownBatch, UnknownJob):
            return None  # the trigger has the patience, and the events, to find out
        return seen if isinstance(seen, PokeReturnValue) else None

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        """Go on after the wait."""
        with self._soft(), ChasquiHook(self.chasqui_conn_id) as hook:
            return self.ended(context, hook, event)

    def ended(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        """The wait is over, one way or the other."""
        in_task.waited(self.timed_as, context, self.resolved_queue(hook))
        return self.judge(context, hook, event)

    def announce(self, context: Context) -> None:
        """Push what the extra link needs."""

    def trigger(self) -> Any:
        raise NotImplementedError

    def wait(self, source: Source) -> Any:
        raise NotImplementedError

    def judge(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        raise NotImplementedError

    def resolved_queue(self, hook: ChasquiHook) -> str:
        return hook.queue(getattr(self, "queue_name", None)).name

    def _raise_timeout(self, late: WaitTimeout) -> None:
        from airflow.providers.common.compat.sdk import AirflowSensorTimeout, AirflowSkipException

        kind = AirflowSkipException if self.soft_fail else AirflowSensorTimeout
        raise kind(str(late)) from late

    @contextmanager
    def _soft(self) -> Iterator[None]:
        """With `soft_fail`, skip instead of failing."""
        try:
            yield
        except ChasquiError as error:
            if not self.soft_fail:
                raise
            from airflow.providers.common.compat.sdk import AirflowSkipException

            raise AirflowSkipException(str(error)) from error
