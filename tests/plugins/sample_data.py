"""Things that happen on a queue, for tests of the page to look at."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.commands.consumer_group import NewDeadLetter
from airflow_provider_chasqui.queue import Queue
from tests.support.plugin_site import PageSite

_CHUNK = 500
# What the DAG processor does for a DAG with a watched asset.
_REGISTER = """
from airflow.models.asset import AssetModel, AssetWatcherModel
from airflow.models.trigger import Trigger
from airflow.utils.session import create_session
from airflow_provider_chasqui.triggers.messages import ChasquiMessageTrigger
with create_session() as session:
    trigger = Trigger.from_object(ChasquiMessageTrigger(queue_name={0!r}, chasqui_conn_id="native"))
    asset = AssetModel(name={0!r}, uri="chasqui://native/" + {0!r})
    session.add_all([trigger, asset])
    session.flush()
    session.add(AssetWatcherModel(name={0!r}, asset_id=asset.id, trigger_id=trigger.id))
print("null")
"""


def bury(
    queue: Queue,
    jobs: int,
    *,
    reason: str = "retries_exhausted",
    name: str = "welcome",
    error: str = "ConnectionError: the mail server said no",
    payload: Callable[[int], Any] = lambda index: {"n": index},
    failed_at_ms: int | None = None,
) -> None:
    """Add jobs and let each of them die, by the operations that a worker uses."""
    group = queue.config.group
    queue.client.pipeline_with_errors(
        [consumer_group.create(queue.keys, group)]
    )  # it may be there already
    for start in range(0, jobs, _CHUNK):
        size = min(_CHUNK, jobs - start)
        added = queue.add_many(
            {"payload": payload(start + i), "job_name": name} for i in range(size)
        )
        raw = queue.client.execute(
            consumer_group.read(queue.keys, group, "undertaker", size, 0, 60_000)
        )
        burials = [
            NewDeadLetter(
                entry_id=each[0].decode(),
                envelope=dict(zip(each[1][::2], each[1][1::2], strict=True))[b"d"],
                job_name=name,
                reason=reason,
                error=error,
                attempts=3,
                failed_at_ms=failed_at_ms or time.time_ns() // 1_000_000,
                job_id=job.job_id,
            )
            for each, job in zip(raw, added, strict=True)
        ]
        assert all(queue.client.execute(consumer_group.move_to_dlq(queue.keys, group, burials)))


def watch(site: PageSite, queue_name: str) -> None:
    """Register a watcher of the queue with Airflow; no triggerer runs it."""
    site.python(_REGISTER.format(queue_name))
