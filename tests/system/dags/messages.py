"""DAGs that are started by messages and record the message ids in Redis lists."""

from __future__ import annotations

import time
from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher, get_current_context, task

from airflow_provider_chasqui.core.command import redis_command
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.messaging import get_messages, leased_messages, queue_not_empty_asset
from airflow_provider_chasqui.triggers.messages import ChasquiMessageTrigger


def record(key: str, ids: list[str]) -> None:
    """Append message ids to a list."""
    with ChasquiHook() as hook:
        queue = hook.queue("sys-records")
        if ids:
            queue.client.execute(
                redis_command("RPUSH", f"{queue.keys.hash_tag}:{key}", *ids, parse=int)
            )


def watched_asset(name: str, message_filter: dict) -> Asset:
    trigger = ChasquiMessageTrigger(
        queue_name="sys-messages",
        filter=message_filter,
        max_messages=100,
        max_wait=0.5,
        flush_after=6.0,
        claim_after=5.0,
    )
    return Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])


for kind in ("order", "refund"):
    asset = watched_asset(f"sys_{kind}", {"name": kind})
    with DAG(f"on_{kind}", schedule=[asset], catchup=False):

        @task
        def book(kind: str) -> int:
            messages = get_messages(get_current_context())
            record(kind, [message["id"] for message in messages])
            return len(messages)

        book(kind)

QUEUE_NOT_EMPTY = queue_not_empty_asset(
    "sys-leases", lease_ttl=timedelta(seconds=60), interval=timedelta(seconds=3)
)

with DAG("on_queue_not_empty", schedule=[QUEUE_NOT_EMPTY], catchup=False, max_active_runs=4):

    @task
    def work(messages: list[dict]) -> int:
        if any(message["payload"] == "poison" for message in messages):
            raise ValueError("poison")
        record("leased", [message["id"] for message in messages])
        return len(messages)

    with leased_messages(
        "sys-leases",
        max_messages=100,
        lease_ttl=timedelta(seconds=60),
        max_attempts=3,
        retry_after=timedelta(seconds=1),
    ) as messages:
        work(messages)

# Shorter than the task, so that a second run would lease the messages if no lease was renewed.
SHORT_LEASE_TTL = timedelta(seconds=8)
SLOW_QUEUE_NOT_EMPTY = queue_not_empty_asset(
    "sys-slow-leases", lease_ttl=SHORT_LEASE_TTL, interval=timedelta(seconds=2)
)

with DAG("on_slow_queue", schedule=[SLOW_QUEUE_NOT_EMPTY], catchup=False, max_active_runs=4):

    @task
    def work_slowly(messages: list[dict]) -> None:
        record("slow", [message["id"] for message in messages])
        time.sleep(max(message["payload"]["seconds"] for message in messages))

    with leased_messages("sys-slow-leases", lease_ttl=SHORT_LEASE_TTL) as messages:
        work_slowly(messages)
