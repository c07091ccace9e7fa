"""Routes for the overview of all queues, and for one queue and its jobs, repeats and consumers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.command import CommandFlow
from airflow_provider_chasqui.core.commands import consumer_group, delayed, inspect
from airflow_provider_chasqui.core.commands.counters import ThroughputBucket, read_throughput
from airflow_provider_chasqui.core.commands.inspect import Depth
from airflow_provider_chasqui.core.errors import ChasquiError, ConnectionFailed
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.plugins.api import serializers
from airflow_provider_chasqui.plugins.api.app_state import AppState, AppStateDep, ServerDep
from airflow_provider_chasqui.plugins.api.depth_history import samples_json
from airflow_provider_chasqui.plugins.api.permissions import (
    UserDep,
    editable_connections,
    readable_connections,
    require_connection_read,
)
from airflow_provider_chasqui.plugins.api.serializers import error_json
from airflow_provider_chasqui.plugins.api.server_pool import (
    NO_QUEUE,
    ServerConnection,
    server_health,
)
from airflow_provider_chasqui.plugins.api.settings import Settings

overview_router = APIRouter()
router = APIRouter(
    prefix="/connections/{connection_id}/queue", dependencies=[require_connection_read]
)

OVERVIEW_PAGE_SIZE = 50
_OVERVIEW_MINUTES = 30
# Throughput takes a command per minute: each request reads it for a few queues and takes the others
# from the cache.
_MAX_THROUGHPUT_QUERIES = 10
_THROUGHPUT_CACHE_S = 10.0

_BUCKETS = 60
_MAX_GROUPS = 50
_MAX_CONSUMERS = 200

LimitQuery = Annotated[int, Query(ge=1, le=200)]
CursorQuery = Annotated[str | None, Query(pattern=r"^\d{1,19}-\d{1,19}$")]


@overview_router.get("/overview")
async def overview(
    app_state: AppStateDep,
    user: UserDep,
    search: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=0, le=10_000)] = 0,
) -> dict[str, Any]:
    """Return all connections, each with one page of its queues."""
    configured = await app_state.server_pool.connection_ids()
    readable = await readable_connections(user, configured)
    connection_ids = [connection_id for connection_id in configured if connection_id in readable]
    rows = await asyncio.gather(
        *(
            _connection_row(app_state, connection_id, search, page)
            for connection_id in connection_ids
        )
    )
    editable = await editable_connections(user, connection_ids)
    for row in rows:
        row["can_edit"] = row["id"] in editable
    return {
        "connections": rows,
        "hidden_connections": len(configured) - len(connection_ids),
        "page_size": OVERVIEW_PAGE_SIZE,
        "now": current_time_ms(),
    }


async def _connection_row(
    app_state: AppState, connection_id: str, search: str, page: int
) -> dict[str, Any]:
    row: dict[str, Any] = {"id": connection_id, "queues": [], "total": 0, "complete": True}
    try:
        server = await app_state.server_pool.get(connection_id)
    except ChasquiError as error:
        return {**row, "ok": False, "address": None, "error": error_json(error)}
    row |= await server_health(server)
    if not row["ok"]:
        return row
    try:
        names, row["complete"] = await _queue_names(app_state, server)
        matches = [name for name in names if search.lower() in name.lower()]
        page_names = matches[page * OVERVIEW_PAGE_SIZE : (page + 1) * OVERVIEW_PAGE_SIZE]
        row["total"] = len(matches)
        row["queues"] = await _queue_rows(app_state, server, page_names)
    except ChasquiError as error:
        row |= {"ok": False, "error": error_json(error)}
    return row


async def _queue_names(app_state: AppState, server: ServerConnection) -> tuple[list[str], bool]:
    settings = app_state.server_pool.settings
    names, complete = _configured_queue_names(settings, server), True
    # SCAN reads one node only, so queues of a cluster are shown only if they are configured.
    if settings.discover_queues and not server.connection.target.cluster:
        flow = app_state.queue_discovery(server.connection_id).queue_names()
        discovered, complete = await server.run_flow(NO_QUEUE, flow)
        names |= discovered
    return sorted(names), complete


def _configured_queue_names(settings: Settings, server: ServerConnection) -> set[str]:
    """Return the configured queues: `queue` applies to every connection, `conn/queue` to one."""
    names = {server.connection.queue_name} if server.connection.queue_name else set()
    for setting in settings.queues:
        connection_id, slash, queue_name = setting.rpartition("/")
        if not slash or connection_id == server.connection_id:
            names.add(queue_name)
    return names


_QueueStats = tuple[Depth, int | None, list[ThroughputBucket] | None]


def _read_stats(
    keys: Keys, group: str, now_ms: int, with_throughput: bool
) -> CommandFlow[_QueueStats]:
    flows: list[CommandFlow[Any]] = [
        inspect.depth(keys, group),
        _as_flow(inspect.entries_added(keys.stream)),
    ]
    if with_throughput:
        flows.append(read_throughput(keys, now_ms, _OVERVIEW_MINUTES, _OVERVIEW_MINUTES))
    depth, entries_added, *throughput = yield from inspect.run_in_lockstep(flows)
    return depth, entries_added, throughput[0] if throughput else None


def _as_flow(command: Any) -> CommandFlow[Any]:
    return (yield command)


async def _queue_rows(
    app_state: AppState, server: ServerConnection, queue_names: Sequence[str]
) -> list[dict[str, Any]]:
    now_ms = current_time_ms()
    stale = set(
        app_state.throughput_cache.stale(
            server.connection_id, queue_names, _MAX_THROUGHPUT_QUERIES, _THROUGHPUT_CACHE_S
        )
    )

    def flow(queue_name: str) -> CommandFlow[_QueueStats]:
        return _read_stats(Keys(queue_name), server.group, now_ms, queue_name in stale)

    stats: list[_QueueStats | ChasquiError]
    try:
        stats = list(await server.run_all((name, flow(name)) for name in queue_names))
    except ConnectionFailed:
        raise
    except ChasquiError:  # One broken queue must not hide the others.
        stats = [await _or_error(server.run_flow(name, flow(name))) for name in queue_names]
    return [
        _queue_row(app_state, server, name, queue_stats, now_ms)
        for name, queue_stats in zip(queue_names, stats, strict=True)
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
    now_ms: int,
) -> dict[str, Any]:
    if isinstance(stats, ChasquiError):
        return {"name": queue_name, "error": error_json(stats)}
    connection_id = server.connection_id
    depth, entries_added, throughput = stats
    app_state.depth_history.record(connection_id, queue_name, depth, entries_added, now_ms)
    if throughput is not None:
        app_state.throughput_cache.store(connection_id, queue_name, throughput)
    return {
        "name": queue_name,
        "error": None,
        **_depth_json(depth, now_ms),
        "added_per_s": app_state.depth_history.added_per_second(connection_id, queue_name, now_ms),
        "throughput": _throughput_json(app_state.throughput_cache.get(connection_id, queue_name)),
    }


def _depth_json(depth: Depth, now_ms: int) -> dict[str, Any]:
    oldest_ms = depth.oldest_entry_ms
    return {
        "waiting": depth.waiting,
        "running": depth.running,
        "delayed": depth.delayed,
        "dead": depth.dead,
        "lag": depth.lag,
        "oldest_age_ms": None if oldest_ms is None else max(0, now_ms - oldest_ms),
        "next_due_at": depth.next_due_ms,
        "consumers": depth.consumers,
        "repeats": depth.repeats,
        "paused": depth.paused,
        "paused_job_names": list(depth.paused_job_names),
    }


def _throughput_json(buckets: Sequence[ThroughputBucket]) -> list[dict[str, Any]]:
    return [
        {
            "start_at": bucket.start_ms,
            "completed": bucket.completed,
            "failed": bucket.failed,
            "retried": bucket.retried,
            "dead": bucket.dead,
        }
        for bucket in buckets
    ]


@router.get("")
async def get_queue(
    app_state: AppStateDep,
    server: ServerDep,
    user: UserDep,
    queue_name: str,
    minutes: Annotated[int, Query(ge=1, le=24 * 60)] = 60,
) -> dict[str, Any]:
    """Return the current depth of a queue and its throughput over the last minutes."""
    keys, now_ms, connection_id = Keys(queue_name), current_time_ms(), server.connection_id
    depth = await server.run_flow(queue_name, inspect.depth(keys, server.group))
    throughput = await server.run_flow(queue_name, read_throughput(keys, now_ms, minutes, _BUCKETS))
    entries_added = await server.run(
        queue_name, lambda queue: queue.client.execute(inspect.entries_added(keys.stream))
    )
    history = app_state.depth_history
    history.record(connection_id, queue_name, depth, entries_added, now_ms)
    return {
        "name": queue_name,
        "connection": connection_id,
        "can_edit": bool(await editable_connections(user, [connection_id])),
        "health": await server_health(server),
        **_depth_json(depth, now_ms),
        "added_per_s": history.added_per_second(connection_id, queue_name, now_ms),
        "throughput": _throughput_json(throughput),
        "history": samples_json(history.samples(connection_id, queue_name)),
        "now": now_ms,
    }


@router.get("/jobs")
async def list_jobs(
    server: ServerDep,
    queue_name: str,
    state: Literal["all", "waiting", "running"] = "all",
    cursor: CursorQuery = None,
    limit: LimitQuery = 50,
) -> dict[str, Any]:
    """Return a page of the waiting and running jobs, oldest first."""
    keys = Keys(queue_name)
    if state == "running":
        flow = inspect.running_jobs_page(keys, server.group, cursor, limit)
    else:
        flow = inspect.jobs_page(keys, server.group, cursor, limit, waiting=state == "waiting")
    page = await server.run_flow(queue_name, flow)
    return {
        "jobs": [serializers.job_row(row) for row in page.rows],
        "next_cursor": page.next_cursor,
    }


@router.get("/delayed")
async def list_delayed(
    server: ServerDep,
    queue_name: str,
    start: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: LimitQuery = 50,
) -> dict[str, Any]:
    """Return a page of the delayed jobs, next due first."""
    page = await server.run_flow(
        queue_name, inspect.delayed_jobs_page(Keys(queue_name), start, limit)
    )
    return {
        "jobs": [serializers.delayed_row(row) for row in page.rows],
        "next_start": page.next_start,
    }


@router.get("/repeats")
async def list_repeats(
    server: ServerDep, queue_name: str, limit: LimitQuery = 100
) -> dict[str, Any]:
    """Return the repeatable jobs, next run first."""
    repeats = await server.run_flow(queue_name, delayed.list_repeats(Keys(queue_name), limit))
    return {"repeats": [serializers.repeat_row(repeat) for repeat in repeats]}


@router.get("/consumers")
async def list_consumers(server: ServerDep, queue_name: str) -> dict[str, Any]:
    """Return the consumer groups of the stream and the consumers of each group."""
    keys = Keys(queue_name)
    groups = await server.run(
        queue_name, lambda queue: queue.client.execute(inspect.consumer_groups(keys))
    )
    groups = groups[:_MAX_GROUPS]
    consumers_by_group = await server.run(
        queue_name,
        lambda queue: queue.client.pipeline(
            [consumer_group.consumers(keys, group.name) for group in groups]
        ),
    )
    return {
        "groups": [
            _group_row(server, group, consumers)
            for group, consumers in zip(groups, consumers_by_group, strict=True)
        ]
    }


def _group_row(
    server: ServerConnection,
    group: inspect.ConsumerGroup,
    consumers: Sequence[consumer_group.ConsumerStatus],
) -> dict[str, Any]:
    most_recent = sorted(consumers, key=lambda consumer: consumer.idle_ms)[:_MAX_CONSUMERS]
    return {
        "name": group.name,
        "is_worker_group": group.name == server.group,
        "pending": group.pending,
        "lag": group.lag,
        "last_delivered_id": group.last_delivered_id,
        "total": len(consumers),
        "consumers": [
            {"name": consumer.name, "pending": consumer.pending, "idle_ms": consumer.idle_ms}
            for consumer in most_recent
        ],
    }
