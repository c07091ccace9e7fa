"""The front door: every ending of the command is one clear line and an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from airflow_provider_chasqui.cli import masking
from airflow_provider_chasqui.core.errors import BadInput, ChasquiError

FINE, TROUBLE, USAGE, INTERRUPTED = 0, 1, 2, 130


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code. With --debug, errors keep their traceback."""
    # Names and payloads come from anywhere; what the terminal cannot show must not end us.
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    masking.hide_from_process_list()
    debug = "--debug" in arguments
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _pipe_closed()
    except ChasquiError as error:
        if debug:
            raise
        told = ". ".join([str(error), *getattr(error, "__notes__", ())])
        return _complain(told, USAGE if isinstance(error, BadInput) else TROUBLE)
    except Exception as error:
        if debug:
            raise
        what = f"{type(error).__name__}: {error}"
        return _complain(f"unexpected {what}; run again with --debug to see where", TROUBLE)


def _run(arguments: list[str]) -> int:
    from airflow_provider_chasqui.cli.app import app

    try:
        code = app(args=_url_to_its_place(arguments), prog_name="chasqui", standalone_mode=False)
    except Exception as error:
        # A usage error; typer has its own copy of the class in some versions, click's in others.
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):
            raise
        error.show()
        return int(error.exit_code)
    sys.stdout.flush()
    return code if isinstance(code, int) else FINE


def _url_to_its_place(arguments: list[str]) -> list[str]:
    """ChasquiMQ's CLI also takes the URL before the command; ours takes it behind."""
    if len(arguments) < 3 or arguments[0] not in ("--url", "--redis-url"):
        return arguments
    url, rest = arguments[:2], arguments[2:]
    place = rest.index("--") if "--" in rest else len(rest)
    return rest[:place] + url + rest[place:]


def _complain(message: str, code: int) -> int:
    from airflow_provider_chasqui.cli.show import clean, line_out

    # Out of band of rich: one line stays one line, however narrow the terminal is.
    line = " ".join(clean(masking.mask(message)).split())
    line_out(f"chasqui: {line}", err=True)
    return code


def _pipe_closed() -> int:
    """Whoever read our output has gone (`chasqui events | head`): end quietly."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    return TROUBLE
