"""The front door: every ending of the command is one clear line and an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from airflow_provider_chasqui.cli import logging_setup
from airflow_provider_chasqui.core.errors import ChasquiError, InvalidArgument

EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code. With --debug, errors keep their traceback."""
    # Names and payloads come from anywhere; what the terminal cannot show must not end us.
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    logging_setup.mask_process_title()
    debug = "--debug" in arguments
    try:
        return _run_app(arguments)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _on_broken_pipe()
    except ChasquiError as error:
        if debug:
            raise
        told = ". ".join([str(error), *getattr(error, "__notes__", ())])
        return _print_error(told, EXIT_USAGE if isinstance(error, InvalidArgument) else EXIT_ERROR)
    except Exception as error:
        if debug:
            raise
        what = f"{type(error).__name__}: {error}"
        return _print_error(f"unexpected {what}; run again with --debug to see where", EXIT_ERROR)


def _run_app(arguments: list[str]) -> int:
    from airflow_provider_chasqui.cli.app import app

    try:
        code = app(args=_move_leading_url(arguments), prog_name="chasqui", standalone_mode=False)
    except Exception as error:
        # A usage error; typer has its own copy of the class in some versions, click's in others.
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):
            raise
        error.show()
        return int(error.exit_code)
    sys.stdout.flush()
    return code if isinstance(code, int) else EXIT_OK


def _move_leading_url(arguments: list[str]) -> list[str]:
    """ChasquiMQ's CLI also takes the URL before the command; ours takes it behind."""
    if len(arguments) < 3 or arguments[0] not in ("--url", "--redis-url"):
        return arguments
    url, rest = arguments[:2], arguments[2:]
    place = rest.index("--") if "--" in rest else len(rest)
    return rest[:place] + url + rest[place:]


def _print_error(message: str, exit_code: int) -> int:
    from airflow_provider_chasqui.cli.output import escape_control, write_line

    # Out of band of rich: one line stays one line, however narrow the terminal is.
    line = " ".join(escape_control(logging_setup.mask_passwords(message)).split())
    write_line(f"chasqui: {line}", err=True)
    return exit_code


def _on_broken_pipe() -> int:
    """Whoever read our output has gone (`chasqui events | head`): end quietly."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    return EXIT_ERROR
