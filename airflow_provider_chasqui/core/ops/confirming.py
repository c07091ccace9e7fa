"""confirm: an add is through only when replicas, or the disk, have it too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_chasqui.core.config import Confirm, QueueConfig
from airflow_provider_chasqui.core.errors import NotConfirmed
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.op import AnyOp, Flow, Op, as_is, command
from airflow_provider_chasqui.core.policy import to_ms

_MARK = "confirm"
_MARK_MS = 1000


def confirm(wanted: Confirm) -> Op[tuple[int, int]]:
    """Wait for the writes of this connection; answers how many own disks and replicas have them."""
    wait_ms = to_ms(wanted.wait) or 1
    if not wanted.fsync:
        return Op(("WAIT", wanted.replicas, wait_ms), _replicas, block_ms=wait_ms, covers=True)
    args = ("WAITAOF", 1, wanted.replicas, wait_ms)
    return Op(args, _disks, block_ms=wait_ms, covers=True)


def _replicas(reply: Any) -> tuple[int, int]:
    return 0, int(reply)


def _disks(reply: Any) -> tuple[int, int]:
    return int(reply[0]), int(reply[1])


class Confirmer:
    """Sends writes so that they are confirmed, and remembers where they were not.

    The question goes with the writes in one pipeline: asked later, it could reach another master.
    """

    def __init__(self, keys: Keys, config: QueueConfig):
        self._wanted = config.confirm
        # The server waits for the last *write* of a connection. An add that is sent again, and was
        # known already, writes nothing; then WAIT would say yes to anything.
        self._mark = command(
            "SET", keys.once(_MARK), "", "PX", _MARK_MS, parse=as_is
        )  # fmt: skip
        self._short: str | None = None

    def send(self, ops: Sequence[AnyOp[Any]]) -> Flow[list[Any]]:
        # Once it failed, the rest is sent without: each question may take the whole time.
        if self._wanted is None or self._short is not None:
            answers: list[Any] = yield list(ops)
            return answers
        answers = yield [*ops, self._mark, confirm(self._wanted)]
        disk, replicas = answers[-1]
        if replicas < self._wanted.replicas or disk < self._wanted.fsync:
            self._short = f"{replicas} of {self._wanted.replicas} replicas"
            if self._wanted.fsync:
                self._short += " and of its own disk" if disk else ", and not of its own disk"
        return list(answers[:-2])

    def check(self, job_id: str | None = None) -> None:
        """Raise if something that was sent is not confirmed."""
        if self._short is not None and self._wanted is not None:
            raise NotConfirmed(
                f"the jobs are added, but the server has the word of {self._short} after "
                f"{self._wanted.wait.total_seconds():g} s; they run all the same. Adding again is "
                "safe with unique= or batch_id=, and asks again",
                job_id=job_id,
            )
