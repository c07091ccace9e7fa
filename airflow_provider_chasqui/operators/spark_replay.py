"""ChasquiSparkReplayOperator: letters that a condition in SQL chooses go back to their queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.operators._spark_submit_base import ChasquiSparkSubmitBase
from airflow_provider_chasqui.operators._task_identity import derive_id
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context


class ChasquiSparkReplayOperator(ChasquiSparkSubmitBase):
    """Replays the letters for which a SQL condition over the view `dlq` is true.

    Runs twice, it replays a letter once. Returns the counts: matched, moved, gone, max_replays_reached,
    unreadable. Everything of SparkSubmitOperator may be given too.

    :param where: the condition, such as `reason = 'retries_exhausted' AND data.country = 'NL'`.
    :param payload_schema: DDL of the payload; it is then the struct `data` in the condition.
    :param max_replays: how often a job may be replayed at all.
    :param limit: how many letters at most.
    :param since: only letters of that time or later, and before `until` (ISO 8601).
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields, "queue_name", "where", "payload_schema", "since",
        "until", "chasqui_conn_id",
    )  # fmt: skip
    ui_color = "#f3e3d3"

    def __init__(
        self,
        *,
        where: str,
        payload_schema: str | None = None,
        max_replays: int | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.where = where
        self.payload_schema = payload_schema
        self.max_replays = max_replays
        self.limit = limit
        self.since = since
        self.until = until

    def execute(self, context: Context) -> Any:
        from airflow_provider_chasqui.core.commands import staged_writes

        with fail_without_retry(), ChasquiHook(self.chasqui_conn_id) as hook:
            if not self.where.strip():
                raise InvalidArgument(
                    "where says which letters: give a SQL condition, or 'true' for all"
                )
            queue = hook.queue(self.queue_name)
            report_id = derive_id(context["ti"])
            budget = self.max_replays or hook.settings.config.max_replays
            common = {"queueName": queue.name}
            if hook.settings.dialect:
                common["dialect"] = hook.settings.dialect
            writing = common | {"action": "replay", "batchId": report_id}
            if budget:
                writing["maxReplays"] = str(budget)
            order = {
                "replay": {
                    "where": self.where,
                    "limit": self.limit,
                    "options": self._read_options(common),
                },
                "options": writing,
            }
            self.submit_spec(context, hook.settings.target, order)
            report: dict[str, int] = queue.client.execute(
                staged_writes.get_report(queue.keys, report_id)
            )
            self.log.info(
                "Replayed %s of %s letters", report.get("affected"), report.get("matched")
            )
            task_stats.incr("dead_letters_replayed", report.get("affected", 0), queue.name)
            return report

    def _read_options(self, common_options: Mapping[str, str]) -> dict[str, str]:
        wishes = {
            "payloadSchema": self.payload_schema,
            "since": self.since,
            "until": self.until,
        }
        return dict(common_options) | {key: value for key, value in wishes.items() if value}
