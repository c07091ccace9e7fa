"""Which task of which DAG run sent a job: what a batch says of itself, and what XCom remembers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from sqlalchemy import select

from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, build_page_url

_SOURCE_PREFIX = "airflow:"
# An id given by hand stands nowhere on the wire with its task, so the latest links are looked at.
_MAX_LINKS = 2_000


@dataclass(frozen=True, slots=True)
class TaskOrigin:
    """A task instance."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1


def batch_origin(batch_id: str, source: str) -> dict[str, Any] | None:
    """Return the task instance that a batch names as its source, or None."""
    parts = source.removeprefix(_SOURCE_PREFIX).split("/")
    if not source.startswith(_SOURCE_PREFIX) or len(parts) != 3 or not all(parts):
        return None
    # The operator puts the map index before the hash at the end of the batch id.
    words = batch_id.split("~")
    mapped = len(words) == 5 and words[3].isdecimal()
    dag_id, run_id, task_id = parts
    return asdict(TaskOrigin(dag_id, run_id, task_id, int(words[3]) if mapped else -1))


def job_origin(connection_id: str, queue_name: str, job_id: str) -> dict[str, Any] | None:
    """Return the task instance whose link leads to this job, or None. Blocking."""
    wanted = build_page_url(connection_id, queue_name, job=job_id)
    columns = (XComModel.dag_id, XComModel.run_id, XComModel.task_id, XComModel.map_index)
    with create_session() as session:
        query = (
            select(*columns, XComModel.value)
            .where(XComModel.key == LINK_XCOM_KEY)
            .order_by(XComModel.dag_run_id.desc())
            .limit(_MAX_LINKS)
        )
        for *place, value in session.execute(query):
            if wanted in str(value):
                return asdict(TaskOrigin(*place))
    return None


def sent_links(
    dag_id: str, run_id: str | None = None, task_id: str | None = None, map_index: int | None = None
) -> list[dict[str, Any]]:
    """Return what the tasks of a DAG have sent, newest run first. Blocking."""
    chosen = [XComModel.key == LINK_XCOM_KEY, XComModel.dag_id == dag_id]
    if run_id is not None:
        chosen.append(XComModel.run_id == run_id)
    if task_id is not None:
        chosen.append(XComModel.task_id == task_id)
    if map_index is not None:
        chosen.append(XComModel.map_index == map_index)
    with create_session() as session:
        query = (
            select(XComModel)
            .where(*chosen)
            .order_by(XComModel.dag_run_id.desc(), XComModel.timestamp.desc())
            .limit(50)
        )
        rows = session.scalars(query).unique().all()
        return [link for row in rows if (link := _parse_link(row)) is not None]


def _parse_link(row: XComModel) -> dict[str, Any] | None:
    value = XComModel.deserialize_value(row)
    if not isinstance(value, str):
        return None
    place = dict(parse_qsl(urlsplit(value).query))
    if not place.get("conn") or not place.get("queue"):
        return None
    return {
        **asdict(TaskOrigin(row.dag_id, row.run_id, row.task_id, row.map_index)),
        "sent_at": int(row.timestamp.timestamp() * 1000),
        "connection": place["conn"],
        "queue": place["queue"],
        "job": place.get("job"),
        "batch": place.get("batch"),
    }
