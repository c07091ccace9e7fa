"""The command line and environment of spark-submit, recorded by a script that replaces it.

No YARN cluster is available in tests, so its submissions are checked by their command line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.provider.conftest import connection_json

RECORDER = f"""#!{sys.executable}
import json, os, stat, sys
files = dict(zip(sys.argv[1:], sys.argv[2:])).get("--files")
call = {{"argv": sys.argv[1:], "env": dict(os.environ)}}
if files:
    call["mode"] = stat.filemode(os.stat(files).st_mode)
    call["file"] = open(files).read()
with open(os.environ["RECORD"], "a") as out:
    out.write(json.dumps(call) + "\\n")
"""


@pytest.fixture
def submit(
    native_server: Server, queue_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Return a function that runs the operator, and returns the calls and the error."""
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
            operator.execute({"ti": FakeTaskInstance()})  # type: ignore[typeddict-item]
        except Exception as error:
            problem = str(error)
        lines = record.read_text().splitlines() if record.exists() else []
        return [json.loads(line) for line in lines], problem

    return run


class FakeTaskInstance:
    """The attributes of a task instance that the operator uses."""

    dag_id, run_id, task_id, map_index, try_number, max_tries = "d", "r", "it", -1, 1, 0
    task = SimpleNamespace(retries=0)

    def xcom_push(self, key: str, value: Any) -> None:
        pass


YARN = {"conn_type": "spark", "host": "yarn", "extra": json.dumps({"deploy-mode": "cluster"})}
LOCAL = {"conn_type": "spark", "host": "local[2]"}


def test_on_yarn_the_credentials_are_sent_in_a_private_file(
    submit: Any, native_server: Server
) -> None:
    [call], problem = submit(YARN, source_sql="SELECT 1")
    assert "has not written batch" in problem
    assert call["mode"] == "-rw-------"
    port = native_server.url.removesuffix("/0").rpartition(":")[2]
    assert json.loads(call["file"])["nodes"] == [["127.0.0.1", int(port)]]
    assert "CHASQUI_CONNECTION" not in call["env"]
    assert port not in " ".join(call["argv"])
    assert any(argument.endswith("chasqui_spark.zip") for argument in call["argv"])
    spec = json.loads(call["argv"][-1])
    assert spec["source"] == {"sql": "SELECT 1"}
    assert spec["options"]["onExisting"] == "skip"


def test_on_yarn_a_writing_application_receives_queue_and_batch_id(
    submit: Any, queue_name: str
) -> None:
    [call], _ = submit(YARN, application="app.py", application_writes=True)
    prefix = "spark.yarn.appMasterEnv."
    variables = [argument for argument in call["argv"] if argument.startswith(prefix)]
    assert f"{prefix}CHASQUI_QUEUE={queue_name}" in variables
    assert any(text.startswith(f"{prefix}CHASQUI_BATCH_ID=d~it~r~") for text in variables)
    assert not any("CHASQUI_CONNECTION" in text for text in variables)


def test_the_users_application_runs_first_without_the_credentials(submit: Any) -> None:
    first, second = submit(LOCAL, application="app.py", source_path="/data/out", name="mine")[0]
    assert first["argv"][-1] == "app.py"
    assert "CHASQUI_CONNECTION" not in first["env"]
    assert "chasqui" not in " ".join(first["argv"])
    assert second["argv"][-2].endswith("chasqui_submit.py")
    assert json.loads(second["argv"][-1])["source"] == {
        "path": "/data/out",
        "format": "parquet",
        "options": {},
    }
    assert "CHASQUI_CONNECTION" in second["env"]
    assert "CHASQUI_CONNECTION" not in os.environ


@pytest.mark.parametrize(
    ("spark", "arguments", "message"),
    [
        (LOCAL, {}, "exactly one of source_path"),
        (LOCAL, {"source_sql": "a", "source_path": "b"}, "exactly one of source_path"),
        (LOCAL, {"application_writes": True}, "requires application"),
        (LOCAL, {"source_sql": "a", "on_existing": "perhaps"}, "skip, fail, overwrite"),
        (
            {"conn_type": "spark", "host": "spark://h:1", "extra": '{"deploy-mode": "cluster"}'},
            {"source_sql": "a"},
            "use deploy_mode='client'",
        ),
    ],
)
def test_invalid_submissions_are_rejected(
    submit: Any, spark: dict[str, Any], arguments: dict[str, Any], message: str
) -> None:
    calls, problem = submit(spark, **arguments)
    assert not calls
    assert message in problem


def test_the_batch_id_of_the_operator_is_used_once(queue: Queue) -> None:
    from airflow_provider_chasqui.spark.options import WriteOptions, with_defaults

    environment = {"CHASQUI_QUEUE": queue.name, "CHASQUI_BATCH_ID": "s"}
    options = WriteOptions.parse(with_defaults({}, environment))
    assert (options.queue_name, options.batch_id, options.on_existing) == (queue.name, "s", "fail")
    own = WriteOptions.parse(with_defaults({"batchid": "mine", "queueName": "other"}, environment))
    assert (own.queue_name, own.batch_id, own.on_existing) == ("other", "mine", "skip")
