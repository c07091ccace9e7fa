"""`@job` and `.map()`: rows from files through handlers inside of Airflow tasks into files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_chasqui import job
from airflow_provider_chasqui.core.errors import InvalidArgument
from tests.conftest import Server
from tests.provider.conftest import HERE, Dags, connect, working
from tests.support.servers import RedisServer, valkey_binary

pytestmark = [pytest.mark.xdist_group("airflow-inline"), pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def valkey() -> Any:
    """Start a server, because the queue names of declared jobs are fixed."""
    with RedisServer.start(valkey_binary()) as process:
        yield process


@pytest.fixture
def own_server(valkey: Any, monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server(valkey.url, "portable")
    connect(monkeypatch, server)
    return server


@pytest.fixture
def test_dags(dags: Callable[[Path], Dags], own_server: Server) -> Dags:
    return dags(HERE / "dags")


def write_rows(folder: Path, count: int) -> None:
    half = count // 2
    for number, rows in enumerate((range(half), range(half, count))):
        table = pa.table({"id": [f"row-{n}" for n in rows], "n": list(rows)})
        pq.write_table(table, folder / f"{number}.parquet")


def test_rows_of_files_become_results_without_a_deployed_worker(
    test_dags: Dags, tmp_path: Path
) -> None:
    write_rows(tmp_path, 2000)
    run = test_dags.run("map_files", folder=str(tmp_path))
    assert run.state == "success"
    assert run.xcom("use") == 1980
    rows = pq.read_table(tmp_path / "results").to_pylist()
    assert [(row["id"], row["square"]) for row in rows] == [
        (f"row-{n}", n * n) for n in range(2000) if n % 100 != 7
    ]
    failed = [json.loads(line) for line in (tmp_path / "failed.jsonl").read_text().splitlines()]
    assert [row["id"] for row in failed] == [f"row-{n}" for n in range(7, 2000, 100)]
    workers = [run.xcom("square.work", map_index=index) for index in (0, 1)]
    assert sum(report["done"] for report in workers) == 1980
    assert sum(report["failed"] for report in workers) == 20 + 20


def test_the_workers_of_a_fleet_run_the_same_job(
    test_dags: Dags, own_server: Server, tmp_path: Path
) -> None:
    write_rows(tmp_path, 300)

    async def cube(job: Any) -> int:
        return int(job.payload["n"] ** 3)

    with working(own_server, "fleet", cube, store_results=True):
        run = test_dags.run("map_fleet", folder=str(tmp_path))
    assert run.state == "success"
    assert set(run.states()) == {"cube.send", "cube.wait", "cube.collect"}
    lines = (tmp_path / "cubes.jsonl").read_text().splitlines()
    assert [json.loads(line)["result"] for line in lines] == [n**3 for n in range(300)]


def test_too_many_failures_fail_the_wait(test_dags: Dags, tmp_path: Path) -> None:
    write_rows(tmp_path, 500)
    run = test_dags.run("map_too_many_failures", folder=str(tmp_path))
    states = run.states()
    assert run.state == "failed"
    assert (states["square.work"], states["square.wait"]) == ("success", "failed")
    assert states["square.collect"] == "upstream_failed"


def test_handlers_see_the_variables_of_the_task(
    test_dags: Dags, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_VAR_GREETING", "hello")
    run = test_dags.run("map_upstream", folder=str(tmp_path), variable="greeting")
    assert run.state == "success"
    assert json.loads((tmp_path / "out.jsonl").read_text())["result"] == "hello"


def test_the_group_is_serialized_the_same_way_each_time(test_dags: Dags) -> None:
    from airflow.serialization.serialized_objects import DagSerialization

    first, second = (DagSerialization.to_dict(test_dags.get("map_files")) for _ in range(2))
    assert json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
    assert "0x" not in json.dumps(first)


def test_arguments_that_do_not_fit_are_refused() -> None:
    from airflow.sdk import DAG

    from airflow_provider_chasqui.core.config import ConsumerConfig

    @job(queue_name="q")
    async def declared(n: int) -> None: ...

    with DAG("refused"):
        with pytest.raises(InvalidArgument, match="workers must be"):
            declared.map([], workers=-1)
        with pytest.raises(InvalidArgument, match="pass concurrency or config"):
            declared.map([], concurrency=3, config=ConsumerConfig())
        with pytest.raises(InvalidArgument, match="does not support the option job_id"):
            declared.with_options(job_id="a").map([])
