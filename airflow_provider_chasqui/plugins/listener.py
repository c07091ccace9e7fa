"""Airflow listener that lets any task start Spark on a machine without Java."""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

from airflow_provider_chasqui.core.errors import MissingDependency

log = logging.getLogger(__name__)


@hookimpl
def on_task_instance_running(previous_state: Any, task_instance: Any) -> None:
    """Set JAVA_HOME in the task process before the task runs, if Spark would find no Java.

    `@task.pyspark` creates its session before any code of this package or of the user runs.
    """
    try:
        from airflow_provider_chasqui.spark.java_home import use_java

        use_java()
    except MissingDependency as error:
        task = getattr(task_instance, "task", None)
        if ".spark." in type(task).__module__:
            # Not an error yet: a session through Spark Connect needs no Java here.
            log.warning("spark: %s", error)
