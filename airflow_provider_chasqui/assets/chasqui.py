"""Assets of queues (`chasqui://host:port/queue`) and their OpenLineage datasets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from airflow.sdk import Asset

from airflow_provider_chasqui.core.errors import ChasquiError

if TYPE_CHECKING:
    from urllib.parse import SplitResult

SCHEME = "chasqui"
_DEFAULT_PORT = 6379


def create_asset(
    *,
    queue_name: str,
    host: str = "localhost",
    port: int = _DEFAULT_PORT,
    extra: dict[str, Any] | None = None,
) -> Asset:
    """Return the asset of a queue: `create_asset(queue_name="emails", host="redis")`.

    :param queue_name: the queue.
    :param host: the host of the server. Default: `localhost`.
    :param port: the port of the server. Default: 6379.
    :param extra: the extra fields of the asset. Default: none.
    """
    return Asset(uri=f"{SCHEME}://{host}:{port}/{quote(queue_name, safe='')}", extra=extra or {})


def sanitize_uri(uri: SplitResult) -> SplitResult:
    """Return the normal form of an asset URI: with a host, a port and one queue name.

    :param uri: the URI.
    :raises ValueError: if the host or the queue name is missing, or if the URI contains a login.
    """
    if not uri.hostname:
        raise ValueError(f"the URI of a queue must be {SCHEME}://host:port/queue; it has no host")
    if uri.username or uri.password:
        raise ValueError(
            "the URI of a queue must not contain a login; set the login in the Airflow connection"
        )
    path = uri.path.strip("/")
    if not path or "/" in path:
        raise ValueError(
            f"the URI of a queue must be {SCHEME}://host:port/queue with exactly one queue, "
            f"not the path {uri.path!r}"
        )
    host = f"[{uri.hostname}]" if ":" in uri.hostname else uri.hostname
    return uri._replace(
        netloc=f"{host}:{uri.port or _DEFAULT_PORT}", path=f"/{path}", query="", fragment=""
    )


def convert_asset_to_openlineage(asset: Asset, lineage_context: Any) -> Any:
    """Return the OpenLineage dataset of a queue's asset.

    :param asset: the asset.
    :param lineage_context: the lineage context of Airflow. It is not used.
    """
    from airflow.providers.common.compat.openlineage.facet import Dataset

    parts = sanitize_uri(urlsplit(asset.uri))
    return Dataset(namespace=f"{SCHEME}://{parts.netloc}", name=unquote(parts.path.lstrip("/")))


def queue_lineage(chasqui_conn_id: str, queue_name: str | None, *, output: bool) -> Any:
    """Return a task's OpenLineage inputs and outputs, or None if OpenLineage is not installed.

    :param chasqui_conn_id: the id of the Airflow connection.
    :param queue_name: the queue. If None, the default queue of the connection.
    :param output: whether the queue is an output of the task. Otherwise it is an input.
    """
    try:
        from airflow.providers.common.compat.openlineage.facet import Dataset
        from airflow.providers.openlineage.extractors import OperatorLineage
    except ImportError:
        return None
    from airflow_provider_chasqui.hooks.chasqui import ChasquiHook

    try:
        settings = ChasquiHook(chasqui_conn_id).settings
    except ChasquiError:
        return OperatorLineage()
    host, port = settings.target.nodes[0]
    name = queue_name or settings.queue_name
    if not name:
        return OperatorLineage()
    dataset = Dataset(namespace=f"{SCHEME}://{host}:{port}", name=name)
    return OperatorLineage(outputs=[dataset]) if output else OperatorLineage(inputs=[dataset])


def set_outlet_extra(outlets: Iterable[Any] | None, context: Any, extra: dict[str, Any]) -> None:
    """Set the extra fields of the asset events of those outlets that are queues.

    :param outlets: the outlets of the task.
    :param context: the task's context.
    :param extra: the fields, for example the handle of a batch and its counts.
    """
    for outlet in outlets or ():
        if str(getattr(outlet, "uri", "")).startswith(f"{SCHEME}://"):
            context["outlet_events"][outlet].extra = extra


class QueueLineage:
    """Operator base class that reports its queue to OpenLineage.

    The operator has the attributes `chasqui_conn_id` and `queue_name`.
    """

    # Whether the queue is an output of the task. Otherwise it is an input.
    writes_queue = True
    # The queue that the task has used, if `queue_name` does not name it.
    used_queue_name: str | None = None

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the queue as an OpenLineage input or output.

        :param task_instance: the task instance. It is not used.
        """
        operator: Any = self
        queue_name = self.used_queue_name or operator.queue_name
        return queue_lineage(operator.chasqui_conn_id, queue_name, output=self.writes_queue)
