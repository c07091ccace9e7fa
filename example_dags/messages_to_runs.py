"""Messages start DAG runs: each window of orders becomes one event, whose run reads its messages.

Try it: `chasqui add orders '{"sku": 7}' --job-name order`
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, Asset, AssetWatcher, get_current_context, task

from airflow_provider_chasqui.messaging import get_messages
from airflow_provider_chasqui.triggers.messages import ChasquiMessageTrigger

QUEUE = "orders"

orders = Asset(
    "orders",
    watchers=[
        AssetWatcher(
            name="orders",
            trigger=ChasquiMessageTrigger(
                queue_name=QUEUE, filter={"name": "order"}, max_messages=200, max_wait=2.0
            ),
        )
    ],
)

with DAG("messages_to_runs", schedule=[orders], catchup=False, tags=["chasqui"]):

    @task(retries=2, retry_delay=timedelta(seconds=10))
    def book() -> list[str]:
        messages = get_messages(get_current_context())
        for message in messages:
            print("booking", message["id"], message["payload"])
        return [message["id"] for message in messages]

    book()
