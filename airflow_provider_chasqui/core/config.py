"""Settings of producers (`QueueConfig`) and workers (`ConsumerConfig`)."""

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


def _check_group(group: str) -> None:
    if not group:
        raise InvalidArgument("group must be the name of a consumer group, not an empty string")


def _check_durations(config: object, *names: str) -> None:
    for name in names:
        require_duration(name, getattr(config, name), MILLISECOND)


@dataclass(frozen=True, slots=True)
class WriteConcern:
    """The durability that an add waits for before it returns.

    :param replicas: the number of replicas that must have the write (WAIT). Default 1; 0 is only
        allowed together with `fsync`.
    :param fsync: whether the server and the replicas must have it on disk (WAITAOF, which needs
        Redis 7.2 or Valkey with an append-only file). Default False.
    :param timeout: the longest wait, from a millisecond to a minute. Default one second. After it
        the add raises `ReplicationTimeout`; the jobs are added all the same.
    """

    replicas: int = 1
    fsync: bool = False
    timeout: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        require_int("replicas", self.replicas, 0 if self.fsync else 1)
        # WAIT without a timeout would block forever if a replica is down.
        require_duration("timeout", self.timeout, MILLISECOND, timedelta(minutes=1))


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """Settings of a producer. Limits are checked before anything is sent.

    :param max_len: the largest number of entries in the stream. An add to a full queue raises
        `QueueFull` and drops nothing. Default None, no limit.
    :param max_delay: the longest delay of a job. Default 30 days.
    :param max_payload_bytes: the largest encoded job. Default 1 MiB; workers have the same limit.
    :param max_replays: how often a dead job may be replayed. Default None, no limit.
    :param emit_enqueue_events: whether an add emits `waiting` and `delayed` events, which
        ChasquiMQ does not. Default False.
    :param group: the consumer group of the workers. Default "default".
    :param write_concern: the durability that an add waits for. Default None, no wait.
    """

    max_len: int | None = None
    max_delay: timedelta = 30 * DAY
    max_payload_bytes: int = 1024 * 1024
    max_replays: int | None = None
    emit_enqueue_events: bool = False
    group: str = "default"
    write_concern: WriteConcern | None = None

    def __post_init__(self) -> None:
        for name in ("max_len", "max_replays"):
            if getattr(self, name) is not None:
                require_int(f"{name} (None for no limit)", getattr(self, name), 1)
        require_int("max_payload_bytes", self.max_payload_bytes, 1)
        require_duration("max_delay", self.max_delay, timedelta(0))
        _check_group(self.group)


@dataclass(frozen=True, slots=True)
class PromoterConfig:
    """Settings of the promoter, which moves due jobs from the delayed set to the stream.

    :param poll_interval: the time between two reads of the delayed set. The leader wakes earlier
        if it knows of a job that is due before. Default 100 ms.
    :param max_per_poll: the largest number of jobs that one command moves. Default 1000.
    :param lock_ttl: the TTL of the leader lock, at least one second. Default 5 s.
    :param standby_poll_interval: how often the other workers try to become the leader. Default 1 s.
    """

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
    """Settings of the scheduler, which enqueues the runs of repeatable jobs.

    :param poll_interval: the time between two reads of the schedules. The leader wakes earlier if
        it knows of a run that is due before. Default 1 s.
    :param max_per_poll: the largest number of runs that one turn enqueues. Default 256.
    :param lock_ttl: the TTL of the leader lock, at least one second. Default 5 s.
    """

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
    """Settings of a worker.

    :param group: the consumer group. Default "default", as in ChasquiMQ.
    :param consumer_id: the name of the consumer in the group. Default None, a random name.
    :param concurrency: the largest number of jobs that run at the same time. Default 100.
    :param read_count: the largest number of entries per read. Default 256.
    :param block_timeout: how long a read waits for entries on the server. Default 5 s.
    :param claim_after: the idle time after which another worker claims the entries of a worker
        that has died. Running jobs are renewed three times as often. Default 30 s.
    :param max_payload_bytes: the largest job that is run; a larger one is dead-lettered. Default
        1 MiB.
    :param retry: the retry policy of jobs that have none.
    :param store_results: whether the values that handlers return are stored. Default False.
    :param result_ttl: the TTL of stored results. Default one hour.
    :param events: whether events are emitted. Default True.
    :param max_events: the approximate length of the events stream. Default 100 000.
    :param max_dead_letters: the approximate length of the dead-letter queue. Default None, no
        limit.
    :param shutdown_timeout: how long running jobs may finish after a stop was requested. Default
        30 s.
    :param missing_handler_timeout: how long jobs whose name has no handler wait for another worker,
        without using an attempt, before they are dead-lettered; None for no limit. Default 10 min.
    :param consumer_idle_ttl: the idle time after which consumers without pending entries are
        removed from the group. Default 10 min.
    :param promoter: the settings of the promoter, or None if this worker never promotes.
    :param scheduler: the settings of the scheduler, or None if this worker never schedules.
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
    missing_handler_timeout: timedelta | None = timedelta(minutes=10)
    consumer_idle_ttl: timedelta = timedelta(minutes=10)
    promoter: PromoterConfig | None = PromoterConfig()
    scheduler: SchedulerConfig | None = SchedulerConfig()

    def __post_init__(self) -> None:
        _check_positive_ints(self, "concurrency", "read_count", "max_events", "max_payload_bytes")
        _check_durations(self, "block_timeout", "claim_after")
        require_duration("result_ttl", self.result_ttl, _SECOND)
        require_duration("shutdown_timeout", self.shutdown_timeout, timedelta(0))
        if self.missing_handler_timeout is not None:
            require_duration("missing_handler_timeout", self.missing_handler_timeout, timedelta(0))
        _check_group(self.group)
