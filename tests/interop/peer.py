"""The real ChasquiMQ, driven over JSON lines; runs in a Python environment of its own.

Each line in is a request, each line out its answer, matched by `id`. Values that JSON cannot say
travel as {"packed": base64 of MessagePack}. This file imports nothing of ours.

    {"id": 1, "do": "call", "url": …, "queue": …, "method": "add", "args": …, "options": …}
    {"id": 2, "do": "work", "url": …, "queue": …, "record": <list key>, "plan": {…}, "options": {…}}
    {"id": 3, "do": "stop", "worker": 0}

A worker writes every run into the Redis list `record`, as MessagePack [job id, name, data, attempt,
worker, time in ms], before it does what its plan says: `fail` the first so many attempts, `die`
for good, `sleep_ms`, and answer with `returns` or, with `echo`, with the data. A job whose data is
a map with the key "plan" has a plan of its own.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import os
import sys
import threading
import time
from typing import Any

import chasquimq
import msgpack
import redis.asyncio

WORKERS: list[tuple[chasquimq.Worker, asyncio.Task[None]]] = []
QUEUES: dict[tuple[str, str], chasquimq.Queue] = {}


def unpack(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"packed"}:
        return msgpack.unpackb(base64.b64decode(value["packed"]), strict_map_key=False)
    return value


def plain(value: Any) -> Any:
    """A job, a repeat or a list of them as maps."""
    if isinstance(value, list):
        return [plain(each) for each in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.name[0] != "_"]
        return {name: plain(getattr(value, name)) for name in names}
    return value


def special(options: dict[str, Any]) -> dict[str, Any]:
    """Options that are objects of the peer."""
    made = dict(options)
    if "repeat" in made:
        kind, what, *zone = made["repeat"]
        pattern = getattr(chasquimq.RepeatPattern, kind)
        made["repeat"] = pattern(what, tz=zone[0]) if zone else pattern(what)
    if "missed_fires" in made:
        kind, *rest = made["missed_fires"]
        made["missed_fires"] = getattr(chasquimq.MissedFiresPolicy, kind)(*rest)
    if isinstance(made.get("backoff"), dict):
        made["backoff"] = chasquimq.BackoffSpec(**made["backoff"])
    return made


async def call(request: dict[str, Any]) -> Any:
    place = request["url"], request["queue"]
    if place not in QUEUES:
        QUEUES[place] = chasquimq.Queue(place[1], redis_url=place[0])
    method = getattr(QUEUES[place], request["method"])
    options = special(unpack(request.get("options", {})))
    return plain(await method(*unpack(request.get("args", [])), **options))


async def work(request: dict[str, Any]) -> int:
    number = len(WORKERS)
    client = redis.asyncio.Redis.from_url(request["url"])
    plan = unpack(request.get("plan", {}))

    async def handler(job: chasquimq.Job) -> Any:
        now_ms = time.time_ns() // 1_000_000
        run = [job.id, job.name, job.data, job.attempt, f"{os.getpid()}:{number}", now_ms]
        await client.rpush(request["record"], msgpack.packb(run))
        data = job.data if isinstance(job.data, dict) else {}
        return await follow(data.get("plan", plan), job)

    options = request.get("options", {})
    worker = chasquimq.Worker(request["queue"], handler, redis_url=request["url"], **options)
    WORKERS.append((worker, asyncio.create_task(worker.run())))
    return number


async def follow(plan: dict[str, Any], job: chasquimq.Job) -> Any:
    if plan.get("sleep_ms"):
        await asyncio.sleep(plan["sleep_ms"] / 1000)
    if plan.get("die"):
        raise chasquimq.UnrecoverableError("told to die")
    if job.attempt < plan.get("fail", 0):
        raise RuntimeError("told to fail")
    return job.data if plan.get("echo") else plan.get("returns")


async def stop(request: dict[str, Any]) -> None:
    worker, running = WORKERS[request["worker"]]
    await worker.close()
    await running


async def answer(line: str) -> None:
    request = json.loads(line)
    reply: dict[str, Any] = {"id": request["id"]}
    try:
        result = await {"call": call, "work": work, "stop": stop}[request["do"]](request)
        reply["packed"] = base64.b64encode(msgpack.packb(result)).decode()
    except Exception as error:
        reply |= {"error": str(error), "kind": type(error).__name__}
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


async def main() -> None:
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[str] = asyncio.Queue()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=listen, daemon=True).start()
    sys.stdout.write(json.dumps({"ready": chasquimq.version()}) + "\n")
    sys.stdout.flush()
    tasks = set()
    while line := await lines.get():
        task = asyncio.create_task(answer(line))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    # Its native threads may abort a tidy exit.
    os._exit(0)


asyncio.run(main())
