"""Operators that replay or purge dead letters."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_chasqui.assets.chasqui import QueueLineage
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.commands.dead_letters import (
    DeadLetterReport,
    PageRange,
    replay_page,
)
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.queue_flows import build_dead_letter_filter
from airflow_provider_chasqui.core.validation import parse_int
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.operators import _parsing
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.core.queue_flows import DeadLetterQuery
    from airflow_provider_chasqui.queue import Queue

_MAX_PAGE = 100
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")


class DeadLettersOperator(QueueLineage, BaseOperator):
    """Base class of the operators that process dead letters.

    A dead letter must meet all filters that are given. All parameters are templated.

    :param queue_name: the queue. Default: the queue of the connection.
    :param ids: the id of a dead letter, or a list of ids.
    :param job_ids: the id of a job, or a list of ids.
    :param reason: why the job died, such as `retries_exhausted` or `unrecoverable`.
    :param job_name: the name of the job.
    :param older_than: moved to the DLQ at least this long ago: a timedelta, a number of seconds, or
        text such as `1h30m`.
    :param newer_than: moved to the DLQ at most this long ago.
    :param text: a part of the error or the detail.
    :param batch_id: the batch of the job.
    :param limit: the maximum number of dead letters, oldest first. Default: no limit.
    :param dry_run: only count. Default: False.
    :param chasqui_conn_id: the Airflow connection.
    """

    template_fields: Sequence[str] = (
        "queue_name",
        "ids",
        "job_ids",
        "reason",
        "job_name",
        "older_than",
        "newer_than",
        "text",
        "batch_id",
        "limit",
        "is_dry_run",
        "chasqui_conn_id",
    )
    ui_color = "#f0d9d9"
    stat_name = ""

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        ids: Any = None,
        job_ids: Any = None,
        reason: str | None = None,
        job_name: str | None = None,
        older_than: Any = None,
        newer_than: Any = None,
        text: str | None = None,
        batch_id: str | None = None,
        limit: int | str | None = None,
        dry_run: bool | str = False,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.ids = ids
        self.job_ids = job_ids
        self.reason = reason
        self.job_name = job_name
        self.older_than = older_than
        self.newer_than = newer_than
        self.text = text
        self.batch_id = batch_id
        self.limit = limit
        # Not `dry_run`: that is a method of BaseOperator.
        self.is_dry_run = dry_run
        self.chasqui_conn_id = chasqui_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Process the matching dead letters.

        :param context: the context of the task.
        :return: the queue name and the fields of the `DeadLetterReport`.
        :raises InvalidArgument: if a parameter is invalid; the task is not retried.
        """
        with fail_without_retry(), ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            report = self.process(queue, self._build_query())
            self.log.info("dead letters: queue %r, %s", queue.name, report)
            if not report.dry_run:
                task_stats.incr(self.stat_name, report.affected, queue.name)
            return {"queue_name": queue.name} | asdict(report)

    def process(self, queue: Queue, filters: DeadLetterQuery) -> DeadLetterReport:
        """Replay or purge the matching dead letters.

        :param queue: the queue.
        :param filters: the filters.
        """
        raise NotImplementedError

    def _build_query(self) -> DeadLetterQuery:
        query: DeadLetterQuery = {}
        if (ids := _parse_ids(self.ids, "ids")) is not None:
            query["ids"] = ids
        if (job_ids := _parse_ids(self.job_ids, "job_ids")) is not None:
            query["job_ids"] = job_ids
        if self.reason:
            query["reason"] = self.reason
        if self.job_name:
            query["job_name"] = self.job_name
        if older_than := _parsing.parse_duration(self.older_than, "older_than"):
            query["older_than"] = older_than
        if newer_than := _parsing.parse_duration(self.newer_than, "newer_than"):
            query["newer_than"] = newer_than
        if self.text:
            query["text"] = self.text
        if self.batch_id:
            query["batch_id"] = self.batch_id
        return query

    @property
    def _parsed_limit(self) -> int | None:
        return _parse_positive_int(self.limit, "limit")

    @property
    def _parsed_dry_run(self) -> bool:
        return _parse_bool(self.is_dry_run, "dry_run")


