"""ChasquiCollectOperator: write the results of a batch to files or into a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook, BaseOperator, ObjectStoragePath

from airflow_provider_chasqui.assets.chasqui import QueueLineage
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.batch import BatchProgress
from airflow_provider_chasqui.core.errors import InvalidArgument, WaitTimeout
from airflow_provider_chasqui.hooks.chasqui import DEFAULT_CONN_ID, ChasquiHook
from airflow_provider_chasqui.links.job import LINK_XCOM_KEY, ChasquiJobLink, build_page_url
from airflow_provider_chasqui.operators._parsing import parse_batch
from airflow_provider_chasqui.result_files import (
    DEFAULT_MAX_FILE_BYTES,
    ResultColumns,
    ResultTarget,
    SqlTable,
    WrittenFiles,
    to_json_text,
    write_results,
)
from airflow_provider_chasqui.retry_policies import fail_without_retry

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_chasqui.core.results import BatchResult
    from airflow_provider_chasqui.queue import Queue

# What `batch_ids` and `generation_id` append to the id of a batch that is sent again.
_ID_SUFFIXES = re.compile(r"(~[cgt]\d+)+$")


class ChasquiCollectOperator(QueueLineage, BaseOperator):
    """Operator that writes the results of a finished batch to files or into a table, exactly once.

    A row has the key of the input row, `part` and `index` (the position in the batch), `status`
    (`done`, `dead` or `cancelled`), `result`, `error`, `reason` and `attempts`. The rows have the
    order of the input. The memory does not depend on the number of rows.

    Files get their names when all of them are complete, and a directory then gets the file
    `_SUCCESS`. A retry writes the same files again, or finds them complete. After a clear they are
    replaced. Rows of a table are replaced in one transaction.

    Returns a mapping with `queue_name`, `batch_id`, `total`, `done`, `dead`, and for `results` and
    `failures` a mapping with `path`, `rows` and `files` (their number).

    :param batch: the handle that ChasquiEnqueueOperator returned, or a batch id. (templated)
    :param results: where to write the results: the path of a directory, of a file that ends with
        `.parquet` or `.jsonl`, on any storage of ObjectStoragePath, or a SqlTable. Default: none.
        (templated)
    :param failures: where to write the jobs that are dead or cancelled, as `results`. Default: they
        are rows of `results`. (templated)
    :param key_column: the names of the columns of the input key, as in ChasquiEnqueueOperator.
        Default: `key` if the batch has keys.
    :param schema: the columns of the results. A mapping of names to types, such as `{"label":
        "string", "score": "float64"}`, makes a column per field of the results. A type or its name
        is the type of the column `result`; `json` is JSON text. Default: the column `result` with
        an inferred type, or JSON text if the results have no common type.
    :param file_format: the format of the files in a directory, `parquet` or `jsonl`. Default:
        `parquet`.
    :param max_file_bytes: the size after which a directory gets another file. Default: 128 MiB.
    :param storage_conn_id: the id of the Airflow connection of the storage. Default: that of the
        path, or that of the storage.
    :param require_finished: whether to fail if the batch has not finished. Otherwise unfinished
        jobs have the status `pending`. Default: True.
    :param queue_name: the queue. Default: the queue of the handle, or the `queue_name` of the
        connection. (templated)
    :param chasqui_conn_id: the id of the Airflow connection. Default: `chasqui_default`.
        (templated)
    """

    writes_queue = False
    template_fields: Sequence[str] = (
        "batch",
        "results",
        "failures",
        "queue_name",
        "chasqui_conn_id",
    )
    operator_extra_links = (ChasquiJobLink(),)
    ui_color = "#dcead9"

    def __init__(
        self,
        *,
        batch: Any,
        results: Any = None,
        failures: Any = None,
        key_column: str | Sequence[str] | None = None,
        schema: Any = None,
        file_format: str = "parquet",
        max_file_bytes: int = DEFAULT_MAX_FILE_BYTES,
        storage_conn_id: str | None = None,
        require_finished: bool = True,
        queue_name: str | None = None,
        chasqui_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if results is None and failures is None:
            raise InvalidArgument("pass results, failures or both")
        ResultColumns(key_column, schema)
        self.batch = batch
        self.results = results
        self.failures = failures
        self.key_column = key_column
        self.schema = schema
        self.file_format = file_format
        self.max_file_bytes = max_file_bytes
        self.storage_conn_id = storage_conn_id
        self.require_finished = require_finished
        self.queue_name = queue_name
        self.chasqui_conn_id = chasqui_conn_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Write the results, and return the counts and the paths."""
        with fail_without_retry(), ChasquiHook(self.chasqui_conn_id) as hook:
            batch_id, queue_name = parse_batch(self.batch)
            queue = hook.queue(self.queue_name or queue_name)
            link = build_page_url(self.chasqui_conn_id, queue.name, batch=batch_id)
            context["ti"].xcom_push(key=LINK_XCOM_KEY, value=link)
            return self._collect(queue, batch_id)

    def _collect(self, queue: Queue, batch_id: str) -> dict[str, Any]:
        progress = queue.batch_progress(batch_id)
        if self.require_finished and not progress.ended:
            raise WaitTimeout(
                f"{progress.remaining if progress.total is not None else 'some'} jobs of the batch "
                f"{batch_id} have not finished; wait for them with ChasquiBatchSensor, or pass "
                "require_finished=False",
                queue_name=queue.name,
            )
        columns = ResultColumns(self.key_column, self.schema)
        stored = _StoredResults(lambda: queue.batch_result_pages(batch_id))
        written = self._write(stored.pages, columns, progress)
        if progress.done and stored.read and not stored.found:
            self.log.warning(
                "collect: no result of the %d done jobs is stored; start the workers with "
                "--store-results (store_results=True in ConsumerConfig), unless the handler "
                "returns None",
                progress.done,
            )
        report: dict[str, Any] = {
            "queue_name": queue.name,
            "batch_id": batch_id,
            "total": progress.enqueued if progress.total is None else progress.total,
            "done": progress.done,
            "dead": progress.dead,
        }
        for name, files in zip(("results", "failures"), written, strict=True):
            if files is not None:
                target = str(getattr(self, name))
                report[name] = {"path": target, "rows": files.rows, "files": len(files.files)}
                action = "an earlier try wrote" if files.reused else "wrote"
                self.log.info("collect: %s %d rows to %s", action, files.rows, target)
        return report

    def _write(
        self,
        read_pages: Callable[[], Iterable[list[BatchResult]]],
        columns: ResultColumns,
        progress: BatchProgress,
    ) -> tuple[WrittenFiles | None, WrittenFiles | None]:
        """Write the files, then the rows of tables."""
        targets = {"results": self.results, "failures": self.failures}
        tables = {name: target for name, target in targets.items() if isinstance(target, SqlTable)}
        files = {
            name: None if name in tables else self._target(path) for name, path in targets.items()
        }
        # The rows of each target: those that are done (True), the others (False), or all (None).
        selections = {"results": None if self.failures is None else True, "failures": False}
        written: dict[str, WrittenFiles | None] = dict.fromkeys(targets)
        if any(files.values()):
            manifest = {
                "batch_id": progress.batch_id,
                "created_at_ms": progress.created_at_ms,
                "enqueued": progress.enqueued,
                "done": progress.done,
                "dead": progress.dead,
                "cancelled": progress.cancelled,
                # A replayed job that dies again has another error, but the counts are the same.
                "collected_at_ms": current_time_ms() if progress.dead else None,
            }
            selection = True if "failures" in tables else None
            written["results"], written["failures"] = write_results(
                _select_rows(read_pages, selection),
                columns,
                files["results"],
                files["failures"],
                manifest if progress.ended else None,
            )
        for name, table in tables.items():
            pages = _select_rows(read_pages, selections[name])()
            rows = insert_results(table, pages, columns, progress.batch_id)
            written[name] = WrittenFiles(rows)
        return written["results"], written["failures"]

    def _target(self, path: Any) -> ResultTarget | None:
        if path is None:
            return None
        location = ObjectStoragePath(path, conn_id=self.storage_conn_id)
        return ResultTarget(location.fs, location.path, self.file_format, self.max_file_bytes)


