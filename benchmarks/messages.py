"""From a message to the asset event in Airflow's database, and what idle watchers cost Redis.

    .venv/bin/python -m benchmarks.messages

Starts a whole Airflow 3.3 and a Redis of its own; takes about three minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from datetime import datetime
from pathlib import Path

from airflow_provider_chasqui.core.command import as_raw, redis_command
from airflow_provider_chasqui.queue import Queue
from tests.support.local_airflow import AirflowSite, until
from tests.support.servers import RedisServer
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
    for kind, asset in (("message", watched(f"idle-{{n}}")), ("bell", queue_not_empty_asset(f"bell-{{n}}"))):
        with DAG(f"on_{{kind}}_{{n}}", schedule=[asset], catchup=False) as dag:
            @task
            def nothing():
                pass
            nothing()
        globals()[dag.dag_id] = dag
"""


def calls(queue: Queue) -> int:
    """How many commands the server has run, ours of asking included."""
    info = queue.client.execute(redis_command("INFO", "commandstats", parse=as_raw)).decode()
    lines = [line for line in info.splitlines() if line.startswith("cmdstat_")]
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines)


def stored(site: AirflowSite, after: str) -> dict[str, float]:
    """When the events of messages were stored, by message id, in seconds since the epoch."""
    found = site.api("GET", f"assets/events?limit=100&order_by=-timestamp&timestamp_gte={after}")
    times = {}
    for event in found["asset_events"]:
        at = datetime.fromisoformat(event["timestamp"]).timestamp()
        for message in (event["extra"].get("payload") or {}).get("messages", ()):
            times[message["id"]] = at
    return times


def latencies(site: AirflowSite, url: str) -> list[float]:
    """Seconds from before the add to the time of the stored event, one message at a time."""
    waits = []
    with Queue("idle-0", url) as queue:
        for number in range(MESSAGES):
            began = datetime.now().astimezone()
            queue.add(number, job_id=f"m-{number}")
            since = began.isoformat().replace("+", "%2B")
            at = until(lambda: stored(site, since).get(f"m-{number}"), 60, "the event", every=0.2)  # noqa: B023
            waits.append(at - began.timestamp())
    return waits


def idle_cost(url: str) -> float:
    """Commands a second of all watchers, while nothing happens."""
    with Queue("idle-0", url) as queue:
        before = calls(queue)
        time.sleep(IDLE_S)
        return (calls(queue) - before - 1) / IDLE_S


def main() -> None:
    binary = find(REDIS8)
    assert binary is not None, "no Redis 8.6: run make servers"
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
            waits = sorted(latencies(site, server.url))
            cost = idle_cost(server.url)
        finally:
            site.close()
    print(
        f"message to stored event: p50 {statistics.median(waits):.2f} s, "
        f"p90 {waits[int(len(waits) * 0.9)]:.2f} s, of {len(waits)}; "
        f"{2 * WATCHED} idle watchers ({WATCHED} of each mode): {cost:.1f} commands/s, "
        f"{cost / (2 * WATCHED):.1f} each; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
