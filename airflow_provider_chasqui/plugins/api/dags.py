"""Routes for the jobs and batches that the tasks of a DAG enqueued."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.concurrency import run_in_threadpool

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.plugins.api import serializers
from airflow_provider_chasqui.plugins.api.app_state import AppState, AppStateDep
from airflow_provider_chasqui.plugins.api.permissions import require_dag_read
from airflow_provider_chasqui.plugins.api.task_origin import sent_links

router = APIRouter(prefix="/dags/{dag_id}", dependencies=[require_dag_read])

_MAX_PROGRESS_LOOKUPS = 25


@router.get("")
async def get_dag(app_state: AppStateDep, dag_id: str) -> dict[str, Any]:
    """Return what the tasks of a DAG enqueued lately, with the progress of the newest batches."""
    links = await run_in_threadpool(sent_links, dag_id)
    return {"links": await _add_progress(app_state, links)}


@router.get("/runs/{run_id}/tasks/{task_id}")
async def get_task(
    app_state: AppStateDep,
    dag_id: str,
    run_id: str,
    task_id: str,
    map_index: Annotated[int, Query(ge=-1)] = -1,
) -> dict[str, Any]:
    """Return what a task instance enqueued; the list is empty for a task of another provider."""
    links = await run_in_threadpool(sent_links, dag_id, run_id, task_id, map_index)
    return {"links": await _add_progress(app_state, links)}


async def _add_progress(app_state: AppState, links: list[dict[str, Any]]) -> list[dict[str, Any]]:
    newest = await asyncio.gather(
        *(_add_batch_progress(app_state, link) for link in links[:_MAX_PROGRESS_LOOKUPS])
    )
    return [*newest, *links[_MAX_PROGRESS_LOOKUPS:]]


async def _add_batch_progress(app_state: AppState, link: dict[str, Any]) -> dict[str, Any]:
    batch_id = link["batch_id"]
    if not batch_id:
        return link
    try:
        server = await app_state.server_pool.get(link["connection"])
        progress = await server.run(link["queue"], lambda queue: queue.batch_progress(batch_id))
    except ChasquiError as error:
        return {**link, "error": serializers.error_json(error)}
    return {**link, "progress": serializers.batch_row(progress)}
