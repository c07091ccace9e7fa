"""Removal of passwords from texts, such as log lines and errors."""

from __future__ import annotations

import re

# Each pattern is applied in linear time, because a handler decides what is logged.
_WORD = re.compile(r"\S+")
_URL_USER = re.compile(r"[a-z0-9+.-]://[^:/@]*:", re.I)
_PASSWORD_OPTION = re.compile(r"((?:sentinel_)?password=)[^&\s'\"]+", re.I)


def mask_passwords(text: str) -> str:
    """Return the text with the password of every URL in it replaced by ***."""
    if "://" in text and "@" in text:
        text = _WORD.sub(_mask_word, text)
    return _PASSWORD_OPTION.sub(r"\1***", text)


def _mask_word(match: re.Match[str]) -> str:
    before, at, after = match.group().rpartition("@")
    user = _URL_USER.search(before)
    return f"{before[: user.end()]}***{at}{after}" if user else match.group()
