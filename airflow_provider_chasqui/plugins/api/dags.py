"""What the tasks of a DAG have sent, for the tabs of a DAG and of a task instance."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.plugins.api import shown
from airflow_provider_chasqui.plugins.api.access import may_read_dag
from airflow_provider_chasqui.plugins.api.errors import as_json
from airflow_provider_chasqui.plugins.api.origin import links_of
from airflow_provider_chasqui.plugins.api.state import Here, State

router = APIRouter(prefix="/dags/{dag_id}", dependencies=[may_read_dag])

_PROGRESS = 25


@router.get("")
async def dag(here: Here, dag_id: str) -> dict[str, Any]:
    """Return what the tasks of a DAG sent lately, with the progress of the newest batches."""
    links = await run_in_threadpool(links_of, dag_id)
    return {"links": await _with_progress(here, links)}


@router.get("/runs/{run_id}/tasks/{task_id}")
async def task(
    here: Here,
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: Annotated[int, Query(ge=-1)] = -1,
) -> dict[str, Any]:
    """Return what a task instance sent; empty for a task that is not ours."""
    links = await run_in_threadpool(links_of, dag_id, run_id, task_id, map_index)
    return {"links": await _with_progress(here, links)}


async def _with_progress(here: State, links: list[dict[str, Any]]) -> list[dict[str, Any]]:
    newest = await asyncio.gather(*(_progress(here, link) for link in links[:_PROGRESS]))
    return [*newest, *links[_PROGRESS:]]


async def _progress(here: State, link: dict[str, Any]) -> dict[str, Any]:
    if not link["batch"]:
        return link
    try:
        line = await here.reach.line(link["connection"])
        found = await line.ask(link["queue"], lambda queue: queue.batch(link["batch"]))
    except ChasquiError as error:
        return {**link, "error": as_json(error)}
    return {**link, "progress": shown.batch_row(found)}
