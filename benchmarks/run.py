"""Ours, the peers and the limit side by side: one machine, one server, one run, in turns.

    python -m benchmarks.run --quick                   ours, ChasquiMQ and the limit
    python -m benchmarks.run                           everybody, everything
    python -m benchmarks.run --only C,D --peers arq    a part of it

Every run is a process of its own on an emptied server. The table shows medians and ratios; how
much of the machine others used meanwhile stands next to it, because on a busy machine only the
ratios mean something, and those little. The JSON holds every single run.
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
from benchmarks import contenders, report
from benchmarks.contenders import Contender
from benchmarks.load_meter import Gauge
from benchmarks.scenarios import SCENARIOS, Scenario
from tests.support.servers import RedisServer
from tools.redis_server import REDIS8, find

STREAM, DLQ = "{chasqui:bench}:stream", "{chasqui:bench}:dlq"
GRACE_S = 10
LEAD_MS = 2_500

Found = dict[str, Any]


class Failed(Exception):
    """A contender could not do a run; the message says why."""


class Hall:
    """The server, and how one run of one scenario goes."""

    def __init__(self, server: RedisServer):
        self.url = server.url
        self.admin = redis.Redis.from_url(server.url, protocol=2)
        self.pid = int(self.admin.info("server")["process_id"])

    def run(self, who: Contender, what: Scenario, jobs: int) -> Found:
        """One run: what was measured, and how busy others kept the machine."""
        self.admin.flushall()
        gauge = Gauge(self.pid)
        found: Found = getattr(self, f"_{what.how}")(who, jobs, what.order)
        return found | {"foreign": round(gauge.read(), 2)}

    def _adds(self, who: Contender, jobs: int, order: Found) -> Found:
        return _rate(self._do(who, order | {"do": "add", "n": jobs}), jobs)

    def _bulk(self, who: Contender, jobs: int, order: Found) -> Found:
        before = self.admin.info("memory")["used_memory"]
        found = _rate(self._do(who, order | {"do": "bulk", "n": jobs}), jobs)
        after = self.admin.info("memory")["used_memory"]
        stream = self.admin.memory_usage(STREAM, samples=0)
        if stream:
            found["stream_bytes"] = stream / self.admin.xlen(STREAM)
        return found | {"bytes": (after - before) / jobs}

    def _drain(self, who: Contender, jobs: int, order: Found) -> Found:
        self._do(who, order | {"do": "fill", "n": jobs})
        return _rate(self._do(who, order | {"do": "consume", "n": jobs}), jobs)

    def _retry(self, who: Contender, jobs: int, order: Found) -> Found:
        self._do(who, order | {"do": "fill", "n": jobs})
        return _rate(self._do(who, order | {"do": "retry", "n": jobs}), jobs)

    def _due(self, who: Contender, jobs: int, order: Found) -> Found:
        lead_ms = LEAD_MS + jobs // (40 if who.slow == 1 else 4 if who.slow < 20 else 1)
        while True:
            # A whole second, because some know no other: rounded down, jobs would run too early.
            due_ms = -(-int(time.time() * 1000 + lead_ms) // 1000) * 1000
            due = order | {"n": jobs, "due_ms": due_ms}
            try:
                self._do(who, due | {"do": "fill"})
                return _rate(self._do(who, due | {"do": "consume"}), jobs)
            except Failed as failure:
                if "took too long" not in str(failure) or lead_ms > LEAD_MS * 20:
                    raise
                # A busy machine: all must be there, and the worker too, before the first is due.
                lead_ms *= 3
                self.admin.flushall()

    def _latency(self, who: Contender, jobs: int, order: Found) -> Found:
        with self._start(who, order | {"do": "latency", "n": jobs}) as worker:
            clock = Timer(who.patience_s + GRACE_S, _end, (worker,))
            clock.start()
            try:
                _answer(worker)
                self._do(who, order | {"do": "pace", "n": jobs})
                return _answer(worker)
            finally:
                clock.cancel()
                _end(worker)

    def _crews(self, who: Contender, jobs: int, order: Found) -> Found:
        self._do(who, order | {"do": "fill", "n": jobs})
        crew = [self._start(who, order | {"do": "crew"}) for _ in range(order["crew"])]
        try:
            for worker in crew:
                _answer(worker)
            began = time.perf_counter()
            for worker in crew:
                assert worker.stdin is not None
                worker.stdin.write("go\n")
                worker.stdin.flush()
            while self.admin.xlen(STREAM):
                time.sleep(0.005)
            return _rate({"seconds": time.perf_counter() - began}, jobs)
        finally:
            for worker in crew:
                worker.kill()
                worker.wait()

    def _replay(self, who: Contender, jobs: int, order: Found) -> Found:
        pipe, ulids = self.admin.pipeline(transaction=False), UlidGenerator()
        for number in range(jobs):
            now_ms = time.time_ns() // 1_000_000
            envelope = encode_envelope(ulids.next(now_ms), encode_payload(number), now_ms)
            letter = {"d": envelope, "source_id": "1-1", "reason": "retries_exhausted"}
            pipe.xadd(DLQ, letter)  # type: ignore[arg-type]
        pipe.execute()
        return _rate(self._do(who, order | {"do": "replay", "n": jobs}), jobs)

    def _cron(self, who: Contender, jobs: int, order: Found) -> Found:
        due_ms = int(time.time() * 1000) + 15_000
        found = self._do(who, order | {"do": "cron", "n": jobs, "due_ms": due_ms})
        return found | _rate(found, jobs) | {"puts": jobs / found["put_seconds"]}

    def _extra(self, who: Contender, jobs: int, order: Found) -> Found:
        found = self._do(who, order | {"n": jobs})
        return _rate(found, jobs) if "seconds" in found else found

    def _start(self, who: Contender, order: Found) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*who.command, json.dumps(order | {"url": self.url, "patience_s": who.patience_s})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=who.environment, preexec_fn=who.before_start(), start_new_session=True,
        )  # fmt: skip

    def _do(self, who: Contender, order: Found) -> Found:
        process = self._start(who, order)
        try:
            out, err = process.communicate(timeout=who.patience_s + GRACE_S)
        except subprocess.TimeoutExpired:
            _end(process)
            raise Failed(f"did not end in {who.patience_s} s") from None
        if process.returncode:
            raise Failed(err.strip()[-300:] or f"ended with {process.returncode}")
        said = [line for line in out.splitlines() if line.startswith("{")]
        try:
            found: Found = json.loads(said[-1])
        except (IndexError, ValueError):
            raise Failed(f"said no result: {out.strip()[-200:]!r}") from None
        if "cannot" in found:
            raise Failed("has no such thing")
        return found


def _end(process: subprocess.Popen[str]) -> None:
    """Kill it with all that it started: a child holds the pipes open, and reading would not end."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _answer(process: subprocess.Popen[str]) -> Found:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            found: Found = json.loads(line)
            return found
    assert process.stderr is not None
    raise Failed(process.stderr.read().strip()[-300:] or "ended without an answer")


