"""The real npm rsmq and PyRSMQ read what we write, and we read what they write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from airflow_provider_chasqui.core.errors import RsmqQueueNotFound
from airflow_provider_chasqui.rsmq.client import RsmqClient

pytestmark = pytest.mark.interop


def test_npm_reads_what_we_write(server: Any, namespace: str, npm_rsmq: Callable[..., Any]) -> None:
    npm = npm_rsmq(server.url)
    with RsmqClient(server.url, namespace=namespace) as ours:
        ours.create_queue("q", vt=7, delay=0, maxsize=2048)
        assert npm.ask("listQueues") == ["q"]
        attributes = npm.ask("getQueueAttributes", qname="q")
        own = asdict(ours.get_queue_attributes("q"))
        assert {name: own[name] for name in attributes} == attributes
        sent = [ours.send_message("q", text) for text in ("eins ☂", "", "drei")]
        got = [npm.ask("receiveMessage", qname="q") for _ in range(3)]
        assert [each["id"] for each in got] == sent
        assert [each["message"] for each in got] == ["eins ☂", "", "drei"]
        assert npm.ask("receiveMessage", qname="q") == {}
        assert npm.ask("changeMessageVisibility", qname="q", id=sent[1], vt=0) == 1
        again = ours.receive_message("q")
        assert again is not None
        assert (again.id, again.rc, again.fr) == (sent[1], 2, got[1]["fr"])
        assert [npm.ask("deleteMessage", qname="q", id=each) for each in sent] == [1, 1, 1]
        assert ours.get_queue_attributes("q").msgs == 0
        assert npm.ask("deleteQueue", qname="q") == 1
        with pytest.raises(RsmqQueueNotFound):
            ours.send_message("q", "x")


def test_we_read_what_npm_writes(server: Any, namespace: str, npm_rsmq: Callable[..., Any]) -> None:
    npm = npm_rsmq(server.url, realtime=True)
    with RsmqClient(server.url, namespace=namespace) as ours:
        npm.ask("createQueue", qname="q", vt=30, maxsize=-1)
        sent = [npm.ask("sendMessage", qname="q", message=f"m{i} 😀") for i in range(20)]
        assert [message.id for message in ours.peek_messages("q", limit=50)] == sent
        for index, message_id in enumerate(sent):
            got = ours.receive_message("q") if index % 2 else ours.pop_message("q")
            assert got is not None
            assert (got.id, got.message) == (message_id, f"m{index} 😀")
        assert npm.ask("getQueueAttributes", qname="q")["totalrecv"] == 20
        assert npm.ask("createQueue", qname="q") == "queueExists"


def test_pyrsmq_and_we_share_a_queue(
    server: Any, namespace: str, pyrsmq: Callable[[str], Any]
) -> None:
    peer = pyrsmq(server.url)
    with RsmqClient(server.url, namespace=namespace) as ours:
        assert peer.ask("createQueue", qname="theirs", vt=20, delay=0) is True
        # PyRSMQ's own default is above npm's limit; it is its queue, so it is read as it is.
        assert ours.get_queue_attributes("theirs").maxsize == 65565
        sent = peer.ask("sendMessage", qname="theirs", message="hello")
        got = ours.receive_message("theirs")
        assert got is not None
        assert (got.id, got.message) == (sent, "hello")
        ours.create_queue("ours")
        ours_sent = ours.send_message("ours", "back")
        received = peer.ask("receiveMessage", qname="ours")
        assert (received["id"], received["message"]) == (ours_sent, "back")
        assert peer.ask("deleteMessage", qname="ours", id=ours_sent) is True
        assert set(ours.list_queues()) == {"ours", "theirs"}


def test_pyrsmq_half_made_queue_still_works(
    server: Any, namespace: str, pyrsmq: Callable[[str], Any]
) -> None:
    """Its setQueueAttributes on a queue that is not there writes a partial hash."""
    peer = pyrsmq(server.url)
    peer.ask("setQueueAttributes", qname="half", vt=3)
    with RsmqClient(server.url, namespace=namespace) as ours:
        assert ours.get_queue_attributes("half").vt == 3
        sent = ours.send_message("half", "x")
        got = ours.receive_message("half")
        assert got is not None
        assert got.id == sent


def test_racing_consumers_of_both_kinds_share_every_message_once(
    server: Any, namespace: str, npm_rsmq: Callable[..., Any]
) -> None:
    npm = npm_rsmq(server.url)
    with RsmqClient(server.url, namespace=namespace) as ours:
        ours.create_queue("q")
        sent = [ours.send_message("q", str(i)) for i in range(150)]
        npm.say("loop", qname="q")
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
        npm.say("stop")
        theirs = []
        while "popped" in (line := npm.hear()):
            theirs.append(line["popped"]["id"])
        assert line == {"result": "stopped"}
        assert sorted(got + theirs) == sorted(sent)
        assert ours.get_queue_attributes("q").totalrecv == 150
