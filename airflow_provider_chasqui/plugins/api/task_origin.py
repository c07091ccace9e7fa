"""The link between jobs and the Airflow task instances that enqueued them.

A batch names its task in its `source` field. For single jobs the link that the operator stores in
XCom is used.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_chasqui.links.job import LINK_XCOM_KEY

_SOURCE_PREFIX = "airflow:"
# A job with an explicit id does not carry its task, so only the newest links are searched.
_MAX_LINKS = 2_000
_MAX_SENT_LINKS = 50


@dataclass(frozen=True, slots=True)
class TaskOrigin:
    """A task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


def batch_origin(batch_id: str, source: str) -> dict[str, Any] | None:
    """Return the task instance that a batch names as its source, or None.

    :param batch_id: the id of the batch; it contains the map index of a mapped task.
    :param source: the `source` field of the batch.
    """
    parts = source.removeprefix(_SOURCE_PREFIX).split("/")
    if not source.startswith(_SOURCE_PREFIX) or len(parts) != 3 or not all(parts):
        return None
    # The operator puts the map index before the hash at the end of the batch id.
    id_parts = batch_id.split("~")
    mapped = len(id_parts) == 5 and id_parts[3].isdecimal()
    dag_id, run_id, task_id = parts
    return asdict(TaskOrigin(dag_id, run_id, task_id, int(id_parts[3]) if mapped else -1))


def job_origin(connection_id: str, queue_name: str, job_id: str) -> dict[str, Any] | None:
    """Return the task instance whose link points to this job, or None.

    This function reads the database and blocks.

    :param connection_id: the id of the Airflow connection.
    :param queue_name: the name of the queue.
    :param job_id: the id of the job.
    """
    wanted = (connection_id, queue_name, job_id)
    columns = (XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.map_index)
    with create_session() as session:
        query = (
            select(*columns, XComModel.value)
            .where(XComModel.key == LINK_XCOM_KEY)
            .order_by(XComModel.dag_run_id.desc())
            .limit(_MAX_LINKS)
        )
        for *task, value in session.execute(query):
            params = _link_params(value)
            if (params.get("conn"), params.get("queue"), params.get("job")) == wanted:
                return asdict(TaskOrigin(*task))
    return None


def sent_links(
    dag_id: str, run_id: str | None = None, task_id: str | None = None, map_index: int | None = None
) -> list[dict[str, Any]]:
    """Return what the tasks of a DAG enqueued, newest run first.

    This function reads the database and blocks.

    :param dag_id: the id of the DAG.
    :param run_id: the id of a run; None for all runs.
    :param task_id: the id of a task; None for all tasks.
    :param map_index: the map index of the task instance; None for all.
    """
    conditions = [XComModel.key == LINK_XCOM_KEY, XComModel.dag_id == dag_id]
    if run_id is not None:
        conditions.append(XComModel.run_id == run_id)
    if task_id is not None:
        conditions.append(XComModel.task_id == task_id)
    if map_index is not None:
        conditions.append(XComModel.map_index == map_index)
    with create_session() as session:
        query = (
            select(XComModel)
            .where(*conditions)
            .order_by(XComModel.dag_run_id.desc(), XComModel.timestamp.desc())
            .limit(_MAX_SENT_LINKS)
        )
        rows = session.scalars(query).unique().all()
        return [link for row in rows if (link := _parse_link(row)) is not None]


def _link_params(value: Any) -> dict[str, str]:
    """Return the query parameters of a stored link.

    The value is not deserialized, because a task chooses it and Airflow's decoder makes objects.

    :param value: the stored value: a text, or the text as JSON.
    """
    if isinstance(value, str) and value.startswith('"'):
        with suppress(ValueError):
            value = json.loads(value)
    return dict(parse_qsl(urlsplit(value).query)) if isinstance(value, str) else {}


def _parse_link(row: XComModel) -> dict[str, Any] | None:
    params = _link_params(row.value)
    if not params.get("conn") or not params.get("queue"):
        return None
    return {
        **asdict(TaskOrigin(row.dag_id, row.run_id, row.task_id, row.map_index)),
        "sent_at": int(row.timestamp.timestamp() * 1000),
        "connection": params["conn"],
        "queue": params["queue"],
        "job_id": params.get("job"),
        "batch_id": params.get("batch"),
    }
