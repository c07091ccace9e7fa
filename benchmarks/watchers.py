"""What a watcher costs while nothing happens, and how soon it has a message.

.venv/bin/python -m benchmarks.watchers
"""

from __future__ import annotations

import asyncio
import statistics
import time

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.queue_async import AsyncQueue
from airflow_provider_chasqui.triggers._message_consumer import MessageConsumer
from tests.support.servers import RedisServer
from tools.redis_server import REDIS8, find

IDLE_S = 20.0
MESSAGES = 300


async def commands(queue: AsyncQueue) -> int:
    """How many commands the server has run, ours of asking included."""
    info = await queue.client.execute(redis_command("INFO", "commandstats", parse=as_raw))
    lines = [line for line in info.decode().splitlines() if line.startswith("cmdstat_")]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines)


async def measure(url: str, dialect: str) -> None:
    async with AsyncQueue("bench-watchers", url, dialect=dialect) as queue:
        inbox = MessageConsumer(queue, ConsumerConfig(), max_in_flight=1000)
        await inbox.read_window(1, 0, 1.0)
        before = await commands(queue)
        await inbox.read_window(1, 0, IDLE_S)
        idle = (await commands(queue) - before - 1) / IDLE_S
        waits = []
        for number in range(MESSAGES):
            began = time.perf_counter()
            await queue.add(number)
            (message,) = await inbox.read_window(1, 0, 10)
            waits.append((time.perf_counter() - began) * 1000)
            message.ack()
            await asyncio.sleep(0.01)
        await inbox.close()
    waits.sort()
    print(
        f"{dialect:9} idle {idle:5.1f} commands/s   add to window p50 "
        f"{statistics.median(waits):5.2f} ms, p99 {waits[int(len(waits) * 0.99)]:5.2f} ms"
    )


def main() -> None:
    binary = find(REDIS8)
    assert binary is not None, "no Redis 8.6: run make servers"
    for dialect in ("native", "portable"):
        with RedisServer.start(binary) as server:
            asyncio.run(measure(server.url, dialect))


if __name__ == "__main__":
    main()
