"""The alert rules, evaluated by promtool and by a real Prometheus that scrapes a real exporter."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.testing.embedded_server import find_free_port
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until

DOCS = Path(__file__).parents[2] / "docs"
RULES = DOCS / "grafana" / "alerts.yaml"

# One sample per 30 seconds for two hours: constant values, and values that grow.
ZERO, ONE = "0x240", "1x240"
HEALTHY = {
    'chasqui_exporter_up{instance="x"}': ONE,
    'chasqui_queue_work{queue="q"}': "5x240",
    'chasqui_queue_workers_seen{queue="q"}': "2x240",
    'chasqui_queue_leader{queue="q"}': ONE,
    'chasqui_queue_dead{queue="q"}': "7x240",
    'chasqui_queue_waiting{queue="q"}': "5x240",
    'chasqui_queue_oldest_waiting_age_seconds{queue="q"}': "2x240",
    'chasqui_queue_delayed_late_seconds{queue="q"}': ZERO,
    'chasqui_queue_paused{queue="q"}': ZERO,
    'chasqui_queue_batch_stalled_seconds{queue="q"}': "20x240",
    # A paused queue makes no progress on purpose.
    'chasqui_queue_paused{queue="p"}': "0x160 1x80",
    'chasqui_queue_batch_stalled_seconds{queue="p"}': "0x160 1801x80",
    'chasqui_server_memory_used_bytes{instance="x"}': "100x240",
    'chasqui_server_memory_max_bytes{instance="x"}': ZERO,
    'chasqui_last_read_age_seconds{queue="q",instance="a"}': ONE,
    # One process that hangs is no reason to report that no worker reads.
    'chasqui_last_read_age_seconds{queue="q",instance="hung"}': "0+30x240",
    'chasqui_running{queue="q",instance="a"}': ZERO,
    'chasqui_worker_processes{instance="a"}': "2x240",
    'chasqui_worker_processes_ready{instance="a"}': "2x240",
    'chasqui_worker_restarts_total{instance="a"}': ZERO,
    'chasqui_claims_lost_total{queue="q"}': ZERO,
}
# What differs from the healthy state. None removes the series.
FAULTS: dict[str, dict[str, str | None]] = {
    "ChasquiExporterMissing": dict.fromkeys(HEALTHY),
    "ChasquiServerUnreachable": {'chasqui_exporter_up{instance="x"}': ZERO},
    "ChasquiFleetGone": {
        'chasqui_queue_workers_seen{queue="q"}': ZERO,
        **{name: None for name in HEALTHY if "chasqui_worker" in name or "last_read" in name},
    },
    "ChasquiNoReads": {
        'chasqui_last_read_age_seconds{queue="q",instance="a"}': "0+30x240",
    },
    # The first death of all.
    "ChasquiJobsDie": {'chasqui_queue_dead{queue="q"}': "0x235 1x5"},
    "ChasquiDeadLettersGrow": {'chasqui_queue_dead{queue="q"}': "1001+1x240"},
    "ChasquiQueueGrows": {'chasqui_queue_waiting{queue="q"}': "2000+10x240"},
    "ChasquiJobsWaitLong": {'chasqui_queue_oldest_waiting_age_seconds{queue="q"}': "301x240"},
    "ChasquiDueJobsAreLate": {'chasqui_queue_delayed_late_seconds{queue="q"}': "11x240"},
    "ChasquiLeaderMissing": {'chasqui_queue_leader{queue="q"}': ZERO},
    "ChasquiBatchStuck": {'chasqui_queue_batch_stalled_seconds{queue="q"}': "1801x240"},
    "ChasquiPausedForLong": {'chasqui_queue_paused{queue="q"}': ONE},
    "ChasquiMemoryNearLimit": {'chasqui_server_memory_max_bytes{instance="x"}': "110x240"},
    "ChasquiProcessesCrash": {'chasqui_worker_restarts_total{instance="a"}': "0+1x240"},
    "ChasquiNotReady": {'chasqui_worker_processes_ready{instance="a"}': ONE},
    "ChasquiRanTwice": {'chasqui_claims_lost_total{queue="q"}': "0x230 1x10"},
}


def require(program: str) -> None:
    """Skip a test without the program, except where all tests are required."""
    if shutil.which(program) is None:
        message = f"{program} is not installed (Debian package: prometheus)"
        if os.environ.get("CHASQUI_REQUIRE_SERVERS"):
            pytest.fail(message)
        pytest.skip(message)


def kill_session(leader: int) -> None:
    """Kill a process and all its children, which have their own process groups."""
    for pid in [int(name.name) for name in Path("/proc").iterdir() if name.name.isdigit()]:
        with suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_every_alert_has_a_test_and_a_section_in_the_runbook() -> None:
    names = {rule["alert"] for rule in rules()}
    assert names == FAULTS.keys()
    headings = re.findall(r"^## (\w+)$", (DOCS / "runbook.md").read_text(), re.MULTILINE)
    assert set(headings) == names
    for rule in rules():
        assert rule["annotations"]["runbook"] == rule["alert"].lower()
        assert rule["labels"]["severity"] in ("warning", "critical")


@pytest.mark.parametrize("alert", [None, *FAULTS])
def test_an_alert_fires_for_its_fault_and_never_on_a_healthy_queue(
    alert: str | None, tmp_path: Path
) -> None:
    require("promtool")
    series = {**HEALTHY, **(FAULTS[alert] if alert else {})}
    firing = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}})'
    if alert is None:
        firing = 'count(ALERTS{alertstate="firing"})'
    test = {
        "interval": "30s",
        "input_series": [
            {"series": name, "values": values} for name, values in series.items() if values
        ],
        "promql_expr_test": [
            {
                "expr": firing,
                "eval_time": "119m",
                "exp_samples": [{"labels": "{}", "value": 1}] if alert else [],
            }
        ],
    }
    shutil.copy(RULES, tmp_path / "alerts.yaml")
    file = tmp_path / "test.yaml"
    file.write_text(
        yaml.safe_dump(
            {"rule_files": ["alerts.yaml"], "evaluation_interval": "30s", "tests": [test]}
        )
    )
    run = subprocess.run(["promtool", "test", "rules", file], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr


def test_prometheus_notices_that_the_whole_fleet_is_gone(
    valkey_server: RedisServer, queue_name: str, tmp_path: Path
) -> None:
    """The delays of the rules are shortened. Everything else is as in production."""
    require("prometheus")
    bin_dir = Path(sys.executable).parent
    exporter_port, prometheus_port = find_free_port(), find_free_port()
    (tmp_path / "handlers_of_this_test.py").write_text("async def handle(job):\n    pass\n")
    (tmp_path / "alerts.yaml").write_text(
        re.sub(r"^( +for:) .*$", r"\1 1s", RULES.read_text(), flags=re.MULTILINE)
    )
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yaml"],
        "scrape_configs": [
            {
                "job_name": "chasqui",
                "static_configs": [{"targets": [f"127.0.0.1:{exporter_port}"]}],
            }
        ],
    }
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    commands = {
        "worker": [
            *(bin_dir / "chasqui", "worker", "handlers_of_this_test:handle"),
            *("-q", queue_name, "--url", valkey_server.url),
        ],
        "exporter": [
            *(bin_dir / "chasqui", "exporter", "-q", queue_name, "--url", valkey_server.url),
            *("--host", "127.0.0.1", "--port", str(exporter_port), "--interval", "500ms"),
            *("--worker-timeout", "12s"),
        ],
        "prometheus": [
            *("prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data"),
            *(f"--web.listen-address=127.0.0.1:{prometheus_port}", "--log.level=error"),
        ],
    }

    def query(path: str) -> Any:
        url = f"http://127.0.0.1:{prometheus_port}/api/v1/{path}"
        with urllib.request.urlopen(url, timeout=5) as reply:
            return json.load(reply)["data"]

    def is_scraped() -> bool:
        with suppress(OSError):
            return bool(query("query?query=chasqui_queue_workers_seen>0")["result"])
        return False

    def firing() -> set[str]:
        alerts = query("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    processes = {
        name: subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
        for name, command in commands.items()
    }
    try:
        with Queue(queue_name, valkey_server.url) as queue:
            job_id = queue.add(1).job_id
            wait_until(lambda: queue.job_status(job_id).state != "waiting", 60, "a worker")
            # Before that, the alert about the missing exporter is pending.
            wait_until(is_scraped, 60, "the exporter")
            wait_until(lambda: firing() == set(), 60, "no alert")
            time.sleep(3)  # several evaluations
            assert firing() == set()
            kill_session(processes["worker"].pid)
            queue.add(2)
            wait_until(lambda: "ChasquiFleetGone" in firing(), 60, "the alert")
    finally:
        for process in processes.values():
            kill_session(process.pid)
            process.wait()
