"""An auth manager with finer rights than roles, loaded by the Airflow of the tests."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

RESTRICTED_USER = "tina"
READER = "rita"
FOREIGN_CONNECTION = "spare"
FOREIGN_DAG = "newsletter"


class TeamAuthManager(SimpleAuthManager):
    """The simple auth manager with two more users, as other auth managers allow them.

    The restricted user belongs to another team: it has the role `op`, but no access to one
    connection and to one DAG. The reader may read all connections and edit none.
    """

    def is_authorized_connection(self, *, user: Any, details: Any = None, **options: Any) -> bool:
        if user.get_name() == RESTRICTED_USER and details and details.conn_id == FOREIGN_CONNECTION:
            return False
        if user.get_name() == READER and options["method"] == "GET":
            return True
        return super().is_authorized_connection(user=user, details=details, **options)

    def is_authorized_dag(self, *, user: Any, details: Any = None, **options: Any) -> bool:
        if user.get_name() == RESTRICTED_USER and details and details.id == FOREIGN_DAG:
            return False
        return super().is_authorized_dag(user=user, details=details, **options)
