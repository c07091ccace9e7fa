"""Dead letters: look, open, replay, purge. Changes go step by step and are written down."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_chasqui.core.command import as_int, redis_command
from airflow_provider_chasqui.core.commands import dead_letters
from airflow_provider_chasqui.core.commands.dead_letters import (
    DeadLetterFilter,
    PageRange,
    PageReport,
)
from airflow_provider_chasqui.core.errors import InvalidArgument, JobNotFound
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.plugins.api import serializers
from airflow_provider_chasqui.plugins.api.app_state import AppStateDep, ServerDep, now_ms
from airflow_provider_chasqui.plugins.api.permissions import AuditRecord, UserDep, require_edit
from airflow_provider_chasqui.plugins.api.server_pool import ServerConnection

router = APIRouter(prefix="/connections/{connection_id}/queue/letters")

_FACET_SAMPLE_SIZE = 500
_DEAD_LETTER_ID_PATTERN = r"^\d{1,19}-\d{1,19}$"

DeadLetterId = Annotated[str, Field(pattern=_DEAD_LETTER_ID_PATTERN)]


class DeadLetterQuery(BaseModel):
    """Which letters are meant; every field that is given must fit. Ages are in seconds."""

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str | None, Field(max_length=200)] = None
    job_name: Annotated[str | None, Field(max_length=200)] = None
    text: Annotated[str | None, Field(max_length=500)] = None
    batch_id: Annotated[str | None, Field(max_length=200)] = None
    job_id: Annotated[str | None, Field(max_length=1000)] = None
    older_than_s: Annotated[float | None, Field(ge=0)] = None
    newer_than_s: Annotated[float | None, Field(ge=0)] = None

    def to_filter(self, ids: list[str] | None = None) -> DeadLetterFilter:
        older, newer, at_ms = self.older_than_s, self.newer_than_s, now_ms()
        return DeadLetterFilter(
            ids=None if ids is None else frozenset(ids),
            job_ids=frozenset({self.job_id}) if self.job_id else None,
            reason=self.reason or None,
            job_name=self.job_name or None,
            text=self.text or None,
            batch_id=self.batch_id or None,
            before_ms=None if older is None else at_ms - round(older * 1000),
            after_ms=None if newer is None else at_ms - round(newer * 1000),
        )


def _query_from_request(request: Request) -> DeadLetterQuery:
    fields = {key: request.query_params.get(key) for key in DeadLetterQuery.model_fields}
    try:
        return DeadLetterQuery.model_validate(
            {key: value for key, value in fields.items() if value}
        )
    except ValidationError as problem:
        raise RequestValidationError(problem.errors()) from problem


@router.get("")
async def list_page(
    server: ServerDep,
    queue_name: str,
    query: Annotated[DeadLetterQuery, Depends(_query_from_request)],
    cursor: Annotated[str | None, Query(pattern=_DEAD_LETTER_ID_PATTERN)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> dict[str, Any]:
    """Return letters that fit, newest first; looks at a bounded number and says how many."""
    keys = Keys(queue_name)
    flow = dead_letters.search(keys, query.to_filter(), limit, cursor)
    found = await server.run_flow(queue_name, flow)
    total = await server.run(
        queue_name,
        lambda queue: queue.client.execute(redis_command("XLEN", keys.dlq, parse=as_int)),
    )
    return {
        "dead_letters": [serializers.dead_letter_row(each) for each in found.dead_letters],
        "cursor": found.cursor,
        "scanned": found.scanned,
        "total": total,
    }


@router.get("/facets")
async def facets(server: ServerDep, queue_name: str) -> dict[str, Any]:
    """Return the reasons and names of the newest letters, to choose filters from."""
    keys = Keys(queue_name)
    newest = await server.run(
        queue_name,
        lambda queue: queue.client.execute(
            dead_letters.page_newest_first(keys, "+", _FACET_SAMPLE_SIZE)
        ),
    )
    return {
        "sampled": len(newest),
        "reasons": Counter(each.reason for each in newest).most_common(20),
        "names": Counter(each.job_name for each in newest if each.job_name).most_common(20),
    }


@router.get("/{letter_id}")
async def get_one(
    app_state: AppStateDep,
    server: ServerDep,
    queue_name: str,
    dead_letter_id: Annotated[str, Path(pattern=_DEAD_LETTER_ID_PATTERN)],
) -> dict[str, Any]:
    """Return one letter with its payload."""
    found = await server.run_flow(queue_name, dead_letters.get(Keys(queue_name), dead_letter_id))
    if found is None:
        raise JobNotFound("the letter is not there any more: it was replayed or purged")
    return serializers.dead_letter_detail(found, app_state.server_pool.settings)


class ChangeRequest(BaseModel):
    """What to do with which letters. With `ids` only those, else all that fit the filter.

    One call does one step of at most a few thousand letters; `cursor` and `until` of its answer
    lead to the next one.
    """

    model_config = ConfigDict(extra="forbid")

    ids: Annotated[list[DeadLetterId] | None, Field(max_length=1000)] = None
    filter: DeadLetterQuery = DeadLetterQuery()
    dry_run: bool = True
    max_replays: Annotated[int | None, Field(ge=1, le=1000)] = None
    cursor: DeadLetterId | None = None
    last_id: DeadLetterId | None = None

    @property
    def page_range(self) -> PageRange:
        return PageRange(self.cursor, self.last_id)


@router.post("/replay", dependencies=require_edit)
async def replay(
    server: ServerDep, user: UserDep, queue_name: str, change: ChangeRequest
) -> dict[str, Any]:
    """Put letters back on the queue, or with `dry_run` say how many that would be."""
    budget = change.max_replays or server.connection.config.max_replays
    flow = dead_letters.replay_page(
        Keys(queue_name),
        change.filter.to_filter(change.ids),
        change.page_range,
        budget,
        change.dry_run,
    )
    return await _apply_change("chasqui_replay", server, user, queue_name, change, flow)


@router.post("/purge", dependencies=require_edit)
async def purge(
    server: ServerDep, user: UserDep, queue_name: str, change: ChangeRequest
) -> dict[str, Any]:
    """Delete letters for good, or with `dry_run` say how many that would be."""
    flow = dead_letters.purge_page(
        Keys(queue_name), change.filter.to_filter(change.ids), change.page_range, change.dry_run
    )
    return await _apply_change("chasqui_purge", server, user, queue_name, change, flow)


async def _apply_change(
    event: str,
    server: ServerConnection,
    user: Any,
    queue_name: str,
    change: ChangeRequest,
    flow: Any,
) -> dict[str, Any]:
    if change.ids is not None and not change.ids:
        raise InvalidArgument("ids is empty: choose letters, or leave ids out to mean all that fit")
    if change.dry_run:
        return _result_json(await server.run_flow(queue_name, flow))
    about = {
        "connection": server.connection_id,
        "queue": queue_name,
        "ids": change.ids,
        "filter": change.filter.model_dump(exclude_none=True),
        "until": change.last_id,
    }
    audit = AuditRecord(event, user.get_name(), about)
    await audit.begin()
    try:
        step: PageReport = await server.run_flow(queue_name, flow)
    except Exception as error:
        await audit.finish({"error": str(error)})
        raise
    await audit.finish(asdict(step.report))
    return _result_json(step)


def _result_json(result: PageReport) -> dict[str, Any]:
    return {
        **asdict(result.report),
        "scanned": result.scanned,
        "cursor": result.cursor,
        "until": result.last_id or None,
    }
