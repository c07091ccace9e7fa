"""What is handed to spark-submit, written down by a script that stands in its place.

YARN is not to be had here; what must not go wrong there is what stands on the command line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import connection_json

RECORDER = f"""#!{sys.executable}
import json, os, stat, sys
files = dict(zip(sys.argv[1:], sys.argv[2:])).get("--files")
seen = {{"argv": sys.argv[1:], "env": dict(os.environ)}}
if files:
    seen["mode"] = stat.filemode(os.stat(files).st_mode)
    seen["file"] = open(files).read()
with open(os.environ["RECORD"], "a") as out:
    out.write(json.dumps(seen) + "\\n")
"""


@pytest.fixture
def submit(
    native_server: Server, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Run the operator; return what spark-submit was called with, and how it ended."""
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "spark-submit"
    script.write_text(RECORDER)
    script.chmod(0o755)
    record = tmp_path / "record"
    login = json.loads(connection_json(native_server.url, "native"))
    monkeypatch.setenv("PATH", f"{script.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(record))
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def run(spark: dict[str, Any], **arguments: Any) -> tuple[list[Any], str]:
        from airflow_provider_chasqui.operators import spark_submit

        monkeypatch.setenv("AIRFLOW_CONN_CHASQUI_DEFAULT", json.dumps(login))
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
        operator = spark_submit.ChasquiSparkSubmitOperator(
            task_id="it", queue_name=queue_name, durable=False, **arguments
        )
        problem = ""
        try:
            operator.execute({"ti": Instance()})  # type: ignore[typeddict-item]
        except Exception as error:
            problem = str(error)
        lines = record.read_text().splitlines() if record.exists() else []
        return [json.loads(line) for line in lines], problem

    return run


class Instance:
    """As much of a task instance as an operator asks for here."""

    dag_id, run_id, task_id, map_index, try_number = "d", "r", "it", -1, 1

    def xcom_push(self, key: str, value: Any) -> None:
        pass


YARN = {"conn_type": "spark", "host": "yarn", "extra": json.dumps({"deploy-mode": "cluster"})}
LOCAL = {"conn_type": "spark", "host": "local[2]"}


def test_on_yarn_the_login_travels_in_a_file_of_its_owner(
    submit: Any, native_server: Server
) -> None:
    [call], problem = submit(YARN, source_sql="SELECT 1")
    assert "has written nothing under the ship id" in problem
    assert call["mode"] == "-rw-------"
    port = native_server.url.removesuffix("/0").rpartition(":")[2]
    assert json.loads(call["file"])["nodes"] == [["127.0.0.1", int(port)]]
    assert "CHASQUI_CONNECTION" not in call["env"]
    assert port not in " ".join(call["argv"])
    assert any(each.endswith("chasqui_spark.zip") for each in call["argv"])
    order = json.loads(call["argv"][-1])
    assert order["source"] == {"sql": "SELECT 1"}
    assert order["options"]["onExisting"] == "skip"


def test_an_injected_application_on_yarn_is_told_its_ship(submit: Any, queue_name: str) -> None:
    [call], _ = submit(YARN, application="app.py", application_writes=True)
    told = [each for each in call["argv"] if each.startswith("spark.yarn.appMasterEnv.")]
    assert f"spark.yarn.appMasterEnv.CHASQUI_QUEUE={queue_name}" in told
    assert any(each.startswith("spark.yarn.appMasterEnv.CHASQUI_BATCH_ID=d~it~r~") for each in told)
    assert not any("CHASQUI_CONNECTION" in each for each in told)


def test_the_users_application_runs_first_and_alone(submit: Any) -> None:
    first, second = submit(LOCAL, application="app.py", source_path="/data/out", name="mine")[0]
    assert first["argv"][-1] == "app.py"
    assert "CHASQUI_CONNECTION" not in first["env"]
    assert "chasqui" not in " ".join(first["argv"])
    assert second["argv"][-2].endswith("chasqui_submit.py")
    assert json.loads(second["argv"][-1])["source"] == {
        "path": "/data/out", "format": "parquet", "options": {},
    }  # fmt: skip
    assert "CHASQUI_CONNECTION" in second["env"]
    assert "CHASQUI_CONNECTION" not in os.environ


@pytest.mark.parametrize(
    ("spark", "arguments", "words"),
    [
        (LOCAL, {}, "say what to ship"),
        (LOCAL, {"source_sql": "a", "source_path": "b"}, "say what to ship"),
        (LOCAL, {"application_writes": True}, "needs an application"),
        (LOCAL, {"source_sql": "a", "on_existing": "perhaps"}, "skip, fail or overwrite"),
        (
            {"conn_type": "spark", "host": "spark://h:1", "extra": '{"deploy-mode": "cluster"}'},
            {"source_sql": "a"},
            "use deploy_mode='client'",
        ),
    ],
)
def test_what_cannot_be_submitted_is_refused(
    submit: Any, spark: dict[str, Any], arguments: dict[str, Any], words: str
) -> None:
    calls, problem = submit(spark, **arguments)
    assert not calls
    assert words in problem


def test_a_second_write_under_the_operators_ship_is_refused(queue: Queue) -> None:
    from airflow_provider_chasqui.spark.options import WriteOptions, with_defaults

    told = {"CHASQUI_QUEUE": queue.name, "CHASQUI_BATCH_ID": "s"}
    options = WriteOptions.parse(with_defaults({}, told))
    assert (options.queue_name, options.batch_id, options.on_existing) == (queue.name, "s", "fail")
    own = WriteOptions.parse(with_defaults({"batchid": "mine", "queueName": "other"}, told))
    assert (own.queue_name, own.batch_id, own.on_existing) == ("other", "mine", "skip")
