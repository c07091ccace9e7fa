"""Payloads poured into a schema: what does not fit is null, as in Spark's from_json."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from pyspark.sql import types as t

Fit = Callable[[Any], Any]


def fitting(kind: t.DataType) -> Fit:
    """Return the function that makes a value of this type out of a payload's, or None."""
    match kind:
        case t.StructType():
            fields = [(field.name, fitting(field.dataType)) for field in kind.fields]
            return lambda v: (
                {name: fit(v.get(name)) for name, fit in fields} if isinstance(v, dict) else None
            )
        case t.ArrayType():
            item = fitting(kind.elementType)
            return lambda v: [item(each) for each in v] if isinstance(v, list) else None
        case t.MapType():
            key, value = fitting(kind.keyType), fitting(kind.valueType)
            return lambda v: (
                [(key(k), value(x)) for k, x in v.items() if key(k) is not None]
                if isinstance(v, dict)
                else None
            )
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            top = 2 ** ({"byte": 8, "short": 16, "integer": 32, "long": 64}[kind.typeName()] - 1)
            return lambda v: v if type(v) is int and -top <= v < top else None
        case t.FloatType() | t.DoubleType():
            return lambda v: float(v) if type(v) in (int, float) else None
        case t.BooleanType():
            return lambda v: v if isinstance(v, bool) else None
        case t.BinaryType():
            return lambda v: v if isinstance(v, bytes) else None
        case t.DecimalType():
            return lambda v: _decimal(v, kind.precision, kind.scale)
        case t.TimestampType() | t.TimestampNTZType():
            return lambda v: _moment(v, isinstance(kind, t.TimestampType))
        case t.DateType():
            return _date
        case t.StringType():
            return _text
    raise ValueError(f"payloadSchema cannot have a column of type {kind.simpleString()}")


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    return str(value) if type(value) in (int, float) else None


def _decimal(value: Any, precision: int, scale: int) -> Decimal | None:
    if type(value) not in (int, float, str):
        return None
    try:
        number = Decimal(str(value)).quantize(Decimal(1).scaleb(-scale))
    except InvalidOperation:
        return None
    return number if len(number.as_tuple().digits) <= precision else None


def _moment(value: Any, zoned: bool) -> datetime | None:
    try:
        if type(value) is int:
            moment = datetime.fromtimestamp(value / 1000, UTC)
        else:
            moment = datetime.fromisoformat(value)
    except (ValueError, TypeError, OverflowError, OSError):
        return None
    if zoned:
        return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return moment.replace(tzinfo=None)


def _date(value: Any) -> date | None:
    try:
        return date.fromisoformat(value)
    except (ValueError, TypeError):
        return None
