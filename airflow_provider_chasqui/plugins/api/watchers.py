"""The route for asset watchers: their queue, lag, last event and problems."""

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
from airflow_provider_chasqui.plugins.api.permissions import UserDep, readable_connections
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
async def list_watchers(app_state: AppStateDep, user: UserDep) -> dict[str, Any]:
    """Return the asset watchers that read queues of connections that the user may read."""
    rows = await run_in_threadpool(_registered_watchers)
    readable = await readable_connections(user, {row["connection"] for row in rows})
    rows = [row for row in rows if row["connection"] in readable]
    return {"watchers": await asyncio.gather(*(_add_status(app_state, row) for row in rows))}


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
    one_day_ago = datetime.now(UTC) - timedelta(days=1)
    events = select(func.count(), func.max(AssetEvent.timestamp)).where(
        AssetEvent.asset_id == asset.id, AssetEvent.timestamp >= one_day_ago
    )
    event_count, last_event = session.execute(events).one()
    return {
        "name": watcher.name,
        "asset": asset.name,
        "uri": asset.uri,
        "connection": kwargs.get("chasqui_conn_id", DEFAULT_CONN_ID),
        "queue": kwargs.get("queue_name"),
        "triggerer": trigger.triggerer_id,
        "problem": _problem(session, trigger.triggerer_id),
        "created_at": int(trigger.created_date.timestamp() * 1000),
        "events_last_day": event_count,
        "last_event_at": int(last_event.timestamp() * 1000) if last_event else None,
    }


def _problem(session: Any, triggerer_id: int | None) -> str | None:
    """Return why the trigger of a watcher does not run, or None if it seems to run."""
    if triggerer_id is None:
        return (
            "No triggerer runs this watcher. Start a triggerer and check that a DAG with this "
            "asset is not paused."
        )
    heartbeat = session.scalar(
        select(AirflowJob.latest_heartbeat).where(AirflowJob.id == triggerer_id)
    )
    if heartbeat is None or (datetime.now(UTC) - heartbeat).total_seconds() > _HEARTBEAT_TIMEOUT_S:
        return (
            f"The triggerer of this watcher has sent no heartbeat for {_HEARTBEAT_TIMEOUT_S} s. "
            "Check that it is running."
        )
    return None


async def _add_status(app_state: AppState, watcher: dict[str, Any]) -> dict[str, Any]:
    row = {**watcher, **_NO_STATUS}
    if not watcher["queue"]:
        return row
    keys = Keys(watcher["queue"])
    try:
        server = await app_state.server_pool.get(watcher["connection"])
        status = await server.run_flow(keys.queue_name, watchers.get_status(keys, server.group))
    except ChasquiError as error:
        return {**row, "error": error_json(error)}
    row |= {"group": status.group, "lag": status.lag, "pending": status.pending}
    if status.watcher is not None:
        row |= asdict(status.watcher)
        row["seconds_since_seen"] = status.seconds_since_seen
    return row
