"""Submitting our own application, or our code beside the user's, without showing a secret."""

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

from airflow_provider_chasqui.core.errors import BadInput, MissingSoftware
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID

if TYPE_CHECKING:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Context

    from airflow_provider_chasqui.store.target import Target

QUEUE_VARIABLE = "CHASQUI_QUEUE"
SHIP_VARIABLE = "CHASQUI_SHIP_ID"
_SECRET_REF = "spark.kubernetes.driver.secretKeyRef.CHASQUI_CONNECTION"


class SparkSubmission(SparkSubmitOperator):
    """A SparkSubmitOperator that brings the data source and the connection along.

    The connection reaches the driver by its environment (client mode), by a file that only its
    owner reads (YARN cluster), or by a secret of the cluster (Kubernetes): never by an argument.
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

    def submit_order(self, context: Context, target: Target, order: Mapping[str, Any]) -> None:
        """Submit our application with an order, and return when it is carried out."""
        from airflow_provider_chasqui.spark.packaging import build_main

        with self._folder() as folder, self._kept("application", "application_args", "_java_class"):
            self.application = str(build_main(folder))
            self.application_args = [json.dumps(order)]
            self._java_class = None
            # Not the id under which the user's application is remembered for a retry.
            self.external_id_key = "chasqui_spark_job_id"
            self._submit_beside(context, target, folder, {})

    def submit_application(
        self, context: Context, target: Target, variables: Mapping[str, str]
    ) -> None:
        """Submit the user's application with the data source at hand."""
        with self._folder() as folder:
            self._submit_beside(context, target, folder, variables)

    def submit_plain(self, context: Context) -> None:
        """Submit the user's application as the parent class does."""
        self._need_spark()
        self._hook = None
        with _environment(_java_variables()):
            self._run_parent(context)

    def _submit_beside(
        self, context: Context, target: Target, folder: Path, variables: Mapping[str, str]
    ) -> None:
        from airflow_provider_chasqui.spark import connection
        from airflow_provider_chasqui.spark.packaging import build_zip

        self._need_spark()
        secret = connection.dump(target)
        with self._kept("py_files", "files", "conf"):
            code = str(build_zip(folder))
            self.py_files = _listed(self.py_files, code)
            self.conf = dict(self.conf or {})
            self._hook = None
            form = _form(super()._get_hook())
            if form == "client":
                # Spark looks for data sources before it knows of --py-files.
                path = os.pathsep.join(filter(None, (code, os.environ.get("PYTHONPATH"))))
                environment = {connection.VARIABLE: secret, "PYTHONPATH": path, **variables}
            elif form == "yarn":
                self.files = _listed(self.files, _secret_file(folder / connection.FILE, secret))
                self.conf |= {f"spark.yarn.appMasterEnv.{k}": v for k, v in variables.items()}
                environment = {}
            else:
                if _SECRET_REF not in self.conf:
                    raise BadInput(
                        "on Kubernetes in cluster mode put the connection (a URL) into a secret "
                        f'and name it: conf={{"{_SECRET_REF}": "my-secret:url"}}'
                    )
                self.conf |= {f"spark.kubernetes.driverEnv.{k}": v for k, v in variables.items()}
                environment = {}
            with _environment(_java_variables() | environment):
                self._run_parent(context)

    def _run_parent(self, context: Context) -> None:
        try:
            SparkSubmitOperator.execute(self, context)
        finally:
            # The hook reads the output of spark-submit to its end, but leaves the pipe open.
            process = self._hook._submit_sp if self._hook else None
            if process is not None and process.stdout is not None:
                process.stdout.close()

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="chasqui-spark-") as name:
            yield Path(name)

    @contextmanager
    def _kept(self, *names: str) -> Iterator[None]:
        """Put the operator's own settings back afterwards."""
        before = {name: getattr(self, name) for name in names}
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    def _need_spark(self) -> None:
        binary = self._spark_binary or "spark-submit"
        if shutil.which(binary) is None and not _beside_python(binary).exists():
            raise MissingSoftware(
                f"{binary} is not on the PATH; install Spark, or the one that comes with "
                "pip install 'airflow-provider-chasqui[pyspark]'"
            )


def _form(hook: SparkSubmitHook) -> str:
    """Return where the driver will run, as far as it matters for secrets."""
    if hook._connection["deploy_mode"] != "cluster":
        return "client"
    if hook._is_yarn:
        return "yarn"
    if hook._is_kubernetes:
        return "kubernetes"
    raise BadInput(
        "Spark cannot run Python applications on a standalone cluster in cluster mode: use "
        "deploy_mode='client'"
    )


def _listed(before: str | None, path: str) -> str:
    return f"{before},{path}" if before else path


def _secret_file(path: Path, text: str) -> str:
    path.touch(0o600)
    path.write_text(text)
    return str(path)


def _beside_python(binary: str) -> Path:
    """Where pip puts Spark's commands; that folder need not be on Airflow's PATH."""
    return Path(sys.executable).parent / binary


def _java_variables() -> dict[str, str]:
    from airflow_provider_chasqui.spark.java_home import java_home

    home, path = java_home(), os.environ.get("PATH", "")
    found: dict[str, str] = {"JAVA_HOME": str(home)} if home else {}
    if shutil.which("spark-submit") is None:
        found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{path}"
    return found


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the spark-submit that is started inside; a task has its own process."""
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
