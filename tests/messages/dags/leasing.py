"""DAGs of the leasing tests. A message with the payload `fail` makes its task fail."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, task

from airflow_provider_chasqui.messaging import leased_messages

with DAG("leasing", schedule=None):

    @task
    def handle(messages: list[dict]) -> list:
        for message in messages:
            if message["payload"] == "fail":
                raise ValueError("the payload is fail")
        return [message["payload"] for message in messages]

    queue_name = os.environ.get("LEASING_QUEUE", "leasing")
    with leased_messages(
        queue_name, max_messages=10, max_attempts=2, retry_after=timedelta(milliseconds=50)
    ) as messages:
        handle(messages)

with DAG("leasing_mapped", schedule=None):

    @task
    def handle_one(message: dict) -> str:
        if message["payload"] == "fail":
            raise ValueError("the payload is fail")
        return message["payload"]

    with leased_messages(
        queue_name, max_messages=10, max_attempts=2, retry_after=timedelta(milliseconds=50)
    ) as messages:
        handle_one.expand(message=messages)
