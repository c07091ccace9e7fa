"""Typed payloads: validation of a payload against the parameters of a function.

The payload on the wire is a map of plain values. `PayloadType` converts it to the arguments of a
function: scalars, containers, dataclasses, typed dictionaries, enumerations and pydantic models.
pydantic is not imported; its models are recognized by their methods.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, get_args, get_origin
from uuid import UUID

from airflow_provider_chasqui.core.errors import InvalidArgument, InvalidPayload
from airflow_provider_chasqui.core.payload import decode_payload, encode_payload

Converter = Callable[[Any], Any]

CONTEXT_PARAMETER = "context"

_EMPTY = inspect.Parameter.empty
_LIST_TYPES = (list, Sequence, Iterable)
_DICT_TYPES = (dict, Mapping)
_MAX_SHOWN = 80


class PayloadMismatch(ValueError):
    """A value that does not have the declared type.

    :param expected: the message, without the position of the value.
    :param path: the position of the value in the payload.
    """

    def __init__(self, expected: str, path: str = ""):
        super().__init__(expected, path)
        self.expected = expected
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {self.expected}" if self.path else self.expected

    def within(self, step: str) -> PayloadMismatch:
        """Return the same error for a value inside of another one.

        :param step: the name of the field, or the index in brackets.
        """
        separator = "" if not self.path or self.path.startswith("[") else "."
        return PayloadMismatch(self.expected, f"{step}{separator}{self.path}")


class PayloadType:
    """The payload of a function: how its arguments become a map, and a map its arguments.

    If the function has one parameter whose type is a dataclass, a pydantic model, a typed
    dictionary or `dict`, the payload is the map of that value. Otherwise the payload maps the names
    of the parameters to their values. The parameter `context` is not part of the payload.

    :param function: the function.
    :param local_names: the names that are visible where the function is defined.
    :raises InvalidArgument: if a parameter cannot be passed by name, or its type is not supported.
    """

    def __init__(self, function: Callable[..., Any], local_names: Mapping[str, Any] | None = None):
        self._name = getattr(function, "__name__", repr(function))
        signature = inspect.signature(function)
        self.accepts_context = CONTEXT_PARAMETER in signature.parameters
        parameters = [p for p in signature.parameters.values() if p.name != CONTEXT_PARAMETER]
        for parameter in parameters:
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
                raise InvalidArgument(
                    f"the job {self._name!r} cannot have the parameter {parameter}; the payload is "
                    "a map, so every parameter must be passed by name"
                )
        self._signature = signature.replace(parameters=parameters)
        hints = _resolve_hints(function, parameters, local_names or {})
        self._any_key = any(p.kind is p.VAR_KEYWORD for p in parameters)
        named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        self._fields: list[_Field] = []
        for parameter in named:
            try:
                converter = _converter(hints.get(parameter.name, Any), {})
            except InvalidArgument as error:
                raise InvalidArgument(
                    f"the parameter {parameter.name!r} of the job {self._name!r}: {error.message}"
                ) from None
            required = parameter.default is _EMPTY
            self._fields.append((parameter.name, converter, required))
        self._whole: tuple[str, Converter] | None = None
        if len(named) == 1 and not self._any_key and _is_map_type(hints.get(named[0].name)):
            self._whole = (named[0].name, self._fields[0][1])

    @property
    def field_names(self) -> list[str] | None:
        """The keys of the payload, or None if it may have any key."""
        if self._any_key or self._whole is not None:
            return None
        return [name for name, _, _ in self._fields]

    def payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the payload for a call of the function.

        :param args: the positional arguments.
        :param kwargs: the keyword arguments.
        :raises InvalidPayload: if they do not fit the function.
        :raises EncodeError: if a value cannot be encoded.
        """
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise self._invalid(str(error)) from None
        values: Any = dict(bound.arguments)
        if self._any_key:
            for parameter in self._signature.parameters.values():
                if parameter.kind is parameter.VAR_KEYWORD:
                    values |= values.pop(parameter.name, {})
        if self._whole is not None:
            values = values.get(self._whole[0], {})
        # What the worker will read. Values are converted as in every payload.
        payload = decode_payload(encode_payload(values))
        self.arguments(payload)
        return payload  # type: ignore[no-any-return]

    def arguments(self, payload: Any) -> dict[str, Any]:
        """Return the keyword arguments for a payload. Unknown keys are ignored.

        :param payload: the decoded payload.
        :raises InvalidPayload: if it does not fit the function.
        """
        if not isinstance(payload, dict):
            raise self._invalid(f"expected a map, not {_describe(payload)}")
        try:
            if self._whole is not None:
                name, converter = self._whole
                return {name: converter(payload)}
            if not self._any_key:
                return _convert_fields(self._fields, payload)
            known = _convert_fields(self._fields, payload)
            return {**{str(key): value for key, value in payload.items()}, **known}
        except PayloadMismatch as error:
            raise self._invalid(str(error)) from None

    def _invalid(self, problem: str) -> InvalidPayload:
        return InvalidPayload(f"the payload does not fit the job {self._name!r}: {problem}")


