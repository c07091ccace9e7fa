"""Fixtures with a real Chromium and the page of a real Airflow."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from airflow_provider_chasqui.queue import Queue
from tests.browser.page import Browser
from tests.support.plugin_site import PluginEnvironment, plugin_environment

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1440,1000"
)


@pytest.fixture(scope="session")
def environment() -> PluginEnvironment:
    """The site and its servers; they stop with the process."""
    return plugin_environment()


@pytest.fixture(scope="session")
def run_id(environment: PluginEnvironment) -> str:
    """The id of a real run of the DAG newsletter."""
    return environment.newsletter_run_id


def _require_command(command: str) -> str:
    path = shutil.which(command)
    if path is None:
        message = f"{command} is not installed (Debian: chromium, chromium-driver)"
        if os.environ.get("CHASQUI_REQUIRE_SERVERS") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return path


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = _require_command("chromium")
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_require_command("chromedriver")))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: webdriver.Chrome, environment: PluginEnvironment) -> Iterator[Browser]:
    """A browser with the session of an administrator. An error in its console fails the test."""
    chromium.set_window_size(1440, 1000)
    browser = Browser(chromium, environment.site)
    browser.log_in("ada")
    browser.console_errors()
    yield browser
    assert browser.console_errors() == []


@pytest.fixture
def queue(environment: PluginEnvironment, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, environment.url("native")) as queue:
        yield queue


@pytest.fixture
def screenshots(tmp_path: Path) -> Path:
    """The directory for screenshots: docs/images if CHASQUI_PICTURES=1, else a temporary one."""
    if os.environ.get("CHASQUI_PICTURES") == "1":
        return Path(__file__).parents[2] / "docs" / "images"
    return tmp_path
