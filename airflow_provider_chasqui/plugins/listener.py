"""An Airflow listener that lets any task start Spark on a machine without Java."""

from __future__ import annotations

import logging
from typing import Any

from airflow.listeners import hookimpl

from airflow_provider_chasqui.core.errors import MissingDependency

log = logging.getLogger(__name__)


@hookimpl
def on_task_instance_running(previous_state: Any, task_instance: Any) -> None:
    """Set JAVA_HOME in the task process before the task runs, if Spark would not find a Java.

    A listener is needed because `@task.pyspark` creates its session before any code of this package
    or of the user runs.

    :param previous_state: the state before this one (not used).
    :param task_instance: the task instance that is about to run.
    """
    try:
        from airflow_provider_chasqui.spark.java_home import use_java

        use_java()
    except MissingDependency as error:
        task = getattr(task_instance, "task", None)
        if ".spark." in type(task).__module__:
            # This is not an error yet, because a Spark Connect session needs no local Java.
            log.warning("spark: %s", error)
