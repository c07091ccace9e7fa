"""ChasquiSparkReplayOperator: replay of the dead letters that a SQL condition selects."""

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
    """Replays the dead letters for which a SQL condition over the view `dlq` is true.

    A dead letter is replayed once, even if the task runs twice. The XCom is a dict with the counts
    `matched`, `affected` (replayed), `missing`, `max_replays_reached` and `unreadable`. The
    operator also takes all parameters of SparkSubmitOperator.

    :param where: the condition, such as `reason = 'retries_exhausted' AND data.country = 'NL'`.
    :param payload_schema: the schema of the payload as DDL. The payload is then available in the
        condition as the struct `data`.
    :param max_replays: skip jobs that were already replayed this often; by default the limit of the
        connection.
    :param limit: the maximum number of dead letters; None for no limit.
    :param since: only dead letters from this time on (ISO 8601).
    :param until: only dead letters before this time (ISO 8601).
    :param queue_name: the queue; by default the queue of the connection.
    :param chasqui_conn_id: the Airflow connection of the Redis server.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "queue_name",
        "where",
        "payload_schema",
        "since",
        "until",
        "chasqui_conn_id",
    )
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
        """Submit the replay and return its counts.

        :raises InvalidArgument: if `where` is empty.
        """
        from airflow_provider_chasqui.core.commands import staged_writes

        with fail_without_retry(), ChasquiHook(self.chasqui_conn_id) as hook:
            if not self.where.strip():
                raise InvalidArgument(
                    "where is empty; set a SQL condition, or 'true' to replay all dead letters"
                )
            queue = hook.queue(self.queue_name)
            report_id = derive_id(context["ti"])
            max_replays = self.max_replays or hook.settings.config.max_replays
            common_options = {"queueName": queue.name}
            if hook.settings.dialect:
                common_options["dialect"] = hook.settings.dialect
            write_options = common_options | {"action": "replay", "batchId": report_id}
            if max_replays:
                write_options["maxReplays"] = str(max_replays)
            spec = {
                "replay": {
                    "where": self.where,
                    "limit": self.limit,
                    "options": self._read_options(common_options),
                },
                "options": write_options,
            }
            self.submit_spec(context, hook.settings.target, spec)
            report: dict[str, int] = queue.client.execute(
                staged_writes.get_report(queue.keys, report_id)
            )
            self.log.info(
                "Replayed %s of %s matching dead letters",
                report.get("affected", 0),
                report.get("matched", 0),
            )
            task_stats.incr("dead_letters_replayed", report.get("affected", 0), queue.name)
            return report

    def _read_options(self, common_options: Mapping[str, str]) -> dict[str, str]:
        options = {
            "payloadSchema": self.payload_schema,
            "since": self.since,
            "until": self.until,
        }
        return dict(common_options) | {key: value for key, value in options.items() if value}
