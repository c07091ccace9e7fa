"""Leases: pull a job, hold it for a while, settle it from any process; ordered if wanted."""

from airflow_provider_chasqui.core.lease import Lease, LeaseConfig, LeaseStats, celeriant_code
from airflow_provider_chasqui.lease.consumers import AsyncPartitionConsumer, PartitionConsumer
from airflow_provider_chasqui.lease.heartbeat import AsyncLeaseHeartbeat, LeaseHeartbeat
from airflow_provider_chasqui.lease.partitions import AsyncPartitionedQueue, PartitionedQueue
from airflow_provider_chasqui.lease.queue import AsyncLeaseQueue, LeaseQueue

__all__ = [
    "AsyncLeaseHeartbeat",
    "AsyncLeaseQueue",
    "AsyncPartitionConsumer",
    "AsyncPartitionedQueue",
    "Lease",
    "LeaseConfig",
    "LeaseHeartbeat",
    "LeaseQueue",
    "LeaseStats",
    "PartitionConsumer",
    "PartitionedQueue",
    "celeriant_code",
]
