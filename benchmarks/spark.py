"""Rows per second from Spark to a queue: the data source, redis-py, and the limit of the server.

All methods run in random order in each round, on one server and one session; compare the ratios.
Run: python -m benchmarks.spark [--rows 1000000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WARM_ROWS = 20_000


def session(folder: Path) -> Any:
    from pyspark.sql import SparkSession

    from airflow_provider_chasqui.spark.java_home import use_java

    use_java()
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.appName("chasqui-benchmark")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def table(spark: Any, folder: Path, rows: int) -> Any:
    """Return a Parquet table with five columns and about 200 bytes per job."""
    path = str(folder / f"rows-{rows}")
    spark.range(0, rows, 1, 2).selectExpr(
        "id",
        "concat('user', id, '@example.org') AS email",
        "id * 1.5D AS amount",
        "id % 2 = 0 AS active",
        "repeat('x', 100) AS note",
    ).write.parquet(path)
    return spark.read.parquet(path)


def write_batch(df: Any, queue: str, url: str, **options: str) -> None:
    writer = df.write.format("chasqui").mode("append").option("queueName", queue).option("url", url)
    writer.option("batchId", queue).options(**options).save()


def redis_py(df: Any, queue: str, url: str) -> None:
    """Write with a redis-py pipeline in foreachPartition, and msgpack per row."""
    key = f"{{chasqui:{queue}}}:stream"

    def send(rows: Any) -> None:
        import uuid

        import msgpack
        import redis

        client = redis.Redis.from_url(url)
        pipe = client.pipeline(transaction=False)
        for count, row in enumerate(rows, 1):
            body = msgpack.packb(row.asDict())
            created = time.time_ns() // 1_000_000
            pipe.xadd(key, {"d": msgpack.packb([uuid.uuid4().hex, body, created, 0])})
            if count % 1000 == 0:
                pipe.execute()
        pipe.execute()

    df.foreachPartition(send)


def raw_limit(url: str, queue: str, rows: int) -> float:
    """Return the seconds for the same number of entries, encoded in advance, over a socket."""
    import socket

    host, _, port = url.removeprefix("redis://").removesuffix("/0").rpartition(":")
    key, body = f"{{chasqui:{queue}}}:stream".encode(), b"x" * 210
    command = b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$1\r\n*\r\n$1\r\nd\r\n$%d\r\n%b\r\n" % (
        len(key),
        key,
        len(body),
        body,
    )
    chunk = command * 1000
    started = time.perf_counter()
    with socket.create_connection((host, int(port))) as sock:
        for _ in range(rows // 1000):
            sock.sendall(chunk)
            lines = 0
            while lines < 2000:  # a reply has two lines
                lines += sock.recv(1 << 16).count(b"\n")
    return time.perf_counter() - started


def measure(rows: int, rounds: int) -> dict[str, Any]:
    import redis

    from airflow_provider_chasqui.spark.source import register
    from tests.support.servers import RedisServer
    from tools.redis_server import REDIS8, find

    binary = find(REDIS8)
    if binary is None:
        raise SystemExit("Redis 8.6 was not found; run `make servers`")
    with tempfile.TemporaryDirectory() as name, RedisServer.start(binary) as server:
        folder, url = Path(name), server.url
        spark = session(folder)
        register(spark)
        small, large = table(spark, folder, WARM_ROWS), table(spark, folder, rows)
        client = redis.Redis.from_url(url)
        methods: dict[str, Callable[[Any, str], None]] = {
            "exactly_once": lambda df, queue: write_batch(df, queue, url),
            "dedup": lambda df, queue: write_batch(df, queue, url, delivery="dedup", dedupKey="id"),
            "at_least_once": lambda df, queue: write_batch(
                df, queue, url, delivery="at_least_once"
            ),
            "redis-py in foreachPartition": lambda df, queue: redis_py(df, queue, url),
        }
        for method in methods.values():
            method(small, "warm")
            client.flushall()
        rates: dict[str, list[float]] = {name: [] for name in (*methods, "raw limit, no Spark")}
        for _ in range(rounds):
            for name in random.sample(list(rates), len(rates)):
                client.flushall()
                if name in methods:
                    started = time.perf_counter()
                    methods[name](large, "bench")
                    seconds = time.perf_counter() - started
                else:
                    seconds = raw_limit(url, "bench", rows)
                assert client.xlen("{chasqui:bench}:stream") == rows, name
                rates[name].append(rows / seconds)
        spark.stop()
    return report(rates, rows, rounds)


def report(rates: dict[str, list[float]], rows: int, rounds: int) -> dict[str, Any]:
    medians = {name: statistics.median(runs) for name, runs in rates.items()}
    print(f"{rows:,} rows, {rounds} rounds, rows per second: median (range), ratio to redis-py")
    base = medians["redis-py in foreachPartition"]
    for name, runs in sorted(rates.items(), key=lambda item: -medians[item[0]]):
        spread = f"({min(runs):,.0f} - {max(runs):,.0f})"
        print(f"  {name:30} {medians[name]:>10,.0f}  {spread:24} {medians[name] / base:5.2f}")
    ratios = {
        "rows": rows,
        "exactly_once_to_redis_py": medians["exactly_once"] / base,
        "exactly_once_to_at_least_once": medians["exactly_once"] / medians["at_least_once"],
        "exactly_once_to_raw": medians["exactly_once"] / medians["raw limit, no Spark"],
    }
    print(json.dumps({key: round(value, 2) for key, value in ratios.items()}))
    return ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    result = measure(options.rows, options.rounds)
    sys.exit(
        result["exactly_once_to_redis_py"] < 2.5 or result["exactly_once_to_at_least_once"] < 0.7
    )
