"""Watchers: which assets wait for which queue, how far behind they are, and what is wrong."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.jobs.job import Job as AirflowJob
from airflow.models.asset import AssetEvent, AssetModel, AssetWatcherModel
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from fastapi import APIRouter
from sqlalchemy import func, select
from starlette.concurrency import run_in_threadpool

from airflow_provider_chasqui.core.commands import watchers
from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.plugins.api.app_state import AppState, AppStateDep
from airflow_provider_chasqui.plugins.api.serializers import error_json

router = APIRouter()

_MAX_WATCHERS = 100
_PACKAGE_PREFIX = "airflow_provider_chasqui."
_HEARTBEAT_TIMEOUT_S = 60
_NO_STATUS = {
    "group": None,
    "lag": None,
    "pending": None,
    "host": None,
    "last_delivered": None,
    "delivered": None,
    "last_error": None,
    "seconds_since_seen": None,
    "error": None,
}


@router.get("/watchers")
async def list_watchers(app_state: AppStateDep) -> dict[str, Any]:
    """Return the asset watchers that read our queues."""
    found = await run_in_threadpool(_registered_watchers)
    return {"watchers": await asyncio.gather(*(_add_status(app_state, each) for each in found))}


def _registered_watchers() -> list[dict[str, Any]]:
    with create_session() as session:
        query = (
            select(AssetWatcherModel, AssetModel, Trigger)
            .join(AssetModel, AssetModel.id == AssetWatcherModel.asset_id)
            .join(Trigger, Trigger.id == AssetWatcherModel.trigger_id)
            .where(Trigger.classpath.startswith(_PACKAGE_PREFIX, autoescape=True))
            .order_by(AssetWatcherModel.name)
            .limit(_MAX_WATCHERS)
        )
        rows = list(session.execute(query))
        return [_watcher_row(session, *row) for row in rows]


def _watcher_row(
    session: Any, watcher: AssetWatcherModel, asset: AssetModel, trigger: Trigger
) -> dict[str, Any]:
    kwargs = trigger.kwargs
    day = datetime.now(UTC) - timedelta(days=1)
    events = select(func.count(), func.max(AssetEvent.timestamp)).where(
        AssetEvent.asset_id == asset.id, AssetEvent.timestamp >= day
    )
    count, last = session.execute(events).one()
    return {
        "name": watcher.name,
        "asset": asset.name,
        "uri": asset.uri,
        "connection": kwargs.get("chasqui_conn_id", DEFAULT_CONN_ID),
        "queue": kwargs.get("queue_name"),
        "triggerer": trigger.triggerer_id,
        "problem": _problem(session, trigger.triggerer_id),
        "since": int(trigger.created_date.timestamp() * 1000),
        "events_last_day": count,
        "last_event": int(last.timestamp() * 1000) if last else None,
    }


def _problem(session: Any, triggerer_id: int | None) -> str | None:
    """Return why the trigger of a watcher does not run, or None if it seems to."""
    if triggerer_id is None:
        return "no triggerer runs it: start one, and check that a DAG with this asset is unpaused"
    beat = session.scalar(select(AirflowJob.latest_heartbeat).where(AirflowJob.id == triggerer_id))
    if beat is None or (datetime.now(UTC) - beat).total_seconds() > _HEARTBEAT_TIMEOUT_S:
        return (
            f"its triggerer has been silent for over {_HEARTBEAT_TIMEOUT_S} s: check that it runs"
        )
    return None


async def _add_status(app_state: AppState, watcher: dict[str, Any]) -> dict[str, Any]:
    shown = {**watcher, **_NO_STATUS}
    if not watcher["queue"]:
        return shown
    keys = Keys(watcher["queue"])
    try:
        line = await app_state.server_pool.get(watcher["connection"])
        found = await line.run_flow(keys.queue_name, watchers.get_status(keys, line.group))
    except ChasquiError as error:
        return {**shown, "error": error_json(error)}
    shown |= {"group": found.group, "lag": found.lag, "pending": found.pending}
    if found.watcher is not None:
        shown |= asdict(found.watcher)
        shown["seconds_since_seen"] = found.seconds_since_seen
    return shown
