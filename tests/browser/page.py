"""A browser that finds elements by visible text or accessible name and waits for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support.plugin_site import PluginSite
from tests.support.waiting import wait_until

TIMEOUT_S = 60.0
T = TypeVar("T")


class Browser:
    """The actions of a user of the page.

    :param driver: the Selenium driver.
    :param site: the Airflow to open.
    """

    def __init__(self, driver: webdriver.Chrome, site: PluginSite):
        self.driver = driver
        self._site = site

    def log_in(self, user: str) -> None:
        """Replace the session by one of this user."""
        self.driver.get(f"{self._site.url}/chasqui/nothing")
        self.driver.delete_all_cookies()
        self.driver.add_cookie({"name": "_token", "value": self._site.token(user), "path": "/"})

    def open(self, path: str = "/plugin/chasqui", **params: str) -> None:
        """Open a path of the site with query parameters."""
        query = f"?{urlencode(params)}" if params else ""
        self.driver.get(f"{self._site.url}{path}{query}")

    def find(self, selector: str) -> list[WebElement]:
        """Return the elements that match a CSS selector now."""
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition: Callable[[], T], description: str) -> T:
        """Return the first true result of the condition.

        An element that React replaced in the meantime is not a failure.

        :param condition: the condition.
        :param description: what the condition checks, for the failure message.
        """

        def check() -> T | None:
            try:
                return condition()
            except StaleElementReferenceException:
                return None

        try:
            return wait_until(check, TIMEOUT_S, description)  # type: ignore[return-value]
        except AssertionError as error:
            raise AssertionError(f"{error}; text of the page:\n{self.text()}") from error

    def wait_for_text(self, text: str) -> None:
        """Wait until the page contains this text."""
        self.wait(lambda: text in self.text(), f"text {text!r}")

    def text(self) -> str:
        """Return the visible text of the page."""
        roots = self.find(".cq")
        return roots[0].text if roots else self.driver.find_element(By.TAG_NAME, "body").text

    def element(self, selector: str, text: str = "") -> WebElement:
        """Wait for a visible element that contains this text and return it."""

        def first_match() -> WebElement | None:
            for element in self.find(selector):
                if element.is_displayed() and text in element.text:
                    return element
            return None

        return self.wait(first_match, f"element {selector} with text {text!r}")

    def click(self, selector: str, text: str = "") -> None:
        """Click a visible element that contains this text."""

        def click() -> bool:
            self.element(selector, text).click()
            return True

        self.wait(click, f"click on {selector} with text {text!r}")

    def attribute(self, selector: str, name: str) -> str:
        """Return an attribute of a visible element."""
        return self.wait(
            lambda: self.element(selector).get_attribute(name), f"attribute {name} of {selector}"
        )

    def labelled(self, label: str) -> WebElement:
        """Return the visible element with this accessible name."""
        return self.element(f'.cq [aria-label="{label}"]')

    def press(self, text: str, inside: str = ".cq") -> None:
        """Click the button with this text when it is enabled."""

        def click() -> bool:
            for button in self.find(f"{inside} button"):
                if button.text.strip() == text and button.is_enabled() and button.is_displayed():
                    button.click()
                    return True
            return False

        self.wait(click, f"enabled button {text!r}")

    def set_theme(self, name: str) -> None:
        """Select Airflow's light or dark theme for the next page."""
        self.driver.execute_script(
            "localStorage.setItem('theme', arguments[0]);"
            "localStorage.setItem('chakra-ui-color-mode', arguments[0])",
            name,
        )

    def save_screenshot(self, directory: Path, name: str) -> Path:
        """Save a screenshot and return its path."""
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / f"{name}.png"
        assert self.driver.save_screenshot(str(file))
        return file

    def console_errors(self) -> list[str]:
        """Return the errors in the browser console since the last call, except failed requests."""
        try:
            log = self.driver.get_log("browser")
        except WebDriverException:
            return []
        errors = [entry["message"] for entry in log if entry["level"] == "SEVERE"]
        return [error for error in errors if "Failed to load resource" not in error]
