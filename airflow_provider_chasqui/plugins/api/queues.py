"""One queue: its numbers over time, jobs, delayed jobs, repeats, consumers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.ops import browsing, looking
from airflow_provider_chasqui.core.ops import delivery as deliveries
from airflow_provider_chasqui.core.ops import repeats as repeating
from airflow_provider_chasqui.core.ops.pulse import pulse
from airflow_provider_chasqui.plugins.api import history, shown
from airflow_provider_chasqui.plugins.api.access import User, changeable
from airflow_provider_chasqui.plugins.api.health import health
from airflow_provider_chasqui.plugins.api.overview import beats_json, depth_json
from airflow_provider_chasqui.plugins.api.state import Here, TheLine, now_ms

router = APIRouter(prefix="/connections/{connection_id}/queue")

_BEATS = 60
_EACH = 200
_CONSUMERS = 200

Limit = Annotated[int, Query(ge=1, le=200)]
Cursor = Annotated[str | None, Query(pattern=r"^\d{1,19}-\d{1,19}$")]


@router.get("")
async def summary(
    here: Here,
    line: TheLine,
    user: User,
    queue_name: str,
    minutes: Annotated[int, Query(ge=1, le=24 * 60)] = 60,
) -> dict[str, Any]:
    """Return the numbers of a queue, now and over the last minutes."""
    keys, at_ms = Keys(queue_name), now_ms()
    depth = await line.flow(queue_name, looking.depth(keys, line.group))
    beats = await line.flow(queue_name, pulse(keys, at_ms, minutes * 60_000, _BEATS, _EACH))
    added = await line.ask(
        queue_name, lambda queue: queue.drive.run(browsing.entries_added(keys.stream))
    )
    here.history.note(line.connection_id, queue_name, depth, added, at_ms)
    moments = here.history.of(line.connection_id, queue_name)
    return {
        "name": queue_name,
        "connection": line.connection_id,
        "may_change": bool(await changeable(user, [line.connection_id])),
        "health": await health(line),
        **depth_json(depth, at_ms),
        "added_per_s": here.history.added_per_second(line.connection_id, queue_name, at_ms),
        "beats": beats_json(beats),
        "history": history.as_json(moments),
        "now": at_ms,
    }


@router.get("/jobs")
async def jobs(
    line: TheLine,
    queue_name: str,
    state: Literal["all", "waiting", "running"] = "all",
    after: Cursor = None,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Return a page of the jobs in the stream, oldest first."""
    keys = Keys(queue_name)
    if state == "running":
        flow = browsing.running_page(keys, line.group, after, limit)
    else:
        flow = browsing.jobs_page(keys, line.group, after, limit, waiting=state == "waiting")
    page = await line.flow(queue_name, flow)
    return {"jobs": [shown.job_row(row) for row in page.rows], "after": page.after}


@router.get("/delayed")
async def delayed(
    line: TheLine,
    queue_name: str,
    start: Annotated[int, Query(ge=0, le=10**9)] = 0,
    limit: Limit = 50,
) -> dict[str, Any]:
    """Return a page of the delayed jobs, soonest first."""
    rows = await line.flow(queue_name, browsing.delayed_page(Keys(queue_name), start, limit))
    after = start + limit if len(rows) == limit else None
    return {"jobs": [shown.delayed_row(row) for row in rows], "after": after}


@router.get("/repeats")
async def repeats(line: TheLine, queue_name: str, limit: Limit = 100) -> dict[str, Any]:
    """Return the repeats, next fire first."""
    found = await line.flow(queue_name, repeating.list_all(Keys(queue_name), limit))
    return {"repeats": [shown.repeat_row(each) for each in found]}


@router.get("/consumers")
async def consumers(line: TheLine, queue_name: str) -> dict[str, Any]:
    """Return the consumer groups of the stream, and the members of each."""
    keys = Keys(queue_name)
    groups = await line.ask(queue_name, lambda queue: queue.drive.run(browsing.groups(keys)))
    members = await line.ask(
        queue_name,
        lambda queue: queue.drive.many(
            [deliveries.consumers(keys, each.name) for each in groups[:50]]
        ),
    )
    return {
        "groups": [
            {
                "name": group.name,
                "workers": group.name == line.group,
                "pending": group.pending,
                "lag": group.lag,
                "last_id": group.last_id,
                "total": len(found),
                "consumers": [
                    {"name": each.name, "pending": each.pending, "idle_ms": each.idle_ms}
                    for each in sorted(found, key=lambda each: each.idle_ms)[:_CONSUMERS]
                ],
            }
            for group, found in zip(groups, members, strict=False)
        ]
    }
