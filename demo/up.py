"""`make up` and `make down`: Airflow with the Chasqui page, running in the background.

One process starts all the others and holds a lock while it runs. The lock file contains its
process id.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel

from airflow_provider_chasqui.core.errors import ChasquiError
from airflow_provider_chasqui.testing.embedded_server import find_free_port
from demo.environment import Site, interruptible
from demo.local_airflow import USER

HOME = Path(__file__).parents[1] / ".cache" / "up"
QUEUES = ("deliveries", "emails", "thumbnails", "rows", "embeddings", "newsletters")
DEFAULT_PORT = 8080
# Fixed, so that an exported CHASQUI_URL stays valid after `make down` and `make up`.
DEFAULT_REDIS_PORT = 6399


def main() -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(prog="make up", description=__doc__)
    parser.add_argument("command", choices=("up", "down", "serve"))
    parser.add_argument("--home", type=Path, default=HOME)
    parser.add_argument("--port", type=int)
    args = parser.parse_args()
    console = Console(highlight=False)
    home = args.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    if args.command == "serve":
        return serve(home, args.port)
    try:
        return down(console, home) if args.command == "down" else up(console, home, args.port)
    except KeyboardInterrupt:
        return 130


def up(console: Console, home: Path, port: int | None) -> int:
    """Start everything in the background, and return the exit code when Airflow is healthy.

    :param console: the console for messages.
    :param home: the folder of all data.
    :param port: the port of Airflow; by default 8080, or any free port if that is in use.
    """
    if _owner(home) is not None:
        console.print("Chasqui is already running:")
        _print_state(console, home, _read_state(home))
        return 0
    (home / "state.json").unlink(missing_ok=True)
    command = [sys.executable, "-m", __spec__.name, "serve", "--home", str(home)]
    command += ["--port", str(port)] if port else []
    with (home / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        state = _wait(console, home, process)
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if state is None:
        console.print("[red]Chasqui did not start:[/]")
        console.print((home / "serve.log").read_text(), markup=False)
        return 1
    # The process keeps running; setting the code avoids a ResourceWarning.
    process.returncode = 0
    _print_state(console, home, state)
    return 0


def _wait(console: Console, home: Path, process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """Show the current step until everything runs; return None if the process ended instead."""
    with interruptible(), console.status("  Starting") as status:
        while "url" not in (state := _read_state(home)):
            if process.poll() is not None:
                return None
            status.update(f"  {state.get('step', 'Starting')}")
            time.sleep(0.2)
    return state


def down(console: Console, home: Path) -> int:
    """Stop everything, and return the exit code when all processes have ended.

    :param console: the console for messages.
    :param home: the folder of all data.
    """
    owner = _owner(home)
    if owner is None:
        console.print("Nothing is running.")
        return 0
    with console.status("  Stopping"):
        for signal_number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(owner, signal_number)
            deadline = time.monotonic() + 2 * Site.stop_timeout
            while _owner(home) == owner:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            else:
                console.print(
                    "Stopped. The next [bold]make up[/] continues with the same queues and runs."
                )
                return 0
    console.print(f"[red]The process {owner} did not stop.[/]")
    return 1


def serve(home: Path, port: int | None) -> int:
    """Run all processes until SIGTERM, or until one of them ends, and return the exit code.

    :param home: the folder of all data.
    :param port: the port of Airflow; by default 8080, or any free port if that is in use.
    """
    _lock(home)
    redis_port, notice = choose_redis_port(home)
    airflow_port = port or (DEFAULT_PORT if _is_free(DEFAULT_PORT) else find_free_port())
    with interruptible(), Site(home, port=airflow_port, redis_port=redis_port) as site:
        try:
            _write_state(home, step="Starting Valkey and a worker")
            site.start_server()
            site.start_worker(*QUEUES, options=("--store-results",))
            site.start_airflow(lambda action: _write_state(home, step=f"Airflow: {action}"))
            _write_state(
                home,
                url=site.url,
                user=USER,
                password=site.password_of(USER),
                redis=site.server.url,
                notice=notice,
            )
            while True:
                site.check()
                time.sleep(1)
        except KeyboardInterrupt:
            return 0
        except ChasquiError as error:
            print(error, flush=True)
            return 1
        finally:
            (home / "state.json").unlink(missing_ok=True)


def choose_redis_port(home: Path) -> tuple[int, str]:
    """Return the port of the Valkey server and, if it has changed, a message for the user.

    The port is that of the previous run, or 6399 in the first run. If it is in use, it is any free
    port, which the next run uses again.

    :param home: the folder of all data, which contains the port of the previous run.
    """
    file = home / "redis-port"
    preferred = int(file.read_text()) if file.exists() else DEFAULT_REDIS_PORT
    port = preferred if _is_free(preferred) else find_free_port()
    file.write_text(str(port))
    if port == preferred:
        return port, ""
    return port, f"port {preferred} is in use, so Redis uses {port}; export CHASQUI_URL again"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Like the server itself: connections of the previous run may still be in TIME_WAIT.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _print_state(console: Console, home: Path, state: dict[str, Any]) -> None:
    if "url" not in state:
        console.print("It is still starting. Run [bold]make up[/] again in a minute.")
        return
    console.print()
    console.print(
        Panel.fit(
            f"the page  [bold]{state['url']}/plugin/chasqui[/]\n"
            f"Airflow   [bold]{state['url']}[/]  (try the DAG [bold]flagship[/])\n"
            f"login     [bold]{state['user']}[/]\n"
            f"password  [bold]{state['password']}[/]\n\n"
            "[dim]shell     source .venv/bin/activate\n"
            f"          export CHASQUI_URL={state['redis']}\n"
            "          chasqui inspect emails\n"
            f"logs      {os.path.relpath(home / 'logs')}\n"
            "stop      make down[/]",
            title="Chasqui is running",
            title_align="left",
        )
    )
    if state.get("notice"):
        console.print(f"[yellow]Note:[/] {state['notice']}")


def _write_state(home: Path, **state: str) -> None:
    """Replace the state file atomically. It contains a password, so only its owner can read it."""
    draft = home / "state.draft"
    draft.touch(0o600)
    draft.write_text(json.dumps(state))
    draft.rename(home / "state.json")


def _read_state(home: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((home / "state.json").read_text()))
    except FileNotFoundError:
        return {}


def _lock(home: Path) -> None:
    """Take the lock, which the kernel releases when this process ends."""
    file = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    # `_owner` holds the lock briefly, so try more than once.
    for _ in range(20):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(0.1)
    else:
        raise SystemExit(f"another process with the folder {home} is running or starting")
    os.ftruncate(file, 0)
    os.write(file, str(os.getpid()).encode())


def _owner(home: Path) -> int | None:
    """Return the id of the process that holds the lock, or None if nothing runs."""
    with (home / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            return int(file.read() or 0) or None
    return None


if __name__ == "__main__":
    sys.exit(main())
