"""A run leases messages and acks them at its end: messages of a failed run are delivered again.

Try it: `chasqui add parcels '{"weight": 3}'`
"""

from __future__ import annotations

from airflow.sdk import DAG, task

from airflow_provider_chasqui.messaging import leased_messages, queue_not_empty_asset

QUEUE = "parcels"

with DAG("lease_orders", schedule=[queue_not_empty_asset(QUEUE)], catchup=False, tags=["chasqui"]):

    @task
    def weigh(messages: list[dict]) -> int:
        weights = [message["payload"]["weight"] for message in messages]
        print("weighed", len(weights), "parcels")
        return sum(weights)

    with leased_messages(QUEUE, max_messages=200) as messages:
        weigh(messages)
