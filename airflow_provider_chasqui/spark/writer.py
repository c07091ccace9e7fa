"""`df.write.format("chasqui")`: every task sends its rows, the commit makes them one batch."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from airflow_provider_chasqui.core.batch import MAX_PARTS
from airflow_provider_chasqui.core.errors import BadInput, BatchConflict, StageLost
from airflow_provider_chasqui.core.keys import BATCH_PREFIX
from airflow_provider_chasqui.core.op import Packed
from airflow_provider_chasqui.core.ops import ships
from airflow_provider_chasqui.core.ops.ships import ShipOptions, ShipState, Stage
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.spark.arrow import arrow_schema
from airflow_provider_chasqui.spark.connection import open_queue
from airflow_provider_chasqui.spark.frame import Framer, Frames
from airflow_provider_chasqui.spark.options import WriteOptions
from airflow_provider_chasqui.store.target import Target

_CALL_ROWS = 1000
_CALL_BYTES = 1024 * 1024
_WINDOW = 8


def clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Sent(WriterCommitMessage):
    """What one task tells the driver; `key` is its stage, empty if it had nothing to do."""

    ship: str
    write: str
    part: int
    rows: int
    size: int = 0
    key: str = ""


class Sender:
    """Sends the rows of one task, in one of the three ways."""

    def __init__(self, target: Target, options: WriteOptions, names: list[str]):
        self._target = target
        self.options = options
        self._names = names
        self.anew = options.on_existing == "reship"
        self.ship_options = ShipOptions(
            options.delay_ms,
            options.run_at is not None,
            options.job_id is not None,
            options.source,
            options.life_ms,
        )

    def queue(self) -> Queue:
        return open_queue(self._target, self.options.queue, self.options.dialect)

    def send(self, ship: str, write: str, batches: Iterator[Any]) -> Sent:
        """Send the rows of this task attempt and return what the commit must know."""
        task = TaskContext.get()
        if task is None:
            raise BadInput("rows are sent from Spark tasks; there is none here")
        part = task.partitionId()
        if part >= MAX_PARTS:
            raise BadInput(f"a ship has at most {MAX_PARTS} partitions: coalesce the DataFrame")
        sent = Sent(ship, write, part, 0)
        with self.queue() as queue:
            match self.options.delivery:
                case "direct":
                    return self._direct(queue, sent, batches)
                case "dedup":
                    return self._dedup(queue, sent, batches)
            sent.key = queue.keys.ship_stage(ship, write, part, task.taskAttemptId())
            return self._stage(queue, sent, batches)

    def _frames(
        self, batches: Iterator[Any], make: Callable[[Framer, Any, int], Frames]
    ) -> Iterator[Frames]:
        framer = Framer(self.options, self._names)
        first = 0
        for batch in batches:
            for piece in framer.slices(batch):
                yield make(framer, piece, first)
                first += piece.num_rows

    def _items(self, sent: Sent, batches: Iterator[Any]) -> Iterator[Frames]:
        now_ms, prefix = clock_ms(), f"{BATCH_PREFIX}{sent.ship}:{sent.part}:"
        return self._frames(
            batches, lambda framer, piece, first: framer.items(piece, prefix, first, now_ms)
        )

    def _stage(self, queue: Queue, sent: Sent, batches: Iterator[Any]) -> Sent:
        if self._is_settled(queue, sent.ship):
            return replace(sent, key="")
        for frames in self._items(sent, batches):
            calls = list(frames.cut(_CALL_ROWS, _CALL_BYTES))
            if not sent.rows:
                sent.rows, items = calls.pop(0)
                if self._open(queue, sent, items) != sent.rows:
                    return self._lost(queue, sent)
            if not self._fill(queue, sent, calls):
                return self._lost(queue, sent)
            sent.size += frames.size
        return sent if sent.rows else replace(sent, key="")

    def _open(self, queue: Queue, sent: Sent, items: Packed) -> int:
        return queue.drive.run(
            ships.open_stage(
                queue.keys, sent.ship, sent.write, sent.key, items, self.options.stage_ttl_ms,
                anew=self.anew,
            )
        )  # fmt: skip

    def _fill(self, queue: Queue, sent: Sent, calls: Sequence[tuple[int, Packed]]) -> bool:
        for start in range(0, len(calls), _WINDOW):
            window = calls[start : start + _WINDOW]
            ops = [ships.fill_stage(sent.key, items) for _, items in window]
            ops.append(ships.keep_stage(sent.key, self.options.stage_ttl_ms))
            lengths = queue.drive.many(ops)
            for (rows, _), length in zip(window, lengths, strict=False):
                sent.rows += rows
                if length != sent.rows:
                    return False
        return True

    def _is_settled(self, queue: Queue, ship: str) -> bool:
        """Whether a write has won, so that this one has nothing to add."""
        found = queue.drive.flow(ships.state(queue.keys, ship))
        return found.state == "publishing" or (found.state == "done" and not self.anew)

    def _lost(self, queue: Queue, sent: Sent) -> Sent:
        """The stage is not as long as what was sent: swept by the write that won, or damaged."""
        if self._is_settled(queue, sent.ship):
            return replace(sent, key="", rows=0)
        raise StageLost(
            f"the stage {sent.key!r} does not hold what was sent (the write was given up, a "
            "connection broke, or the server lost data); Spark runs this task again if it is needed"
        )

    def _direct(self, queue: Queue, sent: Sent, batches: Iterator[Any]) -> Sent:
        for frames in self._items(sent, batches):
            calls = list(frames.cut(_CALL_ROWS, _CALL_BYTES))
            for start in range(0, len(calls), _WINDOW):
                window = calls[start : start + _WINDOW]
                queue.drive.many(
                    [ships.push(queue.keys, items, self.ship_options) for _, items in window]
                )
            sent.rows += len(frames)
        return sent

    def _dedup(self, queue: Queue, sent: Sent, batches: Iterator[Any]) -> Sent:
        now_ms = clock_ms()
        for frames in self._frames(batches, lambda framer, piece, _: framer.rows(piece, now_ms)):
            calls = list(frames.cut(_CALL_ROWS, _CALL_BYTES))
            for start in range(0, len(calls), _WINDOW):
                ops = [
                    ships.push_once(queue.keys, sent.ship, items, self.ship_options, now_ms)
                    for _, items in calls[start : start + _WINDOW]
                ]
                if -1 in queue.drive.many(ops):
                    return sent
            sent.rows += len(frames)
        return sent

    def commit(self, ship: str, write: str, messages: Sequence[Any]) -> ShipState:
        """Make what the tasks have sent one batch; whoever has committed this ship before, wins."""
        sent = [message for message in messages if message is not None]
        with self.queue() as queue:
            if self.options.delivery != "staged":
                return self._seal(queue, ship, sent)
            stages = [Stage(each.part, each.key, each.rows, each.size) for each in sent if each.key]
            found = queue.drive.flow(ships.state(queue.keys, ship))
            if found.state == "new" or (found.state == "done" and self.anew):
                found = queue.drive.flow(
                    ships.begin(
                        queue.keys, ship, write, stages, self.ship_options, clock_ms(),
                        anew=self.anew,
                    )
                )  # fmt: skip
            if found.state == "publishing":
                found = queue.drive.flow(ships.publish(queue.keys, ship))
            if found.write != write:
                queue.drive.flow(ships.drop(queue.keys, ship, write))
            return found

    def _seal(self, queue: Queue, ship: str, sent: Sequence[Sent]) -> ShipState:
        direct = self.options.delivery == "direct"
        rows = [(each.part, each.rows) for each in sent if each.rows] if direct else []
        parts = max((part for part, _ in rows), default=-1) + 1 if direct else 1
        sealing = ships.seal(queue.keys, ship, rows, parts, self.ship_options, clock_ms())
        return ShipState("done", queue.drive.run(sealing))

    def abort(self, ship: str, write: str) -> None:
        """Give the write up, unless it is promised already: then it will be carried on."""
        if self.options.delivery == "staged":
            with self.queue() as queue:
                ttl_ms = self.options.stage_ttl_ms
                queue.drive.flow(ships.abort(queue.keys, ship, write, ttl_ms))


def check_schema(options: WriteOptions, schema: StructType) -> None:
    """Raise on the driver if a column is missing or cannot be written."""
    Framer(options, schema.names).check(arrow_schema(schema))


class ShipWriter(DataSourceArrowWriter):
    """Writes a DataFrame as one batch."""

    def __init__(self, target: Target, options: WriteOptions, schema: StructType):
        self._sender = Sender(target, options, schema.names)
        check_schema(options, schema)
        self._write = uuid.uuid4().hex[:12]
        self._ship = options.ship or f"spark-{self._write}"
        self._over = self._look()

    def _look(self) -> bool:
        """Return whether there is nothing to do; raise if the ship may not be there already."""
        options = self._sender.options
        if options.ship is None or options.delivery == "direct":
            return False
        with self._sender.queue() as queue:
            before = queue.drive.flow(ships.state(queue.keys, options.ship))
            found = queue.drive.flow(ships.recover(queue.keys, options.ship))
        if before.state == "publishing":
            return True  # carried on, whatever was asked: those jobs are this ship
        if found.state == "done" and options.on_existing == "fail":
            raise BatchConflict(
                f"the ship {options.ship!r} is done already with {found.total} jobs; choose "
                "another shipId, or onExisting=skip or reship",
                queue=options.queue,
            )
        return found.state == "done" and not self._sender.anew

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if self._over:
            return Sent(self._ship, self._write, 0, 0)
        return self._sender.send(self._ship, self._write, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._over:
            self._sender.commit(self._ship, self._write, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        if not self._over:
            self._sender.abort(self._ship, self._write)
