"""How a queue behaves for its producers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_chasqui.core.errors import BadInput

DAY = timedelta(days=1)
CHUNK = 256


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Limits that are checked before anything is sent.

    `max_len` makes a full queue refuse (QueueFull) instead of dropping its oldest jobs;
    `announce` writes the `waiting` and `delayed` events on add, which ChasquiMQ does not.
    """

    max_len: int | None = None
    max_delay: timedelta = 30 * DAY
    max_payload_bytes: int = 1024 * 1024
    replay_budget: int | None = None
    announce: bool = False
    group: str = "default"

    def __post_init__(self) -> None:
        if self.max_len is not None and self.max_len < 1:
            raise BadInput(f"max_len must be at least 1, or None for no limit; not {self.max_len}")
        if self.max_payload_bytes < 1:
            raise BadInput("max_payload_bytes must be at least 1")
        if self.max_delay < timedelta(0):
            raise BadInput("max_delay must not be negative")
        if self.replay_budget is not None and self.replay_budget < 1:
            raise BadInput("replay_budget must be at least 1, or None for no limit")
        if not self.group:
            raise BadInput("the consumer group needs a name")
