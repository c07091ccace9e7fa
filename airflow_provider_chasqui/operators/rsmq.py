"""RsmqToChasquiOperator and ChasquiToRsmqOperator: the bridge as a task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.hooks.rsmq import RsmqHook
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

_DAY = timedelta(days=1)


class _RsmqTransferOperator(BaseOperator):
    """What the two directions have in common."""

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
        dedup_ttl: timedelta = _DAY,
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
        self.dedup_ttl = dedup_ttl
        self.chasqui_conn_id = chasqui_conn_id
        self.rsmq_conn_id = rsmq_conn_id

    def rsmq_hook(self, **options: Any) -> RsmqHook:
        conn_id = self.rsmq_conn_id or self.chasqui_conn_id
        return RsmqHook(conn_id, namespace=self.namespace, units=self.units, **options)


class RsmqToChasquiOperator(_RsmqTransferOperator):
    """Moves the visible messages of an RSMQ queue to a Chasqui queue; returns the counts.

    On one server each message is moved exactly once, whoever else consumes it. Between two servers
    it is at least once, and a message that arrived before is recognised for `dedup_ttl`. Either way
    a retry of the task goes on where the last try stopped.

    :param rsmq_queue_name: the RSMQ queue.
    :param queue_name: the Chasqui queue; without it, the one that the connection names.
    :param job_name: what the jobs are called; `rsmq:<queue>` if not given.
    :param json_payload: the messages are JSON: the jobs carry the value and not the text.
    :param keep_receive_count: receives that a message had count as attempts of the job.
    :param max_messages: stop after so many.
    :param rsmq_conn_id: the server of the RSMQ queue, if it is another one.
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
        from airflow_provider_chasqui.rsmq.bridge import migrate_from_rsmq

        with (
            fail_without_retry(),
            ChasquiHook(self.chasqui_conn_id) as chasqui,
            self.rsmq_hook() as rsmq,
        ):
            done = migrate_from_rsmq(
                self.rsmq_queue_name,
                chasqui.queue(self.queue_name),
                rsmq.client,
                job_name=self.job_name,
                max_messages=self.max_messages,
                keep_receive_count=self.keep_receive_count,
                convert=json.loads if self.json_payload else None,
                dedup_ttl=self.dedup_ttl,
            )
        self.log.info("moved %d messages to the queue %s", done.moved, self.queue_name)
        return asdict(done)


class ChasquiToRsmqOperator(_RsmqTransferOperator):
    """Moves the waiting jobs of a Chasqui queue to an RSMQ queue; returns the counts.

    Workers may take from the queue meanwhile: each job goes one way only. What cannot become a
    message, or is too long for the RSMQ queue, becomes a letter.

    :param rsmq_queue_name: the RSMQ queue; it must exist.
    :param queue_name: the Chasqui queue; without it, the one that the connection names.
    :param realtime: publish every message, for those who listen.
    :param max_messages: stop after so many.
    :param rsmq_conn_id: the server of the RSMQ queue, if it is another one.
    """

    def __init__(self, *, realtime: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.realtime = realtime

    def execute(self, context: Context) -> dict[str, int]:
        from airflow_provider_chasqui.rsmq.bridge import migrate_to_rsmq

        with (
            fail_without_retry(),
            ChasquiHook(self.chasqui_conn_id) as chasqui,
            self.rsmq_hook(realtime=self.realtime) as rsmq,
        ):
            done = migrate_to_rsmq(
                chasqui.lease_queue(self.queue_name),
                self.rsmq_queue_name,
                rsmq.client,
                max_messages=self.max_messages,
                dedup_ttl=self.dedup_ttl,
                consumer=f"rsmq-bridge-{context['ti'].id}",
            )
        self.log.info("moved %d jobs to the RSMQ queue %s", done.moved, self.rsmq_queue_name)
        return asdict(done)
