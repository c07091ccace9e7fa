"""Commands of flow control: pause and resume of a queue and of job names, and rate limits.

A paused queue has ChasquiMQ's key `paused`. Workers do not read while it exists.

The hash `paused_names` has a field per paused job name. Workers *park* jobs of these names: they
move them to the delayed set with a due time that never comes (`PARKED_FROM_MS` or later), so that
the jobs behind them run, and everything that finds delayed jobs finds them. After a resume the
field has the value `resuming` until all parked jobs have returned to the stream.

A rate limit is a hash that stores when the next call is allowed, by the clock of the server. A call
reserves a time, which may be in the future. If the hash is deleted, the limit starts again.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_chasqui.core.command import (
    AnyCommand,
    Command,
    CommandFlow,
    as_bool,
    as_int,
    as_pairs,
    redis_command,
    script_command,
)
from airflow_provider_chasqui.core.durations import to_ms
from airflow_provider_chasqui.core.keys import Keys
from airflow_provider_chasqui.core.rate_limit import RateLimit
from airflow_provider_chasqui.core.resp import Arg

# The year 9000. Jobs with this or a later due time in the delayed set are parked.
PARKED_FROM_MS = 221_845_392_000_000
# The scores of parked jobs are divided into ranges, and a job name has one of them. Names that
# share one are returned together; workers then park the jobs of the other name again.
_RANGES = 4096
_RANGE_SIZE = 2**32

# A reply of `park_jobs`.
NOT_PAUSED = 2

_PAUSED, _RESUMING = b"paused", b"resuming"


@dataclass(frozen=True, slots=True)
class PauseState:
    """What is paused in a queue.

    :param queue: whether the whole queue is paused.
    :param job_names: the paused job names.
    :param resuming: job names that were resumed and may still have parked jobs.
    """

    queue: bool = False
    job_names: frozenset[str] = frozenset()
    resuming: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return self.queue or bool(self.job_names)


def pause(keys: Keys, job_name: str | None) -> Command[int]:
    """Pause a queue or a job name.

    :param keys: the keys of the queue.
    :param job_name: the job name; None for the whole queue.
    """
    if job_name is None:
        return redis_command("SET", keys.paused, 1, parse=lambda _: 1)
    return redis_command("HSET", keys.paused_names, job_name, _PAUSED, parse=as_int)


def resume(keys: Keys, job_name: str | None) -> CommandFlow[None]:
    """Resume a queue or a job name.

    If the caller dies in the middle, the workers return the rest of the parked jobs.

    :param keys: the keys of the queue.
    :param job_name: the job name; None for the whole queue.
    """
    if job_name is None:
        yield redis_command("DEL", keys.paused, parse=as_int)
        return
    yield redis_command("HSET", keys.paused_names, job_name, _RESUMING, parse=as_int)
    yield from unpark(keys, job_name)


def unpark(keys: Keys, job_name: str) -> CommandFlow[None]:
    """Return the parked jobs of a resumed job name to the stream.

    :param keys: the keys of the queue.
    :param job_name: the job name.
    """
    while (yield unpark_jobs(keys, job_name)):
        pass


def unpark_jobs(keys: Keys, job_name: str) -> Command[bool]:
    """Return some of the parked jobs of a resumed job name to the stream.

    :param keys: the keys of the queue.
    :param job_name: the job name.
    :return: a command that returns whether there may be more.
    """
    lowest = _range_start(job_name)
    return script_command(
        "unpark_jobs",
        as_bool,
        [keys.delayed, keys.stream, keys.paused_names],
        [job_name, lowest, lowest + _RANGE_SIZE - 1],
    )


def parked_score(job_name: str, position: int) -> int:
    """Return the score of a parked job in the delayed set.

    :param job_name: the name of the job.
    :param position: a number that grows with time. Jobs return in its order.
    """
    return _range_start(job_name) + position % _RANGE_SIZE


def _range_start(job_name: str) -> int:
    name_hash = zlib.crc32(job_name.encode("utf-8", "surrogatepass"))
    return PARKED_FROM_MS + name_hash % _RANGES * _RANGE_SIZE


def park_jobs(
    keys: Keys, group: str, consumer: str, jobs: Sequence[tuple[str, str, int, bytes]]
) -> Command[list[int]]:
    """Acknowledge entries and park their jobs.

    :param keys: the keys of the queue.
    :param group: the name of the group.
    :param consumer: the name of the consumer that owns the entries.
    :param jobs: per job the entry id, the job name, the score and the encoded delayed member.
    :return: a command that returns, per entry, 1 if its job is parked, 0 if the entry belongs to
        another consumer, and `NOT_PAUSED` if the name is not paused any more and nothing changed.
    """
    args: list[Arg] = [group, consumer]
    for job in jobs:
        args += job
    return script_command("park_jobs", list, [keys.stream, keys.delayed, keys.paused_names], args)


def pause_state_commands(keys: Keys) -> list[AnyCommand[Any]]:
    """Return the commands whose replies `parse_pause_state` takes, to be added to a pipeline.

    :param keys: the keys of the queue.
    """
    return [
        redis_command("EXISTS", keys.paused, parse=as_bool),
        redis_command("HGETALL", keys.paused_names, parse=_parse_names),
    ]


def parse_pause_state(is_paused: bool, names: dict[str, bytes]) -> PauseState:
    """Return the state from the replies to `pause_state_commands`.

    :param is_paused: the reply to the first command.
    :param names: the reply to the second command.
    """
    return PauseState(
        is_paused,
        frozenset(name for name, value in names.items() if value == _PAUSED),
        frozenset(name for name, value in names.items() if value == _RESUMING),
    )


def pause_state(keys: Keys) -> CommandFlow[PauseState]:
    """Return what is paused in a queue, in one round trip.

    :param keys: the keys of the queue.
    """
    replies = yield pause_state_commands(keys)
    return parse_pause_state(*replies)


def _parse_names(reply: Any) -> dict[str, bytes]:
    return {name.decode("utf-8", "surrogatepass"): value for name, value in as_pairs(reply)}


# Rate limits


@dataclass(frozen=True, slots=True)
class Reservations:
    """Reserved times.

    :param waits_us: per reservation the time from now in microseconds, in ascending order.
    :param next_wait_us: when the first reservation that was refused would be, in microseconds from
        now; None if none was refused.
    """

    waits_us: tuple[int, ...]
    next_wait_us: int | None


def take_rate_limit(
    key: str,
    rates: Sequence[RateLimit],
    weights: Sequence[int],
    count: int = 1,
    max_wait_ms: int | None = None,
) -> Command[Reservations]:
    """Reserve the next times that a rate limit allows.

    If the reply is lost and the command is sent again, the times of the first call stay unused.

    :param key: the key of the rate limit.
    :param rates: the rates; all of them must allow a reservation.
    :param weights: what a reservation costs, per rate.
    :param count: the number of reservations.
    :param max_wait_ms: refuse reservations that are later than this; None for no limit.
    """
    args: list[Arg] = [-1 if max_wait_ms is None else max_wait_ms, count]
    for rate, weight in zip(rates, weights, strict=True):
        args += (rate.limit, to_ms(rate.period), rate.burst, weight)
    return script_command("take_rate_limit", _parse_reservations, [key], args)


def _parse_reservations(reply: Any) -> Reservations:
    next_wait_us, *waits_us = map(int, reply)
    return Reservations(tuple(waits_us), None if next_wait_us < 0 else next_wait_us)


def pause_rate_limit(key: str, duration_ms: int) -> Command[int]:
    """Allow no reservation of a rate limit for some time.

    :param key: the key of the rate limit.
    :param duration_ms: the duration in milliseconds.
    """
    return script_command("pause_rate_limit", as_int, [key], [duration_ms])
