"""The `payloads` and `batch` arguments: resolved at run time, but neither rendered nor stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions._internal.mixins import ResolveMixin
from airflow.sdk.definitions.xcom_arg import XComArg

from airflow_provider_chasqui.core.errors import InvalidArgument

if TYPE_CHECKING:
    from airflow.sdk import Context


class PayloadList(ResolveMixin):
    """The payloads of many jobs, as the value of a template field.

    Airflow renders every text in a template field and stores the result in its database. A
    PayloadList only resolves references to upstream tasks, and is stored as a short text. A text,
    such as `"{{ params.rows }}"` in a DAG with `render_template_as_native_obj`, is rendered.

    :param value: a list or another iterable, an XComArg, or a template.
    """

    def __init__(self, value: Any):
        self.value = value

    def iter_references(self) -> Iterable[tuple[Any, str]]:
        """Return the upstream tasks, from which Airflow derives the dependencies."""
        return XComArg.iter_xcom_references(self.value)

    def __call__(self, context: Context, jinja_env: Any) -> PayloadList:
        """Return the resolved payloads. Airflow calls this instead of rendering the field."""
        if isinstance(self.value, str):
            return PayloadList(context["task"].render_template(self.value, context, jinja_env))
        return PayloadList(resolve_references(self.value, context))

    def resolve(self, context: Context) -> PayloadList:
        """Return the resolved payloads.

        :param context: the task's context.
        """
        return PayloadList(resolve_references(self.value, context))

    def serialize(self) -> str:
        """Return the text that Airflow stores in place of the payloads."""
        if isinstance(self.value, str):
            return self.value
        return f"<{len(self.value)} payloads>" if isinstance(self.value, Sized) else "<payloads>"

    __str__ = __repr__ = serialize

    def rows(self, name: str) -> Iterable[Any]:
        """Return the payloads as an iterable.

        :param name: the name of the argument, for the error message.
        :raises InvalidArgument: if the value is not an iterable of payloads.
        """
        if isinstance(self.value, Iterator):
            # The payloads may be needed again.
            self.value = list(self.value)
        return check_payloads(self.value, name)


def check_payloads(value: Any, name: str) -> Iterable[Any]:
    """Return the payloads of several jobs unchanged if they are an iterable of payloads.

    :param value: any iterable except text, bytes, mappings and tables.
    :param name: the name of the argument, for the error message.
    :raises InvalidArgument: if the value is not such an iterable.
    """
    expected = f"{name} must be a list or another iterable of payloads"
    if value is None:
        raise InvalidArgument(
            f"{expected}, not None: the upstream task was skipped or returned nothing; return an "
            "empty list to send no jobs"
        )
    if hasattr(value, "columns") or hasattr(value, "schema"):
        raise InvalidArgument(
            f"{expected}, not a {type(value).__name__}, which iterates over its columns; pass "
            "it as source="
        )
    if isinstance(value, str | bytes | bytearray | Mapping) or not hasattr(value, "__iter__"):
        raise InvalidArgument(f"{expected}, not {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def resolve_references(value: Any, context: Context) -> Any:
    """Return the value with all references to upstream tasks replaced.

    :param value: a value, a reference, or a collection with references.
    :param context: the task's context.
    """
    if isinstance(value, ResolveMixin):
        return value.resolve(context)
    if next(iter(XComArg.iter_xcom_references(value)), None) is None:
        return value
    if isinstance(value, dict):
        return {key: resolve_references(item, context) for key, item in value.items()}
    return [resolve_references(item, context) for item in value]
