"""A credential provider is asked at every login, so a rotated password is picked up."""

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
def own(valkey_server: RedisServer) -> Iterator[RedisServer]:
    with RedisServer.start(valkey_server.binary) as server:
        yield server


class Vault(CredentialProvider):
    """Hands out the password of the day, or fails."""

    def __init__(self, user: str, password: str):
        self.user, self.password = user, password
        self.asked = 0
        self.sealed = False

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        if self.sealed:
            raise RuntimeError(f"sealed; last seen {self.password}")
        return self.user, self.password


class AwaitedVault(Vault):
    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


@pytest.mark.parametrize("kind", [Vault, AwaitedVault])
def test_rotation(
    open_queue: Open, own: RedisServer, queue_name: str, kind: type[Vault],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    user = f"u-{queue_name}"
    vault = kind(user, "monday-secret")
    target = RedisTarget(
        (("127.0.0.1", own.port),), credential_provider=vault, username="x", password="y"
    )
    queue = open_queue(queue_name, target)
    with admin(own) as client:
        client.execute_command("ACL", "SETUSER", user, "on", ">monday-secret", "~*", "+@all")
        assert queue.add(1).fresh
        # The new password comes first, the old one goes, and the server ends what it knew.
        client.execute_command("ACL", "SETUSER", user, "resetpass", ">tuesday-secret")
        vault.password = "tuesday-secret"
        client.execute_command("CLIENT", "KILL", "USER", user)
        assert queue.add(2).fresh
        client.execute_command("CLIENT", "KILL", "USER", user)
        vault.password = "wednesday-secret"
        with pytest.raises(AuthenticationFailed) as caught:
            queue.add(3)
        vault.password = "tuesday-secret"
        assert queue.add(4).fresh
        assert queue.depth().waiting == 3
    assert vault.asked >= 4
    assert "secret" not in f"{caught.value} {target!r} {caplog.text}"


@pytest.mark.parametrize("kind", [Vault, AwaitedVault])
def test_a_provider_that_fails(
    open_queue: Open, own: RedisServer, queue_name: str, kind: type[Vault]
) -> None:
    vault = kind("default", "")
    vault.sealed = True
    target = RedisTarget((("127.0.0.1", own.port),), credential_provider=vault, retries=1)
    queue = open_queue(queue_name, target)
    with pytest.raises(ConnectionFailed, match=r"the credential provider failed \(RuntimeError\)"):
        queue.add(1)
    with admin(own) as client:
        client.execute_command("CONFIG", "SET", "requirepass", "right")
    try:
        vault.sealed, vault.user, vault.password = False, "default", "right"
        # A connection on which the login never happened must not be used.
        assert queue.add(1).fresh
    finally:
        with admin(own, password="right") as client:
            client.execute_command("CONFIG", "SET", "requirepass", "")


class Interrupt(BaseException):
    """As Airflow raises it in the main thread when a task takes too long."""


def test_an_interrupt_while_the_provider_is_asked(
    open_queue: Open, own: RedisServer, queue_name: str
) -> None:
    class Slow(AwaitedVault):
        def get_credentials(self) -> tuple[str, str]:
            self.asked += 1
            if self.asked == 1:
                raise Interrupt
            return self.user, self.password

    user = f"u-{queue_name}"
    with admin(own) as client:
        client.execute_command("ACL", "SETUSER", user, "on", ">pw", "~*", "+@all")
        client.execute_command("CONFIG", "SET", "requirepass", "locked")
    try:
        vault = Slow(user, "pw")
        target = RedisTarget((("127.0.0.1", own.port),), credential_provider=vault, retries=0)
        queue = open_queue(queue_name, target)
        with pytest.raises(Interrupt):
            queue.add(1)
        # The socket was open already; without the login it must not be used.
        assert queue.add(1).fresh
    finally:
        with admin(own, password="locked") as client:
            client.execute_command("CONFIG", "SET", "requirepass", "")
