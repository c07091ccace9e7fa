"""The real ChasquiMQ, controlled with JSON lines. It runs in a separate Python environment.

Each line of input is a request, each line of output a reply with the same `id`. Values that JSON
cannot represent are sent as {"packed": base64 of MessagePack}. This file does not import the
package under test.

    {"id": 1, "do": "call", "url": …, "queue": …, "method": "add", "args": …, "options": …}
    {"id": 2, "do": "work", "url": …, "queue": …, "record": <list key>, "plan": {…}, "options": {…}}
    {"id": 3, "do": "stop", "worker": 0}

A worker appends every run to the Redis list `record`, as MessagePack [job id, name, data, attempt,
worker, time in ms], and then follows its plan: `sleep_ms` waits, `die` raises UnrecoverableError,
`fail` is the number of attempts that fail, `returns` is the result, and `echo` returns the data.
If the data of a job is a map with the key "plan", that plan is used.
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
    """Return a job, a repeat or a list of them as maps."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value) if field.name[0] != "_"]
        return {name: plain(getattr(value, name)) for name in names}
    return value


def convert_options(options: dict[str, Any]) -> dict[str, Any]:
    """Convert options to the classes of ChasquiMQ."""
    converted = dict(options)
    if "repeat" in converted:
        kind, value, *zone = converted["repeat"]
        pattern = getattr(chasquimq.RepeatPattern, kind)
        converted["repeat"] = pattern(value, tz=zone[0]) if zone else pattern(value)
    if "missed_fires" in converted:
        kind, *args = converted["missed_fires"]
        converted["missed_fires"] = getattr(chasquimq.MissedFiresPolicy, kind)(*args)
    if isinstance(converted.get("backoff"), dict):
        converted["backoff"] = chasquimq.BackoffSpec(**converted["backoff"])
    return converted


async def call(request: dict[str, Any]) -> Any:
    target = request["url"], request["queue"]
    if target not in QUEUES:
        QUEUES[target] = chasquimq.Queue(target[1], redis_url=target[0])
    method = getattr(QUEUES[target], request["method"])
    options = convert_options(unpack(request.get("options", {})))
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
        raise chasquimq.UnrecoverableError("planned unrecoverable error")
    if job.attempt < plan.get("fail", 0):
        raise RuntimeError("planned failure")
    return job.data if plan.get("echo") else plan.get("returns")


async def stop(request: dict[str, Any]) -> None:
    worker, running = WORKERS[request["worker"]]
    await worker.close()
    await running


async def reply_to(line: str) -> None:
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

    def read_lines() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        loop.call_soon_threadsafe(lines.put_nowait, "")

    threading.Thread(target=read_lines, daemon=True).start()
    sys.stdout.write(json.dumps({"ready": chasquimq.version()}) + "\n")
    sys.stdout.flush()
    tasks = set()
    while line := await lines.get():
        task = asyncio.create_task(reply_to(line))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    # The native threads of ChasquiMQ may crash the process during a normal exit.
    os._exit(0)


asyncio.run(main())
