"""A stock ChasquiMQ worker: every payload it has run goes out as a JSON line."""

import asyncio
import json
import sys

from chasquimq import Worker

url, queue, idle_ms = sys.argv[1:4]


async def handle(job):
    sys.stdout.write(json.dumps({"ran": job.data, "id": job.id}) + "\n")
    sys.stdout.flush()


async def main():
    worker = Worker(
        queue,
        handle,
        redis_url=url,
        concurrency=4,
        claim_min_idle_ms=int(idle_ms),
        read_block_ms=50,
    )
    task = asyncio.create_task(worker.run())
    sys.stdout.write('"up"\n')
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await worker.close()
    await task
    sys.stdout.write('"down"\n')


asyncio.run(main())
