"""Take messages for the length of a DAG run, and hand them in when it went well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import BaseOperator

from airflow_provider_chasqui.core.commands import watchers
from airflow_provider_chasqui.core.lease import (
    LeaseConfig,
    LeaseHandle,
    encode_token,
    resolve_handle,
)
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.core.job import Job
    from airflow_provider_chasqui.lease import Lease, LeaseQueue

DEFAULT_LEASE_TTL = timedelta(hours=1)
_MILLISECOND = timedelta(milliseconds=1)
_BATCH_SHRINK_FACTOR = 20
SUCCESS_STATES = frozenset({"success", "skipped"})


class _MessageLeaseOperator(BaseOperator):
    """What both ends of a lease agree on."""

    template_fields: Sequence[str] = ("queue_name", "chasqui_conn_id")

    def __init__(
        self,
        *,
        queue_name: str,
        lease_ttl: timedelta = DEFAULT_LEASE_TTL,
        max_attempts: int = 5,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.lease_ttl = lease_ttl
        self.max_attempts = max_attempts
        self.chasqui_conn_id = chasqui_conn_id

    def _open_lease_queue(self, hook: ChasquiHook) -> LeaseQueue:
        from airflow_provider_chasqui.lease import LeaseQueue

        settings = hook.settings
        config = LeaseConfig(
            group=settings.config.group,
            visibility_timeout=self.lease_ttl,
            claim_after=self.lease_ttl,
            max_deliveries=self.max_attempts,
        )
        return LeaseQueue(self.queue_name, settings.target, config=config, dialect=settings.dialect)


class ChasquiLeaseMessagesOperator(_MessageLeaseOperator):
    """Leases up to `max_messages` messages to this DAG run; skips what follows if there are none.

    The lease is the run's: a retry of this task has the same messages again. XCom: a list of
    messages as `get_messages` gives them, each with the `token` that settles it.
    """

    ui_color = "#f3e3d3"

    def __init__(self, *, max_messages: int = 100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_messages = max_messages

    def execute(self, context: Context) -> list[dict[str, Any]]:
        holder = lease_owner(context)
        with (
            fail_without_retry(),
            ChasquiHook(self.chasqui_conn_id) as hook,
            self._open_lease_queue(hook) as queue,
        ):
            group = queue.config.group
            queue.client.run_flow(
                watchers.count_available(queue.keys, group, int(self.lease_ttl / _MILLISECOND))
            )
            again = queue.client.run_flow(
                watchers.entries_held_by(queue.keys, group, holder, self.max_messages)
            )
            taken = [
                _message_json(
                    entry.id, entry.job, _encode_lease_token(queue.name, entry, count, holder)
                )
                for entry, count in again
            ]
            if not taken:
                leases = self._lease_messages(queue, holder)
                taken = [_message_json(each.entry_id, each.job, each.token) for each in leases]
        if not taken:
            raise AirflowSkipException(f"the queue {self.queue_name!r} holds no messages")
        self.log.info("Took %d messages of %s", len(taken), self.queue_name)
        task_stats.incr("messages_leased", len(taken), self.queue_name)
        return taken

    def _lease_messages(self, queue: LeaseQueue, owner: str) -> list[Lease]:
        """Lease a batch; the more often its first message came back, the smaller.

        One bad message makes its whole batch come back: so it soon stands alone, and the others are
        handed in without it.
        """
        first = queue.lease(owner, 1)
        if not first:
            return []
        size = max(1, self.max_messages // _BATCH_SHRINK_FACTOR ** (first[0].deliveries - 1))
        return first + (queue.lease(owner, size - 1) if size > 1 else [])


class ChasquiAckMessagesOperator(_MessageLeaseOperator):
    """Hands messages in if everything before it went well; else they come back after a while.

    Of tasks that are mapped over the messages, only the messages of failed ones come back. A
    message that came back `max_attempts` times becomes a letter. This task fails where it had to
    hand messages back, so that the run shows it.

    :param messages: what ChasquiLeaseMessagesOperator returned.
    :param required_task_ids: the tasks that must go well; without them, all that are before this one.
    :param retry_after: how long messages that were handed back stay away.
    """

    template_fields: Sequence[str] = ("messages", "queue_name", "chasqui_conn_id")
    ui_color = "#f3e3d3"

    def __init__(
        self,
        *,
        messages: Any,
        required_task_ids: Sequence[str] = (),
        retry_after: timedelta = timedelta(seconds=30),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs | {"trigger_rule": "all_done"})
        self.messages = messages
        self.required_task_ids = tuple(required_task_ids)
        self.retry_after = retry_after

    def execute(self, context: Context) -> dict[str, int]:
        tokens = [message["token"] for message in self.messages or ()]
        if not tokens:
            raise AirflowSkipException("there are no messages to settle")
        bad = self._failed_task_states(context)
        back = _tokens_to_release(bad, tokens)
        spent = [each for each in back if self._attempts_exhausted(each)]
        again = [each for each in back if each not in spent]
        done = [each for each in tokens if each not in back]
        why = f"these tasks did not go well: {', '.join(sorted(bad))}"
        with (
            fail_without_retry(),
            ChasquiHook(self.chasqui_conn_id) as hook,
            self._open_lease_queue(hook) as queue,
        ):
            if done:
                queue.ack(*done)
            if spent:
                queue.dead_letter(*spent, error=f"taken {self.max_attempts} times; {why}")
            if again:
                queue.nack(*again, delay=self.retry_after, as_retry=True)
        self.log.info("Handed in %d messages of %s", len(done), self.queue_name)
        task_stats.incr("messages_acked", len(done), self.queue_name)
        task_stats.incr("messages_released", len(again), self.queue_name)
        task_stats.incr("messages_dead_lettered", len(spent), self.queue_name)
        if not bad:
            return {"acked": len(done)}
        raise AirflowFailException(
            f"{len(again)} messages of {self.queue_name!r} were handed back and {len(spent)} are "
            f"letters now, because {why}"
        )

    def _attempts_exhausted(self, token: str) -> bool:
        return resolve_handle(token, self.queue_name).deliveries >= self.max_attempts

    def _failed_task_states(self, context: Context) -> dict[str, Any]:
        """The tasks that did not go well: those that are mapped as `task_id_index`."""
        ti = context["ti"]
        run_id = context["run_id"]
        wanted = list(self.required_task_ids or self.upstream_task_ids)
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=wanted, run_ids=[run_id])
        return {
            task: state
            for task, state in states.get(run_id, {}).items()
            if state not in SUCCESS_STATES
        }


def _tokens_to_release(failed_tasks: Mapping[str, Any], tokens: Sequence[str]) -> list[str]:
    """Return what must come back: of tasks mapped over the messages only the failed ones' own."""
    indexes = set()
    for task in failed_tasks:
        index = task.rpartition("_")[2]
        if not (index.isdecimal() and int(index) < len(tokens)):
            return list(tokens)
        indexes.add(int(index))
    return [token for index, token in enumerate(tokens) if index in indexes]


def lease_owner(context: Context) -> str:
    """The name under which a DAG run holds messages."""
    return f"airflow/{context['ti'].dag_id}/{context['run_id']}"


def _encode_lease_token(queue_name: str, entry: Any, deliveries: int, owner: str) -> str:
    job = entry.job
    return encode_token(
        LeaseHandle(
            queue_name, entry.id, owner, deliveries, 0, job.id, job.name, deliveries + job.attempt
        )
    )


def _message_json(entry_id: str, job: Job, token: str) -> dict[str, Any]:
    from airflow_provider_chasqui.core.json_values import job_payload

    return {
        "id": job.id,
        "name": job.name,
        "payload": job_payload(job),
        "entry_id": entry_id,
        "created_at_ms": job.created_at_ms,
        "attempt": job.attempt,
        "token": token,
    }
