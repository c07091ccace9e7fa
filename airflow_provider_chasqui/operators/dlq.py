"""ChasquiReplayDlqOperator and ChasquiPurgeDlqOperator: repair what died."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_chasqui.core.commands import dead_letters as ops
from airflow_provider_chasqui.core.commands.dead_letters import DeadLetterReport
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.job import DeadLetter
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.operators import _parsing
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.core.queue_flows import DeadLetterQuery
    from airflow_provider_chasqui.queue import Queue

_CHUNK_SIZE = 100
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")


class DeadLettersOperator(BaseOperator):
    """What both have in common: which letters are meant.

    Every filter that is given must fit. Times are of the burial.

    :param ids: ids of letters; `job_ids`: ids of jobs.
    :param reason: why the job died, such as retries_exhausted or unrecoverable.
    :param job_name: the name of the job.
    :param older_than: buried at least that long ago (timedelta or seconds); or `newer_than`.
    :param text: a part of the error's text.
    :param batch_id: the batch of the job.
    :param limit: at most so many letters, the oldest first.
    :param dry_run: only count what would be done: a dry run.
    """

    template_fields: Sequence[str] = (
        "queue_name", "ids", "job_ids", "reason", "job_name", "older_than", "newer_than", "text",
        "batch_id", "limit", "is_dry_run", "chasqui_conn_id",
    )  # fmt: skip
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
        self.is_dry_run = dry_run
        self.chasqui_conn_id = chasqui_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        with fail_without_retry(), ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            report = self.process(queue, self._build_filters())
            self.log.info("Letters of the queue %r: %s", queue.name, report)
            if not report.dry_run:
                task_stats.incr(self.stat_name, report.affected, queue.name)
            return {"queue_name": queue.name} | asdict(report)

    def process(self, queue: Queue, filters: DeadLetterQuery) -> DeadLetterReport:
        raise NotImplementedError

    def _build_filters(self) -> DeadLetterQuery:
        wanted: DeadLetterQuery = {}
        if (ids := _parse_ids(self.ids, "ids")) is not None:
            wanted["ids"] = ids
        if (job_ids := _parse_ids(self.job_ids, "job_ids")) is not None:
            wanted["job_ids"] = job_ids
        if self.reason:
            wanted["reason"] = self.reason
        if self.job_name:
            wanted["job_name"] = self.job_name
        if older := _parsing.parse_duration(_none_if_blank(self.older_than), "older_than"):
            wanted["older_than"] = older
        if newer := _parsing.parse_duration(_none_if_blank(self.newer_than), "newer_than"):
            wanted["newer_than"] = newer
        if self.text:
            wanted["text"] = self.text
        if self.batch_id:
            wanted["batch_id"] = self.batch_id
        return wanted

    @property
    def _limit(self) -> int | None:
        return parse_positive_int(self.limit, "limit")

    @property
    def _counts_only(self) -> bool:
        return parse_bool(self.is_dry_run, "dry_run")


class ChasquiReplayDlqOperator(DeadLettersOperator):
    """Puts dead jobs back on their queue, each letter exactly once; returns the report.

    Jobs that die again while it runs are left for the next run.

    :param rate_limit: at most so many jobs a second, to spare what they died of.
    :param max_replays: how often one job may be replayed in all; others are counted as over budget.
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
        rate = _parse_rate_limit(self.rate_limit)
        budget = (
            parse_positive_int(self.max_replays, "max_replays") or queue.config.max_replays or 0
        )
        if self._counts_only:
            return queue.replay_dead_letters(limit=self._limit, dry_run=True, **filters)
        matched = unreadable = 0
        signs, started = b"", time.monotonic()
        chunk = _CHUNK_SIZE if rate is None else max(1, min(_CHUNK_SIZE, int(rate)))
        for page in _iter_pages(queue, filters, self._limit, chunk):
            readable = [letter for letter in page if letter.job is not None]
            matched += len(page)
            unreadable += len(page) - len(readable)
            if readable:
                signs += queue.client.execute(ops.replay_chunk(queue.keys, readable, budget))
            if rate is not None:
                ahead = signs.count(b"1") / rate - (time.monotonic() - started)
                time.sleep(max(0.0, ahead))
        moved, over, gone = signs.count(b"1"), signs.count(b"x"), signs.count(b"0")
        return DeadLetterReport(matched, moved, over, unreadable, gone)


class ChasquiPurgeDlqOperator(DeadLettersOperator):
    """Deletes dead letters for good; returns the report. Their jobs stay counted as dead."""

    stat_name = "dead_letters_purged"

    def process(self, queue: Queue, filters: DeadLetterQuery) -> DeadLetterReport:
        return queue.purge_dead_letters(limit=self._limit, dry_run=self._counts_only, **filters)


def _iter_pages(
    queue: Queue, filters: DeadLetterQuery, limit: int | None, page_size: int
) -> Iterator[list[DeadLetter]]:
    """Pages of the letters that are there now: what dies meanwhile is not among them."""
    newest = queue.dead_letters(limit=1, newest_first=True)
    if not newest:
        return
    last, after, left = _parse_stream_id(newest[0].id), None, limit
    while left is None or left > 0:
        page = queue.dead_letters(
            limit=page_size if left is None else min(page_size, left), after=after, **filters
        )
        page = [letter for letter in page if _parse_stream_id(letter.id) <= last]
        if not page:
            return
        yield page
        after = page[-1].id
        left = None if left is None else left - len(page)


def _parse_stream_id(stream_id: str) -> tuple[int, int]:
    ms, _, number = stream_id.partition("-")
    return int(ms), int(number)


def _none_if_blank(value: Any) -> Any:
    """Templates leave "None" or nothing where nothing was given."""
    return None if isinstance(value, str) and value in ("", "None") else value


def _parse_ids(value: Any, name: str) -> list[str] | None:
    value = _none_if_blank(value)
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        raise InvalidArgument(f"{name} is an id or a list of ids")
    return [str(each) for each in value]


def parse_positive_int(value: Any, name: str) -> int | None:
    value = _none_if_blank(value)
    try:
        number = None if value is None else int(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name} is a whole number, not {value!r}") from None
    if number is not None and number < 1:
        raise InvalidArgument(f"{name} is at least 1, not {number}")
    return number


def _parse_rate_limit(value: Any) -> float | None:
    value = _none_if_blank(value)
    try:
        rate = None if value is None else float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"rate_limit is a number of jobs a second, not {value!r}") from None
    if rate is not None and rate <= 0:
        raise InvalidArgument("rate_limit must be above 0")
    return rate


def parse_bool(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise InvalidArgument(f"{name} is true or false, not {value!r}")
    return text in _TRUE
