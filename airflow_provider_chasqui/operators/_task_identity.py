"""Batch ids derived from task instances."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

_INVALID_CHARS = re.compile(r"[^A-Za-z0-9._@+-]+")
_MAX_PART_LENGTH = 50


def derive_id(task_instance: Any, *, per_try: bool = False) -> str:
    """Return a batch id for the jobs of a task instance.

    The id starts with the DAG, the task and the run, so that people can read it. It ends with a
    hash of the complete key, so that two long names with the same start get different ids.

    :param task_instance: the task instance.
    :param per_try: whether every try gets its own id. By default all tries share one.
    :return: an id that `check_batch_id` accepts.
    """
    key = [
        task_instance.dag_id,
        task_instance.run_id,
        task_instance.task_id,
        task_instance.map_index,
    ]
    if per_try:
        key.append(task_instance.try_number)
    digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]
    names = [task_instance.dag_id, task_instance.task_id, task_instance.run_id]
    parts = [_INVALID_CHARS.sub("-", name)[:_MAX_PART_LENGTH] for name in names]
    if task_instance.map_index >= 0:
        parts.append(str(task_instance.map_index))
    return "~".join([*parts, digest])
