"""Entry point of the program: error messages and exit codes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from airflow_provider_chasqui.core.errors import ChasquiError, InvalidArgument
from airflow_provider_chasqui.core.masking import mask_passwords
from airflow_provider_chasqui.supervisor import logging_setup

EXIT_OK, EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


def run(arguments: list[str]) -> int:
    """Run one command and return the exit code. With --debug, errors keep their traceback.

    :param arguments: the arguments without the program name.
    """
    # Job names and payloads may contain characters that the terminal cannot encode.
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
        message = ". ".join([str(error), *getattr(error, "__notes__", ())])
        return _print_error(
            message, EXIT_USAGE if isinstance(error, InvalidArgument) else EXIT_ERROR
        )
    except Exception as error:
        if debug:
            raise
        return _print_error(
            f"unexpected {type(error).__name__}: {error}; run again with --debug for the traceback",
            EXIT_ERROR,
        )


def _run_app(arguments: list[str]) -> int:
    from airflow_provider_chasqui.cli.app import app

    try:
        code = app(args=_move_leading_url(arguments), prog_name="chasqui", standalone_mode=False)
    except Exception as error:
        # A usage error. Some versions of typer have their own copy of click's exception class.
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):
            raise
        error.show()
        return int(error.exit_code)
    sys.stdout.flush()
    return code if isinstance(code, int) else EXIT_OK


def _move_leading_url(arguments: list[str]) -> list[str]:
    """Move a URL before the command, where ChasquiMQ's CLI accepts it, to the end."""
    if len(arguments) < 3 or arguments[0] not in ("--url", "--redis-url"):
        return arguments
    url, remaining = arguments[:2], arguments[2:]
    index = remaining.index("--") if "--" in remaining else len(remaining)
    return remaining[:index] + url + remaining[index:]


def _print_error(message: str, exit_code: int) -> int:
    from airflow_provider_chasqui.cli.output import write_line

    # Not through rich, which would wrap the line on a narrow terminal.
    line = " ".join(logging_setup.escape_control(mask_passwords(message)).split())
    write_line(f"chasqui: {line}", err=True)
    return exit_code


def _on_broken_pipe() -> int:
    """Exit silently after the reader of the output has exited (`chasqui events | head`)."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    return EXIT_ERROR
