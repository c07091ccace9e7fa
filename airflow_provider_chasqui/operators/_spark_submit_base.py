"""Submission of Spark applications with the data source, without exposing secrets."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

from airflow_provider_chasqui.assets.chasqui import QueueLineage
from airflow_provider_chasqui.core.errors import InvalidArgument, MissingDependency
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

    from airflow_provider_chasqui.redis_client.target import RedisTarget

QUEUE_ENV_VAR = "CHASQUI_QUEUE"
BATCH_ID_ENV_VAR = "CHASQUI_BATCH_ID"
_SECRET_KEY_REF = "spark.kubernetes.driver.secretKeyRef.CHASQUI_CONNECTION"


class ChasquiSparkSubmitBase(QueueLineage, SparkSubmitOperator):
    """A SparkSubmitOperator that sends the data source and the connection with the application.

    The driver receives the connection in its environment (client mode), in a file that only its
    owner can read (YARN cluster mode), or in a Kubernetes secret, but never in an argument.

    :param queue_name: the queue; by default the queue of the connection.
    :param chasqui_conn_id: the Airflow connection of the Redis server.
    """

    def __init__(
        self,
        *,
        queue_name: str | None = None,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.queue_name = queue_name
        self.chasqui_conn_id = chasqui_conn_id

    def submit_spec(self, context: Context, target: RedisTarget, spec: Mapping[str, Any]) -> None:
        """Submit the application of this package and wait until it has finished.

        :param context: the Airflow context.
        :param target: the Redis server.
        :param spec: the specification that `spark.submit_main` reads.
        """
        from airflow_provider_chasqui.spark.packaging import build_main

        with (
            self._temp_dir() as folder,
            self._restore_attributes("application", "application_args", "_java_class"),
        ):
            self.application = str(build_main(folder))
            self.application_args = [json.dumps(spec)]
            self._java_class = None
            # The user's application has another key, under which a retry finds its job id.
            self.external_id_key = "chasqui_spark_job_id"
            self._submit_with_data_source(context, target, folder, {})

    def submit_writing_application(
        self, context: Context, target: RedisTarget, driver_env: Mapping[str, str]
    ) -> None:
        """Submit the user's application, which writes to the queue itself.

        :param context: the Airflow context.
        :param target: the Redis server.
        :param driver_env: environment variables for the driver.
        """
        with self._temp_dir() as folder:
            self._submit_with_data_source(context, target, folder, driver_env)

    def submit_user_application(self, context: Context) -> None:
        """Submit the user's application without the data source."""
        self._require_spark_submit()
        self._hook = None
        with _set_environment(_java_env()):
            self._execute_parent(context)

    def _submit_with_data_source(
        self, context: Context, target: RedisTarget, folder: Path, driver_env: Mapping[str, str]
    ) -> None:
        from airflow_provider_chasqui.spark import connection
        from airflow_provider_chasqui.spark.packaging import build_zip

        self._require_spark_submit()
        secret = connection.to_json(target)
        with self._restore_attributes("py_files", "files", "conf"):
            code = str(build_zip(folder))
            self.py_files = _append_path(self.py_files, code)
            self.conf = dict(self.conf or {})
            self._hook = None
            deploy_target = _deploy_target(super()._get_hook())
            if deploy_target == "client":
                # Spark looks up data sources before it handles --py-files.
                path = os.pathsep.join(filter(None, (code, os.environ.get("PYTHONPATH"))))
                environment = {connection.ENV_VAR: secret, "PYTHONPATH": path, **driver_env}
            elif deploy_target == "yarn":
                secret_file = _write_secret_file(folder / connection.FILE_NAME, secret)
                self.files = _append_path(self.files, secret_file)
                self.conf |= {f"spark.yarn.appMasterEnv.{k}": v for k, v in driver_env.items()}
                environment = {}
            else:
                if _SECRET_KEY_REF not in self.conf:
                    raise InvalidArgument(
                        "in cluster mode on Kubernetes, store the URL of the Redis server in a "
                        "secret and reference it: "
                        f'conf={{"{_SECRET_KEY_REF}": "my-secret:url"}}'
                    )
                self.conf |= {f"spark.kubernetes.driverEnv.{k}": v for k, v in driver_env.items()}
                environment = {}
            with _set_environment(_java_env() | environment):
                self._execute_parent(context)

    def _execute_parent(self, context: Context) -> None:
        try:
            SparkSubmitOperator.execute(self, context)
        finally:
            # The hook reads all output of spark-submit but does not close the pipe.
            process = self._hook._submit_sp if self._hook else None
            if process is not None and process.stdout is not None:
                process.stdout.close()

    @contextmanager
    def _temp_dir(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="chasqui-spark-") as name:
            yield Path(name)

    @contextmanager
    def _restore_attributes(self, *names: str) -> Iterator[None]:
        """Restore attributes of the operator at the end of the block."""
        before = {name: getattr(self, name) for name in names}
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def _require_spark_submit(self) -> None:
        binary = self._spark_binary or "spark-submit"
        if shutil.which(binary) is None and not _next_to_python(binary).exists():
            raise MissingDependency(
                f"{binary} is not on the PATH; install Spark, or run "
                "pip install 'airflow-provider-chasqui[pyspark]', which includes it"
            )


def _deploy_target(hook: SparkSubmitHook) -> str:
    """Return `client`, `yarn` or `kubernetes`, which decides how secrets reach the driver."""
    if hook._connection["deploy_mode"] != "cluster":
        return "client"
    if hook._is_yarn:
        return "yarn"
    if hook._is_kubernetes:
        return "kubernetes"
    raise InvalidArgument(
        "Spark does not support Python applications on a standalone cluster in cluster mode; use "
        "deploy_mode='client'"
    )


def _append_path(paths: str | None, path: str) -> str:
    return f"{paths},{path}" if paths else path


def _write_secret_file(path: Path, text: str) -> str:
    path.touch(0o600)
    path.write_text(text)
    return str(path)


def _next_to_python(binary: str) -> Path:
    """Return where pip installs Spark's commands, which may not be on Airflow's PATH."""
    return Path(sys.executable).parent / binary


def _java_env() -> dict[str, str]:
    from airflow_provider_chasqui.spark.java_home import java_home

    home, path = java_home(), os.environ.get("PATH", "")
    variables: dict[str, str] = {"JAVA_HOME": str(home)} if home else {}
    if shutil.which("spark-submit") is None:
        variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{path}"
    return variables


@contextmanager
def _set_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the block. An Airflow task runs in its own process."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
