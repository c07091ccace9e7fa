"""The connection form and its test button in a browser."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from demo.local_airflow import USER
from tests.conftest import Server
from tests.support.local_airflow import AirflowSite

pytestmark = [
    pytest.mark.system,
    pytest.mark.browser,
    pytest.mark.xdist_group("airflow"),
    pytest.mark.timeout(300),
]


class Browser:
    """A browser whose calls wait for elements to appear."""

    def __init__(self, driver: Any):
        self.driver = driver

    def find(self, css: str, text: str = "") -> Any:
        def visible_element(driver: Any) -> Any:
            for element in driver.find_elements(By.CSS_SELECTOR, css):
                if text in element.text and element.is_displayed():
                    return element
            return None

        wait = WebDriverWait(self.driver, 30, 0.1, ignored_exceptions=[WebDriverException])
        return wait.until(visible_element, f"{css} with {text!r}")

    def click(self, css: str, text: str = "") -> None:
        def press(_: Any) -> bool:
            self.find(css, text).click()
            return True

        # The button may move while the page is still rendered.
        WebDriverWait(self.driver, 30, 0.2, ignored_exceptions=[WebDriverException]).until(press)

    def fill(self, name: str, text: str) -> None:
        self.find(f"input[name='{name}']").send_keys(text)


@pytest.fixture
def browser() -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1400,2400"):
        options.add_argument(argument)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture
def connections_page(browser: Browser, airflow_site: AirflowSite) -> Browser:
    """A browser that is logged in and shows the list of connections."""
    browser.driver.get(f"{airflow_site.url}/auth/login")
    fields = [browser.find("input[name='username']"), browser.find("input[name='password']")]
    for field, text in zip(fields, (USER, airflow_site.password_of(USER)), strict=True):
        field.send_keys(text)
    browser.click("button[type=submit]")
    WebDriverWait(browser.driver, 30).until(lambda driver: "/auth/" not in driver.current_url)
    browser.driver.get(f"{airflow_site.url}/connections")
    return browser


def open_form(browser: Browser, conn_id: str) -> None:
    """Open the form for a new connection of the type Chasqui."""
    browser.click("button", "Add Connection")
    browser.fill("connection_id", conn_id)
    kind = browser.find("[role=dialog] input[role=combobox]")
    kind.send_keys("Chasqui")
    browser.find("[role=option]", "Chasqui")
    kind.send_keys(Keys.ENTER)
    browser.find("input[name=schema][placeholder='0']")


def test_the_form_shows_the_fields_of_the_connection_type(connections_page: Browser) -> None:
    open_form(connections_page, "form_fields")
    labels = connections_page.find("[role=dialog]").text
    for label in ("Host", "User", "Port", "Database number"):
        assert label in labels
    assert connections_page.find("input[name=port]").get_attribute("placeholder") == "6379"
    connections_page.click("[role=dialog] button", "Extra Fields")
    connections_page.find("[role=dialog]", "Kind of server")
    labels = connections_page.find("[role=dialog]").text
    for label in ("Use TLS", "CA certificate", "Name of the master", "Consumer group", "Dialect"):
        assert label in labels
    password = connections_page.find("input[name=element_sentinel_password]")
    assert password.get_attribute("type") == "password"


@pytest.mark.parametrize(("reachable", "message"), [(True, "Connected"), (False, "CMQ-001")])
def test_the_test_button_reports_the_outcome(
    connections_page: Browser,
    site_server: Server,
    airflow_site: AirflowSite,
    reachable: bool,
    message: str,
) -> None:
    conn_id = f"tested_{reachable}".lower()
    host, _, port = site_server.url.removeprefix("redis://").removesuffix("/0").rpartition(":")
    open_form(connections_page, conn_id)
    connections_page.fill("host", host)
    connections_page.fill("port", port if reachable else "1")
    connections_page.click("[role=dialog] button", "Save")
    try:
        connections_page.find("td", conn_id)
        row = connections_page.find("tr", conn_id)
        row.find_element(By.CSS_SELECTOR, "button[aria-label='Test Connection']").click()
        outcome = "Successful" if reachable else "Failed"
        toast = connections_page.find("[data-part=root][data-type]", f"Test Connection {outcome}")
        assert message in toast.text
    finally:
        airflow_site.api("DELETE", f"connections/{conn_id}")
