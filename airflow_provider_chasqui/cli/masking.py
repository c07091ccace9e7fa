"""Passwords stay out of sight: of the process list, of errors, of the terminal."""

from __future__ import annotations

import re
import sys

_LOGIN = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*):\S*@", re.I)
_OPTION = re.compile(r"((?:sentinel_)?password=)[^&\s'\"]+", re.I)


def mask(text: str) -> str:
    """Return the text with the password of every URL in it replaced by ***."""
    return _OPTION.sub(r"\1***", _LOGIN.sub(r"\1:***@", text))


def hide_from_process_list() -> None:
    """Show `ps` a command line without the password that --url may hold.

    Until here it could be seen: CHASQUI_URL and --password-file have no such moment.
    """
    shown = [mask(each) for each in sys.argv]
    if shown == sys.argv:
        return
    try:
        from setproctitle import setproctitle
    except ImportError:
        return
    setproctitle(" ".join(["chasqui", *shown[1:]]))
