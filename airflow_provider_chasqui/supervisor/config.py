"""Configuration of a worker process."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_chasqui.core.config import ConsumerConfig
from airflow_provider_chasqui.redis_client.target import RedisTarget


@dataclass(frozen=True)
class WorkerConfig:
    """The configuration that the supervisor sends to every worker process.

    It contains the password of the server, so it is sent through a socket and never as arguments.

    :param handlers_path: the handlers as `module` or `module:attribute`.
    :param cwd: the directory from which the module is imported.
    :param queue_names: the queues to consume; empty for the queues of the declared jobs.
    :param target: the server.
    :param dialect: `native` or `portable`, or None to detect it.
    :param consumer_config: the settings of the consumer of each queue.
    :param log_level: the log level.
    :param log_json: whether log lines are JSON objects.
    """

    handlers_path: str
    cwd: str
    queue_names: tuple[str, ...]
    target: RedisTarget
    dialect: str | None
    consumer_config: ConsumerConfig
    log_level: str = "info"
    log_json: bool = False