# Name, converter and whether the value is required.
_Field = tuple[str, Converter, bool]


def _convert_fields(fields: Iterable[_Field], values: Mapping[Any, Any]) -> dict[str, Any]:
    converted = {}
    for name, converter, required in fields:
        if name in values:
            try:
                converted[name] = converter(values[name])
            except PayloadMismatch as error:
                raise error.within(name) from None
        elif required:
            raise PayloadMismatch("is missing", name)
    return converted


def _resolve_hints(
    function: Callable[..., Any],
    parameters: Iterable[inspect.Parameter],
    local_names: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the types of the parameters. The return type is not resolved, it is not needed."""
    annotations = {p.name: p.annotation for p in parameters if p.annotation is not _EMPTY}
    global_names = getattr(inspect.unwrap(function), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__=annotations)
    try:
        return typing.get_type_hints(holder, dict(global_names), dict(local_names), True)
    except Exception as cause:
        raise InvalidArgument(
            f"the types of the job {getattr(function, '__name__', function)!r} cannot be resolved: "
            f"{cause}; import them outside of `if TYPE_CHECKING`, and above the function"
        ) from cause


def _is_pydantic_model(kind: Any) -> bool:
    return (
        isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_dump")
    )


def _has_fields(hint: Any) -> bool:
    is_dataclass = isinstance(hint, type) and dataclasses.is_dataclass(hint)
    return is_dataclass or typing.is_typeddict(hint) or _is_pydantic_model(hint)


def _is_map_type(hint: Any) -> bool:
    return (get_origin(hint) or hint) in _DICT_TYPES or _has_fields(hint)


def _converter(hint: Any, known: dict[Any, list[Converter]]) -> Converter:
    """Return the function that converts a value of a payload to a type.

    :param hint: the type.
    :param known: the classes that are being compiled, for classes that contain themselves.
    :raises InvalidArgument: if the type is not supported.
    """
    if isinstance(hint, typing.NewType):
        return _converter(hint.__supertype__, known)
    if isinstance(hint, Hashable) and hint in _SCALARS:
        return _SCALARS[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _enum_converter(hint)
    if _has_fields(hint):
        return _class_converter(hint, known)
    return _generic_converter(hint, get_origin(hint) or hint, get_args(hint), known)


def _generic_converter(
    hint: Any, origin: Any, arguments: tuple[Any, ...], known: dict[Any, list[Converter]]
) -> Converter:
    """Return the converter of a container, a union or a literal type."""
    if origin is typing.Union or origin is types.UnionType:
        return _union_converter([_converter(option, known) for option in arguments], hint)
    if origin is typing.Literal:
        return _literal_converter(arguments)
    if origin is tuple:
        return _tuple_converter(arguments, known)
    if origin in _LIST_TYPES or origin in (set, frozenset):
        kind = origin if origin in (set, frozenset) else list
        return _list_converter(_converter(arguments[0] if arguments else Any, known), kind)
    if origin in _DICT_TYPES:
        key, value = arguments or (Any, Any)
        return _dict_converter(_converter(key, known), _converter(value, known))
    hint_text = getattr(hint, "__name__", None) or str(hint)
    advice = (
        "put constraints into a pydantic model"
        if origin is typing.Annotated
        else "use bool, int, float, str, bytes, datetime, date, time, Decimal, UUID, Enum, list, "
        "tuple, set, dict, a dataclass, a TypedDict, a pydantic model or Any"
    )
    raise InvalidArgument(f"the type {hint_text} is not supported; {advice}")


def _unchanged(value: Any) -> Any:
    return value


def _convert_none(value: Any) -> None:
    if value is not None:
        raise _mismatch("null", value)


def _convert_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise _mismatch("a bool", value)


def _convert_int(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    # A table stores integers as floats if some are missing.
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise _mismatch("an integer", value)


def _convert_float(value: Any) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    raise _mismatch("a number", value)


def _convert_str(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise _mismatch("text", value)


def _convert_bytes(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    raise _mismatch("bytes", value)


def _convert_datetime(value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise _mismatch("a time as ISO 8601 text", value) from None


def _convert_date(value: Any) -> date:
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise _mismatch("a date as ISO 8601 text", value) from None


def _convert_decimal(value: Any) -> Decimal:
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return Decimal(str(value))
    except InvalidOperation:
        pass
    raise _mismatch("a decimal number as text", value)


def _convert_uuid(value: Any) -> UUID:
    try:
        return UUID(value)
    except (TypeError, ValueError, AttributeError):
        raise _mismatch("a UUID as text", value) from None


def _convert_time(value: Any) -> time:
    try:
        return time.fromisoformat(value)
    except (TypeError, ValueError):
        raise _mismatch("a time of day as ISO 8601 text", value) from None


_SCALARS: dict[Any, Converter] = {
    Any: _unchanged,
    object: _unchanged,
    None: _convert_none,
    type(None): _convert_none,
    bool: _convert_bool,
    int: _convert_int,
    float: _convert_float,
    str: _convert_str,
    bytes: _convert_bytes,
    datetime: _convert_datetime,
    date: _convert_date,
    time: _convert_time,
    Decimal: _convert_decimal,
    UUID: _convert_uuid,
}


def _enum_converter(kind: type[Enum]) -> Converter:
    def convert(value: Any) -> Enum:
        try:
            return kind(value)
        except ValueError:
            allowed = ", ".join(repr(member.value) for member in kind)
            raise _mismatch(f"one of {allowed}", value) from None

    return convert


def _literal_converter(allowed: tuple[Any, ...]) -> Converter:
    def convert(value: Any) -> Any:
        for choice in allowed:
            if value == choice and type(value) is type(choice):
                return value
        raise _mismatch(f"one of {', '.join(map(repr, allowed))}", value)

    return convert


def _union_converter(options: list[Converter], hint: Any) -> Converter:
    def convert(value: Any) -> Any:
        for option in options:
            try:
                return option(value)
            except PayloadMismatch:
                continue
        raise _mismatch(str(hint).replace("typing.", ""), value)

    return convert


def _list_converter(item: Converter, kind: Callable[[list[Any]], Any]) -> Converter:
    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            raise _mismatch("a list", value)
        converted = value if item is _unchanged else _convert_items(item, value)
        return converted if kind is list else kind(converted)

    return convert


def _convert_items(item: Converter, values: list[Any]) -> list[Any]:
    try:
        return [item(value) for value in values]
    except PayloadMismatch:
        for index, value in enumerate(values):
            try:
                item(value)
            except PayloadMismatch as error:
                raise error.within(f"[{index}]") from None
        raise


def _tuple_converter(arguments: tuple[Any, ...], known: dict[Any, list[Converter]]) -> Converter:
    if not arguments or arguments[-1] is ...:
        return _list_converter(_converter(arguments[0] if arguments else Any, known), tuple)
    items = [_converter(argument, known) for argument in arguments]

    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) != len(items):
            raise _mismatch(f"a list of {len(items)} values", value)
        converted = []
        for index, (item, element) in enumerate(zip(items, value, strict=True)):
            try:
                converted.append(item(element))
            except PayloadMismatch as error:
                raise error.within(f"[{index}]") from None
        return tuple(converted)

    return convert


def _dict_converter(convert_key: Converter, convert_value: Converter) -> Converter:
    unchanged = convert_key is _unchanged and convert_value is _unchanged

    def convert(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise _mismatch("a map", value)
        if unchanged:
            return value
        converted = {}
        for key, item in value.items():
            try:
                converted[convert_key(key)] = convert_value(item)
            except PayloadMismatch as error:
                raise error.within(str(key)) from None
        return converted

    return convert


def _class_converter(kind: Any, known: dict[Any, list[Converter]]) -> Converter:
    """Return the converter of a class with fields, which may refer to itself."""
    if kind in known:
        holder = known[kind]
        return lambda value: holder[0](value)
    holder = known[kind] = []
    if _is_pydantic_model(kind):
        convert = _pydantic_converter(kind)
    else:
        convert = _fields_converter(kind, known)
    holder.append(convert)
    return convert


def _pydantic_converter(kind: Any) -> Converter:
    def convert(value: Any) -> Any:
        try:
            return kind.model_validate(value)
        except ValueError as error:
            problems: list[Any] = getattr(error, "errors", list)()
            if not problems:
                raise PayloadMismatch(str(error)) from None
            path = ".".join(str(step) for step in problems[0]["loc"])
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise PayloadMismatch(problems[0]["msg"] + more, path) from None

    return convert


def _fields_converter(kind: Any, known: dict[Any, list[Converter]]) -> Converter:
    """Return the converter of a dataclass or a typed dictionary."""
    try:
        hints = typing.get_type_hints(kind, include_extras=True)
    except Exception as cause:
        raise InvalidArgument(
            f"the types of {kind.__name__} cannot be resolved: {cause}"
        ) from cause
    fields: list[_Field] = []
    if typing.is_typeddict(kind):
        for name, hint in hints.items():
            # `__required_keys__` is wrong for annotations that are text.
            required = name in kind.__required_keys__
            if get_origin(hint) in (typing.Required, typing.NotRequired):
                required, hint = get_origin(hint) is typing.Required, get_args(hint)[0]
            fields.append((name, _converter(hint, known), required))
        build: Callable[..., Any] = dict
    else:
        for field in dataclasses.fields(kind):
            if field.init:
                missing = dataclasses.MISSING
                required = field.default is missing and field.default_factory is missing
                fields.append((field.name, _converter(hints[field.name], known), required))
        build = kind

    def convert(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _mismatch(f"a map with the fields of {kind.__name__}", value)
        converted = _convert_fields(fields, value)
        try:
            return build(**converted)
        except ValueError as error:  # raised by __post_init__
            raise PayloadMismatch(str(error)) from None

    return convert


def _mismatch(expected: str, value: Any) -> PayloadMismatch:
    return PayloadMismatch(f"expected {expected}, not {_describe(value)}")


def _describe(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
