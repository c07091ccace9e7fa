"""Dead letters and watchers for the tests of the page."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from airflow_provider_chasqui.core.commands import consumer_group
from airflow_provider_chasqui.core.commands.consumer_group import NewDeadLetter
from airflow_provider_chasqui.queue import Queue
from tests.support.plugin_site import PluginSite

_CHUNK = 500
# The DAG processor makes the same rows for a DAG with a watched asset.
_REGISTER_WATCHER = """
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


def add_dead_letters(
    queue: Queue,
    count: int,
    *,
    reason: str = "retries_exhausted",
    job_name: str = "welcome",
    error: str = "ConnectionError: the mail server refused the message",
    payload: Callable[[int], Any] = lambda index: {"n": index},
    failed_at_ms: int | None = None,
    batch_id: str | None = None,
    source: str = "",
) -> None:
    """Add jobs and move them to the DLQ with the commands that a worker uses.

    :param queue: the queue.
    :param count: the number of dead letters.
    :param reason: the reason of each dead letter.
    :param job_name: the name of each job.
    :param error: the error of each dead letter.
    :param payload: returns the payload of the job with an index.
    :param failed_at_ms: the time of death; None for now.
    :param batch_id: the batch of the jobs, at most 500; None for jobs without a batch.
    :param source: the source of the batch.
    """
    group = queue.config.group
    # The group may exist already, which is an error that this call ignores.
    queue.client.pipeline_with_errors([consumer_group.create(queue.keys, group)])
    for start in range(0, count, _CHUNK):
        size = min(_CHUNK, count - start)
        if batch_id is None:
            added = queue.add_many(
                {"payload": payload(start + i), "job_name": job_name} for i in range(size)
            )
            job_ids = [job.job_id for job in added]
        else:
            batch = queue.add_batch(
                [payload(i) for i in range(size)],
                batch_id=batch_id,
                job_name=job_name,
                source=source,
            )
            job_ids = list(batch.job_ids())
        entries = queue.client.execute(
            consumer_group.read(queue.keys, group, "test-worker", size, 0)
        )
        dead_letters = [
            NewDeadLetter(
                entry_id=entry[0].decode(),
                envelope=dict(zip(entry[1][::2], entry[1][1::2], strict=True))[b"d"],
                job_name=job_name,
                reason=reason,
                error=error,
                attempts=3,
                failed_at_ms=failed_at_ms or time.time_ns() // 1_000_000,
                job_id=job_id,
            )
            for entry, job_id in zip(entries, job_ids, strict=True)
        ]
        moved = queue.client.execute(
            consumer_group.move_to_dlq(queue.keys, group, "test-worker", dead_letters)
        )
        assert all(moved), f"{list(moved).count(0)} of {size} jobs were not moved to the DLQ"


def register_watcher(site: PluginSite, queue_name: str) -> None:
    """Register an asset watcher of the queue with Airflow. No triggerer runs it."""
    site.python(_REGISTER_WATCHER.format(queue_name))
