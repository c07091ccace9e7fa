"""Values that the blocking and the asyncio modules of this package share."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from airflow_provider_chasqui.core.commands.leases import REGISTRY_HASH_TAG
from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.lease import LeaseConfig, resolve_handle_any_queue
from airflow_provider_chasqui.core.lease_flows import LeaseOrToken

_L = TypeVar("_L", bound=LeaseOrToken)

ZERO = timedelta(0)
SNAPSHOT_LIMIT = 100_000
SNAPSHOT_MAX_BYTES = 256 * 1024 * 1024
UNLIMITED_QUEUES = 2**31
MIN_SESSION_TIMEOUT_MS = 30
# The idle time after which ChasquiMQ workers newer than 1.3.0 move an entry as stalled.
STALLED_AFTER = timedelta(seconds=30)
# No Redis command waits for streams on several nodes, so a consumer waits for one partition at a
# time.
PARTITION_POLL_INTERVAL = timedelta(milliseconds=50)

#: The default of partitioned queues: the jobs of one key are processed in order.
PARTITION_LEASE_CONFIG = LeaseConfig(mode="exclusive", ordered=True, on_max_deliveries="block")


@dataclass(frozen=True, slots=True)
class RegistryKeys:
    """Hash tag of the queue registry of organisations, which has its own slot."""

    hash_tag: str = REGISTRY_HASH_TAG
    queue_name: str = "_registry"


def monotonic_ms() -> int:
    """Return the milliseconds of a clock that is never adjusted."""
    return time.monotonic_ns() // 1_000_000


def heartbeat_interval(config: LeaseConfig, visibility_timeout: timedelta | None) -> float:
    """Return the seconds between two heartbeats: a third of the visibility timeout.

    :param config: the configuration of the queue.
    :param visibility_timeout: the visibility timeout of the leases. Default: the configured one.
    :raises InvalidArgument: if the visibility timeout is not allowed.
    """
    timeout_ms = config.check_visibility_timeout(visibility_timeout or config.visibility_timeout)
    return timeout_ms / 3000


def group_by_partition(queue_name: str, leases: Iterable[_L]) -> dict[int, list[_L]]:
    """Return leases by the number of their partition.

    :param queue_name: the name of the partitioned queue.
    :param leases: leases or their tokens.
    :raises InvalidArgument: if a lease belongs to another queue.
    """
    groups: dict[int, list[_L]] = {}
    for lease in leases:
        lease_queue = resolve_handle_any_queue(lease, queue_name).queue_name
        base, _, number = lease_queue.rpartition("#")
        if base != queue_name or not number.isdecimal():
            raise InvalidArgument(
                f"the lease is of the queue {lease_queue!r}, not of a partition of {queue_name!r}",
                queue_name=queue_name,
            )
        groups.setdefault(int(number), []).append(lease)
    return groups
