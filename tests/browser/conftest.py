"""A real Chromium before the real page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from airflow_provider_chasqui.queue import Queue
from tests.browser.page import Reader
from tests.support.plugin_site import World, world

FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --window-size=1440,1000"
)


@pytest.fixture(scope="session")
def the_world() -> World:
    """The site and its servers; it ends with the process."""
    return world()


@pytest.fixture(scope="session")
def sent(the_world: World) -> str:
    """A real run of the DAG newsletter; returns its run id."""
    return the_world.newsletter


def _need(command: str) -> str:
    found = shutil.which(command)
    if found is None:
        missing = f"there is no {command} here: install it (Debian: chromium, chromium-driver)"
        if os.environ.get("CHASQUI_REQUIRE_SERVERS") == "1":
            pytest.fail(missing)
        pytest.skip(missing)
    return found


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = _need("chromium")
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(_need("chromedriver")))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def reader(chromium: webdriver.Chrome, the_world: World) -> Iterator[Reader]:
    """Somebody who is logged in and looks; whatever the browser complains about fails the test."""
    chromium.set_window_size(1440, 1000)
    reader = Reader(chromium, the_world.site)
    reader.log_in("ada")
    reader.complaints()
    yield reader
    assert reader.complaints() == []


@pytest.fixture
def queue(the_world: World, queue_name: str) -> Iterator[Queue]:
    with Queue(queue_name, the_world.url("native")) as queue:
        yield queue


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where screenshots go: docs/images with CHASQUI_PICTURES=1, else nowhere that stays."""
    if os.environ.get("CHASQUI_PICTURES") == "1":
        return Path(__file__).parents[2] / "docs" / "images"
    return tmp_path
