"""Latency from a message to its asset event in Airflow, and the load of idle watchers on Redis.

    .venv/bin/python -m benchmarks.messages

Starts Airflow and a Redis server. Takes about three minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from datetime import datetime
from functools import partial
from pathlib import Path

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.queue import Queue
from tests.support.local_airflow import AirflowSite
from tests.support.servers import RedisServer
from tests.support.waiting import until
from tools.redis_server import REDIS8, find

MESSAGES = 40
IDLE_S = 30.0
WATCHED = 5

DAGS = f"""
from airflow.sdk import DAG, Asset, AssetWatcher, task
from airflow_provider_chasqui.messaging import queue_not_empty_asset
from airflow_provider_chasqui.triggers.messages import ChasquiMessageTrigger

def watched(queue):
    trigger = ChasquiMessageTrigger(queue_name=queue, max_wait=0.0)
    return Asset(queue, watchers=[AssetWatcher(name=queue, trigger=trigger)])

for n in range({WATCHED}):
    assets = {{
        "message": watched(f"idle-{{n}}"),
        "not_empty": queue_not_empty_asset(f"not-empty-{{n}}"),
    }}
    for kind, asset in assets.items():
        with DAG(f"on_{{kind}}_{{n}}", schedule=[asset], catchup=False) as dag:
            @task
            def nothing():
                pass
            nothing()
        globals()[dag.dag_id] = dag
"""


def commands_processed(queue: Queue) -> int:
    """Return the number of commands that the server has processed, including this one."""
    info = queue.client.execute(redis_command("INFO", "commandstats", parse=as_raw)).decode()
    lines = [line for line in info.splitlines() if line.startswith("cmdstat_")]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines)


def stored_times(site: AirflowSite, after: str) -> dict[str, float]:
    """Return the time at which each message's event was stored, in seconds, by message id."""
    reply = site.api("GET", f"assets/events?limit=100&order_by=-timestamp&timestamp_gte={after}")
    times = {}
    for event in reply["asset_events"]:
        stored_at = datetime.fromisoformat(event["timestamp"]).timestamp()
        for message in (event["extra"].get("payload") or {}).get("messages", ()):
            times[message["id"]] = stored_at
    return times


def _stored_time(site: AirflowSite, since: str, message_id: str) -> float | None:
    return stored_times(site, since).get(message_id)


def latencies(site: AirflowSite, url: str) -> list[float]:
    """Return the seconds from the add to the stored event, for one message at a time."""
    seconds = []
    with Queue("idle-0", url) as queue:
        for number in range(MESSAGES):
            started = datetime.now().astimezone()
            queue.add(number, job_id=f"m-{number}")
            since = started.isoformat().replace("+", "%2B")
            find_event = partial(_stored_time, site, since, f"m-{number}")
            stored_at = until(find_event, 60, "the event", every=0.2)
            seconds.append(stored_at - started.timestamp())
    return seconds


def idle_cost(url: str) -> float:
    """Return the commands per second of all watchers while no message arrives."""
    with Queue("idle-0", url) as queue:
        before = commands_processed(queue)
        time.sleep(IDLE_S)
        return (commands_processed(queue) - before - 1) / IDLE_S


def main() -> None:
    binary = find(REDIS8)
    assert binary is not None, "Redis 8.6 was not found; run `make servers`"
    with RedisServer.start(binary) as server, tempfile.TemporaryDirectory() as folder:
        Path(folder, "watched.py").write_text(DAGS)
        host, _, port = server.url.removeprefix("redis://").removesuffix("/0").rpartition(":")
        connection = {"conn_type": "chasqui", "host": host, "port": int(port)}
        env = {"AIRFLOW_CONN_CHASQUI_DEFAULT": json.dumps(connection)}
        site = AirflowSite(Path(folder), env)
        try:
            site.start()
            with Queue("idle-0", server.url) as queue:
                until(queue.consumers, 120, "the first watcher")
            seconds = sorted(latencies(site, server.url))
            cost = idle_cost(server.url)
        finally:
            site.close()
    print(
        f"message to stored event: p50 {statistics.median(seconds):.2f} s, "
        f"p90 {seconds[int(len(seconds) * 0.9)]:.2f} s, of {len(seconds)}; "
        f"{2 * WATCHED} idle watchers ({WATCHED} of each mode): {cost:.1f} commands/s, "
        f"{cost / (2 * WATCHED):.1f} each; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
