"""The pages about operators, sensors and triggers describe every parameter."""

from __future__ import annotations

import pytest

from tests.test_site import DOCS, airflow_classes
from tools import parameter_tables

PAGES = {
    page: page.read_text("utf-8")
    for page in sorted((DOCS / "airflow").rglob("*.md"))
    if page.name != "index.md"
}


def test_the_tables_are_up_to_date() -> None:
    """Otherwise run `python -m tools.parameter_tables`."""
    assert [str(page) for page, _ in parameter_tables.outdated_pages()] == []


@pytest.mark.parametrize(
    "name", [name for name in airflow_classes() if not name.endswith(("Hook", "Notifier"))]
)
def test_every_class_is_on_a_page(name: str) -> None:
    assert any(f"`{name}" in text or f"# {name}\n" in text for text in PAGES.values())


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name != "airflow"])
def test_a_page_of_a_class_is_complete(page: object) -> None:
    text = PAGES[page]  # type: ignore[index]
    assert "```python" in text
    assert parameter_tables.SECTION.search(text)
    assert "## XComs" in text or "## Event" in text or "triggers" in str(page)


def test_a_default_is_that_of_the_code_or_of_the_docstring() -> None:
    format_default = parameter_tables.format_default
    assert format_default("limit", None, "no limit") == "no limit"
    assert format_default("limit", 5, "no limit") == "`5`"
    assert parameter_tables.split_default("the limit. Default: none.") == ("the limit.", "none")
