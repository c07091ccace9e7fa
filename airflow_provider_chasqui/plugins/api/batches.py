"""Routes for the batches of a queue and their progress."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_chasqui.core.batch import BatchProgress, check_batch_id
from airflow_provider_chasqui.core.command import CommandFlow, as_raw, redis_command
from airflow_provider_chasqui.core.commands import batches
from airflow_provider_chasqui.core.commands.inspect import run_in_lockstep
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.plugins.api import serializers
from airflow_provider_chasqui.plugins.api.app_state import AppStateDep, ServerDep
from airflow_provider_chasqui.plugins.api.permissions import (
    UserDep,
    editable_connections,
    readable_dags,
    require_connection_read,
)

router = APIRouter(
    prefix="/connections/{connection_id}/queue/batches", dependencies=[require_connection_read]
)

_MAX_DEAD_JOB_IDS = 100


@router.get("")
async def list_batches(
    app_state: AppStateDep,
    server: ServerDep,
    user: UserDep,
    queue_name: str,
    search: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=0, le=10_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 25,
) -> dict[str, Any]:
    """Return a page of batches, newest first.

    `complete` is false until the first scan of the server's keys has finished.
    """
    keys = Keys(queue_name)
    batch_ids, complete = await server.run_flow(
        queue_name, app_state.queue_discovery(server.connection_id).batch_ids(keys)
    )
    matches = sorted(batch_id for batch_id in batch_ids if search.lower() in batch_id.lower())
    newest = await server.run_flow(queue_name, _newest_first(keys, matches))
    page_ids = newest[page * limit : (page + 1) * limit]
    progresses = await server.run_flow(
        queue_name, run_in_lockstep(_progress_or_none(keys, batch_id) for batch_id in page_ids)
    )
    rows = [serializers.batch_row(progress) for progress in progresses if progress]
    return {
        "batches": await _hide_origins(user, rows),
        "total": len(matches),
        "complete": complete,
    }


async def _hide_origins(user: Any, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove the task of batches of DAGs that the user may not read."""
    readable = await readable_dags(user, {row["origin"]["dag_id"] for row in rows if row["origin"]})
    return [
        row
        if row["origin"] is None or row["origin"]["dag_id"] in readable
        else {**row, "origin": None, "source": ""}
        for row in rows
    ]


def _newest_first(keys: Keys, batch_ids: list[str]) -> CommandFlow[list[str]]:
    replies = yield [
        redis_command("HGET", keys.batch(batch_id), "created", parse=as_raw)
        for batch_id in batch_ids
    ]
    created_at = {
        batch_id: _parse_int(raw) for batch_id, raw in zip(batch_ids, replies, strict=True)
    }
    return sorted(batch_ids, key=lambda batch_id: created_at[batch_id], reverse=True)


def _parse_int(raw: bytes | None) -> int:
    """Return 0 for a value that is not a number, so that a foreign hash sorts last."""
    return int(raw) if raw and len(raw) < 20 and raw.isdigit() else 0


def _progress_or_none(keys: Keys, batch_id: str) -> CommandFlow[BatchProgress | None]:
    """Return the progress of a batch, or None for a foreign hash, which must not hide the rest."""
    try:
        return (yield from batches.progress(keys, batch_id))
    except DecodeError:
        return None


@router.get("/{batch_id}")
async def get_batch(
    server: ServerDep, user: UserDep, queue_name: str, batch_id: str
) -> dict[str, Any]:
    """Return the progress of a batch and the ids of its first dead jobs."""
    check_batch_id(batch_id)
    progress = await server.run(queue_name, lambda queue: queue.batch_progress(batch_id))
    dead_job_ids: list[str] = []
    if progress.dead:
        dead_job_ids = await server.run(
            queue_name, lambda queue: queue.dead_job_ids(batch_id, limit=_MAX_DEAD_JOB_IDS)
        )
    (row,) = await _hide_origins(user, [serializers.batch_row(progress)])
    return {
        **row,
        "dead_job_ids": dead_job_ids,
        "can_edit": bool(await editable_connections(user, [server.connection_id])),
    }
