"""The `source` argument of ChasquiEnqueueOperator: resolved at run time and read as a stream."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import determine_kwargs
from airflow.sdk import BaseHook, ObjectStoragePath
from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions.asset import Asset
from airflow.sdk.definitions.xcom_arg import XComArg

from airflow_provider_chasqui.core.batch import EncodedChunk
from airflow_provider_chasqui.core.errors import InvalidArgument, MissingDependency
from airflow_provider_chasqui.operators._payloads import PayloadList, resolve_references
from airflow_provider_chasqui.sources import (
    ROWS_PER_TABLE,
    FileSource,
    RowOptions,
    SqlSource,
    arrow_schema,
    encode_source,
    is_table,
)

if TYPE_CHECKING:
    from airflow.sdk import Context

_FORMATS_BY_ENDING = {
    "parquet": "parquet",
    "pq": "parquet",
    "csv": "csv",
    "tsv": "csv",
    "txt": "csv",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "json": "jsonl",
    "arrow": "arrow",
    "ipc": "arrow",
    "feather": "arrow",
    "orc": "orc",
}
_BUFFER_BYTES = 1024 * 1024
_COMPRESSIONS = ("gz", "bz2", "zst", "xz", "lz4")


class SourceArgument(PayloadList):
    """A source as the value of a template field.

    Paths and SQL are rendered, references to upstream tasks are resolved, and rows are left alone.
    Airflow stores a short text that describes the source.

    :param value: the source.
    """

    def iter_references(self) -> Iterable[tuple[Any, str]]:
        """Return the upstream tasks, from which Airflow derives the dependencies."""
        return XComArg.iter_xcom_references(_references(self.value))

    def __call__(self, context: Context, jinja_env: Any) -> SourceArgument:
        """Return the resolved source. Airflow calls this instead of rendering the field."""

        def render(value: Any) -> Any:
            if isinstance(value, ResolveMixin):
                return value.resolve(context)
            return context["task"].render_template(value, context, jinja_env)

        value = self.value
        if isinstance(value, str | ObjectStoragePath):
            return SourceArgument(render(value))
        if isinstance(value, FileSource):
            return SourceArgument(replace(value, path=render(value.path)))
        if isinstance(value, SqlSource):
            parameters = render(value.parameters)
            return SourceArgument(replace(value, sql=render(value.sql), parameters=parameters))
        return self.resolve(context)

    def resolve(self, context: Context) -> SourceArgument:
        """Return the source with all references to upstream tasks replaced.

        :param context: the task's context.
        """
        value = self.value
        if isinstance(value, FileSource):
            return SourceArgument(replace(value, path=resolve_references(value.path, context)))
        return SourceArgument(resolve_references(value, context))

    def serialize(self) -> str:
        """Return the text that Airflow stores in place of the source."""
        value = self.value
        if isinstance(value, str):
            return value
        if isinstance(value, FileSource):
            return _describe_paths(value.path)
        if isinstance(value, SqlSource):
            return value.sql
        if isinstance(value, ObjectStoragePath | Asset):
            return str(getattr(value, "uri", value))
        if callable(value):
            return f"<function {getattr(value, '__name__', type(value).__name__)}>"
        if isinstance(value, Sized):
            return f"<{type(value).__name__} of {len(value)} rows>"
        return f"<{type(value).__name__}>"

    __str__ = __repr__ = serialize

    def chunks(self, context: Context, options: RowOptions) -> Iterator[EncodedChunk]:
        """Return the rows as encoded jobs. Every call reads the source from its beginning.

        :param context: the task's context.
        :param options: how a row becomes a job.
        :raises InvalidArgument: if the source is not valid.
        """
        value = self.value
        if callable(value) and not is_table(value):
            value = value(**determine_kwargs(value, [], context))
        elif isinstance(value, Iterator):
            raise InvalidArgument(
                "source cannot be an iterator, because a retry reads it again; pass the function "
                "that returns it"
            )
        return encode_source(open_source(value, options), options)


def _references(value: Any) -> Any:
    return value.path if isinstance(value, FileSource) else value


def _describe_paths(path: Any) -> str:
    return ", ".join(map(str, path)) if isinstance(path, list | tuple) else str(path)


def open_source(value: Any, options: RowOptions) -> Any:
    """Return the rows or tables of a source.

    :param value: a path, a FileSource, a SqlSource, an asset of a file, a table, or rows.
    :param options: how a row becomes a job. Only the columns that it needs are read.
    :raises InvalidArgument: if the source is not valid.
    """
    if value is None:
        raise InvalidArgument(
            "source is None: the upstream task was skipped or returned nothing; return an empty "
            "list to send no jobs"
        )
    if isinstance(value, Asset):
        value = FileSource(value.uri)
    elif isinstance(value, str | ObjectStoragePath):
        value = FileSource(value)
    if isinstance(value, FileSource):
        return read_files(value, options.required_columns)
    if isinstance(value, SqlSource):
        return read_sql(value)
    return value


# Files


def read_files(source: FileSource, columns: list[str] | None = None) -> Iterator[Any]:
    """Yield the rows of files as Arrow record batches, or as mappings for JSON lines.

    :param source: the files.
    :param columns: the columns to read. Default: all.
    :raises FileNotFoundError: if there is no file.
    :raises InvalidArgument: if the format is not known or a file does not fit the types.
    """
    for folder, filesystem, files in _list_files(source):
        file_format = source.format or _detect_format(files)
        if file_format == "jsonl":
            yield from _read_json_lines(filesystem, files)
        else:
            yield from _read_tables(source, file_format, folder, filesystem, files, columns)


def _list_files(source: FileSource) -> Iterator[tuple[str | None, Any, list[str]]]:
    """Yield, per path, the directory if it is one, the filesystem, and the files in order."""
    paths = source.path if isinstance(source.path, list | tuple) else [source.path]
    if not paths:
        raise InvalidArgument("the source has no path")
    for path in paths:
        location = ObjectStoragePath(
            path, **({"conn_id": source.conn_id} if source.conn_id else {})
        )
        filesystem, name = location.fs, location.path
        folder = None
        if glob.has_magic(name):
            files = [file for file in filesystem.glob(name) if not filesystem.isdir(file)]
        elif filesystem.isdir(name):
            folder = name
            files = [file for file in filesystem.find(name) if not _is_hidden(file, name)]
        else:
            files = [name] if filesystem.exists(name) else []
        if not files:
            raise FileNotFoundError(f"the source {str(path)!r} has no files")
        yield folder, filesystem, sorted(map(str, files))


def _is_hidden(file: str, folder: str) -> bool:
    inner = file.removeprefix(folder.rstrip("/"))
    return any(part.startswith(("_", ".")) for part in inner.split("/"))


def _detect_format(files: Sequence[str]) -> str:
    formats = {_FORMATS_BY_ENDING.get(_ending(file)) for file in files}
    if len(formats) > 1 or None in formats:
        raise InvalidArgument(
            f"the format of {', '.join(files[:3])} is not known or not the same; pass "
            "FileSource(..., format='parquet'), 'csv', 'jsonl', 'arrow' or 'orc'"
        )
    return str(formats.pop())


def _ending(file: str) -> str:
    parts = file.rpartition("/")[2].lower().split(".")
    if parts[-1] in _COMPRESSIONS:
        parts.pop()
    return parts[-1]


def _read_json_lines(filesystem: Any, files: Iterable[str]) -> Iterator[Any]:
    # Not with pyarrow, which would turn texts that look like times into times.
    for file in files:
        with filesystem.open(file, "rt", encoding="utf-8", compression="infer") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    try:
                        yield json.loads(line)
                    except ValueError as error:
                        raise InvalidArgument(
                            f"line {number} of {file} is not JSON: {error}"
                        ) from error


def _read_tables(
    source: FileSource,
    file_format: str,
    folder: str | None,
    filesystem: Any,
    files: list[str],
    columns: list[str] | None,
) -> Iterator[Any]:
    """Yield the record batches of files."""
    try:
        import pyarrow as pa
    except ImportError as cause:
        raise MissingDependency(
            f"files in the format {file_format} need pyarrow: "
            "pip install 'airflow-provider-chasqui[arrow]'"
        ) from cause
    try:
        if file_format == "parquet":
            yield from _read_parquet(folder, filesystem, files, columns)
        else:
            yield from _scan_dataset(source, file_format, folder, filesystem, files, columns)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        hint = "; pass the type of the column in FileSource(..., schema=...)"
        raise InvalidArgument(
            f"the {file_format} files {', '.join(files[:3])} cannot be read: {error}"
            f"{hint if file_format == 'csv' else ''}"
        ) from error


def _read_parquet(
    folder: str | None, filesystem: Any, files: list[str], columns: list[str] | None
) -> Iterator[Any]:
    # Not as a dataset, which has complete row groups in memory.
    import pyarrow as pa
    import pyarrow.parquet as pq

    partition_values = _partition_values(folder, filesystem, files)
    for file in files:
        constants = {
            name: value
            for name, value in partition_values.get(file, {}).items()
            if columns is None or name in columns
        }
        with (
            filesystem.open(file, "rb") as stream,
            pq.ParquetFile(stream, pre_buffer=False) as part,
        ):
            names = part.schema_arrow.names
            if columns is not None:
                RowOptions(columns=columns).payload_columns([*names, *constants])
                names = [name for name in columns if name not in constants]
            batches = part.iter_batches(batch_size=ROWS_PER_TABLE, columns=names, use_threads=False)
            for batch in batches:
                table = pa.Table.from_batches([batch])
                for name, value in constants.items():
                    table = table.append_column(name, pa.repeat(value, batch.num_rows))
                yield table


def _partition_values(
    folder: str | None, filesystem: Any, files: list[str]
) -> dict[str, dict[str, Any]]:
    """Return the parts `name=value` of the paths below a directory, by file."""
    if folder is None or not any("=" in file.removeprefix(folder) for file in files):
        return {}
    import pyarrow.dataset as ds

    dataset = ds.dataset(
        files,
        format="parquet",
        filesystem=filesystem,
        partitioning="hive",
        partition_base_dir=folder,
    )
    fragments = zip(files, dataset.get_fragments(), strict=True)
    return {
        file: ds.get_partition_keys(fragment.partition_expression) for file, fragment in fragments
    }


def _scan_dataset(
    source: FileSource,
    file_format: str,
    folder: str | None,
    filesystem: Any,
    files: list[str],
    columns: list[str] | None,
) -> Iterator[Any]:
    import pyarrow.dataset as ds

    if file_format == "csv" and len(files) > 1:
        # One by one, because a dataset takes the columns and types of the first file for all.
        for file in files:
            yield from _scan_dataset(source, file_format, folder, filesystem, [file], columns)
        return
    read_as: Any = file_format
    scan_options: Any = None
    if file_format == "csv":
        types = None if source.schema is None else arrow_schema(source.schema)
        read_as, scan_options = _csv_format(source, files, types)
    dataset = ds.dataset(
        files,
        format=read_as,
        filesystem=filesystem,
        partitioning=None if folder is None else "hive",
        partition_base_dir=folder,
    )
    if columns is not None:
        RowOptions(columns=columns).payload_columns(dataset.schema.names)
    scanner = dataset.scanner(
        columns=columns,
        batch_size=ROWS_PER_TABLE,
        batch_readahead=1,
        fragment_readahead=1,
        fragment_scan_options=scan_options,
        use_threads=False,
    )
    yield from scanner.to_batches()


def _csv_format(source: FileSource, files: Sequence[str], types: Any) -> tuple[Any, Any]:
    import pyarrow.csv as pc
    import pyarrow.dataset as ds

    delimiter = source.delimiter or ("\t" if _ending(files[0]) == "tsv" else ",")
    convert = pc.ConvertOptions(column_types=types)
    csv_format = ds.CsvFileFormat(
        parse_options=pc.ParseOptions(delimiter=delimiter), convert_options=convert
    )
    return csv_format, ds.CsvFragmentScanOptions(convert_options=convert)


# SQL


def read_sql(source: SqlSource) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query as mappings.

    :param source: the query.
    :raises InvalidArgument: if two columns have the same name, or the query returns no rows.
    """
    hook = source.hook() if source.hook is not None else BaseHook.get_hook(source.conn_id or "")
    with closing(hook.get_conn()) as connection, closing(_open_cursor(connection)) as cursor:
        if source.parameters is None:
            cursor.execute(source.sql)
        else:
            cursor.execute(source.sql, source.parameters)
        names: list[str] = []
        while rows := cursor.fetchmany(source.fetch_size):
            # A server-side cursor has no description before the first fetch.
            names = names or _column_names(cursor)
            for row in rows:
                yield dict(zip(names, row, strict=True))


def _column_names(cursor: Any) -> list[str]:
    names = [str(column[0]) for column in cursor.description or ()]
    if len(set(names)) < len(names):
        raise InvalidArgument(
            f"the query returns two columns with the same name: {', '.join(names)}; rename them "
            "with AS"
        )
    return names


def _open_cursor(connection: Any) -> Any:
    """Return a cursor that does not transfer all rows at once, if the driver has one."""
    module = type(connection).__module__.partition(".")[0]
    if module in ("psycopg", "psycopg2"):
        return connection.cursor(name="chasqui_source")
    if module in ("MySQLdb", "pymysql"):
        return connection.cursor(import_module(f"{module}.cursors").SSCursor)
    return connection.cursor()
