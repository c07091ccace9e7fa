"""Hooks of mkdocs (see mkdocs.yml)."""

from __future__ import annotations

from typing import Any


def on_page_content(html: str, **_: Any) -> str:
    """Remove the second colon of ``Example::``, which docstrings use for code blocks.

    :param html: the page as HTML.
    :return: the page without reStructuredText's literal markers.
    """
    return html.replace("::</p>", ":</p>")
