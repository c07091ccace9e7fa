"""Run one DAG in this process and print its state and its XComs as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.provider.conftest import Dags

if __name__ == "__main__":
    run = Dags(Path(sys.argv[1])).run(sys.argv[2])
    xcoms = {task_id: run.xcom(task_id) for task_id in run.states()}
    print(json.dumps({"state": run.state, **xcoms}, default=str))
