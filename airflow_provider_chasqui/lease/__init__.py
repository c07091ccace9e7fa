"""Leases: a consumer leases jobs for a limited time and acknowledges them from any process."""

from airflow_provider_chasqui.core.lease import Lease, LeaseConfig, LeaseStats, celeriant_code
from airflow_provider_chasqui.lease.consumers import PartitionConsumer
from airflow_provider_chasqui.lease.consumers_async import AsyncPartitionConsumer
from airflow_provider_chasqui.lease.heartbeat import LeaseHeartbeat
from airflow_provider_chasqui.lease.heartbeat_async import AsyncLeaseHeartbeat
from airflow_provider_chasqui.lease.partitions import PartitionedQueue
from airflow_provider_chasqui.lease.partitions_async import AsyncPartitionedQueue
from airflow_provider_chasqui.lease.queue import LeaseQueue
from airflow_provider_chasqui.lease.queue_async import AsyncLeaseQueue

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
