"""Dead letters: look, open, replay, purge. Changes go step by step and are written down."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_chasqui.core.errors import BadInput, UnknownJob
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import as_int, command
from airflow_provider_chasqui.core.ops import letter_pages, letters
from airflow_provider_chasqui.core.ops.letter_pages import Span, Step
from airflow_provider_chasqui.core.ops.letters import Choose
from airflow_provider_chasqui.plugins.api import shown
from airflow_provider_chasqui.plugins.api.access import User, may_change
from airflow_provider_chasqui.plugins.api.audit import Audit
from airflow_provider_chasqui.plugins.api.reach import Line
from airflow_provider_chasqui.plugins.api.state import Here, TheLine, now_ms

router = APIRouter(prefix="/connections/{connection_id}/queue/letters")

_SAMPLE = 500
_LETTER_ID = r"^\d{1,19}-\d{1,19}$"

LetterId = Annotated[str, Field(pattern=_LETTER_ID)]


class Filter(BaseModel):
    """Which letters are meant; every field that is given must fit. Ages are in seconds."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str | None, Field(max_length=200)] = None
    name: Annotated[str | None, Field(max_length=200)] = None
    text: Annotated[str | None, Field(max_length=500)] = None
    batch: Annotated[str | None, Field(max_length=200)] = None
    job_id: Annotated[str | None, Field(max_length=1000)] = None
    older_than_s: Annotated[float | None, Field(ge=0)] = None
    newer_than_s: Annotated[float | None, Field(ge=0)] = None

    def choose(self, ids: list[str] | None = None) -> Choose:
        older, newer, at_ms = self.older_than_s, self.newer_than_s, now_ms()
        return Choose(
            ids=None if ids is None else frozenset(ids),
            job_ids=frozenset({self.job_id}) if self.job_id else None,
            reason=self.reason or None,
            name=self.name or None,
            text=self.text or None,
            batch=self.batch or None,
            before_ms=None if older is None else at_ms - round(older * 1000),
            after_ms=None if newer is None else at_ms - round(newer * 1000),
        )


def _asked(request: Request) -> Filter:
    fields = {key: request.query_params.get(key) for key in Filter.model_fields}
    try:
        return Filter.model_validate({key: value for key, value in fields.items() if value})
    except ValidationError as problem:
        raise RequestValidationError(problem.errors()) from problem


@router.get("")
async def page(
    line: TheLine,
    queue_name: str,
    wanted: Annotated[Filter, Depends(_asked)],
    cursor: Annotated[str | None, Query(pattern=_LETTER_ID)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> dict[str, Any]:
    """Return letters that fit, newest first; looks at a bounded number and says how many."""
    keys = Keys(queue_name)
    flow = letter_pages.look(keys, wanted.choose(), limit, cursor)
    found = await line.flow(queue_name, flow)
    total = await line.ask(
        queue_name, lambda queue: queue.drive.run(command("XLEN", keys.dlq, parse=as_int))
    )
    return {
        "letters": [shown.letter_row(each) for each in found.letters],
        "cursor": found.cursor,
        "looked": found.looked,
        "total": total,
    }


@router.get("/facets")
async def facets(line: TheLine, queue_name: str) -> dict[str, Any]:
    """Return the reasons and names of the newest letters, to choose filters from."""
    keys = Keys(queue_name)
    newest = await line.ask(
        queue_name, lambda queue: queue.drive.run(letters.page_back(keys, "+", _SAMPLE))
    )
    return {
        "sampled": len(newest),
        "reasons": Counter(each.reason for each in newest).most_common(20),
        "names": Counter(each.name for each in newest if each.name).most_common(20),
    }


@router.get("/{letter_id}")
async def one(
    here: Here,
    line: TheLine,
    queue_name: str,
    letter_id: Annotated[str, Path(pattern=_LETTER_ID)],
) -> dict[str, Any]:
    """Return one letter with its payload."""
    found = await line.flow(queue_name, letter_pages.get(Keys(queue_name), letter_id))
    if found is None:
        raise UnknownJob("the letter is not there any more: it was replayed or purged")
    return shown.letter_whole(found, here.reach.settings)


class Change(BaseModel):
    """What to do with which letters. With `ids` only those, else all that fit the filter.

    One call does one step of at most a few thousand letters; `cursor` and `until` of its answer
    lead to the next one.
    """

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[list[LetterId] | None, Field(max_length=1000)] = None
    filter: Filter = Filter()
    dry_run: bool = True
    budget: Annotated[int | None, Field(ge=1, le=1000)] = None
    cursor: LetterId | None = None
    until: LetterId | None = None

    @property
    def span(self) -> Span:
        return Span(self.cursor, self.until)


@router.post("/replay", dependencies=may_change)
async def replay(line: TheLine, user: User, queue_name: str, change: Change) -> dict[str, Any]:
    """Put letters back on the queue, or with `dry_run` say how many that would be."""
    budget = change.budget or line.settings.config.replay_budget
    flow = letter_pages.replay_step(
        Keys(queue_name), change.filter.choose(change.ids), change.span, budget, change.dry_run
    )
    return await _do("chasqui_replay", line, user, queue_name, change, flow)


@router.post("/purge", dependencies=may_change)
async def purge(line: TheLine, user: User, queue_name: str, change: Change) -> dict[str, Any]:
    """Delete letters for good, or with `dry_run` say how many that would be."""
    flow = letter_pages.purge_step(
        Keys(queue_name), change.filter.choose(change.ids), change.span, change.dry_run
    )
    return await _do("chasqui_purge", line, user, queue_name, change, flow)


async def _do(
    event: str, line: Line, user: Any, queue_name: str, change: Change, flow: Any
) -> dict[str, Any]:
    if change.ids is not None and not change.ids:
        raise BadInput("ids is empty: choose letters, or leave ids out to mean all that fit")
    if change.dry_run:
        return _step_json(await line.flow(queue_name, flow))
    about = {
        "connection": line.connection_id,
        "queue": queue_name,
        "ids": change.ids,
        "filter": change.filter.model_dump(exclude_none=True),
        "until": change.until,
    }
    audit = Audit(event, user.get_name(), about)
    await audit.begin()
    try:
        step: Step = await line.flow(queue_name, flow)
    except Exception as error:
        await audit.end({"error": str(error)})
        raise
    await audit.end(asdict(step.report))
    return _step_json(step)


def _step_json(step: Step) -> dict[str, Any]:
    return {
        **asdict(step.report),
        "looked": step.looked,
        "cursor": step.cursor,
        "until": step.until or None,
    }
