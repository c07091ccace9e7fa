"""Operators that move messages between an RSMQ queue and a Chasqui queue."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_chasqui.assets.chasqui import QueueLineage
from airflow_provider_chasqui.core.durations import parse_duration
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.hooks.rsmq import RsmqHook
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context


class _RsmqTransferOperator(QueueLineage, BaseOperator):
    """Parameters that both directions share."""

    template_fields: Sequence[str] = (
        "rsmq_queue_name",
        "queue_name",
        "namespace",
        "chasqui_conn_id",
        "rsmq_conn_id",
    )
    ui_color = "#d9e6ea"

    def __init__(
        self,
        *,
        rsmq_queue_name: str,
        queue_name: str | None = None,
        namespace: str = "rsmq",
        units: Any = "s",
        max_messages: int | None = None,
        dedup_ttl: timedelta | float | str = timedelta(days=1),
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        rsmq_conn_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rsmq_queue_name = rsmq_queue_name
        self.queue_name = queue_name
        self.namespace = namespace
        self.units = units
        self.max_messages = max_messages
        self.dedup_ttl = parse_duration(dedup_ttl, "dedup_ttl")
        self.chasqui_conn_id = chasqui_conn_id
        self.rsmq_conn_id = rsmq_conn_id

    def rsmq_hook(self, **options: Any) -> RsmqHook:
        """Return the hook of the RSMQ connection.

        :param options: further parameters of RsmqHook.
        """
        conn_id = self.rsmq_conn_id or self.chasqui_conn_id
        return RsmqHook(conn_id, namespace=self.namespace, units=self.units, **options)


class RsmqToChasquiOperator(_RsmqTransferOperator):
    """Move the visible messages of an RSMQ queue to a Chasqui queue, and return the counts.

    On one server each message is moved exactly once, also while other clients receive from the RSMQ
    queue. Between two servers a message is moved at least once, and duplicates are detected for
    `dedup_ttl`. In both cases a retry of the task continues where the previous try stopped.

    :param rsmq_queue_name: the RSMQ queue.
    :param queue_name: the Chasqui queue. Default: the one that the connection names.
    :param job_name: the name of the jobs. Default: `rsmq:<queue>`.
    :param json_payload: whether to parse the messages as JSON. A message that is not JSON is moved
        with its text as the payload, and counted as `unconverted`. Default: False, every payload is
        the text.
    :param keep_receive_count: count the receives of a message as attempts of the job.
    :param namespace: the prefix of the RSMQ keys.
    :param units: "s", or "ms" for queues that the Rust client rsmq_async created.
    :param max_messages: the maximum number of messages to move. None: no limit.
    :param dedup_ttl: how long a duplicate is detected if the queues are on two servers: a
        timedelta, a number of seconds, or text such as `12h`. Default: one day.
    :param chasqui_conn_id: the connection of the Chasqui queue.
    :param rsmq_conn_id: the connection of the RSMQ queue. Default: `chasqui_conn_id`.
    """

    template_fields: Sequence[str] = (*_RsmqTransferOperator.template_fields, "job_name")

    def __init__(
        self,
        *,
        job_name: str | None = None,
        json_payload: bool = False,
        keep_receive_count: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job_name = job_name
        self.json_payload = json_payload
        self.keep_receive_count = keep_receive_count

    def execute(self, context: Context) -> dict[str, int]:
        """Move the messages.

        :return: the counts of the TransferReport.
        """
        from airflow_provider_chasqui.rsmq.bridge import migrate_from_rsmq

        with (
            fail_without_retry(),
            ChasquiHook(self.chasqui_conn_id) as chasqui,
            self.rsmq_hook() as rsmq,
        ):
            queue = chasqui.queue(self.queue_name)
            report = migrate_from_rsmq(
                self.rsmq_queue_name,
                queue,
                rsmq.get_conn(),
                job_name=self.job_name,
                max_messages=self.max_messages,
                keep_receive_count=self.keep_receive_count,
                convert=json.loads if self.json_payload else None,
                dedup_ttl=self.dedup_ttl,
            )
        self.log.info(
            "rsmq transfer: moved %d messages from the RSMQ queue %s to the queue %s",
            report.moved,
            self.rsmq_queue_name,
            queue.name,
        )
        if report.unconverted:
            self.log.warning(
                "rsmq transfer: %d messages are not JSON; the payloads of their jobs are the texts",
                report.unconverted,
            )
        return asdict(report)


class ChasquiToRsmqOperator(_RsmqTransferOperator):
    """Move the waiting jobs of a Chasqui queue to an RSMQ queue, and return the counts.

    Workers may process jobs of the queue at the same time. Each job is either processed or moved. A
    job that cannot be converted to a message, or is too long for the RSMQ queue, is moved to the
    DLQ.

    :param rsmq_queue_name: the RSMQ queue. It must exist.
    :param queue_name: the Chasqui queue. Default: the one that the connection names.
    :param realtime: publish every message on the channel of the RSMQ queue.
    :param namespace: the prefix of the RSMQ keys.
    :param units: "s", or "ms" for queues that the Rust client rsmq_async created.
    :param max_messages: the maximum number of jobs to move. None: no limit.
    :param dedup_ttl: how long a duplicate is detected if the queues are on two servers: a
        timedelta, a number of seconds, or text such as `12h`. Default: one day.
    :param chasqui_conn_id: the connection of the Chasqui queue.
    :param rsmq_conn_id: the connection of the RSMQ queue. Default: `chasqui_conn_id`.
    """

    writes_queue = False

    def __init__(self, *, realtime: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.realtime = realtime

    def execute(self, context: Context) -> dict[str, int]:
        """Move the jobs.

        :return: the counts of the TransferReport.
        """
        from airflow_provider_chasqui.rsmq.bridge import migrate_to_rsmq

        with (
            fail_without_retry(),
            ChasquiHook(self.chasqui_conn_id) as chasqui,
            self.rsmq_hook(realtime=self.realtime) as rsmq,
        ):
            queue = chasqui.lease_queue(self.queue_name)
            report = migrate_to_rsmq(
                queue,
                self.rsmq_queue_name,
                rsmq.get_conn(),
                max_messages=self.max_messages,
                dedup_ttl=self.dedup_ttl,
                consumer=f"rsmq-bridge-{context['ti'].id}",
            )
        self.log.info(
            "rsmq transfer: moved %d jobs from the queue %s to the RSMQ queue %s",
            report.moved,
            queue.name,
            self.rsmq_queue_name,
        )
        return asdict(report)
