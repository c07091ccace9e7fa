"""A person at the browser: finds things as people and screen readers do, and waits for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlencode

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.support.plugin_site import PageSite
from tests.support.waiting import until

SECONDS = 60.0
T = TypeVar("T")


class Reader:
    """What a test does with the page."""

    def __init__(self, driver: webdriver.Chrome, site: PageSite):
        self.driver = driver
        self._site = site

    def log_in(self, user: str) -> None:
        """Come back with a fresh session of this user."""
        self.driver.get(f"{self._site.url}/chasqui/nothing")
        self.driver.delete_all_cookies()
        self.driver.add_cookie({"name": "_token", "value": self._site.token(user), "path": "/"})

    def open(self, path: str = "/plugin/chasqui", **place: str) -> None:
        query = f"?{urlencode(place)}" if place else ""
        self.driver.get(f"{self._site.url}{path}{query}")

    def find(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def wait(self, condition: Callable[[], T], what: str) -> T:
        """Return what the condition answers once it is true; a page that moves on is no failure."""

        def patient() -> T | None:
            try:
                return condition()
            except StaleElementReferenceException:
                return None

        try:
            return until(patient, SECONDS, what)  # type: ignore[return-value]
        except AssertionError as missed:
            raise AssertionError(f"{missed}; the page says:\n{self.text()}") from missed

    def see(self, text: str) -> None:
        """Wait until the page says this."""
        self.wait(lambda: text in self.text(), f"{text!r} on the page")

    def text(self) -> str:
        found = self.find(".cq")
        return found[0].text if found else self.driver.find_element(By.TAG_NAME, "body").text

    def one(self, selector: str, text: str = "") -> WebElement:
        """Wait for the visible element with this text in it."""

        def look() -> WebElement | None:
            fits = [
                each for each in self.find(selector) if each.is_displayed() and text in each.text
            ]
            return fits[0] if fits else None

        return self.wait(look, f"{selector} {text!r}")

    def click(self, selector: str, text: str = "") -> None:
        """Click the visible element with this text; one that was just drawn anew is found again."""

        def try_it() -> bool:
            self.one(selector, text).click()
            return True

        self.wait(try_it, f"a click on {selector} {text!r}")

    def attribute(self, selector: str, name: str) -> str:
        """Return an attribute of the visible element."""
        return self.wait(lambda: self.one(selector).get_attribute(name), f"{name} of {selector}")

    def labelled(self, label: str) -> WebElement:
        return self.one(f'.cq [aria-label="{label}"]')

    def press(self, text: str, inside: str = ".cq") -> None:
        """Press the button with this text, once it can be pressed."""

        def pressed() -> bool:
            for each in self.find(f"{inside} button"):
                if each.text.strip() == text and each.is_enabled() and each.is_displayed():
                    each.click()
                    return True
            return False

        self.wait(pressed, f"a button {text!r}")

    def theme(self, name: str) -> None:
        """Choose Airflow's light or dark look for the next page."""
        self.driver.execute_script(
            "localStorage.setItem('theme', arguments[0]);"
            "localStorage.setItem('chakra-ui-color-mode', arguments[0])",
            name,
        )

    def keep(self, folder: Path, name: str) -> Path:
        """Take a picture of the page."""
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{name}.png"
        assert self.driver.save_screenshot(str(file))
        return file

    def complaints(self) -> list[str]:
        """What the browser complained about since it was last asked, but for refused requests."""
        try:
            log = self.driver.get_log("browser")
        except WebDriverException:
            return []
        severe = [entry["message"] for entry in log if entry["level"] == "SEVERE"]
        return [each for each in severe if "Failed to load resource" not in each]
