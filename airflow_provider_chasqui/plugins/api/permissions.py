"""Permission checks and the audit log.

Reading requires permission to view plugins. A change requires permission to edit the connection.
Every change is written to Airflow's audit log before it is made, and its result afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import (
    AccessView,
    ConnectionDetails,
    DagAccessEntity,
)
from airflow.api_fastapi.core_api.security import (
    GetUserDep,
    requires_access_connection,
    requires_access_dag,
    requires_access_view,
)
from airflow.models.log import Log
from airflow.utils.session import create_session
from fastapi import Depends, Header, HTTPException, Request
from starlette.concurrency import run_in_threadpool

# Protection against cross-site request forgery: a form or an image on another site cannot send this
# header, and a script there would need permission by CORS first.
CHANGE_HEADER = "X-Chasqui-Change"

_MAX_EXTRA_LENGTH = 4_000

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


require_edit = [Depends(requires_access_connection("PUT")), Depends(_require_change_header)]


async def editable_connections(user: Any, connection_ids: Iterable[str]) -> set[str]:
    """Return the connections that the user may edit.

    :param user: the user of the request.
    :param connection_ids: the connections to check.
    """
    # Some auth managers query a database for this, which must not block the event loop.
    return await run_in_threadpool(_editable_connections, user, tuple(connection_ids))


def _editable_connections(user: Any, connection_ids: tuple[str, ...]) -> set[str]:
    manager = get_auth_manager()
    return {
        connection_id
        for connection_id in connection_ids
        if manager.is_authorized_connection(
            method="PUT", details=ConnectionDetails(conn_id=connection_id), user=user
        )
    }


class AuditRecord:
    """One change in Airflow's audit log.

    :param event: the name of the event.
    :param user: the name of the user.
    :param details: what is changed.
    """

    def __init__(self, event: str, user: str, details: Mapping[str, Any]):
        self._event = event
        self._user = user
        self._details = dict(details)
        self._id: int | None = None

    async def begin(self) -> None:
        """Record the planned change. If this fails, the change must not be made."""
        self._id = await run_in_threadpool(self._insert)

    async def finish(self, outcome: Mapping[str, Any]) -> None:
        """Record the result of the change.

        :param outcome: the result, or the error.
        """
        self._details["outcome"] = dict(outcome)
        await run_in_threadpool(self._update)

    @property
    def _extra(self) -> str:
        return json.dumps(self._details, default=str)[:_MAX_EXTRA_LENGTH]

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
