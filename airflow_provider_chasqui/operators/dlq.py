"""ChasquiReplayDlqOperator and ChasquiPurgeDlqOperator: repair what died."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.core.job import Letter
from airflow_provider_chasqui.core.ops import letters as ops
from airflow_provider_chasqui.core.ops.letters import LetterReport
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.hooks.stats import in_task
from airflow_provider_chasqui.operators import options
from airflow_provider_chasqui.policies import no_retry_of_bad_input

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.core.plan import LetterFilter
    from airflow_provider_chasqui.queue import Queue

_CHUNK = 100
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")


class LettersOperator(BaseOperator):
    """What both have in common: which letters are meant.

    Every filter that is given must fit. Times are of the burial.

    :param ids: ids of letters; `job_ids`: ids of jobs.
    :param reason: why the job died, such as retries_exhausted or unrecoverable.
    :param job_name: the name of the job.
    :param older_than: buried at least that long ago (timedelta or seconds); or `newer_than`.
    :param text: a part of the error's text.
    :param batch_id: the batch of the job.
    :param limit: at most so many letters, the oldest first.
    :param preview: only count what would be done: a dry run.
    """

    template_fields: Sequence[str] = (
        "queue_name", "ids", "job_ids", "reason", "job_name", "older_than", "newer_than", "text",
        "batch_id", "limit", "preview", "chasqui_conn_id",
    )  # fmt: skip
    ui_color = "#f0d9d9"
    counted_as = ""

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
        preview: bool | str = False,
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
        self.preview = preview
        self.chasqui_conn_id = chasqui_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        with no_retry_of_bad_input(), ChasquiHook(self.chasqui_conn_id) as hook:
            queue = hook.queue(self.queue_name)
            report = self.treat(queue, self._filter())
            self.log.info("Letters of the queue %r: %s", queue.name, report)
            if not report.dry_run:
                in_task.count(self.counted_as, report.moved, queue.name)
            return {"queue_name": queue.name} | asdict(report)

    def treat(self, queue: Queue, wanted: LetterFilter) -> LetterReport:
        raise NotImplementedError

    def _filter(self) -> LetterFilter:
        wanted: LetterFilter = {}
        if (ids := _names(self.ids, "ids")) is not None:
            wanted["ids"] = ids
        if (job_ids := _names(self.job_ids, "job_ids")) is not None:
            wanted["job_ids"] = job_ids
        if self.reason:
            wanted["reason"] = self.reason
        if self.job_name:
            wanted["name"] = self.job_name
        if older := options.span(_given(self.older_than), "older_than"):
            wanted["older_than"] = older
        if newer := options.span(_given(self.newer_than), "newer_than"):
            wanted["newer_than"] = newer
        if self.text:
            wanted["text"] = self.text
        if self.batch_id:
            wanted["batch"] = self.batch_id
        return wanted

    @property
    def _most(self) -> int | None:
        return whole(self.limit, "limit")

    @property
    def _dry(self) -> bool:
        return flag(self.preview, "preview")


class ChasquiReplayDlqOperator(LettersOperator):
    """Puts dead jobs back on their queue, each letter exactly once; returns the report.

    Jobs that die again while it runs are left for the next run.

    :param rate_limit: at most so many jobs a second, to spare what they died of.
    :param budget: how often one job may be replayed in all; others are counted as over budget.
    """

    template_fields: Sequence[str] = (*LettersOperator.template_fields, "rate_limit", "budget")
    counted_as = "letters_replayed"

    def __init__(
        self,
        *,
        rate_limit: float | str | None = None,
        budget: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.rate_limit = rate_limit
        self.budget = budget

    def treat(self, queue: Queue, wanted: LetterFilter) -> LetterReport:
        rate = _rate(self.rate_limit)
        budget = whole(self.budget, "budget") or queue.config.replay_budget or 0
        if self._dry:
            return queue.replay(limit=self._most, dry_run=True, **wanted)
        matched = unreadable = 0
        signs, started = b"", time.monotonic()
        chunk = _CHUNK if rate is None else max(1, min(_CHUNK, int(rate)))
        for page in _pages(queue, wanted, self._most, chunk):
            readable = [letter for letter in page if letter.job is not None]
            matched += len(page)
            unreadable += len(page) - len(readable)
            if readable:
                signs += queue.drive.run(ops.move_back(queue.keys, readable, budget))
            if rate is not None:
                ahead = signs.count(b"1") / rate - (time.monotonic() - started)
                time.sleep(max(0.0, ahead))
        moved, over, gone = signs.count(b"1"), signs.count(b"x"), signs.count(b"0")
        return LetterReport(matched, moved, over, unreadable, gone)


class ChasquiPurgeDlqOperator(LettersOperator):
    """Deletes dead letters for good; returns the report. Their jobs stay counted as dead."""

    counted_as = "letters_purged"

    def treat(self, queue: Queue, wanted: LetterFilter) -> LetterReport:
        return queue.purge(limit=self._most, dry_run=self._dry, **wanted)


def _pages(
    queue: Queue, wanted: LetterFilter, limit: int | None, size: int
) -> Iterator[list[Letter]]:
    """Pages of the letters that are there now: what dies meanwhile is not among them."""
    newest = queue.letters(limit=1, newest_first=True)
    if not newest:
        return
    last, after, left = _place(newest[0].id), None, limit
    while left is None or left > 0:
        page = queue.letters(limit=size if left is None else min(size, left), after=after, **wanted)
        page = [letter for letter in page if _place(letter.id) <= last]
        if not page:
            return
        yield page
        after = page[-1].id
        left = None if left is None else left - len(page)


def _place(letter_id: str) -> tuple[int, int]:
    ms, _, number = letter_id.partition("-")
    return int(ms), int(number)


def _given(value: Any) -> Any:
    """Templates leave "None" or nothing where nothing was given."""
    return None if isinstance(value, str) and value in ("", "None") else value


def _names(value: Any, what: str) -> list[str] | None:
    value = _given(value)
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        raise BadInput(f"{what} is an id or a list of ids")
    return [str(each) for each in value]


def whole(value: Any, what: str) -> int | None:
    value = _given(value)
    try:
        number = None if value is None else int(value)
    except (TypeError, ValueError):
        raise BadInput(f"{what} is a whole number, not {value!r}") from None
    if number is not None and number < 1:
        raise BadInput(f"{what} is at least 1, not {number}")
    return number


def _rate(value: Any) -> float | None:
    value = _given(value)
    try:
        rate = None if value is None else float(value)
    except (TypeError, ValueError):
        raise BadInput(f"rate_limit is a number of jobs a second, not {value!r}") from None
    if rate is not None and rate <= 0:
        raise BadInput("rate_limit must be above 0")
    return rate


def flag(value: Any, what: str) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise BadInput(f"{what} is true or false, not {value!r}")
    return text in _TRUE
