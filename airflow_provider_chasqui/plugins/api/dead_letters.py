"""Routes to list, show, replay and purge dead letters.

A replay or purge is made page by page, and each page is written to Airflow's audit log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.batch import BatchPosition, parse_batch_job_id
from airflow_provider_chasqui.core.command import CommandFlow, as_int, as_raw, redis_command
from airflow_provider_chasqui.core.commands import dead_letters
from airflow_provider_chasqui.core.commands.dead_letters import (
    DeadLetterFilter,
    PageRange,
    PageReport,
)
from airflow_provider_chasqui.core.errors import InvalidArgument, JobNotFound
from airflow_provider_chasqui.core.job import DeadLetter
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.plugins.api import serializers
from airflow_provider_chasqui.plugins.api.app_state import AppState, AppStateDep, ServerDep
from airflow_provider_chasqui.plugins.api.permissions import (
    AuditRecord,
    UserDep,
    readable_dags,
    require_connection_read,
    require_edit,
    visible_settings,
)
from airflow_provider_chasqui.plugins.api.server_pool import ServerConnection
from airflow_provider_chasqui.plugins.api.settings import Settings
from airflow_provider_chasqui.plugins.api.task_origin import batch_origin

router = APIRouter(
    prefix="/connections/{connection_id}/queue/dead-letters", dependencies=[require_connection_read]
)

_FACET_SAMPLE_SIZE = 500
_MAX_FACETS = 20
_DEAD_LETTER_ID_PATTERN = r"^\d{1,19}-\d{1,19}$"

DeadLetterId = Annotated[str, Field(pattern=_DEAD_LETTER_ID_PATTERN)]


class DeadLetterQuery(BaseModel):
    """A filter for dead letters. A dead letter must match every field that is set.

    Ages are in seconds since the job died.
    """

    model_config = ConfigDict(extra="forbid")

    reason: Annotated[str | None, Field(max_length=200)] = None
    job_name: Annotated[str | None, Field(max_length=200)] = None
    text: Annotated[str | None, Field(max_length=500)] = None
    batch_id: Annotated[str | None, Field(max_length=200)] = None
    job_id: Annotated[str | None, Field(max_length=1000)] = None
    older_than_s: Annotated[float | None, Field(ge=0)] = None
    newer_than_s: Annotated[float | None, Field(ge=0)] = None

    def to_filter(self, ids: list[str] | None = None) -> DeadLetterFilter:
        """Return the filter of the core package.

        :param ids: ids of dead letters; None for all.
        """
        now_ms = current_time_ms()
        return DeadLetterFilter(
            ids=None if ids is None else frozenset(ids),
            job_ids=frozenset({self.job_id}) if self.job_id else None,
            reason=self.reason or None,
            job_name=self.job_name or None,
            text=self.text or None,
            batch_id=self.batch_id or None,
            before_ms=_subtract_seconds(now_ms, self.older_than_s),
            after_ms=_subtract_seconds(now_ms, self.newer_than_s),
        )


def _subtract_seconds(now_ms: int, seconds: float | None) -> int | None:
    return None if seconds is None else now_ms - round(seconds * 1000)


def _query_from_request(request: Request) -> DeadLetterQuery:
    fields = {key: request.query_params.get(key) for key in DeadLetterQuery.model_fields}
    try:
        return DeadLetterQuery.model_validate(
            {key: value for key, value in fields.items() if value}
        )
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from error


@router.get("")
async def list_page(
    app_state: AppStateDep,
    server: ServerDep,
    user: UserDep,
    queue_name: str,
    query: Annotated[DeadLetterQuery, Depends(_query_from_request)],
    cursor: Annotated[str | None, Query(pattern=_DEAD_LETTER_ID_PATTERN)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> dict[str, Any]:
    """Return a page of matching dead letters, newest first.

    One request scans a limited number of dead letters; `scanned` is that number. `next_cursor` is
    null after the last page.
    """
    keys = Keys(queue_name)
    page = await server.run_flow(
        queue_name, dead_letters.search(keys, query.to_filter(), limit, cursor)
    )
    total = await server.run(
        queue_name,
        lambda queue: queue.client.execute(redis_command("XLEN", keys.dlq, parse=as_int)),
    )
    visible = await _settings_per_dead_letter(
        app_state, server, user, queue_name, page.dead_letters
    )
    return {
        "dead_letters": [
            serializers.dead_letter_row(entry, entry_settings)
            for entry, entry_settings in zip(page.dead_letters, visible, strict=True)
        ],
        "next_cursor": page.cursor,
        "scanned": page.scanned,
        "total": total,
    }


@router.get("/facets")
async def facets(server: ServerDep, queue_name: str) -> dict[str, Any]:
    """Return the most frequent reasons and job names among the newest dead letters."""
    keys = Keys(queue_name)
    newest = await server.run(
        queue_name,
        lambda queue: queue.client.execute(
            dead_letters.page_newest_first(keys, "+", _FACET_SAMPLE_SIZE)
        ),
    )
    reasons = Counter(entry.reason for entry in newest)
    job_names = Counter(entry.job_name for entry in newest if entry.job_name)
    return {
        "sampled": len(newest),
        "reasons": reasons.most_common(_MAX_FACETS),
        "job_names": job_names.most_common(_MAX_FACETS),
    }


@router.get("/{dead_letter_id}")
async def get_one(
    app_state: AppStateDep,
    server: ServerDep,
    user: UserDep,
    queue_name: str,
    dead_letter_id: Annotated[str, Path(pattern=_DEAD_LETTER_ID_PATTERN)],
) -> dict[str, Any]:
    """Return one dead letter with its payload."""
    dead_letter = await server.run_flow(
        queue_name, dead_letters.get(Keys(queue_name), dead_letter_id)
    )
    if dead_letter is None:
        raise JobNotFound(
            f"there is no dead letter {dead_letter_id}; it may have been replayed or purged"
        )
    (settings,) = await _settings_per_dead_letter(
        app_state, server, user, queue_name, [dead_letter]
    )
    return serializers.dead_letter_detail(dead_letter, settings)


async def _settings_per_dead_letter(
    app_state: AppState,
    server: ServerConnection,
    user: Any,
    queue_name: str,
    entries: Sequence[DeadLetter],
) -> list[Settings]:
    """Return the settings for each dead letter, which hide it if its DAG is not readable.

    The DAG is known for jobs of a batch.
    """
    settings = await visible_settings(user, server.connection_id, app_state.server_pool.settings)
    batch_ids = [position.batch_id if position else "" for position in map(_position, entries)]
    unique_ids = sorted({batch_id for batch_id in batch_ids if batch_id})
    sources: list[bytes | None] = []
    if unique_ids:
        keys = Keys(queue_name)
        commands = [
            redis_command("HGET", keys.batch(batch_id), "source", parse=as_raw)
            for batch_id in unique_ids
        ]
        sources = await server.run(queue_name, lambda queue: queue.client.pipeline(commands))
    dag_ids = {
        batch_id: origin["dag_id"]
        for batch_id, source in zip(unique_ids, sources, strict=True)
        if (origin := batch_origin(batch_id, (source or b"").decode("utf-8", "replace")))
    }
    readable = await readable_dags(user, dag_ids.values())
    hidden = replace(settings, hide_payloads=True)
    return [
        hidden if dag_ids.get(batch_id) not in (None, *readable) else settings
        for batch_id in batch_ids
    ]


def _position(entry: DeadLetter) -> BatchPosition | None:
    return parse_batch_job_id(entry.job_id or "")


class ChangeRequest(BaseModel):
    """The dead letters to replay or purge: those in `ids`, or all that match `filter`.

    One request changes one page. The response contains `next_cursor` and `last_id`, which the
    client sends as `cursor` and `last_id` to change the next page. `last_id` is the newest
    dead letter of the whole change, so that a job that dies again is not replayed twice.
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
        """The part of the DLQ that this request may change."""
        return PageRange(self.cursor, self.last_id)


