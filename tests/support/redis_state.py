"""A plain client beside ours, and everything a queue has on the server, as one value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from airflow_provider_chasqui.core.keys import Keys


@contextmanager
def plain_client(url: str) -> Iterator[Any]:
    """redis-py itself, with RESP2 and undecoded replies."""
    client = redis.Redis.from_url(url, protocol=2, socket_timeout=10)
    # redis-py would make a dict of the fields, which forgets their order.
    client.set_response_callback("XRANGE", lambda reply, **_: reply)
    try:
        yield client
    finally:
        client.close()


def names(client: Any, keys: Keys) -> list[str]:
    """The keys of a queue without their hash tag, sorted."""
    pattern = re.sub(r"([*?\[\]\\])", r"\\\1", keys.hash_tag) + ":*"
    found = client.scan_iter(match=pattern, count=1000)
    return sorted(name.decode()[len(keys.hash_tag) + 1 :] for name in found)


def dump(client: Any, keys: Keys) -> dict[str, Any]:
    """Every key of a queue with its whole content, groups and pending entries included."""
    return {name: _content(client, f"{keys.hash_tag}:{name}") for name in names(client, keys)}


def _content(client: Any, key: str) -> Any:
    kind = client.type(key).decode()
    if kind == "stream":
        content: dict[str, Any] = {"entries": entries(client, key)}
        for group in client.xinfo_groups(key):
            pending = client.xpending_range(key, group["name"], "-", "+", 10_000)
            content[group["name"].decode()] = [
                (each["message_id"].decode(), each["consumer"].decode(), each["times_delivered"])
                for each in pending
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
    """The entries of a stream, fields in the order they were written."""
    return [
        (entry_id.decode(), list(zip(flat[::2], flat[1::2], strict=True)))
        for entry_id, flat in client.execute_command("XRANGE", key, "-", "+")
    ]
