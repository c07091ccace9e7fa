"""The first page: every connection with its health, and every queue with its numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query

from airflow_provider_chasqui.core.errors import ChasquiError, NotConnected
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import Flow
from airflow_provider_chasqui.core.ops import browsing, looking
from airflow_provider_chasqui.core.ops.looking import Depth
from airflow_provider_chasqui.core.ops.pulse import Beat, pulse
from airflow_provider_chasqui.plugins.api.access import User, changeable
from airflow_provider_chasqui.plugins.api.errors import as_json
from airflow_provider_chasqui.plugins.api.health import health
from airflow_provider_chasqui.plugins.api.reach import Line
from airflow_provider_chasqui.plugins.api.settings import Settings
from airflow_provider_chasqui.plugins.api.state import Here, State, now_ms

router = APIRouter()

PAGE = 50
_SPAN_MS = 30 * 60_000
_BEATS = 30
_EACH = 50
# Pulses are the dear part: each request takes a few of them anew, those of the others are kept.
_PULSES = 10
_PULSE_KEPT_S = 10.0


@router.get("/overview")
async def overview(
    here: Here,
    user: User,
    search: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=0, le=10_000)] = 0,
) -> dict[str, Any]:
    """Return all connections, each with one page of its queues."""
    ids = await here.reach.connection_ids()
    shown = await asyncio.gather(*(_connection(here, each, search, page) for each in ids))
    mine = await changeable(user, ids)
    for each in shown:
        each["may_change"] = each["id"] in mine
    return {"connections": shown, "page_size": PAGE, "now": now_ms()}


async def _connection(here: State, connection_id: str, search: str, page: int) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": connection_id, "queues": [], "total": 0, "complete": True}
    try:
        line = await here.reach.line(connection_id)
    except ChasquiError as error:
        return {**shown, "ok": False, "where": None, "error": as_json(error)}
    shown |= await health(line)
    if not shown["ok"]:
        return shown
    try:
        names, shown["complete"] = await _names(here, line)
        wanted = [name for name in names if search.lower() in name.lower()]
        chosen = wanted[page * PAGE : (page + 1) * PAGE]
        shown["total"] = len(wanted)
        shown["queues"] = await _rows(here, line, chosen)
    except ChasquiError as error:
        shown |= {"ok": False, "error": as_json(error)}
    return shown


async def _names(here: State, line: Line) -> tuple[list[str], bool]:
    settings = here.reach.settings
    names, complete = _configured(settings, line), True
    # SCAN sees one node only, so the queues of a cluster are those that are named.
    if settings.discover and not line.settings.target.cluster:
        flow = here.catalog(line.connection_id).queues()
        found, complete = await line.flow("page", flow)
        names |= found
    return sorted(names), complete


def _configured(settings: Settings, line: Line) -> set[str]:
    """Queues that are named: `queue` is looked for behind every connection, `conn/queue` in one."""
    names = {line.settings.queue_name} if line.settings.queue_name else set()
    for each in settings.queues:
        connection_id, slash, queue = each.rpartition("/")
        if not slash or connection_id == line.connection_id:
            names.add(queue)
    return names


_Seen = tuple[Depth, int | None, list[Beat] | None]


def _look(keys: Keys, group: str, at_ms: int, with_pulse: bool) -> Flow[_Seen]:
    flows: list[Flow[Any]] = [
        looking.depth(keys, group),
        _single(browsing.entries_added(keys.stream)),
    ]
    if with_pulse:
        flows.append(pulse(keys, at_ms, _SPAN_MS, _BEATS, _EACH))
    depth, added, *beats = yield from browsing.together(flows)
    return depth, added, beats[0] if beats else None


def _single(op: Any) -> Flow[Any]:
    return (yield op)


async def _rows(here: State, line: Line, names: Sequence[str]) -> list[dict[str, Any]]:
    at_ms = now_ms()
    due = set(here.pulses.due(line.connection_id, names, _PULSES, _PULSE_KEPT_S))

    def flow(name: str) -> Flow[_Seen]:
        return _look(Keys(name), line.group, at_ms, name in due)

    seen: list[_Seen | ChasquiError]
    try:
        seen = list(await line.all((name, flow(name)) for name in names))
    except NotConnected:
        raise
    except ChasquiError:  # one queue is broken: it must not hide the others
        seen = [await _or_error(line.flow(name, flow(name))) for name in names]
    return [_row(here, line, *each, at_ms) for each in zip(names, seen, strict=True)]


async def _or_error(look: Any) -> Any:
    try:
        return await look
    except ChasquiError as error:
        return error


def _row(
    here: State, line: Line, name: str, seen: _Seen | ChasquiError, at_ms: int
) -> dict[str, Any]:
    if isinstance(seen, ChasquiError):
        return {"name": name, "error": as_json(seen)}
    depth, added, beats = seen
    here.history.note(line.connection_id, name, depth, added, at_ms)
    if beats is not None:
        here.pulses.keep(line.connection_id, name, beats)
    return {
        "name": name,
        "error": None,
        **depth_json(depth, at_ms),
        "added_per_s": here.history.added_per_second(line.connection_id, name, at_ms),
        "beats": beats_json(here.pulses.of(line.connection_id, name)),
    }


def depth_json(depth: Depth, at_ms: int) -> dict[str, Any]:
    oldest = depth.oldest_entry_ms
    return {
        "waiting": depth.waiting,
        "running": depth.running,
        "delayed": depth.delayed,
        "dead": depth.dead,
        "lag": depth.lag,
        "oldest_ms": None if oldest is None else max(0, at_ms - oldest),
        "next_due": depth.next_due_ms,
        "consumers": depth.consumers,
        "repeats": depth.repeats,
    }


def beats_json(beats: Sequence[Beat]) -> list[dict[str, Any]]:
    return [
        {
            "at": each.start_ms,
            "completed": each.completed,
            "retried": each.retried,
            "dead": each.dead,
            "sampled": each.sampled,
        }
        for each in beats
    ]
