"""`@task.chasqui`: a task that enqueues the payloads its function returns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.common.compat.sdk import (
    DecoratedOperator,
    TaskDecorator,
    context_merge,
    determine_kwargs,
    task_decorator_factory,
)

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.core.validation import require_choice
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.operators._task_identity import derive_id
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

Returns = Literal["payload", "payloads", "batch"]


class ChasquiDecoratedOperator(DecoratedOperator, ChasquiEnqueueOperator):
    """Operator that calls a function and enqueues the payloads that it returns.

    All other parameters are those of ChasquiEnqueueOperator, except `payload`, `payloads` and
    `batch`. If an earlier try has enqueued all jobs, the function is not called again.

    :param python_callable: the decorated function.
    :param op_args: the positional arguments of the function. (templated)
    :param op_kwargs: the keyword arguments of the function. (templated)
    :param returns: the kind of the function's return value: "payload" (default; one job, the XCom
        is its id), "payloads" (several jobs, the XCom is the list of their ids) or "batch" (many
        jobs, the XCom is a handle for ChasquiBatchSensor). The latter two may be generators.
    """

    template_fields: Sequence[str] = tuple(
        dict.fromkeys([*DecoratedOperator.template_fields, *ChasquiEnqueueOperator.template_fields])
    )
    custom_operator_name = "@task.chasqui"
    overwrite_rtif_after_execution = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Any = None,
        op_kwargs: Any = None,
        returns: Returns = "payload",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs
        )
        self.returns = returns

    @property
    def _payload_kind(self) -> str:
        return require_choice("returns", self.returns, ("payload", "payloads", "batch"))

    def execute(self, context: Context) -> Any:
        """Call the function and enqueue the payloads."""
        enqueued_count = self._previously_enqueued_count(context)
        if enqueued_count is None:
            value = self._call_function(context)
        else:
            # The function might return other payloads now. The enqueued ones remain valid.
            value = None if self.returns == "payload" else [None] * enqueued_count
        setattr(self, self._payload_kind, value)
        return ChasquiEnqueueOperator.execute(self, context)

    def _call_function(self, context: Context) -> Any:
        context_merge(context, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, context)
        value = self.python_callable(*self.op_args, **kwargs)
        if self.returns == "payload" or isinstance(value, list):
            return value
        return list(value) if hasattr(value, "__next__") else value

    def _previously_enqueued_count(self, context: Context) -> int | None:
        """Return the size of the complete batch of an earlier try, or None if there is none."""
        ti: Any = context["ti"]
        if self.on_retry == "resubmit" or self.job_id is not None:
            return None
        with ChasquiHook(self.chasqui_conn_id) as hook:
            try:
                return hook.queue(self.queue_name).batch_progress(derive_id(ti)).total
            except ChasquiError:
                return None


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
