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

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.ops import watching
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID
from airflow_provider_chasqui.plugins.api.errors import as_json
from airflow_provider_chasqui.plugins.api.state import Here, State

router = APIRouter()

_MOST = 100
_OURS = "airflow_provider_chasqui."
_SILENT_S = 60
_UNSEEN = {
    "group": None,
    "lag": None,
    "pending": None,
    "host": None,
    "last_delivered": None,
    "delivered": None,
    "last_error": None,
    "seen_s_ago": None,
    "error": None,
}


@router.get("/watchers")
async def watchers(here: Here) -> dict[str, Any]:
    """Return the asset watchers that read our queues."""
    found = await run_in_threadpool(_registered)
    return {"watchers": await asyncio.gather(*(_with_lag(here, each) for each in found))}


def _registered() -> list[dict[str, Any]]:
    with create_session() as session:
        query = (
            select(AssetWatcherModel, AssetModel, Trigger)
            .join(AssetModel, AssetModel.id == AssetWatcherModel.asset_id)
            .join(Trigger, Trigger.id == AssetWatcherModel.trigger_id)
            .where(Trigger.classpath.startswith(_OURS, autoescape=True))
            .order_by(AssetWatcherModel.name)
            .limit(_MOST)
        )
        rows = list(session.execute(query))
        return [_row(session, *row) for row in rows]


def _row(
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
        "events_day": count,
        "last_event": int(last.timestamp() * 1000) if last else None,
    }


def _problem(session: Any, triggerer_id: int | None) -> str | None:
    """Return why the trigger of a watcher does not run, or None if it seems to."""
    if triggerer_id is None:
        return "no triggerer runs it: start one, and check that a DAG with this asset is unpaused"
    beat = session.scalar(select(AirflowJob.latest_heartbeat).where(AirflowJob.id == triggerer_id))
    if beat is None or (datetime.now(UTC) - beat).total_seconds() > _SILENT_S:
        return f"its triggerer has been silent for over {_SILENT_S} s: check that it runs"
    return None


async def _with_lag(here: State, watcher: dict[str, Any]) -> dict[str, Any]:
    shown = {**watcher, **_UNSEEN}
    if not watcher["queue"]:
        return shown
    keys = Keys(watcher["queue"])
    try:
        line = await here.reach.line(watcher["connection"])
        found = await line.flow(keys.queue, watching.status(keys, line.group))
    except ChasquiError as error:
        return {**shown, "error": as_json(error)}
    shown |= {"group": found.group, "lag": found.lag, "pending": found.pending}
    if found.watcher is not None:
        shown |= asdict(found.watcher)
        shown["seen_s_ago"] = found.seen_s_ago
    return shown
