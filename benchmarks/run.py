"""Comparison of this package, its peers and the limit of the server on one machine.

    python -m benchmarks.run --quick                   this package, ChasquiMQ and the limit
    python -m benchmarks.run                           all systems and scenarios
    python -m benchmarks.run --only C,D --peers arq    a selection

Each run is a separate process on an empty server, and the systems alternate. The report contains
medians, ratios and the CPU load of other processes. On a busy machine the ratios are only rough.
The JSON file contains every run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Timer
from typing import Any

import redis

from airflow_provider_chasqui.core.codec import encode_envelope
from airflow_provider_chasqui.core.ids import UlidGenerator
from airflow_provider_chasqui.core.payload import encode_payload
from benchmarks import report, systems
from benchmarks.load_meter import LoadMeter
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.systems import System
from tests.support.servers import RedisServer
from tools.redis_server import REDIS8, find

STREAM, DLQ = "{chasqui:bench}:stream", "{chasqui:bench}:dlq"
GRACE_S = 10
LEAD_MS = 2_500

Measurement = dict[str, Any]


class RunFailed(Exception):
    """A run failed; the message contains the reason."""


class Runner:
    """Runs a scenario with a system on one server. Each method is named by `Scenario.method`."""

    def __init__(self, server: RedisServer):
        self.url = server.url
        self.admin = redis.Redis.from_url(server.url, protocol=2)
        self.pid = int(self.admin.info("server")["process_id"])

    def run(self, system: System, scenario: Scenario, jobs: int) -> Measurement:
        """Return the measurement of one run, and the load of other processes."""
        self.admin.flushall()
        meter = LoadMeter(self.pid)
        measurement: Measurement = getattr(self, f"_{scenario.method}")(
            system, jobs, scenario.request
        )
        return measurement | {"background_load": round(meter.read(), 2)}

    def _adds(self, system: System, jobs: int, request: Measurement) -> Measurement:
        return _rate(self._do(system, request | {"action": "add", "n": jobs}), jobs)

    def _bulk(self, system: System, jobs: int, request: Measurement) -> Measurement:
        before = self.admin.info("memory")["used_memory"]
        measurement = _rate(self._do(system, request | {"action": "bulk", "n": jobs}), jobs)
        after = self.admin.info("memory")["used_memory"]
        stream = self.admin.memory_usage(STREAM, samples=0)
        if stream:
            measurement["stream_bytes"] = stream / self.admin.xlen(STREAM)
        return measurement | {"bytes": (after - before) / jobs}

    def _drain(self, system: System, jobs: int, request: Measurement) -> Measurement:
        self._do(system, request | {"action": "fill", "n": jobs})
        return _rate(self._do(system, request | {"action": "consume", "n": jobs}), jobs)

    def _retry(self, system: System, jobs: int, request: Measurement) -> Measurement:
        self._do(system, request | {"action": "fill", "n": jobs})
        return _rate(self._do(system, request | {"action": "retry", "n": jobs}), jobs)

    def _due(self, system: System, jobs: int, request: Measurement) -> Measurement:
        lead_ms = LEAD_MS + jobs // (40 if system.slow == 1 else 4 if system.slow < 20 else 1)
        while True:
            # Rounded up to a second, because some systems round due times down to seconds.
            due_ms = -(-int(time.time() * 1000 + lead_ms) // 1000) * 1000
            delayed = request | {"n": jobs, "due_ms": due_ms}
            try:
                self._do(system, delayed | {"action": "fill"})
                return _rate(self._do(system, delayed | {"action": "consume"}), jobs)
            except RunFailed as failure:
                if "took too long" not in str(failure) or lead_ms > LEAD_MS * 20:
                    raise
                # On a busy machine, adding the jobs and starting the worker takes longer.
                lead_ms *= 3
                self.admin.flushall()

    def _latency(self, system: System, jobs: int, request: Measurement) -> Measurement:
        with self._start(system, request | {"action": "latency", "n": jobs}) as worker:
            timer = Timer(system.timeout_s + GRACE_S, _kill, (worker,))
            timer.start()
            try:
                _read_result(worker)
                self._do(system, request | {"action": "pace", "n": jobs})
                return _read_result(worker)
            finally:
                timer.cancel()
                _kill(worker)

    def _processes(self, system: System, jobs: int, request: Measurement) -> Measurement:
        self._do(system, request | {"action": "fill", "n": jobs})
        workers = [
            self._start(system, request | {"action": "worker"}) for _ in range(request["processes"])
        ]
        try:
            for worker in workers:
                _read_result(worker)
            started = time.perf_counter()
            for worker in workers:
                assert worker.stdin is not None
                worker.stdin.write("go\n")
                worker.stdin.flush()
            while self.admin.xlen(STREAM):
                time.sleep(0.005)
            return _rate({"seconds": time.perf_counter() - started}, jobs)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()

    def _replay(self, system: System, jobs: int, request: Measurement) -> Measurement:
        pipe, ulids = self.admin.pipeline(transaction=False), UlidGenerator()
        for number in range(jobs):
            now_ms = time.time_ns() // 1_000_000
            envelope = encode_envelope(ulids.next(now_ms), encode_payload(number), now_ms)
            dead_letter = {"d": envelope, "source_id": "1-1", "reason": "retries_exhausted"}
            pipe.xadd(DLQ, dead_letter)  # type: ignore[arg-type]
        pipe.execute()
        return _rate(self._do(system, request | {"action": "replay", "n": jobs}), jobs)

    def _cron(self, system: System, jobs: int, request: Measurement) -> Measurement:
        due_ms = int(time.time() * 1000) + 15_000
        measurement = self._do(system, request | {"action": "cron", "n": jobs, "due_ms": due_ms})
        return measurement | _rate(measurement, jobs) | {"puts": jobs / measurement["put_seconds"]}

    def _extra(self, system: System, jobs: int, request: Measurement) -> Measurement:
        measurement = self._do(system, request | {"n": jobs})
        return _rate(measurement, jobs) if "seconds" in measurement else measurement

    def _start(self, system: System, request: Measurement) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *system.command,
                json.dumps(request | {"url": self.url, "timeout_s": system.timeout_s}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=system.environment,
            preexec_fn=system.before_start(),
            start_new_session=True,
        )

    def _do(self, system: System, request: Measurement) -> Measurement:
        process = self._start(system, request)
        try:
            out, err = process.communicate(timeout=system.timeout_s + GRACE_S)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise RunFailed(f"did not end within {system.timeout_s} s") from None
        if process.returncode:
            raise RunFailed(err.strip()[-300:] or f"exit code {process.returncode}")
        lines = [line for line in out.splitlines() if line.startswith("{")]
        try:
            measurement: Measurement = json.loads(lines[-1])
        except (IndexError, ValueError):
            raise RunFailed(f"printed no result: {out.strip()[-200:]!r}") from None
        if "unsupported" in measurement:
            raise RunFailed("not supported")
        return measurement


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and its children, which would keep the pipes open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _read_result(process: subprocess.Popen[str]) -> Measurement:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            measurement: Measurement = json.loads(line)
            return measurement
    assert process.stderr is not None
    raise RunFailed(process.stderr.read().strip()[-300:] or "ended without a result")


def _rate(measurement: Measurement, jobs: int) -> Measurement:
    rate = jobs / measurement["seconds"]
    rss = {"rss_mb": measurement["rss_kb"] / 1024} if "rss_kb" in measurement else {}
    cpu = {"cpu_us": measurement["cpu"] / jobs * 1e6} if "cpu" in measurement else {}
    return (
        {key: value for key, value in measurement.items() if key != "rss_kb"}
        | rss
        | cpu
        | {"rate": rate}
    )


def supports(system: System, scenario: Scenario) -> bool:
    if scenario.only and system.name not in scenario.only:
        return False
    if system.name == "limit" and not scenario.only:
        return (
            scenario.method in ("adds", "bulk", "drain") and scenario.request.get("kind") != "plain"
        )
    if system in systems.PEERS and not scenario.request.get("events", True):
        return False  # peers have no such switch; they are compared with events on
    return scenario.request.get("kind") in (None, *system.kinds)


def size(system: System, scenario: Scenario, quick: bool) -> int:
    jobs = scenario.quick if quick else scenario.jobs
    if not scenario.scaled or scenario.method == "adds":
        return jobs
    # Bulk adds are fast in all systems; fewer jobs would make the run too short to measure.
    return max(5_000 if scenario.method == "bulk" else 500, jobs // system.slow)


def measure(options: argparse.Namespace) -> Measurement:
    keys = options.only.split(",") if options.only else None
    scenarios = [
        scenario
        for scenario in SCENARIOS
        if (keys is None or scenario.key in keys or scenario.key.split()[0] in keys)
        and (scenario.quick or not options.quick)
    ]
    selected = list(systems.QUICK if options.quick else systems.ALL)
    if options.peers:
        names = options.peers.split(",")
        selected = [system for system in selected if system.name.split()[0].rstrip(",") in names]
    for system in selected:
        system.install()
    binary = find(REDIS8)
    if binary is None:
        raise SystemExit("Redis 8.6 was not measurement; run `make servers`")
    with RedisServer.start(binary) as server:
        runner = Runner(server)
        runs: list[Measurement] = []
        results = _conditions(options, runner) | {"runs": runs}
        for repeat in range(options.repeats):
            for scenario in scenarios:
                if repeat >= 3 and scenario.key.startswith("H"):
                    continue
                participants = [system for system in selected if supports(system, scenario)]
                random.shuffle(participants)
                for system in participants:
                    runs.append(_run_once(runner, system, scenario, repeat, options))
                    _save(options, results)
    return results


def _conditions(options: argparse.Namespace, runner: Runner) -> Measurement:
    version = runner.admin.info("server")["redis_version"]
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux",
        "python": platform.python_version(),
        "redis": version,
        "quick": options.quick,
        "repeats": options.repeats,
    }


def _save(options: argparse.Namespace, results: Measurement) -> None:
    """Write the results. Called after every run, so that an interrupted benchmark has results."""
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(results, indent=1) + "\n")


def _run_once(
    runner: Runner, system: System, scenario: Scenario, repeat: int, options: argparse.Namespace
) -> Measurement:
    jobs = size(system, scenario, options.quick)
    measurement: Measurement = {
        "scenario": scenario.key,
        "system": system.name,
        "repeat": repeat,
        "jobs": jobs,
    }
    # Systems without async producers and handlers use plain functions.
    if "kind" not in scenario.request and "async" not in system.kinds:
        scenario = Scenario(
            scenario.key,
            scenario.title,
            scenario.method,
            scenario.jobs,
            scenario.request | {"kind": "plain"},
        )
    try:
        measurement |= runner.run(system, scenario, jobs)
    except RunFailed as failure:
        measurement["failed"] = str(failure)
    summary = measurement.get("failed") or ", ".join(
        f"{key} {value:,.4g}" for key, value in measurement.items() if isinstance(value, float)
    )
    print(f"{repeat} {scenario.key:12} {system.name:20} {summary}", file=sys.stderr, flush=True)
    return measurement


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three systems and fewer jobs")
    parser.add_argument(
        "--repeats", type=int, help="runs of each scenario; default 5, with --quick 3"
    )
    parser.add_argument("--only", default="", help="keys or prefixes of scenarios: A,C,'D on'")
    parser.add_argument("--peers", default="", help="names of systems: ours,chasquimq,limit,arq")
    parser.add_argument("--json", type=Path, default=Path(".cache/bench/results.json"))
    options = parser.parse_args()
    options.repeats = options.repeats or (3 if options.quick else 5)
    started = time.monotonic()
    results = measure(options)
    print(report.text(results))
    print(f"\n{time.monotonic() - started:.0f} s; all runs are in {options.json}")


if __name__ == "__main__":
    main()