@router.post("/replay", dependencies=require_edit)
async def replay(
    server: ServerDep, user: UserDep, queue_name: str, change: ChangeRequest
) -> dict[str, Any]:
    """Move dead letters back to the queue, or count them if `dry_run` is true."""
    flow = dead_letters.replay_page(
        Keys(queue_name),
        change.filter.to_filter(change.ids),
        change.page_range,
        change.max_replays or server.connection.config.max_replays,
        change.dry_run,
    )
    return await _apply_change("chasqui_replay", server, user, queue_name, change, flow)


@router.post("/purge", dependencies=require_edit)
async def purge(
    server: ServerDep, user: UserDep, queue_name: str, change: ChangeRequest
) -> dict[str, Any]:
    """Delete dead letters, or count them if `dry_run` is true."""
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
    flow: CommandFlow[PageReport],
) -> dict[str, Any]:
    if change.ids is not None and not change.ids:
        raise InvalidArgument("ids is empty; give ids, or leave ids out to change all that match")
    if change.dry_run:
        return _result_json(await server.run_flow(queue_name, flow))
    details = {
        "connection": server.connection_id,
        "queue": queue_name,
        "ids": change.ids,
        "filter": change.filter.model_dump(exclude_none=True),
        "last_id": change.last_id,
    }
    async with AuditRecord(event, user.get_name(), details) as audit:
        result = await server.run_flow(queue_name, flow)
        audit.outcome = asdict(result.report)
    return _result_json(result)


def _result_json(result: PageReport) -> dict[str, Any]:
    return {
        **asdict(result.report),
        "scanned": result.scanned,
        "next_cursor": result.cursor,
        "last_id": result.last_id or None,
    }
