"""Chasqui: a job queue on Redis Streams for Airflow and Spark, wire-compatible with ChasquiMQ.

Names are imported on first use, so that importing the package costs a DAG nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_EXPORTS = {
    "job": "jobs",
    "AsyncQueue": "queue_async",
    "Queue": "queue",
    "QueueConfig": "core.config",
    "WriteConcern": "core.config",
    "Consumer": "engine.consumer",
    "ConsumerConfig": "core.config",
    "Handlers": "engine.handlers",
    "Context": "engine.context",
    "AsyncLeaseQueue": "lease.queue_async",
    "LeaseQueue": "lease.queue",
    "AsyncPartitionedQueue": "lease.partitions_async",
    "PartitionedQueue": "lease.partitions",
    "AsyncRsmqClient": "rsmq.client_async",
    "RsmqClient": "rsmq.client",
    "FileSource": "sources",
    "SqlSource": "sources",
    "SqlTable": "result_files",
    "RetryDefaults": "core.retry",
    "NewJob": "core.job",
    "Backoff": "core.retry",
    "RetryPolicy": "core.retry",
    "RateLimit": "core.rate_limit",
    "Cron": "core.cron",
    "Every": "core.cron",
    "FIRE_ONCE": "core.repeat",
    "SKIP": "core.repeat",
    "fire_all": "core.repeat",
    "Retry": "core.outcome",
    "Snooze": "core.outcome",
    "Unrecoverable": "core.outcome",
    "ChasquiError": "core.errors",
    "RedisTarget": "redis_client.target",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)
