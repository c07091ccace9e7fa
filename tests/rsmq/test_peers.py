"""The real npm rsmq and PyRSMQ and this client read the messages of each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import RsmqQueueNotFound
from airflow_provider_chasqui.rsmq.client import RsmqClient

pytestmark = pytest.mark.interop


def test_npm_rsmq_reads_messages_of_this_client(
    server: Any, namespace: str, npm_rsmq: Callable[..., Any]
) -> None:
    npm = npm_rsmq(server.url)
    with RsmqClient(server.url, namespace=namespace) as client:
        client.create_queue("q", vt=7, delay=0, maxsize=2048)
        assert npm.ask("listQueues") == ["q"]
        attributes = npm.ask("getQueueAttributes", qname="q")
        own = asdict(client.get_queue_attributes("q"))
        assert {name: own[name] for name in attributes} == attributes
        sent = [client.send_message("q", text) for text in ("eins ☂", "", "drei")]
        got = [npm.ask("receiveMessage", qname="q") for _ in range(3)]
        assert [message["id"] for message in got] == sent
        assert [message["message"] for message in got] == ["eins ☂", "", "drei"]
        assert npm.ask("receiveMessage", qname="q") == {}
        assert npm.ask("changeMessageVisibility", qname="q", id=sent[1], vt=0) == 1
        again = client.receive_message("q")
        assert again is not None
        assert (again.id, again.rc, again.fr) == (sent[1], 2, got[1]["fr"])
        assert [npm.ask("deleteMessage", qname="q", id=message_id) for message_id in sent] == [
            1,
            1,
            1,
        ]
        assert client.get_queue_attributes("q").msgs == 0
        assert npm.ask("deleteQueue", qname="q") == 1
        with pytest.raises(RsmqQueueNotFound):
            client.send_message("q", "x")


def test_this_client_reads_messages_of_npm_rsmq(
    server: Any, namespace: str, npm_rsmq: Callable[..., Any]
) -> None:
    npm = npm_rsmq(server.url, realtime=True)
    with RsmqClient(server.url, namespace=namespace) as client:
        npm.ask("createQueue", qname="q", vt=30, maxsize=-1)
        sent = [npm.ask("sendMessage", qname="q", message=f"m{i} 😀") for i in range(20)]
        assert [message.id for message in client.peek_messages("q", limit=50)] == sent
        for index, message_id in enumerate(sent):
            got = client.receive_message("q") if index % 2 else client.pop_message("q")
            assert got is not None
            assert (got.id, got.message) == (message_id, f"m{index} 😀")
        assert npm.ask("getQueueAttributes", qname="q")["totalrecv"] == 20
        assert npm.ask("createQueue", qname="q") == "queueExists"


def test_pyrsmq_and_this_client_share_a_queue(
    server: Any, namespace: str, pyrsmq: Callable[[str], Any]
) -> None:
    peer = pyrsmq(server.url)
    with RsmqClient(server.url, namespace=namespace) as client:
        assert peer.ask("createQueue", qname="theirs", vt=20, delay=0) is True
        # The default of PyRSMQ is above the limit of npm rsmq; it is returned unchanged.
        assert client.get_queue_attributes("theirs").maxsize == 65565
        sent = peer.ask("sendMessage", qname="theirs", message="hello")
        got = client.receive_message("theirs")
        assert got is not None
        assert (got.id, got.message) == (sent, "hello")
        client.create_queue("ours")
        ours_sent = client.send_message("ours", "back")
        received = peer.ask("receiveMessage", qname="ours")
        assert (received["id"], received["message"]) == (ours_sent, "back")
        assert peer.ask("deleteMessage", qname="ours", id=ours_sent) is True
        assert set(client.list_queues()) == {"ours", "theirs"}


def test_an_incomplete_queue_of_pyrsmq_works(
    server: Any, namespace: str, pyrsmq: Callable[[str], Any]
) -> None:
    """setQueueAttributes of PyRSMQ on a missing queue writes an incomplete hash."""
    peer = pyrsmq(server.url)
    peer.ask("setQueueAttributes", qname="half", vt=3)
    with RsmqClient(server.url, namespace=namespace) as client:
        assert client.get_queue_attributes("half").vt == 3
        sent = client.send_message("half", "x")
        got = client.receive_message("half")
        assert got is not None
        assert got.id == sent


def test_racing_consumers_of_both_clients_receive_every_message_once(
    server: Any, namespace: str, npm_rsmq: Callable[..., Any]
) -> None:
    npm = npm_rsmq(server.url)
    with RsmqClient(server.url, namespace=namespace) as client:
        client.create_queue("q")
        sent = [client.send_message("q", str(i)) for i in range(150)]
        npm.send("loop", qname="q")
        got: list[str] = []
        lock = threading.Lock()

        def consume() -> None:
            with RsmqClient(server.url, namespace=namespace) as client:
                while (message := client.pop_message("q")) is not None:
                    with lock:
                        got.append(message.id)

        threads = [threading.Thread(target=consume) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        npm.send("stop")
        theirs = []
        while "popped" in (line := npm.receive()):
            theirs.append(line["popped"]["id"])
        assert line == {"result": "stopped"}
        assert sorted(got + theirs) == sorted(sent)
        assert client.get_queue_attributes("q").totalrecv == 150
