"""DAGs that are started by messages, and note what they saw where the test can read it."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher, get_current_context, task

from airflow_provider_chasqui.core.op import command
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.messages import doorbell, leased_messages, messages_of
from airflow_provider_chasqui.triggers.messages import ChasquiMessageTrigger


def note(key: str, ids: list[str]) -> None:
    """Append to a list on the queue's own server."""
    with ChasquiHook() as hook:
        queue = hook.queue("sys-notes")
        if ids:
            queue.drive.run(command("RPUSH", f"{queue.keys.tag}:{key}", *ids, parse=int))


def watched(name: str, match: dict | None) -> Asset:
    trigger = ChasquiMessageTrigger(
        queue_name="sys-messages", match=match, max_batch=100, max_wait=0.5, sweep_after=6.0,
        claim_idle=5.0,
    )  # fmt: skip
    return Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])


for kind in ("order", "refund"):
    with DAG(f"on_{kind}", schedule=[watched(f"sys_{kind}", {"name": kind})], catchup=False):

        @task
        def book(kind: str) -> int:
            messages = messages_of(get_current_context())
            note(kind, [message["id"] for message in messages])
            return len(messages)

        book(kind)

BELL = doorbell("sys-bell", lease=timedelta(seconds=60), ring_every=timedelta(seconds=3))

with DAG("on_bell", schedule=[BELL], catchup=False, max_active_runs=4):

    @task
    def work(messages: list[dict]) -> int:
        if any(message["payload"] == "poison" for message in messages):
            raise ValueError("poison")
        note("bell", [message["id"] for message in messages])
        return len(messages)

    with leased_messages(
        "sys-bell",
        max_batch=100,
        lease=timedelta(seconds=60),
        max_attempts=3,
        retry_after=timedelta(seconds=1),
    ) as messages:
        work(messages)