class _StoredResults:
    """Pages of outcomes, and whether any of them has a result."""

    def __init__(self, read: Callable[[], Iterable[list[BatchResult]]]):
        self._read = read
        self.read = self.found = False

    def pages(self) -> Iterator[list[BatchResult]]:
        self.read = True
        for page in self._read():
            self.found = self.found or any(result.result is not None for result in page)
            yield page


def _select_rows(
    read_pages: Callable[[], Iterable[list[BatchResult]]], done: bool | None
) -> Callable[[], Iterable[list[BatchResult]]]:
    """Return a function that returns only the jobs that are done, only the others, or all."""
    if done is None:
        return read_pages

    def pages() -> Iterator[list[BatchResult]]:
        for page in read_pages():
            yield [result for result in page if (result.status == "done") == done]

    return pages


def insert_results(
    table: SqlTable,
    pages: Iterable[list[BatchResult]],
    columns: ResultColumns,
    batch_id: str,
) -> int:
    """Replace the rows of a batch in a table, in one transaction.

    :param table: the table.
    :param pages: the outcomes.
    :param columns: the columns of the outcomes.
    :param batch_id: the id of the batch. What a clear or another send appends to it is not stored,
        so that the rows of the earlier batch are replaced.
    :return: the number of rows.
    :raises InvalidArgument: if the table names a column that the outcomes do not have.
    """
    hook = table.hook() if table.hook is not None else BaseHook.get_hook(table.conn_id or "")
    mark = getattr(hook, "placeholder", "%s")
    name = _ID_SUFFIXES.sub("", batch_id)
    count = 0
    with closing(hook.get_conn()) as connection:
        if getattr(hook, "supports_autocommit", False):
            hook.set_autocommit(connection, False)
        with closing(connection.cursor()) as cursor:
            cursor.execute(f"DELETE FROM {table.name} WHERE batch_id = {mark}", (name,))
            names: tuple[str, ...] = table.column_names(columns)
            statement = (
                f"INSERT INTO {table.name} ({', '.join(('batch_id', *names))}) "
                f"VALUES ({', '.join([mark] * (len(names) + 1))})"
            )
            for page in pages:
                rows = [
                    (name, *(_sql_value(row.get(column)) for column in names))
                    for row in columns.rows(page)
                ]
                if rows:
                    cursor.executemany(statement, rows)
                    count += len(rows)
        connection.commit()
    return count


def _sql_value(value: Any) -> Any:
    return to_json_text(value) if isinstance(value, Mapping | list | tuple) else value
