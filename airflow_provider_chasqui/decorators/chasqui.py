"""`@task.chasqui`: a function whose returned payloads are handed to a queue."""

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

from airflow_provider_chasqui.core.errors import ChasquiError, InvalidArgument
from airflow_provider_chasqui.hooks.chasqui import ChasquiHook
from airflow_provider_chasqui.operators._task_identity import derive_id
from airflow_provider_chasqui.operators.enqueue import ChasquiEnqueueOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

Returns = Literal["payload", "payloads", "batch"]


class ChasquiDecoratedOperator(DecoratedOperator, ChasquiEnqueueOperator):
    """Calls a function and sends what it returns; all options of ChasquiEnqueueOperator hold.

    :param returns: what the function returns: one "payload", a list of "payloads" (XCom: ids) or a
        "batch" (XCom: its handle). A generator is fine for the latter two.
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
        if self.returns not in ("payload", "payloads", "batch"):
            raise InvalidArgument(f"returns is payload, payloads or batch; not {self.returns!r}")
        return self.returns

    def execute(self, context: Context) -> Any:
        earlier = self._previously_enqueued_count(context)
        if earlier is None:
            value = self._call_function(context)
        else:
            # The function may return something else by now; what it returned then is on its way.
            value = None if self.returns == "payload" else [None] * earlier
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
        """How many jobs an earlier try has handed off completely; None if there is none."""
        ti: Any = context["ti"]
        if self.on_retry == "resubmit" or self.job_id is not None:
            return None
        with ChasquiHook(self.chasqui_conn_id) as hook:
            try:
                return hook.queue(self.queue_name).batch_progress(derive_id(ti)).total
            except ChasquiError:
                return None


def chasqui_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a task of a function; what it returns becomes the payload of a job."""
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=ChasquiDecoratedOperator,
        **kwargs,
    )
