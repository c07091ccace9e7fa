"""How a queue behaves for its producers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_chasqui.core.durations import MILLISECOND
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.retry import RetryDefaults
from airflow_provider_chasqui.core.validation import require_duration, require_int

DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


def _check_positive_ints(config: object, *names: str) -> None:
    for name in names:
        require_int(name, getattr(config, name), 1)


def _check_durations(config: object, *names: str) -> None:
    for name in names:
        require_duration(name, getattr(config, name), MILLISECOND)


@dataclass(frozen=True, slots=True)
class WriteConcern:
    """Who must have a job before `add` returns, and how long it waits for them.

    `replicas` is how many (WAIT); with `fsync` they, and the server itself, must have it on disk
    (WAITAOF: Redis 7.2 or Valkey, with an append-only file).
    """

    replicas: int = 1
    fsync: bool = False
    timeout: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        if isinstance(self.replicas, bool) or not isinstance(self.replicas, int):
            raise InvalidArgument(f"replicas must be a whole number, not {self.replicas!r}")
        if self.replicas < (0 if self.fsync else 1):
            raise InvalidArgument("replicas must be at least 1; 0 only together with fsync")
        # Without an end the server would wait for ever for a replica that is gone.
        if not timedelta(milliseconds=1) <= self.timeout <= timedelta(minutes=1):
            raise InvalidArgument("wait must be between a millisecond and a minute")


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Limits that are checked before anything is sent.

    `max_len` makes a full queue refuse (QueueFull) instead of dropping its oldest jobs;
    `announce` writes the `waiting` and `delayed` events on add, which ChasquiMQ does not;
    `confirm` makes an add wait until replicas or the disk have it, else ReplicationTimeout.
    """

    max_len: int | None = None
    max_delay: timedelta = 30 * DAY
    max_payload_bytes: int = 1024 * 1024
    max_replays: int | None = None
    emit_enqueue_events: bool = False
    group: str = "default"
    write_concern: WriteConcern | None = None

    def __post_init__(self) -> None:
        if self.max_len is not None and self.max_len < 1:
            raise InvalidArgument(
                f"max_len must be at least 1, or None for no limit; not {self.max_len}"
            )
        if self.max_payload_bytes < 1:
            raise InvalidArgument("max_payload_bytes must be at least 1")
        if self.max_delay < timedelta(0):
            raise InvalidArgument("max_delay must not be negative")
        if self.max_replays is not None and self.max_replays < 1:
            raise InvalidArgument("max_replays must be at least 1, or None for no limit")
        if not self.group:
            raise InvalidArgument("the consumer group needs a name")


@dataclass(frozen=True, slots=True)
class PromoterConfig:
    """How often due jobs are looked for; the leader wakes earlier if it knows of one."""

    poll_interval: timedelta = timedelta(milliseconds=100)
    max_per_poll: int = 1000
    lock_ttl: timedelta = timedelta(seconds=5)
    standby_poll_interval: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        _check_positive_ints(self, "max_per_poll")
        _check_durations(self, "poll_interval", "standby_poll_interval")
        require_duration("lock_ttl", self.lock_ttl, _SECOND)


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """How often new repeats are looked for; the leader wakes earlier for a fire it knows of."""

    poll_interval: timedelta = timedelta(seconds=1)
    max_per_poll: int = 256
    lock_ttl: timedelta = timedelta(seconds=5)

    def __post_init__(self) -> None:
        _check_positive_ints(self, "max_per_poll")
        _check_durations(self, "poll_interval")
        require_duration("lock_ttl", self.lock_ttl, _SECOND)


_DEFAULT_RETRY = RetryDefaults()


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """How a worker takes and runs jobs. `promoter` or `scheduler` None leaves that part out.

    `claim_after` is how long a dead worker's jobs wait before another takes them; running jobs
    are renewed long before. `max_dead_letters` and `max_events` bound those streams (None: no bound).
    """

    group: str = "default"
    consumer_id: str | None = None
    concurrency: int = 100
    read_count: int = 256
    block_timeout: timedelta = timedelta(seconds=5)
    claim_after: timedelta = timedelta(seconds=30)
    max_payload_bytes: int = 1024 * 1024
    retry: RetryDefaults = _DEFAULT_RETRY
    store_results: bool = False
    result_ttl: timedelta = timedelta(hours=1)
    events: bool = True
    max_events: int = 100_000
    max_dead_letters: int | None = None
    shutdown_timeout: timedelta = timedelta(seconds=30)
    consumer_idle_ttl: timedelta = timedelta(minutes=10)
    promoter: PromoterConfig | None = PromoterConfig()
    scheduler: SchedulerConfig | None = SchedulerConfig()

    def __post_init__(self) -> None:
        _check_positive_ints(self, "concurrency", "read_count", "max_events", "max_payload_bytes")
        _check_durations(self, "block_timeout", "claim_after")
        require_duration("result_ttl", self.result_ttl, _SECOND)
        require_duration("shutdown_timeout", self.shutdown_timeout, timedelta(0))
        if not self.group:
            raise InvalidArgument("the consumer group needs a name")
