"""ChasquiSparkReplayOperator: letters that a condition in SQL chooses go back to their queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.hooks.stats import in_task
from airflow_provider_chasqui.operators.identity import derived_id
from airflow_provider_chasqui.operators.spark_submission import SparkSubmission
from airflow_provider_chasqui.policies import no_retry_of_bad_input

if TYPE_CHECKING:
    from airflow.sdk import Context


class ChasquiSparkReplayOperator(SparkSubmission):
    """Replays the letters for which a SQL condition over the view `dlq` is true.

    Runs twice, it replays a letter once. Returns the counts: matched, moved, gone, over_budget,
    unreadable. Everything of SparkSubmitOperator may be given too.

    :param where: the condition, such as `reason = 'retries_exhausted' AND data.country = 'NL'`.
    :param payload_schema: DDL of the payload; it is then the struct `data` in the condition.
    :param budget: how often a job may be replayed at all.
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
        budget: int | None = None,
        limit: int | None = None,
        since: str | None = None,
        until: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.where = where
        self.payload_schema = payload_schema
        self.budget = budget
        self.limit = limit
        self.since = since
        self.until = until

    def execute(self, context: Context) -> Any:
        from airflow_provider_chasqui.core.ops import ships

        with no_retry_of_bad_input(), ChasquiHook(self.chasqui_conn_id) as hook:
            if not self.where.strip():
                raise BadInput("where says which letters: give a SQL condition, or 'true' for all")
            queue = hook.queue(self.queue_name)
            report_id = derived_id(context["ti"])
            budget = self.budget or hook.settings.config.replay_budget
            common = {"queue": queue.name}
            if hook.settings.dialect:
                common["dialect"] = hook.settings.dialect
            writing = common | {"action": "replay", "shipId": report_id}
            if budget:
                writing["budget"] = str(budget)
            order = {
                "replay": {
                    "where": self.where,
                    "limit": self.limit,
                    "options": self._reading(common),
                },
                "options": writing,
            }
            self.submit_order(context, hook.settings.target, order)
            report: dict[str, int] = queue.drive.run(ships.report(queue.keys, report_id))
            self.log.info("Replayed %s of %s letters", report.get("moved"), report.get("matched"))
            in_task.count("letters_replayed", report.get("moved", 0), queue.name)
            return report

    def _reading(self, common: Mapping[str, str]) -> dict[str, str]:
        wishes = {
            "payloadSchema": self.payload_schema,
            "since": self.since,
            "until": self.until,
        }
        return dict(common) | {key: value for key, value in wishes.items() if value}
