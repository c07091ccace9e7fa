"""Results of a batch as files: Parquet or JSON lines on any filesystem of fsspec.

Only one row group is in memory at a time. Files are written under temporary names and renamed when
all of them are complete, so that a file with a final name is complete. A directory has a file
`_SUCCESS` that names its files; it is removed before the first rename and written after the last.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_provider_chasqui.core.errors import InvalidArgument, MissingDependency
from airflow_provider_chasqui.core.json_values import to_jsonable
from airflow_provider_chasqui.core.results import BatchResult
from airflow_provider_chasqui.sources import arrow_schema, arrow_type

RESULT_FORMATS = ("parquet", "jsonl")
DEFAULT_MAX_FILE_BYTES = 128 * 1024 * 1024
MANIFEST = "_SUCCESS"

_ROWS_PER_GROUP = 65_536
_BYTES_PER_GROUP = 32 * 1024 * 1024
# A mapping with more fields in all rows together is data rather than a structure.
_MAX_STRUCT_FIELDS = 1000
_TEMPORARY_PREFIX = "_temporary-"
_PART_FILE = re.compile(r"part-\d{5,}\.(parquet|jsonl)")
_FIXED_COLUMNS = ("part", "index", "status", "error", "reason", "attempts")

ResultPages = Callable[[], Iterable[list[BatchResult]]]


# Columns


class ResultColumns:
    """The columns of a table of results.

    :param key_column: the names of the input's key columns. Default: `key`, if the batch has keys.
    :param schema: the columns of the result. A mapping of names to types, or a `pyarrow.Schema`,
        makes a column per field of the results, which must be mappings. A type or its name is the
        type of the column `result`; `json` is JSON text. Default: the column `result` with an
        inferred type, or JSON text if the results have no common type.
    :raises InvalidArgument: if two columns have the same name.
    """

    def __init__(self, key_column: str | Sequence[str] | None = None, schema: Any = None):
        self.keys = (
            None
            if key_column is None
            else ((key_column,) if isinstance(key_column, str) else tuple(key_column))
        )
        self._is_single_key = key_column is None or isinstance(key_column, str)
        self.fields = _field_names(schema)
        self.schema = schema
        names = (*(self.keys or ("key",)), *_FIXED_COLUMNS, *(self.fields or ("result",)))
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidArgument(
                f"two columns of the results have the name {repeated[0]!r}; the names "
                f"{', '.join(_FIXED_COLUMNS)} are reserved, use other names for the key columns"
            )

    def __repr__(self) -> str:
        return f"ResultColumns({self.keys!r}, {self.schema!r})"

    def key_values(self, results: Sequence[BatchResult]) -> dict[str, list[Any]]:
        """Return the key columns of results. They are empty if the batch has no keys.

        :param results: the results.
        :raises InvalidArgument: if a key has another number of values than there are names.
        """
        names = self.keys or ("key",)
        if self._is_single_key:
            return {names[0]: [result.key for result in results]}
        rows = [[None] * len(names) if result.key is None else result.key for result in results]
        for row in rows:
            if not isinstance(row, list) or len(row) != len(names):
                raise InvalidArgument(
                    f"the batch has keys such as {row!r}, but key_column has {len(names)} names"
                )
        return {name: [row[number] for row in rows] for number, name in enumerate(names)}

    def result_values(self, results: Sequence[BatchResult]) -> dict[str, list[Any]]:
        """Return the columns of the return values.

        :param results: the results.
        :raises InvalidArgument: if a result is not a mapping but the schema has names.
        """
        values = [result.result for result in results]
        if self.fields is None:
            return {"result": values}
        for result in results:
            if result.result is not None and not isinstance(result.result, Mapping):
                raise InvalidArgument(
                    f"the result of {result.job_id} is of the type {type(result.result).__name__}, "
                    "but schema names columns, so that it must be a mapping"
                )
        return {
            name: [None if value is None else value.get(name) for value in values]
            for name in self.fields
        }

    def rows(self, results: Sequence[BatchResult]) -> Iterator[dict[str, Any]]:
        """Yield results as mappings with the names of the columns.

        :param results: the results.
        """
        keys = self.key_values(results)
        if self.keys is None and all(value is None for value in keys["key"]):
            keys = {}
        columns = keys | _fixed_values(results, first=True) | self.result_values(results)
        columns |= _fixed_values(results, first=False)
        for values in zip(*columns.values(), strict=True):
            yield dict(zip(columns, values, strict=True))


def _field_names(schema: Any) -> tuple[str, ...] | None:
    if isinstance(schema, Mapping):
        return tuple(schema)
    names = getattr(schema, "names", None)
    # A struct type has names too; it is the type of one column.
    return tuple(names) if names is not None and hasattr(schema, "metadata") else None


def _fixed_values(results: Sequence[BatchResult], *, first: bool) -> dict[str, list[Any]]:
    names = _FIXED_COLUMNS[:3] if first else _FIXED_COLUMNS[3:]
    return {name: [getattr(result, name) for result in results] for name in names}


class ArrowTypes:
    """The Arrow types of the columns of results, inferred from all rows.

    :param columns: the columns.
    """

    def __init__(self, columns: ResultColumns):
        self._columns = columns
        self._has_keys = columns.keys is not None
        self._inferred: dict[str, Any] = {}
        self._json: set[str] = set()
        self._given: dict[str, Any] = {}
        schema = columns.schema
        if columns.fields is not None:
            typed = arrow_schema(schema)
            self._given = {name: typed.field(name).type for name in columns.fields}
        elif schema == "json":
            self._json.add("result")
        elif schema is not None:
            self._given = {"result": arrow_type(schema)}

    def infer(self, results: Sequence[BatchResult]) -> None:
        """Extend the types so that they fit these results.

        :param results: the results.
        """
        keys = self._columns.key_values(results)
        self._has_keys = self._has_keys or any(key is not None for key in keys.get("key", ()))
        for name, values in (keys | self._columns.result_values(results)).items():
            if name not in self._json and name not in self._given:
                kind = _common_type(self._inferred.get(name), values)
                if kind is None:
                    self._json.add(name)
                else:
                    self._inferred[name] = kind

    def table(self, results: Sequence[BatchResult]) -> Any:
        """Return results as an Arrow table.

        :param results: the results.
        :raises InvalidArgument: if a value does not fit the type of its column.
        """
        import pyarrow as pa

        keys = self._columns.key_values(results) if self._has_keys else {}
        fixed = {"part": pa.int32(), "index": pa.int64(), "status": pa.string()}
        fixed |= {"error": pa.string(), "reason": pa.string(), "attempts": pa.int32()}
        columns = keys | _fixed_values(results, first=True) | self._columns.result_values(results)
        columns |= _fixed_values(results, first=False)
        arrays = {}
        for name, values in columns.items():
            if name in self._json:
                values = [None if value is None else to_json_text(value) for value in values]
            kind = (
                pa.string()
                if name in self._json
                else (fixed.get(name) or self._given.get(name) or self._inferred[name])
            )
            try:
                arrays[name] = pa.array(values, kind)
            except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
                raise InvalidArgument(
                    f"a value of the column {name!r} does not fit its type {kind}: {error}; pass "
                    "another type in schema, or schema='json'"
                ) from error
        return pa.table(arrays)


def _common_type(known: Any, values: list[Any]) -> Any:
    """Return a type for the values that includes a known type, or None if there is none."""
    import pyarrow as pa

    try:
        kind = pa.array(values).type
        if known is not None and kind != known:
            schemas = [pa.schema([("x", known)]), pa.schema([("x", kind)])]
            kind = pa.unify_schemas(schemas, promote_options="permissive").field("x").type
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    return kind if 0 < _count_fields(kind) <= _MAX_STRUCT_FIELDS else None


def _count_fields(kind: Any) -> int:
    """Return the number of values in a type, or 0 if it has a structure without fields."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        counts = [_count_fields(kind.field(number).type) for number in range(kind.num_fields)]
        return sum(counts) if counts and all(counts) else 0
    return _count_fields(kind.value_type) if pa.types.is_list(kind) else 1


