"""ChasquiJobLink: from a task instance to its job or batch on the Chasqui page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

LINK_XCOM_KEY = "chasqui_link"
PAGE_PATH = "/plugin/chasqui"


def build_page_url(chasqui_conn_id: str, queue_name: str, **query: str) -> str:
    """Return the address of a job (`job=`) or a batch (`batch=`) on the Chasqui page."""
    return f"{PAGE_PATH}?{urlencode({'conn': chasqui_conn_id, 'queue': queue_name} | query)}"


class ChasquiJobLink(BaseOperatorLink):
    """A link to the job or the batch that a task sent or waits for."""

    name = "Chasqui job"

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        from airflow.providers.common.compat.sdk import XCom

        return XCom.get_value(ti_key=ti_key, key=LINK_XCOM_KEY) or ""
