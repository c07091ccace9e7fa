"""Spark's types as Arrow's, whichever version of Spark is asked."""

from __future__ import annotations

from inspect import signature
from typing import Any

from pyspark.sql.pandas import types as spark
from pyspark.sql.types import StructType


def arrow_schema(schema: StructType) -> Any:
    """Return the Arrow schema of a Spark schema; timestamps are in UTC."""
    options: dict[str, Any] = {}
    if "timezone" in signature(spark.to_arrow_schema).parameters:  # since Spark 4.2
        options["timezone"] = "UTC"
    return spark.to_arrow_schema(schema, **options)
