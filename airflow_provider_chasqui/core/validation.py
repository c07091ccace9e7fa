"""Checks of arguments that several modules share. Each raises `InvalidArgument`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from airflow_provider_chasqui.core.errors import InvalidArgument


def require_int(
    name: str, value: Any, minimum: int | None = None, maximum: int | None = None
) -> int:
    """Return the value if it is an integer within the bounds.

    :param name: the name of the argument, for the error message.
    :param value: the value. A bool is not an integer.
    :param minimum: the smallest allowed value.
    :param maximum: the largest allowed value.
    :raises InvalidArgument: if it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(
            f"{name} must be an integer{_bounds(minimum, maximum)}, not {value!r}"
        )
    if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
        raise InvalidArgument(f"{name} must be an integer{_bounds(minimum, maximum)}, not {value}")
    return value


def parse_int(name: str, value: Any, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return an integer from an integer or from decimal text, within the bounds.

    :param name: the name of the argument, for the error message.
    :param value: an integer, or text such as a rendered template or a Spark option.
    :param minimum: the smallest allowed value.
    :param maximum: the largest allowed value.
    :raises InvalidArgument: if it is neither, or out of bounds.
    """
    if isinstance(value, str):
        try:
            value = int(value.strip())
        except ValueError:
            raise InvalidArgument(
                f"{name} must be an integer{_bounds(minimum, maximum)}, not {value!r}"
            ) from None
    return require_int(name, value, minimum, maximum)


def parse_fraction(name: str, value: Any) -> float:
    """Return a number from 0 to 1 from a number or from decimal text.

    :param name: the name of the argument, for the error message.
    :param value: a number, or text such as a rendered template.
    :raises InvalidArgument: if it is neither, or out of bounds.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0.0 <= number <= 1.0:
        raise InvalidArgument(f"{name} must be a number from 0 to 1, not {value!r}")
    return number


def require_duration(
    name: str, value: Any, minimum: timedelta, maximum: timedelta | None = None
) -> timedelta:
    """Return the value if it is a `timedelta` within the bounds.

    :param name: the name of the argument, for the error message.
    :param value: the value.
    :param minimum: the shortest allowed duration.
    :param maximum: the longest allowed duration.
    :raises InvalidArgument: if it is not.
    """
    if not isinstance(value, timedelta):
        raise InvalidArgument(f"{name} must be a timedelta, not {value!r}")
    if value < minimum or (maximum is not None and value > maximum):
        bounds = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        raise InvalidArgument(f"{name} must be {bounds}, not {value}")
    return value


def require_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return the value if it is one of the choices.

    :param name: the name of the argument, for the error message.
    :param value: the value.
    :param choices: the allowed values.
    :raises InvalidArgument: if it is none of them.
    """
    allowed = tuple(choices)
    if value not in allowed:
        raise InvalidArgument(f"{name} must be one of {', '.join(allowed)}; not {value!r}")
    return str(value)


def _bounds(minimum: int | None, maximum: int | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of at least {minimum}"
    return f" of at most {maximum}" if maximum is not None else ""
