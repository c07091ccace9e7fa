"""The first page: every connection with its health, and every queue with its numbers.

One queue: its numbers over time, jobs, delayed jobs, repeats, consumers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from airflow_provider_chasqui.core.command import CommandFlow
from airflow_provider_chasqui.core.commands import consumer_group as deliveries
from airflow_provider_chasqui.core.commands import delayed as repeating
from airflow_provider_chasqui.core.commands import inspect
from airflow_provider_chasqui.core.commands.inspect import (
    Depth,
    ThroughputBucket,
    sample_throughput,
)
from airflow_provider_chasqui.core.errors import ChasquiError, ConnectionFailed
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.plugins.api import depth_history, serializers
from airflow_provider_chasqui.plugins.api.app_state import AppState, AppStateDep, ServerDep, now_ms
from airflow_provider_chasqui.plugins.api.permissions import UserDep, editable_connections
from airflow_provider_chasqui.plugins.api.serializers import error_json
from airflow_provider_chasqui.plugins.api.server_pool import ServerConnection, server_health
from airflow_provider_chasqui.plugins.api.settings import Settings

overview_router = APIRouter()

OVERVIEW_PAGE_SIZE = 50
_OVERVIEW_PERIOD_MS = 30 * 60_000
_OVERVIEW_BUCKETS = 30
_OVERVIEW_EVENTS_PER_BUCKET = 50
# Pulses are the dear part: each request takes a few of them anew, those of the others are kept.
_MAX_THROUGHPUT_QUERIES = 10
_THROUGHPUT_CACHE_S = 10.0


@overview_router.get("/overview")
async def overview(
    app_state: AppStateDep,
    user: UserDep,
    search: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=0, le=10_000)] = 0,
) -> dict[str, Any]:
    """Return all connections, each with one page of its queues."""
    ids = await app_state.server_pool.connection_ids()
    shown = await asyncio.gather(*(_connection_row(app_state, each, search, page) for each in ids))
    mine = await editable_connections(user, ids)
    for each in shown:
        each["can_edit"] = each["id"] in mine
    return {"connections": shown, "page_size": OVERVIEW_PAGE_SIZE, "now": now_ms()}


async def _connection_row(
    app_state: AppState, connection_id: str, search: str, page: int
) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": connection_id, "queues": [], "total": 0, "complete": True}
    try:
        line = await app_state.server_pool.get(connection_id)
    except ChasquiError as error:
        return {**shown, "ok": False, "address": None, "error": error_json(error)}
    shown |= await server_health(line)
    if not shown["ok"]:
        return shown
    try:
        names, shown["complete"] = await _queue_names(app_state, line)
        wanted = [name for name in names if search.lower() in name.lower()]
        chosen = wanted[page * OVERVIEW_PAGE_SIZE : (page + 1) * OVERVIEW_PAGE_SIZE]
        shown["total"] = len(wanted)
        shown["queues"] = await _queue_rows(app_state, line, chosen)
    except ChasquiError as error:
        shown |= {"ok": False, "error": error_json(error)}
    return shown


async def _queue_names(app_state: AppState, server: ServerConnection) -> tuple[list[str], bool]:
    settings = app_state.server_pool.settings
    names, complete = _configured_queue_names(settings, server), True
    # SCAN sees one node only, so the queues of a cluster are those that are named.
    if settings.discover_queues and not server.connection.target.cluster:
        flow = app_state.queue_discovery(server.connection_id).queue_names()
        found, complete = await server.run_flow("page", flow)
        names |= found
    return sorted(names), complete


def _configured_queue_names(settings: Settings, server: ServerConnection) -> set[str]:
    """Queues that are named: `queue` is looked for behind every connection, `conn/queue` in one."""
    names = {server.connection.queue_name} if server.connection.queue_name else set()
    for each in settings.queues:
        connection_id, slash, queue = each.rpartition("/")
        if not slash or connection_id == server.connection_id:
            names.add(queue)
    return names


_QueueStats = tuple[Depth, int | None, list[ThroughputBucket] | None]


def _read_stats(
    keys: Keys, group: str, at_ms: int, with_throughput: bool
) -> CommandFlow[_QueueStats]:
    flows: list[CommandFlow[Any]] = [
        inspect.depth(keys, group),
        _as_flow(inspect.entries_added(keys.stream)),
    ]
    if with_throughput:
        flows.append(
            sample_throughput(
                keys, at_ms, _OVERVIEW_PERIOD_MS, _OVERVIEW_BUCKETS, _OVERVIEW_EVENTS_PER_BUCKET
            )
        )
    depth, added, *beats = yield from inspect.run_in_lockstep(flows)
    return depth, added, beats[0] if beats else None


def _as_flow(command: Any) -> CommandFlow[Any]:
    return (yield command)


async def _queue_rows(
    app_state: AppState, server: ServerConnection, queue_names: Sequence[str]
) -> list[dict[str, Any]]:
    at_ms = now_ms()
    due = set(
        app_state.throughput_cache.stale(
            server.connection_id, queue_names, _MAX_THROUGHPUT_QUERIES, _THROUGHPUT_CACHE_S
        )
    )

    def flow(name: str) -> CommandFlow[_QueueStats]:
        return _read_stats(Keys(name), server.group, at_ms, name in due)

    seen: list[_QueueStats | ChasquiError]
    try:
        seen = list(await server.run_all((name, flow(name)) for name in queue_names))
    except ConnectionFailed:
        raise
    except ChasquiError:  # one queue is broken: it must not hide the others
        seen = [await _or_error(server.run_flow(name, flow(name))) for name in queue_names]
    return [
        _queue_row(app_state, server, *each, at_ms) for each in zip(queue_names, seen, strict=True)
    ]


async def _or_error(awaitable: Any) -> Any:
    try:
        return await awaitable
    except ChasquiError as error:
        return error


def _queue_row(
    app_state: AppState,
    server: ServerConnection,
    queue_name: str,
    stats: _QueueStats | ChasquiError,
    at_ms: int,
) -> dict[str, Any]:
    if isinstance(stats, ChasquiError):
        return {"name": queue_name, "error": error_json(stats)}
    depth, added, beats = stats
    app_state.depth_history.record(server.connection_id, queue_name, depth, added, at_ms)
    if beats is not None:
        app_state.throughput_cache.store(server.connection_id, queue_name, beats)
    return {
        "name": queue_name,
        "error": None,
        **depth_json(depth, at_ms),
        "added_per_s": app_state.depth_history.added_per_second(
            server.connection_id, queue_name, at_ms
        ),
        "throughput": throughput_json(
            app_state.throughput_cache.get(server.connection_id, queue_name)
        ),
    }


def depth_json(depth: Depth, at_ms: int) -> dict[str, Any]:
    oldest = depth.oldest_entry_ms
    return {
        "waiting": depth.waiting,
        "running": depth.running,
        "delayed": depth.delayed,
        "dead": depth.dead,
        "lag": depth.lag,
        "oldest_age_ms": None if oldest is None else max(0, at_ms - oldest),
        "next_due_at": depth.next_due_ms,
        "consumers": depth.consumers,
        "repeats": depth.repeats,
    }


def throughput_json(buckets: Sequence[ThroughputBucket]) -> list[dict[str, Any]]:
    return [
        {
            "at": each.start_ms,
            "completed": each.completed,
            "retried": each.retried,
            "dead": each.dead,
            "sampled": each.sampled,
        }
        for each in buckets
    ]


router = APIRouter(prefix="/connections/{connection_id}/queue")

_BUCKETS = 60
_EVENTS_PER_BUCKET = 200
_MAX_CONSUMERS = 200

LimitQuery = Annotated[int, Query(ge=1, le=200)]
CursorQuery = Annotated[str | None, Query(pattern=r"^\d{1,19}-\d{1,19}$")]


@router.get("")
async def get_queue(
    app_state: AppStateDep,
    server: ServerDep,
    user: UserDep,
    queue_name: str,
    minutes: Annotated[int, Query(ge=1, le=24 * 60)] = 60,
) -> dict[str, Any]:
    """Return the numbers of a queue, now and over the last minutes."""
    keys, at_ms = Keys(queue_name), now_ms()
    depth = await server.run_flow(queue_name, inspect.depth(keys, server.group))
    beats = await server.run_flow(
        queue_name, sample_throughput(keys, at_ms, minutes * 60_000, _BUCKETS, _EVENTS_PER_BUCKET)
    )
    added = await server.run(
        queue_name, lambda queue: queue.client.execute(inspect.entries_added(keys.stream))
    )
    app_state.depth_history.record(server.connection_id, queue_name, depth, added, at_ms)
    moments = app_state.depth_history.samples(server.connection_id, queue_name)
    return {
        "name": queue_name,
        "connection": server.connection_id,
        "can_edit": bool(await editable_connections(user, [server.connection_id])),
        "health": await server_health(server),
        **depth_json(depth, at_ms),
        "added_per_s": app_state.depth_history.added_per_second(
            server.connection_id, queue_name, at_ms
        ),
        "throughput": throughput_json(beats),
        "history": depth_history.samples_json(moments),
        "now": at_ms,
    }


@router.get("/jobs")
async def list_jobs(
    server: ServerDep,
    queue_name: str,
    state: Literal["all", "waiting", "running"] = "all",
    after: CursorQuery = None,
    limit: LimitQuery = 50,
) -> dict[str, Any]:
    """Return a page of the jobs in the stream, oldest first."""
    keys = Keys(queue_name)
    if state == "running":
        flow = inspect.running_jobs_page(keys, server.group, after, limit)
    else:
        flow = inspect.jobs_page(keys, server.group, after, limit, waiting=state == "waiting")
    page = await server.run_flow(queue_name, flow)
    return {"jobs": [serializers.job_row(row) for row in page.rows], "after": page.next_cursor}


@router.get("/delayed")
async def list_delayed(
    server: ServerDep,
    queue_name: str,
    start: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: LimitQuery = 50,
) -> dict[str, Any]:
    """Return a page of the delayed jobs, soonest first."""
    rows = await server.run_flow(
        queue_name, inspect.delayed_jobs_page(Keys(queue_name), start, limit)
    )
    after = start + limit if len(rows) == limit else None
    return {"jobs": [serializers.delayed_row(row) for row in rows], "after": after}


@router.get("/repeats")
async def list_repeats(
    server: ServerDep, queue_name: str, limit: LimitQuery = 100
) -> dict[str, Any]:
    """Return the repeats, next fire first."""
    found = await server.run_flow(queue_name, repeating.list_repeats(Keys(queue_name), limit))
    return {"repeats": [serializers.repeat_row(each) for each in found]}


@router.get("/consumers")
async def list_consumers(server: ServerDep, queue_name: str) -> dict[str, Any]:
    """Return the consumer groups of the stream, and the members of each."""
    keys = Keys(queue_name)
    groups = await server.run(
        queue_name, lambda queue: queue.client.execute(inspect.consumer_groups(keys))
    )
    members = await server.run(
        queue_name,
        lambda queue: queue.client.pipeline(
            [deliveries.consumers(keys, each.name) for each in groups[:50]]
        ),
    )
    return {
        "groups": [
            {
                "name": group.name,
                "workers": group.name == server.group,
                "pending": group.pending,
                "lag": group.lag,
                "last_id": group.last_delivered_id,
                "total": len(found),
                "consumers": [
                    {"name": each.name, "pending": each.pending, "idle_ms": each.idle_ms}
                    for each in sorted(found, key=lambda each: each.idle_ms)[:_MAX_CONSUMERS]
                ],
            }
            for group, found in zip(groups, members, strict=False)
        ]
    }
