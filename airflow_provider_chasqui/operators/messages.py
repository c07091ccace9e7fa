"""Operators that lease messages for the duration of a DAG run and ack them at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowFailException, AirflowSkipException
from airflow.sdk import BaseOperator
from airflow.sdk.definitions.mappedoperator import MappedOperator
from airflow.sdk.definitions.xcom_arg import PlainXComArg

from airflow_provider_chasqui.assets.chasqui import QueueLineage
from airflow_provider_chasqui.core.commands import watchers
from airflow_provider_chasqui.core.durations import parse_duration, to_ms
from airflow_provider_chasqui.core.json_values import job_payload
from airflow_provider_chasqui.core.lease import (
    LeaseConfig,
    LeaseHandle,
    encode_token,
    resolve_handle,
)
from airflow_provider_chasqui.hooks._stats import task_stats
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.operators._task_identity import deployment_name
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.core.job import Job
    from airflow_provider_chasqui.lease import Lease, LeaseQueue

DEFAULT_LEASE_TTL = timedelta(hours=1)
_BATCH_SHRINK_FACTOR = 20
SUCCESS_STATES = frozenset({"success", "skipped"})


class _MessageLeaseOperator(QueueLineage, BaseOperator):
    """Base of the two operators: the settings that both must share."""

    writes_queue = False
    template_fields: Sequence[str] = ("queue_name", "chasqui_conn_id")

    def __init__(
        self,
        *,
        queue_name: str,
        lease_ttl: timedelta | float | str = DEFAULT_LEASE_TTL,
        max_attempts: int = 5,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.lease_ttl = parse_duration(lease_ttl, "lease_ttl")
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
    """Lease messages to this DAG run, and skip the following tasks if there are none.

    The task and its run own the lease, so a retry of this task returns the same messages. The XCom
    value is a list of messages as `get_messages` returns them, each with the `token` of its lease.

    :param queue_name: the name of the queue. Templated.
    :param max_messages: the maximum number of messages, 100 by default.
    :param lease_ttl: the duration of the lease: a timedelta, a number of seconds, or text such as
        `1h30m`. Default: one hour. The trigger of `queue_not_empty_asset` renews the leases of
        active runs.
    :param max_attempts: the maximum number of runs that lease a message, 5 by default.
    :param chasqui_conn_id: the id of the Airflow connection. Templated.
    """

    ui_color = "#f3e3d3"

    def __init__(self, *, max_messages: int = 100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_messages = max_messages

    def execute(self, context: Context) -> list[dict[str, Any]]:
        ti = context["ti"]
        map_index = -1 if ti.map_index is None else ti.map_index
        owner = watchers.run_consumer_name(
            ti.dag_id, context["run_id"], ti.task_id, map_index, deployment_name()
        )
        with (
            fail_without_retry(),
            ChasquiHook(self.chasqui_conn_id) as hook,
            self._open_lease_queue(hook) as queue,
        ):
            # This promotes due messages, because the queue may have no worker that does it.
            queue.client.run_flow(
                watchers.count_available(queue.keys, queue.config.group, to_ms(self.lease_ttl))
            )
            messages = self._held_messages(queue, owner)
            if not messages:
                messages = [
                    _message_json(lease.entry_id, lease.job, lease.token)
                    for lease in self._lease_messages(queue, owner)
                ]
        if not messages:
            raise AirflowSkipException(f"the queue {self.queue_name!r} has no messages")
        self.log.info("Leased %d messages of queue %r", len(messages), self.queue_name)
        task_stats.incr("messages_leased", len(messages), self.queue_name)
        return messages

    def _held_messages(self, queue: LeaseQueue, owner: str) -> list[dict[str, Any]]:
        """Return the messages that an earlier try of this task has leased."""
        group = queue.config.group
        held_entries = queue.client.run_flow(
            watchers.entries_held_by(queue.keys, group, owner, self.max_messages)
        )
        return [
            _message_json(
                entry.id, entry.job, _encode_lease_token(queue.name, entry, deliveries, owner)
            )
            for entry, deliveries in held_entries
        ]

    def _lease_messages(self, queue: LeaseQueue, owner: str) -> list[Lease]:
        """Lease a batch, which is smaller the more often its first message was delivered.

        A message that fails its run makes the whole batch fail. With smaller batches it is soon
        leased alone, and the other messages are acked without it.
        """
        leases = queue.lease(owner, 1)
        if not leases:
            return []
        size = max(1, self.max_messages // _BATCH_SHRINK_FACTOR ** (leases[0].deliveries - 1))
        return leases + (queue.lease(owner, size - 1) if size > 1 else [])


class ChasquiAckMessagesOperator(_MessageLeaseOperator):
    """Ack leased messages if the tasks before it succeeded, otherwise deliver them again.

    If the tasks are mapped over the messages, only those of failed tasks are delivered again. A
    message that was leased `max_attempts` times is moved to the DLQ instead. The task fails if a
    message was not acked. `leased_messages` makes this task the teardown of the lease task, with
    `on_failure_fail_dagrun`, so that the run is then marked as failed. The task must also run if
    others failed, so its trigger rule is `all_done`, whichever is given.

    :param queue_name: the name of the queue. Templated.
    :param messages: the output of `ChasquiLeaseMessagesOperator`. Templated.
    :param required_task_ids: the tasks that must succeed; by default all direct upstream tasks.
        A required task that is mapped over `messages` alone, or is in a task group that is, decides
        about one message per instance. Every other task decides about all messages.
    :param retry_after: the time until messages are delivered again (as `lease_ttl`). Default: 30
        seconds.
    :param lease_ttl: the duration of the lease: a timedelta, a number of seconds, or text such as
        `1h30m`; the same as that of `ChasquiLeaseMessagesOperator`. Default: one hour.
    :param max_attempts: the maximum number of runs that lease a message, 5 by default.
    :param chasqui_conn_id: the id of the Airflow connection. Templated.
    """

    template_fields: Sequence[str] = ("messages", "queue_name", "chasqui_conn_id")
    ui_color = "#f3e3d3"

    def __init__(
        self,
        *,
        messages: Any,
        required_task_ids: Sequence[str] = (),
        retry_after: timedelta | float | str = timedelta(seconds=30),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs | {"trigger_rule": "all_done"})
        self.messages = messages
        # Rendering replaces the reference by the list of messages.
        self._lease_task_id = messages.operator.task_id if _is_plain_output(messages) else None
        self.required_task_ids = tuple(required_task_ids)
        self.retry_after = parse_duration(retry_after, "retry_after")

    def execute(self, context: Context) -> dict[str, int]:
        tokens = [message["token"] for message in self.messages or ()]
        if not tokens:
            raise AirflowSkipException("there are no messages to ack")
        failed_instances = self._failed_task_instances(context)
        failed = self._tokens_of_failed_tasks(failed_instances, tokens)
        exhausted = [token for token in failed if self._attempts_exhausted(token)]
        released = [token for token in failed if token not in exhausted]
        acked = [token for token in tokens if token not in failed]
        reason = f"these tasks did not succeed: {', '.join(sorted(set(failed_instances)))}"
        with (
            fail_without_retry(),
            ChasquiHook(self.chasqui_conn_id) as hook,
            self._open_lease_queue(hook) as queue,
        ):
            if acked:
                queue.ack(*acked)
            if exhausted:
                error = f"leased {self.max_attempts} times; {reason}"
                queue.dead_letter(*exhausted, error=error, reason="retries_exhausted")
            if released:
                queue.nack(*released, delay=self.retry_after, as_retry=True)
        self.log.info("Acked %d messages of queue %r", len(acked), self.queue_name)
        task_stats.incr("messages_acked", len(acked), self.queue_name)
        task_stats.incr("messages_released", len(released), self.queue_name)
        task_stats.incr("messages_dead_lettered", len(exhausted), self.queue_name)
        if not failed_instances:
            return {"acked": len(acked)}
        raise AirflowFailException(
            f"{len(released)} messages of queue {self.queue_name!r} will be delivered again and "
            f"{len(exhausted)} were moved to the DLQ, because {reason}"
        )

    def _attempts_exhausted(self, token: str) -> bool:
        return resolve_handle(token, self.queue_name).deliveries >= self.max_attempts

    def _failed_task_instances(self, context: Context) -> dict[str, set[int]]:
        """Return the map indexes of the instances that did not succeed, by task id.

        An instance without a map index is -1: a task that is not mapped, or one that was not
        expanded because a task before it failed.
        """
        ti = context["ti"]
        run_id = context["run_id"]
        failed: dict[str, set[int]] = {}
        for task_id in self.required_task_ids or self.upstream_task_ids:
            # One task per call: the reply names an instance `<task id>_<map index>`, which can also
            # be the id of another task.
            states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[task_id], run_ids=[run_id])
            for name, state in states.get(run_id, {}).items():
                if state not in SUCCESS_STATES:
                    index = int(name[len(task_id) + 1 :] or -1)
                    failed.setdefault(task_id, set()).add(index)
        return failed

    def _tokens_of_failed_tasks(
        self, failed_instances: Mapping[str, set[int]], tokens: Sequence[str]
    ) -> list[str]:
        """Return the tokens of the messages that must be delivered again."""
        failed_indexes: set[int] = set()
        for task_id, indexes in failed_instances.items():
            if not self._is_mapped_over_messages(task_id) or not indexes <= set(range(len(tokens))):
                return list(tokens)
            failed_indexes |= indexes
        return [tokens[index] for index in sorted(failed_indexes)]

    def _is_mapped_over_messages(self, task_id: str) -> bool:
        """Return whether the map index of a task is the index of a message."""
        task = self.dag.get_task(task_id)
        group = task.get_closest_mapped_task_group()
        if isinstance(task, MappedOperator):
            arguments: Any = task._get_specified_expand_input().value
        elif group is not None:
            arguments = group._expand_input.value
        else:
            return False
        if not isinstance(arguments, Mapping) or len(arguments) != 1:
            return False
        (argument,) = arguments.values()
        return _is_plain_output(argument) and argument.operator.task_id == self._lease_task_id


def _is_plain_output(value: Any) -> bool:
    """Return whether a value is the unchanged return value of a task."""
    return isinstance(value, PlainXComArg) and value.key == "return_value"


def _encode_lease_token(queue_name: str, entry: Any, deliveries: int, owner: str) -> str:
    job = entry.job
    return encode_token(
        LeaseHandle(
            queue_name,
            entry.id,
            owner,
            deliveries,
            0,
            job.id,
            job.name,
            deliveries + job.attempt,
            job.created_at_ms,
        )
    )


def _message_json(entry_id: str, job: Job, token: str) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "payload": job_payload(job),
        "entry_id": entry_id,
        "created_at_ms": job.created_at_ms,
        "attempt": job.attempt + 1,
        "token": token,
    }
