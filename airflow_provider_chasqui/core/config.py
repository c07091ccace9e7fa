"""How a queue behaves for its producers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_chasqui.core.errors import BadInput
from airflow_provider_chasqui.core.policy import RetryDefaults

DAY = timedelta(days=1)


def _positive(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise BadInput(f"{name} must be a whole number of at least 1, not {value!r}")


@dataclass(frozen=True, slots=True)
class Confirm:
    """Who must have a job before `add` returns, and how long it waits for them.

    `replicas` is how many (WAIT); with `fsync` they, and the server itself, must have it on disk
    (WAITAOF: Redis 7.2 or Valkey, with an append-only file).
    """

    replicas: int = 1
    fsync: bool = False
    wait: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        if isinstance(self.replicas, bool) or not isinstance(self.replicas, int):
            raise BadInput(f"replicas must be a whole number, not {self.replicas!r}")
        if self.replicas < (0 if self.fsync else 1):
            raise BadInput("replicas must be at least 1; 0 only together with fsync")
        # Without an end the server would wait for ever for a replica that is gone.
        if not timedelta(milliseconds=1) <= self.wait <= timedelta(minutes=1):
            raise BadInput("wait must be between a millisecond and a minute")


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Limits that are checked before anything is sent.

    `max_len` makes a full queue refuse (QueueFull) instead of dropping its oldest jobs;
    `announce` writes the `waiting` and `delayed` events on add, which ChasquiMQ does not;
    `confirm` makes an add wait until replicas or the disk have it, else NotConfirmed.
    """

    max_len: int | None = None
    max_delay: timedelta = 30 * DAY
    max_payload_bytes: int = 1024 * 1024
    replay_budget: int | None = None
    announce: bool = False
    group: str = "default"
    confirm: Confirm | None = None

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


@dataclass(frozen=True, slots=True)
class PromoterConfig:
    """How often due jobs are looked for; the leader wakes earlier if it knows of one."""

    poll_ms: int = 100
    at_most: int = 1000
    lock_life_s: int = 5
    standby_ms: int = 1000

    def __post_init__(self) -> None:
        _positive(self, "poll_ms", "at_most", "lock_life_s", "standby_ms")


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How often new repeats are looked for; the leader wakes earlier for a fire it knows of."""

    poll_ms: int = 1000
    at_most: int = 256
    lock_life_s: int = 5

    def __post_init__(self) -> None:
        _positive(self, "poll_ms", "at_most", "lock_life_s")


_RETRY = RetryDefaults()


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """How a worker takes and runs jobs. `promoter` or `scheduler` None leaves that part out.

    `claim_idle_ms` is how long a dead worker's jobs wait before another takes them; running jobs
    are renewed long before. `letters_kept` and `events_kept` bound those streams (None: no bound).
    """

    group: str = "default"
    consumer_id: str | None = None
    concurrency: int = 100
    read_count: int = 256
    block_ms: int = 5000
    claim_idle_ms: int = 30_000
    max_payload_bytes: int = 1024 * 1024
    retry: RetryDefaults = _RETRY
    store_results: bool = False
    result_life: timedelta = timedelta(hours=1)
    events: bool = True
    events_kept: int = 100_000
    letters_kept: int | None = None
    drain: timedelta = timedelta(seconds=30)
    sweep_after: timedelta = timedelta(minutes=10)
    promoter: PromoterConfig | None = PromoterConfig()
    scheduler: SchedulerConfig | None = SchedulerConfig()

    def __post_init__(self) -> None:
        _positive(self, "concurrency", "read_count", "block_ms", "claim_idle_ms", "events_kept")
        _positive(self, "max_payload_bytes")
        if self.result_life < timedelta(seconds=1):
            raise BadInput("result_life must be at least a second")
        if self.drain < timedelta(0):
            raise BadInput("drain must not be negative")
        if not self.group:
            raise BadInput("the consumer group needs a name")