class ChasquiReplayDlqOperator(DeadLettersOperator):
    """Move dead letters back to their queue, each exactly once, and return the report.

    Jobs that die again while the operator runs are not replayed a second time.

    :param rate_limit: the maximum number of jobs per second, to protect what made them fail.
        Default: no limit.
    :param max_replays: skip jobs that were already replayed this often; the report counts them as
        `max_replays_reached`. Default: `max_replays` of the connection.
    """

    template_fields: Sequence[str] = (
        *DeadLettersOperator.template_fields,
        "rate_limit",
        "max_replays",
    )
    stat_name = "dead_letters_replayed"

    def __init__(
        self,
        *,
        rate_limit: float | str | None = None,
        max_replays: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rate_limit = rate_limit
        self.max_replays = max_replays

    def process(self, queue: Queue, filters: DeadLetterQuery) -> DeadLetterReport:
        """Replay the matching dead letters.

        :param queue: the queue.
        :param filters: the filters.
        """
        rate_limit = _parse_rate_limit(self.rate_limit)
        max_replays = _parse_positive_int(self.max_replays, "max_replays")
        if rate_limit is None or self._parsed_dry_run:
            return queue.replay_dead_letters(
                limit=self._parsed_limit,
                max_replays=max_replays,
                dry_run=self._parsed_dry_run,
                **filters,
            )
        return self._replay_at_rate(queue, filters, max_replays, rate_limit)

    def _replay_at_rate(
        self, queue: Queue, filters: DeadLetterQuery, max_replays: int | None, rate_limit: float
    ) -> DeadLetterReport:
        """Replay page by page, and wait after each page until the rate is met."""
        dlq_filter = build_dead_letter_filter(filters, current_time_ms())
        max_replays = max_replays or queue.config.max_replays
        page_limit = max(1, min(_MAX_PAGE, int(rate_limit)))
        remaining = self._parsed_limit
        report, started = DeadLetterReport(), time.monotonic()
        page_range: PageRange | None = PageRange()
        while page_range is not None and remaining != 0:
            page = queue.client.run_flow(
                replay_page(
                    queue.keys,
                    dlq_filter,
                    page_range,
                    max_replays,
                    dry_run=False,
                    limit=page_limit if remaining is None else min(page_limit, remaining),
                    max_scanned=None,
                )
            )
            report += page.report
            remaining = None if remaining is None else remaining - page.report.matched
            page_range = page.next_range
            time.sleep(max(0.0, report.affected / rate_limit - (time.monotonic() - started)))
        return report


class ChasquiPurgeDlqOperator(DeadLettersOperator):
    """Delete dead letters and return the report. Their jobs still count as dead in a batch."""

    stat_name = "dead_letters_purged"

    def process(self, queue: Queue, filters: DeadLetterQuery) -> DeadLetterReport:
        """Purge the matching dead letters.

        :param queue: the queue.
        :param filters: the filters.
        """
        return queue.purge_dead_letters(
            limit=self._parsed_limit, dry_run=self._parsed_dry_run, **filters
        )


def _parse_ids(value: Any, name: str) -> list[str] | None:
    value = _parsing.none_if_blank(value)
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        raise InvalidArgument(f"{name} must be an id or a list of ids, not {value!r}")
    return [str(item) for item in value]


def _parse_positive_int(value: Any, name: str) -> int | None:
    value = _parsing.none_if_blank(value)
    return None if value is None else parse_int(name, value, 1)


def _parse_rate_limit(value: Any) -> float | None:
    value = _parsing.none_if_blank(value)
    try:
        rate_limit = None if value is None else float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"rate_limit must be a number of jobs per second, not {value!r}"
        ) from None
    if rate_limit is not None and rate_limit <= 0:
        raise InvalidArgument(f"rate_limit must be above 0 jobs per second, not {value!r}")
    return rate_limit


def _parse_bool(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise InvalidArgument(f"{name} must be true or false, not {value!r}")
    return text in _TRUE
