"""Who may do what: readers need the view right, changes the right to edit the connection.

Every change is written to Airflow's audit log before it is done, and its outcome after.
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

# A form or an image of a foreign page cannot send it, and a script there needs our leave first.
CHANGE_HEADER = "X-Chasqui-Change"

UserDep = GetUserDep

require_view = Depends(requires_access_view(AccessView.PLUGINS))
require_dag_read = Depends(requires_access_dag("GET", DagAccessEntity.XCOM))


def _require_change_header(
    request: Request, header_value: Annotated[str | None, Header(alias=CHANGE_HEADER)] = None
) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if header_value != "1" or kind != "application/json":
        raise HTTPException(
            403, f"a change needs the header {CHANGE_HEADER}: 1 and a body of type application/json"
        )


require_edit = [Depends(requires_access_connection("PUT")), Depends(_require_change_header)]


async def editable_connections(user: Any, connection_ids: Iterable[str]) -> set[str]:
    """Return the connections behind which this user may change something."""
    # Some auth managers look into a database for that, which the event loop must not wait for.
    return await run_in_threadpool(_editable_connections, user, tuple(connection_ids))


def _editable_connections(user: Any, connection_ids: tuple[str, ...]) -> set[str]:
    manager = get_auth_manager()
    return {
        each
        for each in connection_ids
        if manager.is_authorized_connection(
            method="PUT", details=ConnectionDetails(conn_id=each), user=user
        )
    }


_MAX_EXTRA_LENGTH = 4_000


class AuditRecord:
    """One change in the audit log."""

    def __init__(self, event: str, user: str, details: Mapping[str, Any]):
        self._event = event
        self._user = user
        self._details = dict(details)
        self._id: int | None = None

    async def begin(self) -> None:
        """Write down what is about to be done; if that fails, nothing may be done."""
        self._id = await run_in_threadpool(self._insert)

    async def finish(self, outcome: Mapping[str, Any]) -> None:
        """Write down what was done."""
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
