"""DAGs that are started by messages, and note what they saw where the test can read it."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher, get_current_context, task

from airflow_provider_chasqui.core.command import redis_command
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.messaging import get_messages, leased_messages, queue_not_empty_asset
from airflow_provider_chasqui.triggers.messages import ChasquiMessageTrigger


def note(key: str, ids: list[str]) -> None:
    """Append to a list on the queue's own server."""
    with ChasquiHook() as hook:
        queue = hook.queue("sys-notes")
        if ids:
            queue.client.execute(
                redis_command("RPUSH", f"{queue.keys.hash_tag}:{key}", *ids, parse=int)
            )


def watched(name: str, match: dict | None) -> Asset:
    trigger = ChasquiMessageTrigger(
        queue_name="sys-messages", filter=match, max_messages=100, max_wait=0.5, flush_after=6.0,
        claim_after=5.0,
    )  # fmt: skip
    return Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])


for kind in ("order", "refund"):
    with DAG(f"on_{kind}", schedule=[watched(f"sys_{kind}", {"name": kind})], catchup=False):

        @task
        def book(kind: str) -> int:
            messages = get_messages(get_current_context())
            note(kind, [message["id"] for message in messages])
            return len(messages)

        book(kind)

BELL = queue_not_empty_asset(
    "sys-bell", lease_ttl=timedelta(seconds=60), interval=timedelta(seconds=3)
)

with DAG("on_bell", schedule=[BELL], catchup=False, max_active_runs=4):

    @task
    def work(messages: list[dict]) -> int:
        if any(message["payload"] == "poison" for message in messages):
            raise ValueError("poison")
        note("bell", [message["id"] for message in messages])
        return len(messages)

    with leased_messages(
        "sys-bell",
        max_messages=100,
        lease_ttl=timedelta(seconds=60),
        max_attempts=3,
        retry_after=timedelta(seconds=1),
    ) as messages:
        work(messages)
