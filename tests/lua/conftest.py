"""Fixtures to test one script: prepare the keys of a queue, call the script, compare all keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.redis_client.scripts import load_script
from tests.support.redis_state import dump, entries, plain_client

GROUP = "default"


class ScriptRunner:
    """A server, the keys of one queue, and the scripts in the dialect of the server."""

    def __init__(self, client: Any, restricted_client: Any, keys: Keys, dialect: str):
        self.client = client
        self.restricted_client = restricted_client
        self.keys = keys
        self.dialect = dialect

    def call(self, name: str, keys: Sequence[str], *args: Any) -> Any:
        """Run a script as a user who may access the keys of this call and no others."""
        allowed = [f"~{key}" for key in keys]
        self.client.execute_command("ACL", "SETUSER", self.keys.queue_name, "resetkeys", *allowed)
        source = load_script(name, self.dialect).source
        return self.restricted_client.eval(source, len(keys), *keys, *args)

    def dump(self) -> dict[str, Any]:
        """Return all keys of the queue with their content."""
        return dump(self.client, self.keys)

    def stream(self, name: str = "stream") -> list[dict[bytes, bytes]]:
        """Return the fields of all entries of a stream of the queue."""
        return [dict(fields) for _, fields in entries(self.client, f"{self.keys.hash_tag}:{name}")]

    def deliver(self, *payloads: Any, consumer: str = "me") -> list[str]:
        """Add entries to the stream and read them, so that they are pending. Return their ids."""
        if not self.client.exists(self.keys.stream) or not self.client.xinfo_groups(
            self.keys.stream
        ):
            self.client.xgroup_create(self.keys.stream, GROUP, "0", mkstream=True)
        for payload in payloads:
            self.client.xadd(self.keys.stream, {"d": payload})
        streams = self.client.xreadgroup(GROUP, consumer, {self.keys.stream: ">"}, count=10_000)
        return [entry_id.decode() for entry_id, _ in streams[0][1]] if streams else []

    def pending(self) -> list[str]:
        """Return the ids of all pending entries."""
        pending = self.client.xpending_range(self.keys.stream, GROUP, "-", "+", 10_000)
        return [entry["message_id"].decode() for entry in pending]

    def ttl_ms(self, key: str) -> int:
        return int(self.client.pttl(key))


@pytest.fixture
def script_runner(server: Any, queue_name: str) -> Iterator[ScriptRunner]:
    with plain_client(server.url) as client:
        rules = ("reset", "on", ">secret", "+@all")
        client.execute_command("ACL", "SETUSER", queue_name, *rules)
        restricted_url = server.url.replace("redis://", f"redis://{queue_name}:secret@")
        try:
            with plain_client(restricted_url) as restricted_client:
                yield ScriptRunner(client, restricted_client, Keys(queue_name), server.dialect)
        finally:
            client.execute_command("ACL", "DELUSER", queue_name)
