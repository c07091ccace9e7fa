"""A credential provider is called at every login, so a rotated password is used."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from redis.credentials import CredentialProvider

from airflow_provider_chasqui.core.errors import AuthenticationFailed, ConnectionFailed
from airflow_provider_chasqui.redis_client.target import RedisTarget
from tests.redis_client.conftest import Open, admin
from tests.support.servers import RedisServer


@pytest.fixture(scope="module")
def auth_server(valkey_server: RedisServer) -> Iterator[RedisServer]:
    with RedisServer.start(valkey_server.binary) as server:
        yield server


class Vault(CredentialProvider):
    """Credential provider that returns its current password, or fails."""

    def __init__(self, user: str, password: str):
        self.user, self.password = user, password
        self.calls = 0
        self.sealed = False

    def get_credentials(self) -> tuple[str, str]:
        self.calls += 1
        if self.sealed:
            raise RuntimeError(f"sealed; the last password was {self.password}")
        return self.user, self.password


class AsyncVault(Vault):
    """The same with an asyncio method."""

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


@pytest.mark.parametrize("kind", [Vault, AsyncVault])
def test_a_rotated_password_is_used_at_the_next_login(
    open_queue: Open,
    auth_server: RedisServer,
    queue_name: str,
    kind: type[Vault],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    user = f"u-{queue_name}"
    vault = kind(user, "monday-secret")
    target = RedisTarget(
        (("127.0.0.1", auth_server.port),), credential_provider=vault, username="x", password="y"
    )
    queue = open_queue(queue_name, target)
    with admin(auth_server) as client:
        client.execute_command("ACL", "SETUSER", user, "on", ">monday-secret", "~*", "+@all")
        assert queue.add(1).created
        # The password is replaced, and the server closes the connections of the user.
        client.execute_command("ACL", "SETUSER", user, "resetpass", ">tuesday-secret")
        vault.password = "tuesday-secret"
        client.execute_command("CLIENT", "KILL", "USER", user)
        assert queue.add(2).created
        client.execute_command("CLIENT", "KILL", "USER", user)
        vault.password = "wednesday-secret"
        with pytest.raises(AuthenticationFailed) as info:
            queue.add(3)
        vault.password = "tuesday-secret"
        assert queue.add(4).created
        assert queue.depth().waiting == 3
    assert vault.calls >= 4
    assert "secret" not in f"{info.value} {target!r} {caplog.text}"


@pytest.mark.parametrize("kind", [Vault, AsyncVault])
def test_a_failing_provider_is_a_connection_error_without_the_secret(
    open_queue: Open, auth_server: RedisServer, queue_name: str, kind: type[Vault]
) -> None:
    vault = kind("default", "")
    vault.sealed = True
    target = RedisTarget((("127.0.0.1", auth_server.port),), credential_provider=vault, retries=1)
    queue = open_queue(queue_name, target)
    with pytest.raises(ConnectionFailed, match=r"the credential provider failed \(RuntimeError\)"):
        queue.add(1)
    with admin(auth_server) as client:
        client.execute_command("CONFIG", "SET", "requirepass", "right")
    try:
        vault.sealed, vault.user, vault.password = False, "default", "right"
        # The connection without a login must not be used.
        assert queue.add(1).created
    finally:
        with admin(auth_server, password="right") as client:
            client.execute_command("CONFIG", "SET", "requirepass", "")


class Interrupt(BaseException):
    """An exception like the one that Airflow raises in the main thread when a task times out."""


def test_an_interrupt_in_the_provider_leaves_no_unauthenticated_connection(
    open_queue: Open, auth_server: RedisServer, queue_name: str
) -> None:
    class Slow(AsyncVault):
        def get_credentials(self) -> tuple[str, str]:
            self.calls += 1
            if self.calls == 1:
                raise Interrupt
            return self.user, self.password

    user = f"u-{queue_name}"
    with admin(auth_server) as client:
        client.execute_command("ACL", "SETUSER", user, "on", ">pw", "~*", "+@all")
        client.execute_command("CONFIG", "SET", "requirepass", "locked")
    try:
        vault = Slow(user, "pw")
        nodes = (("127.0.0.1", auth_server.port),)
        target = RedisTarget(nodes, credential_provider=vault, retries=0)
        queue = open_queue(queue_name, target)
        with pytest.raises(Interrupt):
            queue.add(1)
        # The socket was already open; without a login it must not be used.
        assert queue.add(1).created
    finally:
        with admin(auth_server, password="locked") as client:
            client.execute_command("CONFIG", "SET", "requirepass", "")
