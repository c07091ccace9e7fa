"""Every change is written to Airflow's audit log before it is done, and its outcome after."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow.models.log import Log
from airflow.utils.session import create_session
from starlette.concurrency import run_in_threadpool

_LONGEST = 4_000


class Audit:
    """One change in the audit log."""

    def __init__(self, event: str, user: str, about: Mapping[str, Any]):
        self._event = event
        self._user = user
        self._about = dict(about)
        self._id: int | None = None

    async def begin(self) -> None:
        """Write down what is about to be done; if that fails, nothing may be done."""
        self._id = await run_in_threadpool(self._insert)

    async def end(self, outcome: Mapping[str, Any]) -> None:
        """Write down what was done."""
        self._about["outcome"] = dict(outcome)
        await run_in_threadpool(self._update)

    @property
    def _extra(self) -> str:
        return json.dumps(self._about, default=str)[:_LONGEST]

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
