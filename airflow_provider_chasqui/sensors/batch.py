"""ChasquiBatchSensor: wait until a batch has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue

from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.links.job import XCOM_KEY, ChasquiJobLink, page_link
from airflow_provider_chasqui.policies import no_retry_of_bad_input
from airflow_provider_chasqui.sensors.waiting import WaitingSensor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.triggers.waits import Limit, Source


class ChasquiBatchSensor(WaitingSensor):
    """Waits until every job of a batch is done or dead; shows the progress in the log.

    Returns the counts and the ids of the first dead jobs.

    :param batch: the handle that ChasquiEnqueueOperator returned, or a batch id.
    :param queue_name: the queue, if `batch` is only an id.
    :param max_failed: how many jobs may die; or `max_failed_ratio`, as a share of all.
    :param fail_fast: do not wait for the rest once more have died than may.
    """

    template_fields: Sequence[str] = ("batch", "queue_name", "chasqui_conn_id")
    operator_extra_links = (ChasquiJobLink(),)
    timed_as = "batch_wait"

    def __init__(
        self,
        *,
        batch: Any,
        queue_name: str | None = None,
        max_failed: int | None = 0,
        max_failed_ratio: float | None = None,
        fail_fast: bool = False,
        progress_interval: float = 30.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.batch = batch
        self.queue_name = queue_name
        self.max_failed = max_failed
        self.max_failed_ratio = max_failed_ratio
        self.fail_fast = fail_fast
        self.progress_interval = progress_interval

    def execute(self, context: Context) -> Any:
        with no_retry_of_bad_input():
            self._resolve()
        return super().execute(context)

    def execute_complete(self, context: Context, event: dict[str, Any]) -> Any:
        self._resolve()
        return super().execute_complete(context, event)

    def _resolve(self) -> None:
        """Read the handle; a queue name that was given wins over the handle's."""
        if isinstance(self.batch, dict):
            try:
                self.queue_name = self.queue_name or self.batch["queue_name"]
                self.batch = self.batch["batch_id"]
            except KeyError:
                raise BadInput(
                    "batch is the handle that ChasquiEnqueueOperator(batch=...) returned, or an id"
                ) from None
        if not isinstance(self.batch, str) or not self.queue_name:
            raise BadInput("the sensor needs the handle of a batch, or its id and queue_name")

    def announce(self, context: Context) -> None:
        link = page_link(self.chasqui_conn_id, self.queue_name or "", batch=self.batch)
        context["ti"].xcom_push(key=XCOM_KEY, value=link)

    def trigger(self) -> Any:
        from airflow_provider_chasqui.triggers.batch import ChasquiBatchTrigger

        return ChasquiBatchTrigger(
            queue_name=self.queue_name or "",
            batch_id=self.batch,
            max_failed=self.max_failed,
            max_failed_ratio=self.max_failed_ratio,
            fail_fast=self.fail_fast,
            progress_interval=self.progress_interval,
            chasqui_conn_id=self.chasqui_conn_id,
        )

    @property
    def _limit(self) -> Limit:
        from airflow_provider_chasqui.triggers.waits import Limit

        return Limit(self.max_failed, self.max_failed_ratio, self.fail_fast)

    def wait(self, source: Source) -> Any:
        from airflow_provider_chasqui.triggers.waits import wait_batch

        return wait_batch(
            source, self.batch, "0-0", self._limit, self.log.info, self.progress_interval
        )

    def judge(self, context: Context, hook: ChasquiHook, event: dict[str, Any]) -> Any:
        from airflow_provider_chasqui.triggers.waits import judge_batch

        return judge_batch(event, self.queue_name or "", self._limit)

    def poke(self, context: Context) -> bool | PokeReturnValue:
        from airflow_provider_chasqui.triggers.waits import Teller, batch_event
        from airflow_provider_chasqui.triggers.watch import BatchSight

        self.announce(context)
        with ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            seen = queue.batch(self.batch)
            sight = BatchSight(seen, seen.done, seen.dead)
            Teller(self.batch, self.log.info, 0).tell(sight)
            broken = self.fail_fast and self._limit.broken(seen.dead, seen.total)
            if not seen.finished and not broken:
                return False
            event = {"queue_name": queue.name} | batch_event(self.batch, sight)
            event["dead_ids"] = queue.dead_in_batch(self.batch, limit=100) if seen.dead else []
            return PokeReturnValue(True, self.ended(context, hook, event))
