"""Batches: which there are, and how far each one is."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_chasqui.core.batch import BatchProgress, check_batch_id
from airflow_provider_chasqui.core.errors import DecodeError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow, as_is, command
from airflow_provider_chasqui.core.ops import batches as ops
from airflow_provider_chasqui.core.ops.browsing import together
from airflow_provider_chasqui.plugins.api import shown
from airflow_provider_chasqui.plugins.api.state import Here, TheLine

router = APIRouter(prefix="/connections/{connection_id}/queue/batches")

_DEAD = 100


@router.get("")
async def batches(
    here: Here,
    line: TheLine,
    queue_name: str,
    search: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=0, le=10_000)] = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 25,
) -> dict[str, Any]:
    """Return a page of batches, newest first. `complete` is False while they are looked for."""
    keys = Keys(queue_name)
    ids, complete = await line.flow(queue_name, here.catalog(line.connection_id).batches(keys))
    wanted = sorted(each for each in ids if search.lower() in each.lower())
    newest = await line.flow(queue_name, _newest_first(keys, wanted))
    chosen = newest[page * limit : (page + 1) * limit]
    found = await line.flow(queue_name, together(_progress(keys, each) for each in chosen))
    return {
        "batches": [shown.batch_row(each) for each in found if each is not None],
        "total": len(wanted),
        "complete": complete,
    }


def _newest_first(keys: Keys, ids: list[str]) -> Flow[list[str]]:
    created = yield [command("HGET", keys.batch(each), "created", parse=as_is) for each in ids]
    # What is no number was written by somebody else; it comes last.
    times = {each: _number(raw) for each, raw in zip(ids, created, strict=True)}
    return sorted(ids, key=lambda each: times[each], reverse=True)


def _number(raw: bytes | None) -> int:
    return int(raw) if raw and len(raw) < 20 and raw.isdigit() else 0


def _progress(keys: Keys, batch_id: str) -> Flow[BatchProgress | None]:
    """How far a batch is; None also where its record is not ours: it must not hide the others."""
    try:
        return (yield from ops.progress(keys, batch_id))
    except DecodeError:
        return None


@router.get("/{batch_id}")
async def batch(line: TheLine, queue_name: str, batch_id: str) -> dict[str, Any]:
    """Return how far a batch is, and the first of its dead jobs."""
    check_batch_id(batch_id)
    progress = await line.ask(queue_name, lambda queue: queue.batch(batch_id))
    dead: list[str] = []
    if progress.dead:
        dead = await line.ask(queue_name, lambda queue: queue.dead_in_batch(batch_id, limit=_DEAD))
    return {**shown.batch_row(progress), "dead_ids": dead}
