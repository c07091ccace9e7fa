"""Reading the keys of a queue with redis-py, independently of the client under test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from airflow_provider_chasqui.core.keys import Keys


@contextmanager
def plain_client(url: str) -> Iterator[Any]:
    """Open a redis-py client with RESP2 and undecoded replies."""
    client = redis.Redis.from_url(url, protocol=2, socket_timeout=10)
    # By default redis-py converts the fields to a dict, which loses duplicates and their order.
    client.set_response_callback("XRANGE", lambda reply, **_: reply)
    try:
        yield client
    finally:
        client.close()


def names(client: Any, keys: Keys) -> list[str]:
    """Return the keys of a queue without their hash tag, sorted."""
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", keys.hash_tag) + ":*"
    matches = client.scan_iter(match=pattern, count=1000)
    return sorted(name.decode()[len(keys.hash_tag) + 1 :] for name in matches)


def dump(client: Any, keys: Keys) -> dict[str, Any]:
    """Return every key of a queue with its content, including groups and pending entries."""
    return {name: _content(client, f"{keys.hash_tag}:{name}") for name in names(client, keys)}


def _content(client: Any, key: str) -> Any:
    kind = client.type(key).decode()
    if kind == "stream":
        content: dict[str, Any] = {"entries": entries(client, key)}
        for group in client.xinfo_groups(key):
            pending = client.xpending_range(key, group["name"], "-", "+", 10_000)
            content[group["name"].decode()] = [
                (entry["message_id"].decode(), entry["consumer"].decode(), entry["times_delivered"])
                for entry in pending
            ]
        return content
    if kind == "zset":
        return client.zrange(key, 0, -1, withscores=True)
    if kind == "hash":
        return client.hgetall(key)
    if kind == "set":
        return client.smembers(key)
    if kind == "list":
        return client.lrange(key, 0, -1)
    return client.get(key)


def entries(client: Any, key: str) -> list[tuple[str, list[tuple[bytes, bytes]]]]:
    """Return the entries of a stream with their fields in the order of writing."""
    return [
        (entry_id.decode(), list(zip(flat[::2], flat[1::2], strict=True)))
        for entry_id, flat in client.execute_command("XRANGE", key, "-", "+")
    ]
