"""The Airflow plugin that registers the Chasqui page, its tabs and its API.

Every Airflow component imports this module, so it must not import anything heavy. The API is built
when the API server reads `fastapi_apps`.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_chasqui.plugins import listener

URL_PREFIX = "/chasqui"
# All destinations share one name because Airflow caches a loaded bundle by name and then loads it
# once. The component selects its view by the ids that Airflow passes to it.
_REACT_APP = {
    "name": "Chasqui",
    "bundle_url": f"{URL_PREFIX[1:]}/static/chasqui.js",
    "icon": f"{URL_PREFIX[1:]}/static/icon.svg",
    "icon_dark_mode": f"{URL_PREFIX[1:]}/static/icon-dark.svg",
}


class _LazyFastapiApps:
    """A descriptor that builds the FastAPI app on first access, on the class or an instance."""

    def __get__(self, _instance: object, _owner: type) -> list[dict[str, Any]]:
        from airflow_provider_chasqui.plugins.api.app import get_app

        return [{"app": get_app(), "url_prefix": URL_PREFIX, "name": "Chasqui"}]


class ChasquiPlugin(AirflowPlugin):
    """The plugin that shows queues, jobs, batches and dead letters in the Airflow UI."""

    name = "chasqui"
    fastapi_apps: Any = _LazyFastapiApps()
    listeners = [listener]  # noqa: RUF012
    react_apps = [  # noqa: RUF012
        {**_REACT_APP, "destination": "nav", "url_route": "chasqui", "nav_top_level": True},
        {**_REACT_APP, "destination": "dag", "url_route": "chasqui-dag"},
        {**_REACT_APP, "destination": "task_instance", "url_route": "chasqui-task"},
    ]
