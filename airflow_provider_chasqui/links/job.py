"""ChasquiJobLink: a link from a task instance to its job or batch on the Chasqui page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

LINK_XCOM_KEY = "chasqui_link"
PAGE_PATH = "/plugin/chasqui"


def build_page_url(chasqui_conn_id: str, queue_name: str, **query: str) -> str:
    """Return the URL of a job or a batch on the Chasqui page, without scheme and host.

    It begins with the path of `[api] base_url`, because Airflow shows operator links as they are.

    :param chasqui_conn_id: the id of the Airflow connection.
    :param queue_name: the queue.
    :param query: `job` with a job id, or `batch` with a batch id.
    """
    base_path = urlsplit(conf.get("api", "base_url", fallback="")).path.rstrip("/")
    parameters = {"conn": chasqui_conn_id, "queue": queue_name} | query
    return f"{base_path}{PAGE_PATH}?{urlencode(parameters)}"


class ChasquiJobLink(BaseOperatorLink):
    """Link to the job or the batch that a task enqueued or waits for."""

    name = "Chasqui job"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the URL that the task pushed as an XCom, or "" if there is none.

        :param operator: the operator. It is not used.
        :param ti_key: the key of the task instance.
        """
        from airflow.providers.common.compat.sdk import XCom

        return XCom.get_value(ti_key=ti_key, key=LINK_XCOM_KEY) or ""
