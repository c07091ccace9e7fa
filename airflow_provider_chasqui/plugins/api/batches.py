"""Batches: which there are, and how far each one is."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_chasqui.core.batch import BatchProgress, check_batch_id
from airflow_provider_chasqui.core.command import CommandFlow, as_raw, redis_command
from airflow_provider_chasqui.core.commands import batches as ops
from airflow_provider_chasqui.core.commands.inspect import run_in_lockstep
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.plugins.api import serializers
from airflow_provider_chasqui.plugins.api.app_state import AppStateDep, ServerDep

router = APIRouter(prefix="/connections/{connection_id}/queue/batches")

_MAX_DEAD_JOB_IDS = 100


@router.get("")
async def list_batches(
    app_state: AppStateDep,
    server: ServerDep,
    queue_name: str,
    search: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=0, le=10_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 25,
) -> dict[str, Any]:
    """Return a page of batches, newest first. `complete` is False while they are looked for."""
    keys = Keys(queue_name)
    ids, complete = await server.run_flow(
        queue_name, app_state.queue_discovery(server.connection_id).batch_ids(keys)
    )
    wanted = sorted(each for each in ids if search.lower() in each.lower())
    newest = await server.run_flow(queue_name, _newest_first(keys, wanted))
    chosen = newest[page * limit : (page + 1) * limit]
    found = await server.run_flow(
        queue_name, run_in_lockstep(_progress_or_none(keys, each) for each in chosen)
    )
    return {
        "batches": [serializers.batch_row(each) for each in found if each is not None],
        "total": len(wanted),
        "complete": complete,
    }


def _newest_first(keys: Keys, ids: list[str]) -> CommandFlow[list[str]]:
    created = yield [
        redis_command("HGET", keys.batch(each), "created", parse=as_raw) for each in ids
    ]
    # What is no number was written by somebody else; it comes last.
    times = {each: _parse_int(raw) for each, raw in zip(ids, created, strict=True)}
    return sorted(ids, key=lambda each: times[each], reverse=True)


def _parse_int(raw: bytes | None) -> int:
    return int(raw) if raw and len(raw) < 20 and raw.isdigit() else 0


def _progress_or_none(keys: Keys, batch_id: str) -> CommandFlow[BatchProgress | None]:
    """How far a batch is; None also where its record is not ours: it must not hide the others."""
    try:
        return (yield from ops.progress(keys, batch_id))
    except DecodeError:
        return None


@router.get("/{batch_id}")
async def get_batch(server: ServerDep, queue_name: str, batch_id: str) -> dict[str, Any]:
    """Return how far a batch is, and the first of its dead jobs."""
    check_batch_id(batch_id)
    progress = await server.run(queue_name, lambda queue: queue.batch_progress(batch_id))
    dead: list[str] = []
    if progress.dead:
        dead = await server.run(
            queue_name, lambda queue: queue.dead_job_ids(batch_id, limit=_MAX_DEAD_JOB_IDS)
        )
    return {**serializers.batch_row(progress), "dead_job_ids": dead}
