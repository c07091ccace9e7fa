"""Fixtures: Airflow in this process, a connection to the server under test, workers in threads."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_chasqui.core.config import PromoterConfig
from airflow_provider_chasqui.queue import Queue
from tests.conftest import Server
from tests.support import workers

HERE = Path(__file__).parent


def connection_json(url: str, dialect: str, **extra: Any) -> str:
    """Return a connection of type chasqui in the JSON form of Airflow's environment variables."""
    host, _, port = url.removeprefix("redis://").removesuffix("/0").rpartition(":")
    fields = {"conn_type": "chasqui", "host": host, "port": int(port), "schema": "0"}
    return json.dumps(fields | {"extra": {"dialect": dialect, **extra}})


def connect(monkeypatch: pytest.MonkeyPatch, server: Server, **extra: Any) -> None:
    """Make `chasqui_default` a connection to the server."""
    value = connection_json(server.url, server.dialect, **extra)
    monkeypatch.setenv("AIRFLOW_CONN_CHASQUI_DEFAULT", value)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch, server: Server) -> Server:
    """Return the server under test. `chasqui_default` is a connection to it."""
    connect(monkeypatch, server)
    return server


@pytest.fixture
def queue(connected: Server, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, connected.url, dialect=connected.dialect) as queue:
        yield queue


def working(
    server: Server, queue_name: str, handler: Callable[..., Any], **config: Any
) -> AbstractContextManager[None]:
    """Run a worker in a separate thread with its own event loop."""
    options = {
        "promoter": PromoterConfig(poll_interval=timedelta(milliseconds=20)),
        "scheduler": None,
    } | config
    return workers.working(server.url, queue_name, handler, dialect=server.dialect, **options)


@pytest.fixture(scope="session")
def airflow_db() -> None:
    """Create Airflow's database once per test process."""
    from airflow.utils.db import initdb

    initdb()


class Dags:
    """DAGs of one folder. `run` uses `dag.test()`, which runs triggers in the same process."""

    def __init__(self, folder: Path):
        self.folder = folder

    def get(self, dag_id: str) -> Any:
        from airflow.dag_processing.dagbag import DagBag

        bag = DagBag(dag_folder=self.folder)
        assert not bag.import_errors, bag.import_errors
        return bag.dags[dag_id]

    def run(self, dag_id: str, date: Any = None, **conf: Any) -> Run:
        """Run a DAG. The same date again runs the same DAG run again, as a clear does."""
        dag = self.get(dag_id)
        dates = {} if date is None else {"logical_date": date, "run_after": date}
        return Run(dag.test(run_conf=conf, **dates))


class Run:
    """Finished DAG run."""

    def __init__(self, dag_run: Any):
        self.dag_run = dag_run
        self.state = str(dag_run.state.value)

    def states(self) -> dict[str, str]:
        return {ti.task_id: str(ti.state) for ti in self.dag_run.get_task_instances()}

    def xcom(self, task_id: str, key: str = "return_value", map_index: int = -1) -> Any:
        from airflow.models.xcom import XComModel
        from airflow.utils.session import create_session

        with create_session() as session:
            query = XComModel.get_many(
                key=key,
                run_id=self.dag_run.run_id,
                dag_ids=self.dag_run.dag_id,
                task_ids=task_id,
                map_indexes=map_index,
            )
            row = session.scalars(query).first() if hasattr(query, "compile") else query.first()
            return None if row is None else XComModel.deserialize_value(row)


@pytest.fixture
def dags(
    airflow_db: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[[Path], Dags]]:
    """Return a function that returns the `Dags` of a folder."""

    def use(folder: Path) -> Dags:
        bundle = {
            "name": f"{folder.name}-under-test",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(folder)},
        }
        name = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
        monkeypatch.setenv(name, json.dumps([bundle]))
        return Dags(folder)

    level = logging.getLogger().level
    yield use
    logging.getLogger().setLevel(level)
