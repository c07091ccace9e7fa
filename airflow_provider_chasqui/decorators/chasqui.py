"""`@task.chasqui`: a task that enqueues the payloads its function returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    DecoratedOperator,
    TaskDecorator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)

from airflow_provider_chasqui.core.errors import InvalidArgument
from airflow_provider_chasqui.core.validation import require_choice
from airflow_provider_chasqui.operators._payloads import check_payloads
from airflow_provider_chasqui.operators._sources import open_source
from airflow_provider_chasqui.operators.enqueue import (
    NOT_GIVEN,
    PAYLOAD_ARGUMENTS,
    ChasquiEnqueueOperator,
    PayloadKind,
)
from airflow_provider_chasqui.sources import encode_source

if TYPE_CHECKING:
    from airflow.sdk import Context


class ChasquiDecoratedOperator(DecoratedOperator, ChasquiEnqueueOperator):
    """Operator that calls a function and enqueues the payloads that it returns.

    All other parameters are those of ChasquiEnqueueOperator, except `payload`, `payloads`,
    `batch` and `source`. If an earlier try has enqueued all jobs, the function is not called again.

    :param python_callable: the decorated function.
    :param op_args: the positional arguments of the function. (templated)
    :param op_kwargs: the keyword arguments of the function. (templated)
    :param returns: the kind of the function's return value: "payload" (default; one job, the XCom
        is its id), "payloads" (several jobs, whose results are returned in order), "batch" (many
        jobs) or "source" (anything that `source` of ChasquiEnqueueOperator accepts, such as a
        table, a path or a generator of tables). The latter three may be generators, which are read
        as streams; the XCom is a handle for ChasquiBatchSensor.
    """

    # The payloads are not on a template field: Airflow would store them in its database.
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *(name for name in ChasquiEnqueueOperator.template_fields if name not in PAYLOAD_ARGUMENTS),
    )
    template_fields_renderers: ClassVar[dict[str, str]] = (
        DecoratedOperator.template_fields_renderers
    )
    custom_operator_name = "@task.chasqui"
    # The function might return other payloads now, and may be expensive.
    _compare_complete = False

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Any = None,
        op_kwargs: Any = None,
        returns: PayloadKind = "payload",
        **kwargs: Any,
    ) -> None:
        require_choice("returns", returns, PAYLOAD_ARGUMENTS)
        self.returns = returns
        super().__init__(
            python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs
        )

    def _select_payload_kind(self, **arguments: Any) -> PayloadKind:
        given = [name for name, value in arguments.items() if value is not NOT_GIVEN]
        if given:
            raise InvalidArgument(
                f"@task.chasqui has no argument {given[0]}; the function returns the payloads"
            )
        return self.returns

    def _payload_rows(self, context: Context) -> Iterable[Any]:
        context_merge(context, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, context)
        value = self.python_callable(*self.op_args, **kwargs)
        if self.returns == "source":
            return encode_source(open_source(value, self.row_options), self.row_options)
        name = f"the return value of {self.python_callable.__name__}"
        return [value] if self.returns == "payload" else check_payloads(value, name)

    def execute(self, context: Context) -> Any:
        """Call the function and enqueue the payloads."""
        return ChasquiEnqueueOperator.execute(self, context)


def chasqui_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Turn a function into a task that enqueues its return value: `@task.chasqui`.

    :param python_callable: the function.
    :param kwargs: the parameters of ChasquiDecoratedOperator.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=ChasquiDecoratedOperator,
        **kwargs,
    )
