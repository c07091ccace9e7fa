"""Permission checks and the audit log.

Reading requires permission to view plugins and to read the connection. Payloads, results, errors
and the origin of a job also require permission to read the DAG that it came from, if that is known.
A change requires permission to edit the connection. The team of a connection or DAG counts. Every
change is written to Airflow's audit log before it is made, and its result afterwards.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Self

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import ResourceMethod
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    ConnectionDetails,
    DagAccessEntity,
    DagDetails,
)
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_connection,
    requires_access_dag,
    requires_access_view,
)
from airflow.configuration import conf
from airflow.models.connection import Connection
from airflow.models.dag import DagModel
from airflow.models.log import Log
from airflow.utils.session import create_session
from fastapi import Depends, Header, HTTPException, Request
from starlette.concurrency import run_in_threadpool

from airflow_provider_chasqui.plugins.api.settings import Settings

# Protection against cross-site request forgery: a form or an image on another site cannot send this
# header, and a script there would need permission by CORS first.
CHANGE_HEADER = "X-Chasqui-Change"

# Of one value in the audit log, as JSON.
_MAX_VALUE_LENGTH = 1_000

UserDep = GetUserDep

require_view = Depends(requires_access_view(AccessView.PLUGINS))
require_dag_read = Depends(requires_access_dag("GET", DagAccessEntity.XCOM))


def _require_change_header(
    request: Request, header_value: Annotated[str | None, Header(alias=CHANGE_HEADER)] = None
) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if header_value != "1" or content_type != "application/json":
        raise HTTPException(
            403,
            f"A change requires the header {CHANGE_HEADER}: 1 and a body of type application/json.",
        )


require_connection_read = Depends(requires_access_connection("GET"))
require_edit = [Depends(requires_access_connection("PUT")), Depends(_require_change_header)]


async def readable_connections(user: Any, connection_ids: Iterable[str]) -> set[str]:
    """Return the connections that the user may read.

    :param user: the user of the request.
    :param connection_ids: the connections to check.
    """
    return await run_in_threadpool(_authorized_connections, "GET", user, tuple(connection_ids))


async def editable_connections(user: Any, connection_ids: Iterable[str]) -> set[str]:
    """Return the connections that the user may edit.

    :param user: the user of the request.
    :param connection_ids: the connections to check.
    """
    return await run_in_threadpool(_authorized_connections, "PUT", user, tuple(connection_ids))


# Some auth managers query a database for the following, which must not block the event loop.
def _authorized_connections(
    method: ResourceMethod, user: Any, connection_ids: tuple[str, ...]
) -> set[str]:
    manager, multi_team = get_auth_manager(), conf.getboolean("core", "multi_team")
    return {
        connection_id
        for connection_id in connection_ids
        if manager.is_authorized_connection(
            method=method,
            details=ConnectionDetails(
                conn_id=connection_id,
                team_name=Connection.get_team_name(connection_id) if multi_team else None,
            ),
            user=user,
        )
    }


async def readable_dags(user: Any, dag_ids: Iterable[str]) -> set[str]:
    """Return the DAGs whose XCom values the user may read.

    :param user: the user of the request.
    :param dag_ids: the DAGs to check.
    """
    return await run_in_threadpool(_readable_dags, user, frozenset(dag_ids))


def _readable_dags(user: Any, dag_ids: frozenset[str]) -> set[str]:
    manager, multi_team = get_auth_manager(), conf.getboolean("core", "multi_team")
    return {
        dag_id
        for dag_id in dag_ids
        if manager.is_authorized_dag(
            method="GET",
            access_entity=DagAccessEntity.XCOM,
            details=DagDetails(
                id=dag_id, team_name=DagModel.get_team_name(dag_id) if multi_team else None
            ),
            user=user,
        )
    }


async def visible_settings(user: Any, connection_id: str, settings: Settings) -> Settings:
    """Return the settings with `hide_payloads` set if this user may not see payloads.

    :param user: the user of the request.
    :param connection_id: the connection.
    :param settings: the settings of the page.
    """
    visible = settings.payloads == "readers" or (
        settings.payloads == "editors" and bool(await editable_connections(user, [connection_id]))
    )
    return replace(settings, hide_payloads=not visible)


def _summarize(value: Any) -> Any:
    """Return a value as it is, or its size, hash and beginning if it is long."""
    text = json.dumps(value, default=str)
    if len(text) <= _MAX_VALUE_LENGTH:
        return json.loads(text)
    summary: dict[str, Any] = {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "start": text[: _MAX_VALUE_LENGTH // 2],
    }
    if isinstance(value, list | tuple):
        summary["count"] = len(value)
    return summary


class AuditRecord:
    """One change in Airflow's audit log, used as a context around the change.

    The change is recorded before it is made; if that fails, it must not be made. Its outcome or its
    error is recorded afterwards.

    :param event: the name of the event.
    :param user: the name of the user.
    :param details: what is changed.
    """

    def __init__(self, event: str, user: str, details: Mapping[str, Any]):
        self._event = event
        self._user = user
        self._details = dict(details)
        self._id: int | None = None
        self.outcome: Mapping[str, Any] = {"result": "done"}

    async def __aenter__(self) -> Self:
        self._id = await run_in_threadpool(self._insert)
        return self

    async def __aexit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._details["outcome"] = dict(self.outcome) if error is None else {"error": str(error)}
        await run_in_threadpool(self._update)

    @property
    def _extra(self) -> str:
        """The details as JSON. Long values are replaced by a summary, so that it stays valid."""
        return json.dumps({key: _summarize(value) for key, value in self._details.items()})

    def _insert(self) -> int:
        with create_session() as session:
            row = Log(
                event=self._event,
                owner=self._user,
                owner_display_name=self._user,
                extra=self._extra,
            )
            session.add(row)
            session.flush()
            return row.id

    def _update(self) -> None:
        with create_session() as session:
            row = session.get(Log, self._id)
            if row is not None:
                row.extra = self._extra
