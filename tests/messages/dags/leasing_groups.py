"""DAGs of the leasing tests with groups, repeated task ids and several uses of one queue."""

from __future__ import annotations

import os
from datetime import timedelta

from airflow.sdk import DAG, TaskGroup, task, task_group

from airflow_provider_chasqui.messaging import leased_messages

QUEUE = os.environ.get("LEASING_QUEUE", "leasing")
OPTIONS = {"max_messages": 10, "max_attempts": 5, "retry_after": timedelta(minutes=5)}


@task
def succeed(messages: list[dict]) -> None:
    pass


@task
def fail(messages: list[dict]) -> None:
    raise ValueError("this task always fails")


@task
def load(messages: list[dict], target: str) -> None:
    if target == "warehouse":
        raise ValueError("the warehouse is not available")


@task
def load_one(message: dict) -> None:
    if message["payload"] == "fail":
        raise ValueError("the payload is fail")


with DAG("leasing_nested_group", schedule=None), leased_messages(QUEUE, **OPTIONS) as messages:
    succeed(messages)
    with TaskGroup("store"), TaskGroup("warehouse"):
        fail(messages)

with DAG("leasing_repeated_task", schedule=None), leased_messages(QUEUE, **OPTIONS) as messages:
    load(messages, "lake")
    load(messages, "warehouse")

with DAG("leasing_other_mapping", schedule=None), leased_messages(QUEUE, **OPTIONS) as messages:
    load.partial(messages=messages).expand(target=["lake", "warehouse"])

with DAG("leasing_mapped_group", schedule=None), leased_messages(QUEUE, **OPTIONS) as messages:

    @task_group
    def process(message: dict) -> None:
        load_one(message)

    process.expand(message=messages)

with DAG("leasing_cross_product", schedule=None), leased_messages(QUEUE, **OPTIONS) as messages:

    @task
    def load_region(message: dict, region: str) -> None:
        if message["payload"] == "fail" and region == "south":
            raise ValueError("the payload is fail")

    load_region.expand(message=messages, region=["north", "south"])

with DAG("leasing_teardown", schedule=None), leased_messages(QUEUE, **OPTIONS) as messages:

    @task
    def open_warehouse() -> None:
        pass

    @task
    def close_warehouse() -> None:
        raise ValueError("the warehouse cannot be closed")

    start, end = open_warehouse(), close_warehouse()
    start >> succeed(messages) >> end.as_teardown(setups=start)

with DAG("leasing_twice", schedule=None):
    with leased_messages(QUEUE, **OPTIONS | {"max_messages": 1}) as first_messages:
        succeed(first_messages)
    with leased_messages(QUEUE, **OPTIONS | {"max_messages": 1}) as second_messages:
        fail(second_messages)

with DAG("leasing_any_name", schedule=None), leased_messages(f"{QUEUE}/ä b", **OPTIONS) as messages:
    succeed(messages)

with DAG("leasing_named_group", schedule=None):
    named = leased_messages(
        QUEUE, lease_ttl="2h", retry_after=300, group_id="orders", task_arguments={"retries": 3}
    )
    with named as messages:
        succeed(messages)
