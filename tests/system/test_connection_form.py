"""The connection form and its test button, in a real browser on a real Airflow."""

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
    """A person in front of the screen, who waits for things to appear."""

    def __init__(self, driver: Any):
        self.driver = driver

    def find(self, css: str, text: str = "") -> Any:
        def look(driver: Any) -> Any:
            found = driver.find_elements(By.CSS_SELECTOR, css)
            return next((each for each in found if text in each.text and each.is_displayed()), None)

        wait = WebDriverWait(self.driver, 30, 0.1, ignored_exceptions=[WebDriverException])
        return wait.until(look, f"{css} with {text!r}")

    def click(self, css: str, text: str = "") -> None:
        def press(_: Any) -> bool:
            self.find(css, text).click()
            return True

        # A page that is still being drawn may move the button away under the pointer.
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
def inside(browser: Browser, airflow_site: AirflowSite) -> Browser:
    """Logged in, in front of the list of connections."""
    browser.driver.get(f"{airflow_site.url}/auth/login")
    fields = [browser.find("input[name='username']"), browser.find("input[name='password']")]
    for field, text in zip(fields, (USER, airflow_site.password_of(USER)), strict=True):
        field.send_keys(text)
    browser.click("button[type=submit]")
    WebDriverWait(browser.driver, 30).until(lambda driver: "/auth/" not in driver.current_url)
    browser.driver.get(f"{airflow_site.url}/connections")
    return browser


def begin(browser: Browser, conn_id: str) -> None:
    """Open the form for a new connection of our type."""
    browser.click("button", "Add Connection")
    browser.fill("connection_id", conn_id)
    kind = browser.find("[role=dialog] input[role=combobox]")
    kind.send_keys("Chasqui")
    browser.find("[role=option]", "Chasqui")
    kind.send_keys(Keys.ENTER)
    browser.find("input[name=schema][placeholder='0']")


def test_the_form_shows_our_fields(inside: Browser) -> None:
    begin(inside, "shown")
    labels = inside.find("[role=dialog]").text
    for label in ("Host", "User", "Port", "Database number"):
        assert label in labels
    assert inside.find("input[name=port]").get_attribute("placeholder") == "6379"
    inside.click("[role=dialog] button", "Extra Fields")
    inside.find("[role=dialog]", "Kind of server")
    labels = inside.find("[role=dialog]").text
    for label in ("Use TLS", "CA certificate", "Name of the master", "Consumer group", "Dialect"):
        assert label in labels
    secret = inside.find("input[name=element_sentinel_password]")
    assert secret.get_attribute("type") == "password"


@pytest.mark.parametrize(("good", "said"), [(True, "all rights are there"), (False, "CMQ-001")])
def test_the_test_button_tells(
    inside: Browser, site_server: Server, airflow_site: AirflowSite, good: bool, said: str
) -> None:
    conn_id = f"tested_{good}".lower()
    host, _, port = site_server.url.removeprefix("redis://").removesuffix("/0").rpartition(":")
    begin(inside, conn_id)
    inside.fill("host", host)
    inside.fill("port", port if good else "1")
    inside.click("[role=dialog] button", "Save")
    try:
        inside.find("td", conn_id)
        row = inside.find("tr", conn_id)
        row.find_element(By.CSS_SELECTOR, "button[aria-label='Test Connection']").click()
        word = "Successful" if good else "Failed"
        toast = inside.find("[data-part=root][data-type]", f"Test Connection {word}")
        assert said in toast.text
    finally:
        airflow_site.api("DELETE", f"connections/{conn_id}")