def to_json_text(value: Any) -> str:
    """Return a value as JSON text.

    :param value: any value that MessagePack can carry.
    """
    return json.dumps(to_jsonable(value), ensure_ascii=False, separators=(",", ":"))


# Targets


@dataclass
class SqlTable:
    """A table for results, in a database with a DbApiHook. It must exist.

    Its column `batch_id` identifies the rows of a batch, which are replaced if they are written
    again.

    :param name: the name of the table. (templated)
    :param conn_id: the id of the Airflow connection of the database.
    :param columns: the columns to insert besides `batch_id`: key columns, `part`, `index`,
        `status`, `result` or the columns of the schema, `error`, `reason` and `attempts`. Default:
        all but `part`, `index` and `reason`.
    :param hook: a function that returns the DbApiHook, instead of `conn_id`. Default: the hook of
        the connection.
    """

    template_fields: ClassVar[Sequence[str]] = ("name",)

    name: str
    conn_id: str | None = None
    columns: Sequence[str] | None = None
    hook: Callable[[], Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if (self.conn_id is None) == (self.hook is None):
            raise InvalidArgument("SqlTable needs exactly one of conn_id and hook")

    def column_names(self, columns: ResultColumns) -> tuple[str, ...]:
        """Return the columns to insert.

        :param columns: the columns of the results.
        :raises InvalidArgument: if there is no such column.
        """
        keys, values = columns.keys or ("key",), columns.fields or ("result",)
        if self.columns is None:
            return (*(columns.keys or ()), "status", *values, "error", "attempts")
        known = (*keys, *_FIXED_COLUMNS, *values)
        for name in self.columns:
            if name not in known:
                raise InvalidArgument(
                    f"the results have no column {name!r}; the columns are {', '.join(known)}"
                )
        return tuple(self.columns)


@dataclass(frozen=True)
class ResultTarget:
    """Where results are written.

    :param filesystem: the filesystem, of fsspec.
    :param path: a file that ends with `.parquet` or `.jsonl`, or a directory.
    :param file_format: the format of the files in a directory.
    :param max_file_bytes: the size after which a directory gets another file.
    """

    filesystem: Any
    path: str
    file_format: str = "parquet"
    max_file_bytes: int = DEFAULT_MAX_FILE_BYTES

    def __post_init__(self) -> None:
        if self.file_format not in RESULT_FORMATS:
            raise InvalidArgument(
                f"the format of results must be parquet or jsonl, not {self.file_format!r}"
            )

    @property
    def is_directory(self) -> bool:
        """Whether the path is a directory with several files."""
        return not self.path.endswith(tuple(f".{name}" for name in RESULT_FORMATS))

    @property
    def format(self) -> str:
        """The format of the files."""
        return self.file_format if self.is_directory else self.path.rpartition(".")[2]

    @property
    def folder(self) -> str:
        """The directory of the files."""
        return self.path.rstrip("/") if self.is_directory else self.path.rpartition("/")[0]


@dataclass
class WrittenFiles:
    """The files of a target.

    :param rows: the number of rows.
    :param files: the names of the files in the directory.
    :param reused: whether they were written by an earlier call.
    """

    rows: int = 0
    files: list[str] = field(default_factory=list)
    reused: bool = False


class _FileWriter:
    """One file in the temporary directory."""

    def __init__(self, filesystem: Any, path: str, file_format: str):
        self._stream = filesystem.open(path, "wb")
        self._format = file_format
        self._writer: Any = None

    @property
    def size(self) -> int:
        return int(self._stream.tell())

    def write_table(self, table: Any) -> None:
        import pyarrow.parquet as pq

        if self._writer is None:
            self._writer = pq.ParquetWriter(self._stream, table.schema, compression="zstd")
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))

    def write_lines(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._stream.write("".join(to_json_text(row) + "\n" for row in rows).encode())

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._stream.close()


class ResultFileWriter:
    """Writer of one target.

    :param target: where the files are written.
    :param columns: the columns.
    :param types: the types of the columns, for Parquet.
    """

    def __init__(self, target: ResultTarget, columns: ResultColumns, types: ArrowTypes | None):
        self._target = target
        self._columns = columns
        self._types = types
        self._token = uuid.uuid4().hex
        self._temporary = f"{target.folder}/{_TEMPORARY_PREFIX}{self._token}"
        self._file: _FileWriter | None = None
        self._buffer: list[Any] = []
        self._buffered_rows = self._buffered_bytes = 0
        self.written = WrittenFiles()

    def write(self, results: Sequence[BatchResult]) -> None:
        """Add results.

        :param results: the results.
        """
        if not results:
            return
        self.written.rows += len(results)
        if self._types is None:
            self._open().write_lines(self._columns.rows(results))
            self._roll_over()
            return
        table = self._types.table(results)
        self._buffer.append(table)
        self._buffered_rows += table.num_rows
        self._buffered_bytes += table.nbytes
        if self._buffered_rows >= _ROWS_PER_GROUP or self._buffered_bytes >= _BYTES_PER_GROUP:
            self._flush()

    def close(self) -> None:
        """Complete the temporary files. There is at least one, which may have no rows."""
        self._flush()
        if not self.written.files:
            file = self._open()
            if self._types is not None:
                file.write_table(self._types.table([]))
        self._close_file()

    def commit(self, manifest: Mapping[str, Any], writers: Sequence[ResultFileWriter] = ()) -> None:
        """Give the files their final names and delete those of an earlier call.

        :param manifest: what the file `_SUCCESS` contains besides the files.
        :param writers: the writers that have not been committed yet, and may use the same folder.
        """
        in_use = {writer._token for writer in writers if writer is not self}
        filesystem, folder = self._target.filesystem, self._target.folder
        filesystem.invalidate_cache(folder)
        if not self._target.is_directory:
            filesystem.mv(f"{self._temporary}/{self.written.files[0]}", self._target.path)
            self._remove_temporary()
            return
        if filesystem.exists(f"{folder}/{MANIFEST}"):
            filesystem.rm(f"{folder}/{MANIFEST}")
        for name in self.written.files:
            filesystem.mv(f"{self._temporary}/{name}", f"{folder}/{name}")
        for path in filesystem.ls(folder, detail=False):
            name = str(path).rstrip("/").rpartition("/")[2]
            is_temporary = name.startswith(_TEMPORARY_PREFIX)
            if (is_temporary and name.removeprefix(_TEMPORARY_PREFIX) not in in_use) or (
                _PART_FILE.fullmatch(name) and name not in self.written.files
            ):
                filesystem.rm(path, recursive=True)
        content = {**manifest, "rows": self.written.rows, "files": self.written.files}
        with filesystem.open(f"{folder}/{MANIFEST}", "wb") as out:
            out.write(json.dumps(content, indent=1).encode())

    def abort(self) -> None:
        """Delete the temporary files."""
        with suppress(Exception):
            self._close_file()
        with suppress(Exception):
            self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._target.filesystem.exists(self._temporary):
            self._target.filesystem.rm(self._temporary, recursive=True)

    def _open(self) -> _FileWriter:
        if self._file is None:
            filesystem, file_format = self._target.filesystem, self._target.format
            name = f"part-{len(self.written.files):05d}.{file_format}"
            filesystem.makedirs(self._temporary, exist_ok=True)
            self._file = _FileWriter(filesystem, f"{self._temporary}/{name}", file_format)
            self.written.files.append(name)
        return self._file

    def _flush(self) -> None:
        if self._buffer:
            import pyarrow as pa

            self._open().write_table(pa.concat_tables(self._buffer).combine_chunks())
            self._buffer, self._buffered_rows, self._buffered_bytes = [], 0, 0
            self._roll_over()

    def _roll_over(self) -> None:
        full = self._file is not None and self._file.size >= self._target.max_file_bytes
        if full and self._target.is_directory:
            self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            file.close()


def write_results(
    read_pages: ResultPages,
    columns: ResultColumns,
    results: ResultTarget | None,
    failures: ResultTarget | None = None,
    manifest: Mapping[str, Any] | None = None,
) -> tuple[WrittenFiles | None, WrittenFiles | None]:
    """Write the outcomes of a batch to files.

    The same call again, after a crash or by a retry, gives the same files. A directory whose
    `_SUCCESS` has the same manifest is left as it is.

    :param read_pages: a function that returns the outcomes in pages. It is called twice if the
        types of columns must be inferred.
    :param columns: the columns.
    :param results: where the outcomes are written. None writes none.
    :param failures: where the outcomes of jobs that are not done are written, instead of `results`.
    :param manifest: what identifies the outcomes, such as the id and the counts of the batch.
    :return: the files of `results` and of `failures`.
    :raises InvalidArgument: if a result does not fit the columns.
    """
    targets = [target for target in (results, failures) if target is not None]
    if results is not None and failures is not None and results.path == failures.path:
        raise InvalidArgument(f"results and failures have the same path {results.path!r}")
    settings = repr((columns, failures is not None, [target.format for target in targets]))
    fingerprint = hashlib.sha256(settings.encode()).hexdigest()[:16]
    identity = {**(manifest or {}), "settings": fingerprint}
    complete = [_read_manifest(target, identity) for target in targets]
    if all(complete) and complete and manifest is not None:
        found = iter(complete)
        return (
            next(found) if results is not None else None,
            next(found) if failures is not None else None,
        )
    types = None
    if any(target.format == "parquet" for target in targets):
        types = _infer_types(read_pages, columns)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(
                _writing(
                    ResultFileWriter(target, columns, types if target.format == "parquet" else None)
                )
            )
            for target in targets
        ]
        done = writers[0] if results is not None else None
        not_done = writers[-1] if failures is not None else None
        for page in read_pages():
            if not_done is None:
                assert done is not None
                done.write(page)
                continue
            if done is not None:
                done.write([result for result in page if result.status == "done"])
            not_done.write([result for result in page if result.status != "done"])
        for writer in writers:
            writer.close()
        for number, writer in enumerate(writers):
            writer.commit(identity, writers[number:])
    return (
        done.written if done is not None else None,
        not_done.written if not_done is not None else None,
    )


@contextmanager
def _writing(writer: ResultFileWriter) -> Iterator[ResultFileWriter]:
    try:
        yield writer
    except BaseException:
        writer.abort()
        raise


def _infer_types(read_pages: ResultPages, columns: ResultColumns) -> ArrowTypes:
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as cause:
        raise MissingDependency(
            "Parquet needs pyarrow: pip install 'airflow-provider-chasqui[arrow]'"
        ) from cause
    types = ArrowTypes(columns)
    types.infer([])
    for page in read_pages():
        types.infer(page)
    return types


def _read_manifest(target: ResultTarget, identity: Mapping[str, Any]) -> WrittenFiles | None:
    """Return the files of a directory that was written completely from the same outcomes."""
    path = f"{target.folder}/{MANIFEST}"
    if not target.is_directory or not target.filesystem.exists(path):
        return None
    with target.filesystem.open(path, "rb") as source:
        raw = source.read()
    try:
        found = json.loads(raw)
    except ValueError:  # another program writes an empty file
        return None
    if not isinstance(found, dict) or any(
        found.get(name) != value for name, value in identity.items()
    ):
        return None
    return WrittenFiles(found["rows"], found["files"], reused=True)
