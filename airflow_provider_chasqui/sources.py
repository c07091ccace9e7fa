"""Sources of rows, and their encoding as the jobs of a batch.

A source yields rows or Arrow tables in a stable order. Only the rows that are being encoded are in
memory. Tables are encoded column by column (see `arrow_encoder`), other rows one by one; both give
the same bytes. pyarrow is imported when the first table is encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from airflow_provider_chasqui.core.batch import EncodedChunk
from airflow_provider_chasqui.core.chunking import MAX_CHUNK_JOBS
from airflow_provider_chasqui.core.errors import InvalidArgument, MissingDependency
from airflow_provider_chasqui.core.payload import encode_payloads

ROWS_PER_TABLE = 16_384

_NO_ITEM = object()


@dataclass(frozen=True)
class FileSource:
    """Rows of files: Parquet, CSV, JSON lines, Arrow or ORC.

    The files are read in the order of their paths. A directory stands for all files below it,
    without those whose name begins with `_` or `.`. The parts `name=value` of their paths become
    columns.

    :param path: a path, a URL such as `s3://bucket/rows/*.parquet`, an ObjectStoragePath, or a list
        of them. `*`, `?`, `[` and `**` make a path a pattern. (templated)
    :param format: `parquet`, `csv`, `jsonl`, `arrow` or `orc`. Default: by the ending of the files,
        before the ending of a compression such as `.gz`.
    :param conn_id: the id of the Airflow connection of the storage. Default: that of the path, as
        in `s3://my_connection@bucket/rows`, or that of the storage.
    :param schema: the types of columns, as a mapping such as `{"code": "string"}` or a
        `pyarrow.Schema`. It is for CSV, whose types are otherwise inferred from the first megabyte.
        Default: none.
    :param delimiter: the delimiter of CSV files. Default: a comma, or a tab if they end with
        `.tsv`.
    """

    path: Any
    format: str | None = None
    conn_id: str | None = None
    schema: Any = None
    delimiter: str | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FILE_FORMATS:
            raise InvalidArgument(
                f"format must be one of {', '.join(FILE_FORMATS)}, not {self.format!r}"
            )


FILE_FORMATS = ("parquet", "csv", "jsonl", "arrow", "orc")


@dataclass(frozen=True)
class SqlSource:
    """Rows of an SQL query through any DbApiHook, read with a server-side cursor if there is one.

    The query needs an `ORDER BY` with a unique key: a retry compares the rows with those that were
    sent before.

    :param sql: the query. (templated)
    :param conn_id: the id of the Airflow connection of the database.
    :param parameters: the parameters of the query, as a list or a mapping. Default: none.
        (templated)
    :param fetch_size: the number of rows per fetch. Default: 10 000.
    :param hook: a function that returns the DbApiHook, instead of `conn_id`. Default: the hook of
        the connection.
    """

    sql: str
    conn_id: str | None = None
    parameters: Any = field(default=None, repr=False)
    fetch_size: int = 10_000
    hook: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        if (self.conn_id is None) == (self.hook is None):
            raise InvalidArgument("SqlSource needs exactly one of conn_id and hook")
        if self.fetch_size < 1:
            raise InvalidArgument(f"fetch_size must be at least 1, not {self.fetch_size}")


@dataclass(frozen=True)
class RowOptions:
    """How a row becomes a job.

    :param columns: the columns of the payload. Default: all but `job_name_column`.
    :param rename: the names of columns in the payload, by their names in the source. Other columns
        keep their names.
    :param key_column: the column that identifies a row, or several. Its value is stored with the
        batch and returned with the result of the job; several values are a list.
    :param job_name_column: the column with the name of the job.
    """

    columns: Sequence[str] | None = None
    rename: Mapping[str, str] = field(default_factory=dict)
    key_column: str | Sequence[str] | None = None
    job_name_column: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.columns, str):
            raise InvalidArgument(
                f"columns must be a list of column names, not the text {self.columns!r}"
            )
        if self.columns is not None and (
            missing := [name for name in self.rename if name not in self.columns]
        ):
            raise InvalidArgument(
                f"rename names {', '.join(map(repr, missing))}, which columns does not contain"
            )

    @property
    def is_default(self) -> bool:
        """Whether a row is the payload, unchanged."""
        return self == RowOptions()

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of the key columns."""
        if self.key_column is None:
            return ()
        return (self.key_column,) if isinstance(self.key_column, str) else tuple(self.key_column)

    @property
    def required_columns(self) -> list[str] | None:
        """The columns to read, in a stable order. None means all of them."""
        if self.columns is None:
            return None
        extra = (*self.key_columns, *((self.job_name_column,) if self.job_name_column else ()))
        return list(dict.fromkeys((*self.columns, *extra)))

    def payload_columns(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Return the columns of the payload, each with its name in the payload.

        :param names: the columns of the source.
        :raises InvalidArgument: if a column does not exist, or two get the same name.
        """
        names = list(names)
        used = (*(self.required_columns or ()), *self.key_columns, *self.rename)
        for name in (*used, *((self.job_name_column,) if self.job_name_column else ())):
            if name not in names:
                raise InvalidArgument(
                    f"the source has no column {name!r}; its columns are {', '.join(names)}"
                )
        chosen = self.columns
        if chosen is None:
            chosen = [name for name in names if name != self.job_name_column]
        pairs = [(name, self.rename.get(name, name)) for name in chosen]
        if len({new_name for _, new_name in pairs}) < len(pairs):
            raise InvalidArgument(
                "two columns have the same name in the payload: "
                f"{', '.join(new_name for _, new_name in pairs)}; select or rename them"
            )
        return pairs


def is_table(value: Any) -> bool:
    """Return whether a value is an Arrow, pandas or Polars table, or a stream of Arrow batches.

    :param value: any value.
    """
    return _is_pandas(value) or hasattr(value, "__arrow_c_stream__") or _is_record_batch(value)


def _is_pandas(value: Any) -> bool:
    return hasattr(value, "iloc") and hasattr(value, "columns")


def _is_record_batch(value: Any) -> bool:
    return hasattr(value, "schema") and hasattr(value, "num_rows") and hasattr(value, "column")


def encode_source(rows: Any, options: RowOptions | None = None) -> Iterator[EncodedChunk]:
    """Encode rows as the jobs of a batch, for `Queue.add_encoded_batch`.

    :param rows: an Arrow, pandas or Polars table; an iterable of tables; or an iterable of rows,
        which are mappings, or any payloads if there are no options.
    :param options: the columns. Default: the payload is the row.
    :raises InvalidArgument: if the rows have not the columns that the options name.
    :raises EncodeError: if a row cannot be encoded. The message has the number of the row, from 0.
    """
    options = options or RowOptions()
    if is_table(rows):
        return _encode_tables([rows], options)
    if isinstance(rows, str | bytes | bytearray | Mapping) or not hasattr(rows, "__iter__"):
        raise InvalidArgument(
            f"a source must be a table or an iterable of rows, not {type(rows).__name__}"
        )
    remaining = iter(rows)
    first = next(remaining, _NO_ITEM)
    if first is _NO_ITEM:
        return iter(())
    remaining = chain([first], remaining)
    encode = _encode_tables if is_table(first) else _encode_rows
    return encode(remaining, options)


# Tables


def _encode_tables(tables: Iterable[Any], options: RowOptions) -> Iterator[EncodedChunk]:
    try:
        from airflow_provider_chasqui.arrow_encoder import MessagePackEncoder, split_batch
    except ImportError as cause:
        raise MissingDependency(
            "tables need pyarrow: pip install 'airflow-provider-chasqui[arrow]'"
        ) from cause
    encoder = MessagePackEncoder()
    for table in tables:
        for batch in _record_batches(table):
            if isinstance(batch, list):
                yield from _encode_rows(iter(batch), options)
                continue
            for piece in split_batch(batch):
                yield _encode_record_batch(piece, options, encoder)


def _encode_record_batch(batch: Any, options: RowOptions, encoder: Any) -> EncodedChunk:
    import pyarrow as pa

    pairs = options.payload_columns(batch.schema.names)
    columns = [batch.column(name) for name, _ in pairs]
    encoded = encoder.encode_rows([new_name for _, new_name in pairs], columns)
    if isinstance(encoded, pa.Scalar):  # there are no columns
        encoded = pa.repeat(encoded, batch.num_rows)
    values = [batch.column(name).to_pylist() for name in options.key_columns]
    keys: list[Any] | None = None
    if values:
        single = isinstance(options.key_column, str)
        keys = values[0] if single else [list(key) for key in zip(*values, strict=True)]
    names = None
    if options.job_name_column:
        column = batch.column(options.job_name_column)
        names = [_job_name(name) for name in column.cast(pa.string()).to_pylist()]
    return EncodedChunk(encoded.to_pylist(), keys, names)


def _record_batches(table: Any) -> Iterator[Any]:
    """Yield a table as record batches, or as lists of rows if Arrow has no type for them."""
    import pyarrow as pa

    if _is_pandas(table):
        yield from _slice_frame(table)
    elif isinstance(table, pa.RecordBatch):
        yield from pa.Table.from_batches([table]).to_batches(max_chunksize=ROWS_PER_TABLE)
    elif isinstance(table, pa.Table):
        yield from table.to_batches(max_chunksize=ROWS_PER_TABLE)
    else:
        for batch in pa.RecordBatchReader.from_stream(table):
            yield from pa.Table.from_batches([batch]).to_batches(max_chunksize=ROWS_PER_TABLE)


def _slice_frame(frame: Any) -> Iterator[Any]:
    """Yield a DataFrame in slices, because a conversion of the whole would double its memory."""
    import pyarrow as pa

    for start in range(0, len(frame), ROWS_PER_TABLE):
        part = frame.iloc[start : start + ROWS_PER_TABLE]
        try:
            yield pa.RecordBatch.from_pandas(part, preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
            # A column of objects, such as UUIDs. Missing values become null, as in Arrow.
            objects = part.astype(object)
            yield objects.where(objects.notna(), None).to_dict("records")


# Rows


def _encode_rows(rows: Iterator[Any], options: RowOptions) -> Iterator[EncodedChunk]:
    encoder = _RowEncoder(options)
    index = 0
    while block := list(islice(rows, MAX_CHUNK_JOBS)):
        try:
            chunk = encoder.encode(block)
        except InvalidArgument as error:
            raise _first_error(encoder, block, index, error) from error
        yield chunk
        index += len(block)


class _RowEncoder:
    """Encoder of mappings, which usually have the same keys."""

    def __init__(self, options: RowOptions):
        self._options = options
        self._names: tuple[Any, ...] = ()
        self._pairs: list[tuple[str, str]] | None = None

    def encode(self, block: list[Any]) -> EncodedChunk:
        options = self._options
        if options.is_default:
            return EncodedChunk(encode_payloads(block))
        payloads = [self._payload(row) for row in block]
        keys: list[Any] | None = None
        if isinstance(options.key_column, str):
            keys = [row[options.key_column] for row in block]
        elif options.key_column is not None:
            keys = [[row[name] for name in options.key_columns] for row in block]
        job_names = None
        if options.job_name_column:
            job_names = [_job_name(row[options.job_name_column]) for row in block]
        return EncodedChunk(encode_payloads(payloads), keys, job_names)

    def _payload(self, row: Any) -> dict[str, Any]:
        if not isinstance(row, Mapping):
            raise InvalidArgument(
                f"the row is of the type {type(row).__name__}; it must be a mapping if columns, "
                "rename, key_column or job_name_column is given"
            )
        names = tuple(row)
        if self._pairs is None or names != self._names:
            self._pairs, self._names = self._options.payload_columns(names), names
        return {new_name: row[name] for name, new_name in self._pairs}


def _job_name(value: Any) -> str:
    return "" if value is None else str(value)


def _first_error(
    encoder: _RowEncoder, block: list[Any], first_index: int, error: InvalidArgument
) -> InvalidArgument:
    """Return the error of the first row of a block that cannot be encoded, with its number."""
    for offset, row in enumerate(block):
        try:
            encoder.encode([row])
        except InvalidArgument as row_error:
            return type(row_error)(f"row {first_index + offset}: {row_error.message}")
    return error


# Types


def arrow_schema(schema: Any) -> Any:
    """Return a pyarrow schema from a schema, or from a mapping of names to types.

    :param schema: the schema; its types may be names such as `int64`, `string` or `list<double>`.
    :raises InvalidArgument: if a type is not known.
    """
    import pyarrow as pa

    if not isinstance(schema, Mapping):
        return schema
    return pa.schema([(name, arrow_type(kind)) for name, kind in schema.items()])


def arrow_type(kind: Any) -> Any:
    """Return a pyarrow type from a type or its name.

    :param kind: the type, or a name such as `int64`, `string`, `float64` or `list<float32>`.
    :raises InvalidArgument: if the type is not known.
    """
    import pyarrow as pa

    if not isinstance(kind, str):
        return kind
    text = kind.strip()
    if text.startswith("list<") and text.endswith(">"):
        return pa.list_(arrow_type(text[5:-1]))
    try:
        return pa.type_for_alias(text)
    except ValueError as error:
        raise InvalidArgument(
            f"{kind!r} is not the name of a type; use int64, float64, string, bool, "
            "timestamp[us], list<float32> or a pyarrow type"
        ) from error
