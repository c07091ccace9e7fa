"""`make up` and `make down`: Airflow with the Chasqui page, left running until it is stopped.

One process owns all the others and holds a lock: as long as the lock is held, it runs, and the
number in the lock file is its own.
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

HOME = Path(__file__).parents[2] / ".cache" / "up"
QUEUES = ("deliveries", "emails", "thumbnails", "rows", "embeddings", "letters")
WISHED_PORT = 8080


def main() -> int:
    parser = argparse.ArgumentParser(prog="make up", description=__doc__)
    parser.add_argument("what", choices=("up", "down", "serve"))
    parser.add_argument("--home", type=Path, default=HOME)
    parser.add_argument("--port", type=int)
    args = parser.parse_args()
    console = Console(highlight=False)
    home = args.home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    if args.what == "serve":
        return serve(home, args.port)
    try:
        return down(console, home) if args.what == "down" else up(console, home, args.port)
    except KeyboardInterrupt:
        return 130


def up(console: Console, home: Path, port: int | None) -> int:
    """Start everything in the background; returns when Airflow answers."""
    if _owner(home) is not None:
        console.print("It is running already:")
        _announce(console, home, _state(home))
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
        console.print("[red]It did not start:[/]")
        console.print((home / "serve.log").read_text(), markup=False)
        return 1
    # It is to outlive us: nobody waits for it here.
    process.returncode = 0
    _announce(console, home, state)
    return 0


def _wait(console: Console, home: Path, process: subprocess.Popen[bytes]) -> dict[str, Any] | None:
    """Show what it does until it is up; None if it ended instead."""
    with interruptible(), console.status("  Starting") as status:
        while "url" not in (state := _state(home)):
            if process.poll() is not None:
                return None
            status.update(f"  {state.get('does', 'Starting')}")
            time.sleep(0.2)
    return state


def down(console: Console, home: Path) -> int:
    """Stop everything; returns when it is gone."""
    owner = _owner(home)
    if owner is None:
        console.print("Nothing is running.")
        return 0
    with console.status("  Stopping"):
        for how in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(owner, how)
            deadline = time.monotonic() + 2 * Site.patience
            while _owner(home) == owner:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            else:
                console.print("Stopped. Queues and runs are kept for the next [bold]make up[/].")
                return 0
    console.print(f"[red]The process {owner} does not end.[/]")
    return 1


def serve(home: Path, port: int | None) -> int:
    """Own all processes until SIGTERM, or until one of them ends."""
    _take_lock(home)
    with interruptible(), Site(home, port=port or _port()) as site:
        try:
            _say(home, does="Starting a Valkey and a worker")
            site.start_server()
            site.start_worker(*QUEUES, options=("--store-results",))
            site.start_airflow(lambda what: _say(home, does=f"Airflow {what}"))
            password = site.password_of(USER)
            _say(home, url=site.url, user=USER, password=password, redis=site.server.url)
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


def _announce(console: Console, home: Path, state: dict[str, Any]) -> None:
    if "url" not in state:
        console.print("It is still starting; see again in a minute.")
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
            title="Chasqui is up",
            title_align="left",
        )
    )


def _say(home: Path, **state: str) -> None:
    """Tell those who look; never half of it. It holds a password: only for the owner's eyes."""
    draft = home / "state.draft"
    draft.touch(0o600)
    draft.write_text(json.dumps(state))
    draft.rename(home / "state.json")


def _state(home: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((home / "state.json").read_text()))
    except FileNotFoundError:
        return {}


def _take_lock(home: Path) -> None:
    """Hold the lock until this process is gone: the kernel lets go of it, and nobody before."""
    file = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    # Only for a moment held by one who looks; for long by one who runs.
    for _ in range(20):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(0.1)
    else:
        raise SystemExit("another one is running or starting")
    os.ftruncate(file, 0)
    os.write(file, str(os.getpid()).encode())


def _owner(home: Path) -> int | None:
    """The process that owns what runs here, or None if nothing runs."""
    with (home / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            return int(file.read() or 0) or None
    return None


def _port() -> int:
    """Airflow's own port if nobody listens there, else any that is free."""
    with socket.socket() as probe:
        return (
            find_free_port() if probe.connect_ex(("127.0.0.1", WISHED_PORT)) == 0 else WISHED_PORT
        )


if __name__ == "__main__":
    sys.exit(main())
