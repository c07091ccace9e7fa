"""TLS: a private certificate authority, client certificates, and connections that are rejected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.errors import ConnectionFailed
from airflow_provider_chasqui.redis_client.target import RedisTarget, Tls
from tests.redis_client.conftest import Open
from tests.support.servers import Certificates, RedisServer, make_certificates


@pytest.fixture(scope="module")
def secure(redis86_binary: Path, certificates: Certificates) -> Iterator[RedisServer]:
    if not (redis86_binary.parent / "tls").exists():
        pytest.skip("this Redis was built without TLS")
    with RedisServer.start(redis86_binary, tls=certificates) as server:
        yield server


@pytest.fixture(scope="module")
def mutual(secure: RedisServer, certificates: Certificates) -> Iterator[RedisServer]:
    """Start a server that requires a client certificate."""
    with RedisServer.start(secure.binary, tls=certificates, client_certificate=True) as server:
        yield server


def target(server: RedisServer, tls: Tls | None, host: str = "127.0.0.1") -> RedisTarget:
    return RedisTarget(((host, server.port),), tls=tls, timeout=5)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_private_certificate_authority_is_accepted(
    open_queue: Open, secure: RedisServer, certificates: Certificates, queue_name: str, host: str
) -> None:
    url = f"rediss://{host}:{secure.port}/0?ssl_ca_certs={certificates.ca}"
    queue = open_queue(queue_name, url)
    queue.add_batch(range(5000), batch_id="b")
    assert queue.batch_progress("b").enqueued == 5000


def test_a_client_certificate_is_sent(
    open_queue: Open, mutual: RedisServer, certificates: Certificates, queue_name: str
) -> None:
    tls = Tls(str(certificates.ca), str(certificates.client), str(certificates.client_key))
    queue = open_queue(queue_name, target(mutual, tls))
    assert queue.add(1).created
    assert queue.depth().waiting == 1


def test_a_missing_client_certificate_is_a_connection_error(
    open_queue: Open, mutual: RedisServer, certificates: Certificates, queue_name: str
) -> None:
    queue = open_queue(queue_name, target(mutual, Tls(str(certificates.ca))))
    with pytest.raises(ConnectionFailed, match="no connection to"):
        queue.add(1)


@pytest.mark.parametrize("other", [True, False], ids=["another authority", "the system's"])
def test_a_certificate_of_another_authority_is_rejected(
    open_queue: Open, secure: RedisServer, tmp_path: Path, queue_name: str, other: bool
) -> None:
    ca = str(make_certificates(tmp_path).ca) if other else None
    queue = open_queue(queue_name, target(secure, Tls(ca)))
    with pytest.raises(ConnectionFailed, match="certificate verify failed"):
        queue.add(1)


def test_a_certificate_for_another_host_is_rejected_unless_the_check_is_off(
    open_queue: Open, secure: RedisServer, certificates: Certificates, queue_name: str
) -> None:
    # 127.0.0.2 is the same machine, but the certificate does not list it.
    with RedisServer.start(secure.binary, "--bind", "127.0.0.2", tls=certificates) as other_server:
        ca = str(certificates.ca)
        queue = open_queue(queue_name, target(other_server, Tls(ca), "127.0.0.2"))
        with pytest.raises(ConnectionFailed, match=r"certificate verify failed.*127\.0\.0\.2"):
            queue.add(1)
        any_hostname = Tls(ca, check_hostname=False)
        assert (
            open_queue(queue_name, target(other_server, any_hostname, "127.0.0.2")).add(1).created
        )
        unverified = Tls(verify=False)
        assert open_queue(queue_name, target(other_server, unverified, "127.0.0.2")).add(1).created


def test_a_mix_of_tls_and_plain_text_is_a_connection_error(
    open_queue: Open, secure: RedisServer, valkey_server: RedisServer, queue_name: str
) -> None:
    plain = RedisTarget((("127.0.0.1", secure.port),), retries=1, timeout=0.5, connect_timeout=0.5)
    with pytest.raises(ConnectionFailed):
        open_queue(queue_name, plain).add(1)
    tls = RedisTarget(
        (("127.0.0.1", valkey_server.port),), tls=Tls(), retries=1, timeout=0.5, connect_timeout=0.5
    )
    with pytest.raises(ConnectionFailed, match="check host, port and TLS"):
        open_queue(queue_name, tls).add(1)


def test_a_missing_certificate_file_is_a_connection_error(
    open_queue: Open, secure: RedisServer, queue_name: str
) -> None:
    with pytest.raises(ConnectionFailed, match="no connection to"):
        open_queue(queue_name, target(secure, Tls("/no/such/file"))).add(1)
