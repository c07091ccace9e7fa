"""Every recorded step of npm rsmq 0.12.4, repeated by this client: same replies, same keys."""

from __future__ import annotations

import json
import re
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import redis

from airflow_provider_chasqui.core.errors import RsmqError
from airflow_provider_chasqui.rsmq.client import RsmqClient

STEPS = json.loads((Path(__file__).parent / "npm-rsmq-0.12.4.json").read_text())["steps"]
ID = re.compile(r"\bho75t[0-9a-z]{5}[A-Za-z0-9]{22}\b")
SNAKE = re.compile(r"(?<!^)(?=[A-Z])")


class Replay:
    """Repeats the recorded steps; ids are matched by the order of the sends."""

    def __init__(self, url: str, namespace: str):
        self.namespace = namespace
        self.quiet = RsmqClient(url, namespace=namespace)
        self.loud = RsmqClient(url, namespace=namespace, realtime=True)
        self.raw = redis.Redis.from_url(url, decode_responses=True)
        self.subscription = self.raw.pubsub()
        self.subscription.psubscribe(f"{namespace}:rt:*")
        assert self.subscription.get_message(timeout=5)["type"] == "psubscribe"
        self.local_ids: dict[str, str] = {}
        names = {key for step in STEPS for key in step.get("keys_after", {})}
        self.known = [key.replace("gvnode", namespace) for key in names]

    def take(self, step: dict[str, Any]) -> None:
        if "sleep_s" in step:
            return self.wait_for_visible("q1")
        client = self.loud if step["published"] else self.quiet
        method = SNAKE.sub("_", step["op"]).lower()
        args = {key: self.local_ids.get(str(value), value) for key, value in step["args"].items()}
        before = self.now_ms()
        try:
            reply: Any = {"result": getattr(client, method)(**args)}
        except RsmqError as error:
            reply = {"error": {"name": error.name, "message": error.message}}
        after = self.now_ms()
        self.compare(step, reply, before, after)

    def compare(self, step: dict[str, Any], reply: Any, before: int, after: int) -> None:
        golden = step["reply"]
        if step["op"] == "sendMessage" and "result" in golden:
            self.local_ids[golden["result"]] = reply["result"]
            assert re.fullmatch(r"[0-9a-z]{10}[A-Za-z0-9]{22}", reply["result"])
            assert before <= int(reply["result"][:10], 36) / 1000 <= after + 1
        assert self.shape(reply) == self.translated(golden)
        for channel, payload in step["published"]:
            published = self.subscription.get_message(timeout=5)
            assert published["channel"] == channel.replace("gvnode", self.namespace)
            assert published["data"] == payload
        assert self.subscription.get_message(timeout=0) is None
        self.compare_keys(step, before, after)

    def compare_keys(self, step: dict[str, Any], before: int, after: int) -> None:
        golden = {key.replace("gvnode", self.namespace): v for key, v in step["keys_after"].items()}
        golden_ms = step["t_before"][0] * 1000 + step["t_before"][1] // 1000
        assert set(self.keys()) == set(golden)
        for key, content in golden.items():
            if content["type"] == "set":
                assert self.raw.smembers(key) == set(content["value"])
            elif content["type"] == "hash":
                assert self.plain(self.raw.hgetall(key)) == self.plain(
                    self.renamed(content["value"])
                )
            else:
                wanted = {self.local_ids[member]: score for member, score in content["value"]}
                scores = dict(self.raw.zrange(key, 0, -1, withscores=True))
                # As a set, because two scores of one millisecond in the recording may differ here.
                assert set(scores) == set(wanted)
                for member, score in scores.items():
                    # A score of this step has the same distance from its time as in the recording.
                    if self.touched(step, member):
                        assert before - 60 <= score - (wanted[member] - golden_ms) <= after + 60

    def touched(self, step: dict[str, Any], member: str) -> bool:
        reply = step["reply"].get("result")
        if reply is None:
            return False
        ids = [step["args"].get("id"), reply, reply.get("id") if isinstance(reply, dict) else None]
        return member in {self.local_ids.get(str(recorded_id)) for recorded_id in ids}

    def keys(self) -> list[str]:
        """Return the existing keys among those of all steps."""
        pipe = self.raw.pipeline()
        for key in self.known:
            pipe.exists(key)
        return [key for key, there in zip(self.known, pipe.execute(), strict=True) if there]

    def all_keys(self) -> list[str]:
        """Return every key of the namespace. SCAN is slow on a shared server, so call it once."""
        return [k for k in self.raw.scan_iter(f"{self.namespace}:*") if ":idempotency:" not in k]

    def renamed(self, fields: dict[str, str]) -> dict[str, str]:
        return {
            ID.sub(lambda m: self.local_ids[m[0]], name): value for name, value in fields.items()
        }

    @staticmethod
    def plain(fields: dict[str, str]) -> dict[str, str]:
        """Replace times, which differ from the recording, after checking their length."""
        timed = ("created", "modified")
        return {
            name: f"{len(value)} digits" if name in timed or name.endswith(":fr") else value
            for name, value in fields.items()
        }

    def translated(self, golden: Any) -> Any:
        return self.shape(json.loads(ID.sub(lambda m: self.local_ids[m[0]], json.dumps(golden))))

    @staticmethod
    def shape(reply: Any) -> Any:
        """Return a reply in one form, without values that depend on the time."""
        result = reply.get("result")
        if result is None and "error" not in reply:
            return {"result": {}}
        if isinstance(result, list):
            return {"result": sorted(result)}
        fields = result if isinstance(result, dict) else None
        if hasattr(result, "__dataclass_fields__"):
            fields = asdict(result)
        if fields is None:
            return reply
        ours_alone = ("raw", "visible_at_ms", "hidden_exact", "visiblemsgs")
        of_the_day = ("fr", "sent", "created", "modified", "hiddenmsgs")
        content = {name: value for name, value in fields.items() if name not in ours_alone}
        return {"result": content | {name: "*" for name in of_the_day if name in content}}

    def wait_for_visible(self, qname: str) -> None:
        deadline = time.monotonic() + 10
        while not self.quiet.peek_messages(qname):
            assert time.monotonic() < deadline, "nothing became visible"

    def close(self) -> None:
        for client in (self.quiet, self.loud, self.subscription, self.raw):
            client.close()

    def now_ms(self) -> int:
        seconds, micros = self.raw.time()
        return seconds * 1000 + micros // 1000


def test_every_recorded_step_has_the_same_result(server: Any, namespace: str) -> None:
    """The time from the first message to the sleep must be below the recorded delay of 1 s."""
    assert len(STEPS) == 66
    first_message = next(i for i, step in enumerate(STEPS) if step.get("op") == "sendMessage")
    sleep = next(i for i, step in enumerate(STEPS) if "sleep_s" in step)
    for turn in range(10):
        replay, began = Replay(server.url, f"{namespace}-{turn}"), time.monotonic()
        try:
            for number, step in enumerate(STEPS):
                if number == first_message:
                    began = time.monotonic()
                try:
                    replay.take(step)
                except AssertionError as error:
                    if first_message <= number < sleep and time.monotonic() - began > 0.9:
                        break  # this machine was too slow for the recording: from the start
                    pytest.fail(f"step {number}, {step.get('op')} {step.get('args')}: {error}")
            else:
                assert replay.all_keys() == []
                return
        finally:
            replay.close()
    pytest.fail("this machine is too slow for the recording")
