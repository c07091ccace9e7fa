"""Batch ids derived from task instances.

The id of a batch changes with each clear and stays the same over the retries after it. Airflow sets
`max_tries` to the number of configured retries when it creates a task instance, and to the number
of the last try plus the configured retries when the task is cleared. So `max_tries - retries` is
the number of tries before the last clear.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from airflow.providers.common.compat.sdk import conf

from airflow_provider_chasqui.core.errors import InvalidArgument

_INVALID_CHARS = re.compile(r"[^A-Za-z0-9._~@+-]+")
_MAX_DEPLOYMENT_LENGTH = 20
_MAX_PART_LENGTH = 42
_MAX_EXPLICIT_LENGTH = 180
_MAX_EARLIER_IDS = 20


@dataclass(frozen=True)
class BatchIds:
    """The batch ids of a task instance.

    :param current: the id of this try.
    :param earlier: the ids that the task instance may have used before the last clear, newest
        first.
    """

    current: str
    earlier: tuple[str, ...] = ()


def batch_ids(
    task_instance: Any, *, batch_id: str | None = None, per_try: bool = False
) -> BatchIds:
    """Return the batch ids of a task instance.

    A derived id starts with the deployment, the DAG, the task and the run, so that people can read
    it. It ends with a hash of the complete key, so that two long names with the same start get
    different ids.

    :param task_instance: the task instance.
    :param batch_id: the id that the user chose. Characters that a batch id cannot have, such as the
        colons of a run id, become `-`. Default: a derived id.
    :param per_try: whether every try gets its own id. By default the tries between two clears share
        one.
    :raises InvalidArgument: if the chosen id is empty or too long.
    """
    name = _derive_name(task_instance) if batch_id is None else _clean_explicit_id(batch_id)
    cleared_after = count_tries_before_clear(task_instance)
    oldest = max(0, cleared_after - _MAX_EARLIER_IDS)
    if per_try:
        earlier = [f"{name}~t{number}" for number in range(cleared_after, oldest, -1)]
        return BatchIds(f"{name}~t{task_instance.try_number}", tuple(earlier))
    ids = [f"{name}~c{number}" if number else name for number in range(oldest, cleared_after + 1)]
    return BatchIds(ids[-1], tuple(reversed(ids[:-1])))


def deployment_name() -> str:
    """Return the name of this Airflow deployment: the option `deployment` of `[chasqui]`.

    Characters that an id cannot have become `-`. Without the option it is empty.
    """
    return _clean(conf.get("chasqui", "deployment", fallback="") or "")


def _derive_name(task_instance: Any) -> str:
    deployment = conf.get("chasqui", "deployment", fallback="") or ""
    names = [task_instance.dag_id, task_instance.task_id, task_instance.run_id]
    key = [deployment, *names, task_instance.map_index]
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]
    parts = [_clean(name)[:_MAX_PART_LENGTH] for name in names]
    if deployment:
        parts.insert(0, _clean(deployment)[:_MAX_DEPLOYMENT_LENGTH])
    if task_instance.map_index >= 0:
        parts.append(str(task_instance.map_index))
    return "~".join([*parts, digest])


def _clean_explicit_id(batch_id: Any) -> str:
    if not isinstance(batch_id, str) or not 1 <= len(batch_id) <= _MAX_EXPLICIT_LENGTH:
        raise InvalidArgument(
            f"batch_id must be text of 1 to {_MAX_EXPLICIT_LENGTH} characters, not {batch_id!r}"
        )
    return _clean(batch_id)


def derive_id(task_instance: Any, *, per_try: bool = False) -> str:
    """Return an id of a task instance that does not change with a clear.

    :param task_instance: the task instance.
    :param per_try: whether every try gets its own id.
    :return: an id that `check_batch_id` accepts.
    """
    name = _derive_name(task_instance)
    return f"{name}~t{task_instance.try_number}" if per_try else name


def owner_of(task_instance: Any) -> str:
    """Return the owner of the batches that this try sends: its number and its id.

    :param task_instance: the task instance.
    """
    return f"{task_instance.try_number}:{task_instance.id}"


def is_event_of_other_try(task_instance: Any, event: dict[str, Any]) -> bool:
    """Return whether a trigger of an earlier try emitted an event.

    A clear of a deferred task deletes its trigger from Airflow's database. A database that uses the
    id of a deleted row again, such as SQLite, can give it to the trigger of the next try while the
    triggerer still runs the first one. The next try is then resumed with the event of the first.

    :param task_instance: the task instance.
    :param event: the event with which the task is resumed.
    """
    return event.get("owner") not in (None, owner_of(task_instance))


def count_tries_before_clear(task_instance: Any) -> int:
    """Return the number of tries before the last clear, or 0 if the task was not cleared.

    :param task_instance: the task instance.
    """
    tries = int(task_instance.max_tries) - int(task_instance.task.retries or 0)
    # Another number means that `retries` was changed after the task instance was created.
    return tries if 0 < tries < task_instance.try_number else 0


def is_retry(task_instance: Any) -> bool:
    """Return whether this is a later try, and not the first one after a clear.

    :param task_instance: the task instance.
    """
    return int(task_instance.try_number) > count_tries_before_clear(task_instance) + 1


def _clean(text: str) -> str:
    return _INVALID_CHARS.sub("-", text)
