"""ChasquiPlugin: registers the page, its tabs and its API with Airflow.

Every Airflow component imports this module, so it imports nothing heavy: the API is built when the
API server asks for it.
"""

from __future__ import annotations

from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_chasqui.plugins import listener

URL_PREFIX = "/chasqui"
# One name for all places: Airflow keeps a loaded bundle under its name, so that it is loaded once.
# The component tells the places apart by the ids it is given.
_REACT_APP = {
    "name": "Chasqui",
    "bundle_url": f"{URL_PREFIX[1:]}/static/chasqui.js",
    "icon": f"{URL_PREFIX[1:]}/static/icon.svg",
    "icon_dark_mode": f"{URL_PREFIX[1:]}/static/icon-dark.svg",
}


class _LazyFastapiApps:
    """The FastAPI app, built on first use, from the class as well as from an instance of it."""

    def __get__(self, _instance: object, _owner: type) -> list[dict[str, Any]]:
        from airflow_provider_chasqui.plugins.api.app import get_app

        return [{"app": get_app(), "url_prefix": URL_PREFIX, "name": "Chasqui"}]


class ChasquiPlugin(AirflowPlugin):
    """Queues, jobs, batches and dead letters inside the Airflow UI."""

    name = "chasqui"
    fastapi_apps: Any = _LazyFastapiApps()
    listeners = [listener]  # noqa: RUF012
    react_apps = [  # noqa: RUF012
        {**_REACT_APP, "destination": "nav", "url_route": "chasqui", "nav_top_level": True},
        {**_REACT_APP, "destination": "dag", "url_route": "chasqui-dag"},
        {**_REACT_APP, "destination": "task_instance", "url_route": "chasqui-task"},
    ]
