"""A bench for one script: seed the keys of a queue, call it, look at all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.redis_client.scripts import load_script
from tests.support.redis_state import dump, entries, plain_client

GROUP = "default"


class Bench:
    """The server, the keys of one queue, and the scripts in the server's dialect."""

    def __init__(self, client: Any, confined: Any, keys: Keys, dialect: str):
        self.client = client
        self.confined = confined
        self.keys = keys
        self.dialect = dialect

    def call(self, name: str, keys: Sequence[str], *args: Any) -> Any:
        """Run a script as a user who may touch the keys of this call and no others."""
        allowed = [f"~{key}" for key in keys]
        self.client.execute_command("ACL", "SETUSER", self.keys.queue_name, "resetkeys", *allowed)
        source = load_script(name, self.dialect).source
        return self.confined.eval(source, len(keys), *keys, *args)

    def all(self) -> dict[str, Any]:
        return dump(self.client, self.keys)

    def stream(self, name: str = "stream") -> list[dict[bytes, bytes]]:
        return [dict(fields) for _, fields in entries(self.client, f"{self.keys.hash_tag}:{name}")]

    def deliver(self, *payloads: Any, consumer: str = "me") -> list[str]:
        """Put entries on the stream and read them, so that they are pending."""
        if not self.client.exists(self.keys.stream) or not self.client.xinfo_groups(
            self.keys.stream
        ):
            self.client.xgroup_create(self.keys.stream, GROUP, "0", mkstream=True)
        for payload in payloads:
            self.client.xadd(self.keys.stream, {"d": payload})
        got = self.client.xreadgroup(GROUP, consumer, {self.keys.stream: ">"}, count=10_000)
        return [entry_id.decode() for entry_id, _ in got[0][1]] if got else []

    def pending(self) -> list[str]:
        found = self.client.xpending_range(self.keys.stream, GROUP, "-", "+", 10_000)
        return [each["message_id"].decode() for each in found]

    def life_ms(self, key: str) -> int:
        return int(self.client.pttl(key))


@pytest.fixture
def bench(server: Any, queue_name: str) -> Iterator[Bench]:
    with plain_client(server.url) as client:
        rules = ("reset", "on", ">secret", "+@all")
        client.execute_command("ACL", "SETUSER", queue_name, *rules)
        login = server.url.replace("redis://", f"redis://{queue_name}:secret@")
        try:
            with plain_client(login) as confined:
                yield Bench(client, confined, Keys(queue_name), server.dialect)
        finally:
            client.execute_command("ACL", "DELUSER", queue_name)
