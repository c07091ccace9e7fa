"""The id of what a task instance sends: readable, the same for each of its tries."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

_INVALID_CHARS = re.compile(r"[^A-Za-z0-9._@+-]+")
_MAX_PART_LENGTH = 50


def derive_id(task_instance: Any, *, per_try: bool = False) -> str:
    """Return an id for what this task instance sends, fit to name a batch.

    It begins with dag, task and run for people to read, and ends with a hash of the whole key, so
    that two long names which begin alike stay apart.
    """
    key = [
        task_instance.dag_id,
        task_instance.run_id,
        task_instance.task_id,
        task_instance.map_index,
    ]
    if per_try:
        key.append(task_instance.try_number)
    mark = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]
    words = [task_instance.dag_id, task_instance.task_id, task_instance.run_id]
    names = [_INVALID_CHARS.sub("-", word)[:_MAX_PART_LENGTH] for word in words]
    if task_instance.map_index >= 0:
        names.append(str(task_instance.map_index))
    return "~".join([*names, mark])
