"""Take messages for the length of a DAG run, and hand them in when it went well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import BaseOperator

from airflow_provider_chasqui.core.lease import Held, LeaseConfig, held, token_of
from airflow_provider_chasqui.core.ops import watching
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.hooks.stats import in_task
from airflow_provider_chasqui.policies import no_retry_of_bad_input

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.core.job import Job
    from airflow_provider_chasqui.lease import Lease, LeaseQueue

HOUR = timedelta(hours=1)
_MS = timedelta(milliseconds=1)
_SHRINK = 20
GOOD = frozenset({"success", "skipped"})


class _LeasingOperator(BaseOperator):
    """What both ends of a lease agree on."""

    template_fields: Sequence[str] = ("queue_name", "chasqui_conn_id")

    def __init__(
        self,
        *,
        queue_name: str,
        lease: timedelta = HOUR,
        max_attempts: int = 5,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.lease = lease
        self.max_attempts = max_attempts
        self.chasqui_conn_id = chasqui_conn_id

    def _open(self, hook: ChasquiHook) -> LeaseQueue:
        from airflow_provider_chasqui.lease import LeaseQueue

        settings = hook.settings
        config = LeaseConfig(
            group=settings.config.group,
            visibility_timeout=self.lease,
            reclaim_after=self.lease,
            max_deliveries=self.max_attempts,
        )
        return LeaseQueue(self.queue_name, settings.target, config=config, dialect=settings.dialect)


class ChasquiTakeMessagesOperator(_LeasingOperator):
    """Leases up to `max_batch` messages to this DAG run; skips what follows if there are none.

    The lease is the run's: a retry of this task has the same messages again. XCom: a list of
    messages as `messages_of` gives them, each with the `token` that settles it.
    """

    ui_color = "#f3e3d3"

    def __init__(self, *, max_batch: int = 100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_batch = max_batch

    def execute(self, context: Context) -> list[dict[str, Any]]:
        holder = holder_of(context)
        with (
            no_retry_of_bad_input(),
            ChasquiHook(self.chasqui_conn_id) as hook,
            self._open(hook) as queue,
        ):
            group = queue.config.group
            queue.drive.flow(watching.left(queue.keys, group, int(self.lease / _MS)))
            again = queue.drive.flow(watching.held_by(queue.keys, group, holder, self.max_batch))
            taken = [
                _message(entry.id, entry.job, _token(queue.name, entry, count, holder))
                for entry, count in again
            ]
            if not taken:
                leases = self._lease(queue, holder)
                taken = [_message(each.id, each.job, each.token) for each in leases]
        if not taken:
            raise AirflowSkipException(f"the queue {self.queue_name!r} holds no messages")
        self.log.info("Took %d messages of %s", len(taken), self.queue_name)
        in_task.count("messages_taken", len(taken), self.queue_name)
        return taken

    def _lease(self, queue: LeaseQueue, holder: str) -> list[Lease]:
        """Lease a batch; the more often its first message came back, the smaller.

        One bad message makes its whole batch come back: so it soon stands alone, and the others are
        handed in without it.
        """
        first = queue.lease(holder, 1)
        if not first:
            return []
        size = max(1, self.max_batch // _SHRINK ** (first[0].deliveries - 1))
        return first + (queue.lease(holder, size - 1) if size > 1 else [])


class ChasquiSettleMessagesOperator(_LeasingOperator):
    """Hands messages in if everything before it went well; else they come back after a while.

    Of tasks that are mapped over the messages, only the messages of failed ones come back. A
    message that came back `max_attempts` times becomes a letter. This task fails where it had to
    hand messages back, so that the run shows it.

    :param messages: what ChasquiTakeMessagesOperator returned.
    :param watched_tasks: the tasks that must go well; without them, all that are before this one.
    :param retry_after: how long messages that were handed back stay away.
    """

    template_fields: Sequence[str] = ("messages", "queue_name", "chasqui_conn_id")
    ui_color = "#f3e3d3"

    def __init__(
        self,
        *,
        messages: Any,
        watched_tasks: Sequence[str] = (),
        retry_after: timedelta = timedelta(seconds=30),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs | {"trigger_rule": "all_done"})
        self.messages = messages
        self.watched_tasks = tuple(watched_tasks)
        self.retry_after = retry_after

    def execute(self, context: Context) -> dict[str, int]:
        tokens = [message["token"] for message in self.messages or ()]
        if not tokens:
            raise AirflowSkipException("there are no messages to settle")
        bad = self._failed_tasks(context)
        back = _handed_back(bad, tokens)
        spent = [each for each in back if self._is_spent(each)]
        again = [each for each in back if each not in spent]
        done = [each for each in tokens if each not in back]
        why = f"these tasks did not go well: {', '.join(sorted(bad))}"
        with (
            no_retry_of_bad_input(),
            ChasquiHook(self.chasqui_conn_id) as hook,
            self._open(hook) as queue,
        ):
            if done:
                queue.ack(*done)
            if spent:
                queue.bury(*spent, error=f"taken {self.max_attempts} times; {why}")
            if again:
                queue.nack(*again, delay=self.retry_after, as_retry=True)
        self.log.info("Handed in %d messages of %s", len(done), self.queue_name)
        in_task.count("messages_handed_in", len(done), self.queue_name)
        in_task.count("messages_handed_back", len(again), self.queue_name)
        in_task.count("messages_buried", len(spent), self.queue_name)
        if not bad:
            return {"handed_in": len(done)}
        raise AirflowFailException(
            f"{len(again)} messages of {self.queue_name!r} were handed back and {len(spent)} are "
            f"letters now, because {why}"
        )

    def _is_spent(self, token: str) -> bool:
        return held(token, self.queue_name).deliveries >= self.max_attempts

    def _failed_tasks(self, context: Context) -> dict[str, Any]:
        """The tasks that did not go well: those that are mapped as `task_id_index`."""
        ti = context["ti"]
        run_id = context["run_id"]
        wanted = list(self.watched_tasks or self.upstream_task_ids)
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=wanted, run_ids=[run_id])
        return {task: state for task, state in states.get(run_id, {}).items() if state not in GOOD}


def _handed_back(bad: Mapping[str, Any], tokens: Sequence[str]) -> list[str]:
    """Return what must come back: of tasks mapped over the messages only the failed ones' own."""
    indexes = set()
    for task in bad:
        index = task.rpartition("_")[2]
        if not (index.isdecimal() and int(index) < len(tokens)):
            return list(tokens)
        indexes.add(int(index))
    return [token for index, token in enumerate(tokens) if index in indexes]


def holder_of(context: Context) -> str:
    """The name under which a DAG run holds messages."""
    return f"airflow/{context['ti'].dag_id}/{context['run_id']}"


def _token(queue_name: str, entry: Any, count: int, holder: str) -> str:
    job = entry.job
    return token_of(
        Held(queue_name, entry.id, holder, count, 0, job.id, job.name, count + job.attempt)
    )


def _message(entry_id: str, job: Job, token: str) -> dict[str, Any]:
    from airflow_provider_chasqui.core.jsonable import payload_of

    return {
        "id": job.id,
        "name": job.name,
        "payload": payload_of(job),
        "entry_id": entry_id,
        "created_at_ms": job.created_at_ms,
        "attempt": job.attempt,
        "token": token,
    }