def _rate(found: Found, jobs: int) -> Found:
    rate = jobs / found["seconds"]
    rss = {"rss_mb": found["rss_kb"] / 1024} if "rss_kb" in found else {}
    cpu = {"cpu_us": found["cpu"] / jobs * 1e6} if "cpu" in found else {}
    return (
        {key: value for key, value in found.items() if key != "rss_kb"} | rss | cpu | {"rate": rate}
    )


def takes_part(who: Contender, what: Scenario) -> bool:
    if what.only and who.name not in what.only:
        return False
    if who.name == "limit" and not what.only:
        return what.how in ("adds", "bulk", "drain") and what.order.get("kind") != "plain"
    if who in contenders.PEERS and not what.order.get("events", True):
        return False  # they cannot switch events off, or have none: our harder case counts
    return what.order.get("kind") in (None, *who.kinds)


def size(who: Contender, what: Scenario, quick: bool) -> int:
    jobs = what.quick if quick else what.jobs
    if not what.scaled or what.how == "adds":
        return jobs
    # Adding in bulk is quick even for the slow: a run of a blink would say nothing.
    return max(5_000 if what.how == "bulk" else 500, jobs // who.slow)


def measure(options: argparse.Namespace) -> Found:
    wanted = options.only.split(",") if options.only else None
    scenarios = [
        each for each in SCENARIOS
        if (wanted is None or any(each.key == w or each.key.split()[0] == w for w in wanted))
        and (each.quick or not options.quick)
    ]  # fmt: skip
    who = [each for each in contenders.ALL if not options.quick or each in contenders.QUICK]
    if options.peers:
        named = options.peers.split(",")
        who = [each for each in who if each.name.split()[0].rstrip(",") in named]
    for each in who:
        each.install()
    binary = find(REDIS8)
    if binary is None:
        raise SystemExit("there is no Redis 8.6 here: run `make servers`")
    with RedisServer.start(binary) as server:
        hall = Hall(server)
        runs: list[Found] = []
        found = _conditions(options, hall) | {"runs": runs}
        for repeat in range(options.repeats):
            for scenario in scenarios:
                if repeat >= 3 and scenario.key.startswith("H"):
                    continue
                part = [each for each in who if takes_part(each, scenario)]
                random.shuffle(part)
                for each in part:
                    runs.append(_one(hall, each, scenario, repeat, options))
                    _save(options, found)
    return found


def _conditions(options: argparse.Namespace, hall: Hall) -> Found:
    version = hall.admin.info("server")["redis_version"]
    return {
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux",
        "python": platform.python_version(), "redis": version, "quick": options.quick,
        "repeats": options.repeats,
    }  # fmt: skip


def _save(options: argparse.Namespace, found: Found) -> None:
    """After every run, so that one that is broken off was not for nothing."""
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1) + "\n")


def _one(
    hall: Hall, who: Contender, what: Scenario, repeat: int, options: argparse.Namespace
) -> Found:
    jobs = size(who, what, options.quick)
    found: Found = {"scenario": what.key, "contender": who.name, "repeat": repeat, "jobs": jobs}
    # Those who have only blocking producers or plain handlers take part with them.
    if "kind" not in what.order and "async" not in who.kinds:
        what = Scenario(what.key, what.title, what.how, what.jobs, what.order | {"kind": "plain"})
    try:
        found |= hall.run(who, what, jobs)
    except Failed as failure:
        found["failed"] = str(failure)
    shown = found.get("failed") or ", ".join(
        f"{key} {value:,.4g}" for key, value in found.items() if isinstance(value, float)
    )
    print(f"{repeat} {what.key:12} {who.name:20} {shown}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--only", default="", help="letters or keys of scenarios: A,C,'D on'")
    parser.add_argument("--peers", default="", help="names of contenders: ours,chasquimq,limit,arq")
    parser.add_argument("--json", type=Path, default=Path(".cache/bench/results.json"))
    options = parser.parse_args()
    options.repeats = options.repeats or (3 if options.quick else 5)
    began = time.monotonic()
    found = measure(options)
    print(report.text(found))
    print(f"\n{time.monotonic() - began:.0f} s; every run is in {options.json}")


if __name__ == "__main__":
    main()
