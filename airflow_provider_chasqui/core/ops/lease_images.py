"""snapshot, restore: the whole state of a leased queue as one value, and back."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

from airflow_provider_chasqui.core.errors import BadInput, DecodeError
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.lease import LeaseConfig
from airflow_provider_chasqui.core.op import Arg, Flow, Op, as_int, as_is, command, script
from airflow_provider_chasqui.core.replies import pairs

SCHEMA = 1
_CHUNK = 500
_STAGED_MS = 3600 * 1000
_PARTS = (
    *("held", "later", "owners", "blocked", "grants", "fence", "config"),
    *("producers", "aside"),
)
_FIELDS = (
    *("tail", "added", "deleted", "cursor", "read", "entries", "pending", "delayed"),
    *_PARTS,
)
_SCORED, _HASHES, _VALUES = (
    ("held", "later", "blocked"),
    ("owners", "grants", "producers"),
    (
        "fence",
        "config",
    ),
)


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return [_text(each) for each in value] if isinstance(value, list) else value


def _raw(value: Any) -> Any:
    if isinstance(value, str):
        return base64.b64decode(value)
    return [_raw(each) for each in value] if isinstance(value, list) else value


def snapshot(keys: Keys, config: LeaseConfig, limit: int) -> Op[str]:
    """Read the whole queue at one moment, as text. The server does nothing else meanwhile."""

    def read(reply: Any) -> str:
        state = {name: _text(value) for name, value in zip(_FIELDS, reply, strict=True)}
        head = {"schema": SCHEMA, "group": config.group, "mode": config.mode}
        return json.dumps(head | state, separators=(",", ":"))

    names = [keys.stream, keys.delayed, *(keys.lease(part) for part in _PARTS)]
    return script("lease_snapshot", read, names, [config.group, limit])


def restore(keys: Keys, config: LeaseConfig, image: str) -> Flow[int]:
    """Make the queue of a snapshot; refuses where it is there already. Returns its entries.

    Entries are staged out of sight and become the stream in one step, last of all, so a crash
    leaves either nothing or everything; what was staged expires.
    """
    state = _read(image, config)
    staging, entries = keys.lease("restore"), state["entries"]
    yield command("DEL", staging, parse=as_int)
    for start in range(0, len(entries), _CHUNK):
        part = entries[start : start + _CHUNK]
        yield [command("XADD", staging, each[0], *each[1], parse=as_is) for each in part]
        yield command("PEXPIRE", staging, _STAGED_MS, parse=as_int)
    if (yield command("EXISTS", keys.stream, parse=as_int)):
        raise BadInput(
            "the queue is there already: delete it first, or restore under another name",
            queue=keys.queue,
        )
    yield [op for name in _PARTS for op in _put(keys, name, state[name])]
    yield _put_scores(keys.delayed, state["delayed"])
    args: list[Arg] = [config.group, state["cursor"], state["read"], state["tail"]]
    args += (state["added"], state["deleted"], len(entries))
    for entry_id, consumer, idle_ms, count in _alive(state):
        args += (entry_id, consumer, idle_ms, count)
    yield script("lease_restore", as_int, [staging, keys.stream], args)
    return len(entries)


def _read(image: str, config: LeaseConfig) -> dict[str, Any]:
    try:
        state = json.loads(image)
        if state["schema"] != SCHEMA:
            raise DecodeError(f"the snapshot is of schema {state['schema']}, this reads {SCHEMA}")
        if (state["group"], state["mode"]) != (config.group, config.mode):
            raise BadInput(
                f"the snapshot is of mode {state['mode']!r} and group {state['group']!r}: restore "
                "it with those"
            )
        return {name: _raw(state[name]) for name in _FIELDS}
    except (KeyError, TypeError, ValueError) as cause:
        if isinstance(cause, BadInput):
            raise
        raise DecodeError("this is not a snapshot of a leased queue") from cause


def _alive(state: dict[str, Any]) -> list[list[Any]]:
    """Pending entries that are still on the stream."""
    there = {each[0] for each in state["entries"]}
    return [each for each in state["pending"] if each[0] in there]


def _put(keys: Keys, name: str, value: Any) -> list[Op[Any]]:
    key = keys.lease(name)
    if name == "aside":
        return [command("XADD", key, each[0], *each[1], parse=as_is) for each in value]
    if not value or value == b"0":
        return []
    if name in _SCORED:
        return _put_scores(key, value)
    verb = "SET" if name in _VALUES else "HSET"
    args: Sequence[Arg] = [value] if name in _VALUES else value
    return [command(verb, key, *args, parse=as_is)]


def _put_scores(key: str, flat: list[Any]) -> list[Op[Any]]:
    return [command("ZADD", key, score, member, parse=as_is) for member, score in pairs(flat)]
