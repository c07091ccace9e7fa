#!/usr/bin/env python3
"""Find a Redis server for the tests, or build one.

The search order is the environment (CHASQUI_REDIS_SERVER, CHASQUI_REDIS7_SERVER), `redis-server` on
the PATH, and the user's cache directory. Otherwise Redis 8.6 is built from Debian's source package
and Redis 7 is unpacked from Debian's binary package, with the apt configuration and keys of the
machine, without root and without changes to the machine. CHASQUI_DEBIAN_MIRROR names a mirror of
Debian for a machine with another distribution; it needs the package `debian-archive-keyring`.

Prints the path of the binary. Uses only the standard library, so that any python3 can run it.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Version = tuple[int, int, int]

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
BUILT = ("redis-server", "redis-cli", "redis-sentinel", "redis-benchmark")
# The binary is in redis-tools, the link to it in redis-server. The others are libraries that a
# small image may lack.
REDIS7_PACKAGES = (
    *("redis-server", "redis-tools", "libatomic1", "libhiredis0.14", "libjemalloc2", "liblua5.1-0"),
    *("liblzf1", "libssl3", "lua-bitop", "lua-cjson"),
)
REDIS7_WRAPPER = """#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
for folder in "$here"/root/usr/lib/*-linux-*; do libraries="${libraries:+$libraries:}$folder"; done
LD_LIBRARY_PATH="$libraries" exec "$here/root/usr/bin/redis-server" "$@"
"""


class NotFound(Exception):
    """No suitable Redis was found. The message says what to do."""


@dataclass(frozen=True)
class Wanted:
    """A range of Redis versions: at least `low`, below `high`."""

    label: str
    variable: str
    low: Version
    high: Version
    suite: str

    def accepts(self, version: Version | None) -> bool:
        """Return whether a version is in the range."""
        return version is not None and self.low <= version < self.high


REDIS8 = Wanted("Redis 8.6+", "CHASQUI_REDIS_SERVER", (8, 6, 0), (999, 0, 0), "experimental")
REDIS7 = Wanted("Redis 7", "CHASQUI_REDIS7_SERVER", (7, 0, 0), (8, 0, 0), "bookworm")


def find(wanted: Wanted, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return a binary that exists on this machine, or None. Downloads and builds nothing."""
    if named := environ.get(wanted.variable):
        version = version_of(Path(named))
        if not wanted.accepts(version):
            found = f"Redis {'.'.join(map(str, version))}" if version else "not a Redis server"
            raise NotFound(f"{wanted.variable}={named} is {found}; {wanted.label} is needed")
        return Path(named).absolute()
    on_path = shutil.which("redis-server", path=environ.get("PATH", os.defpath))
    if on_path and wanted.accepts(version_of(Path(on_path))):
        return Path(on_path).absolute()
    return _cached(wanted, cache_folder(environ))


def obtain(wanted: Wanted, environ: Mapping[str, str] = os.environ) -> Path:
    """Return a binary; build or download it into the cache if necessary."""
    if found := find(wanted, environ):
        return found
    cache = cache_folder(environ)
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / "lock"):
        # Another process may have finished the same work while this one waited for the lock.
        if found := _cached(wanted, cache):
            return found
        with tempfile.TemporaryDirectory(prefix="download-", dir=cache) as name:
            made = (_build if wanted is REDIS8 else _unpack)(wanted, Path(name))
            binary = made / "redis-server"
            version = version_of(binary)
            if version is None or not wanted.accepts(version):
                raise NotFound(f"the package from apt is not {wanted.label} or does not run here")
            tls = "" if wanted is REDIS7 or (made / "tls").exists() else "-notls"
            final = cache / f"redis-{'.'.join(map(str, version))}{tls}"
            shutil.rmtree(final, ignore_errors=True)
            made.rename(final)
    return final / "redis-server"


def cache_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the cache directory of the user."""
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "airflow-provider-chasqui"


def version_of(binary: Path) -> Version | None:
    """Return the version of a Redis server, or None if the binary is not one (Valkey is not)."""
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"Redis server v=(\d+)\.(\d+)\.(\d+)", done.stdout)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def _cached(wanted: Wanted, cache: Path) -> Path | None:
    """Return the newest cached binary, one without TLS only if TLS cannot be built."""
    folders = list(cache.glob("redis-*"))
    if any(folder.name.endswith("-notls") for folder in folders) and _has_openssl():
        folders = [folder for folder in folders if not folder.name.endswith("-notls")]
    usable: list[tuple[Version, Path]] = []
    for folder in folders:
        binary = folder / "redis-server"
        version = version_of(binary)
        if version is not None and wanted.accepts(version):
            usable.append((version, binary))
    return max(usable)[1] if usable else None


def _build(wanted: Wanted, work: Path) -> Path:
    for program in ("make", "cc"):
        if not shutil.which(program):
            raise NotFound(
                f"building {wanted.label} needs `{program}`: install make and a C compiler"
            )
    apt = _Apt.opened(wanted, work, "deb-src")
    _print(f"downloading the source of {wanted.label}")
    apt.run("source", "--download-only", "redis", folder=work)
    source = work / "source"
    source.mkdir()
    archive = next(work.glob("redis_*.orig.tar.*"))
    _logged(["tar", "-xf", str(archive)], source, work / "unpack.log")
    (tree,) = source.iterdir()
    tls = _has_openssl()
    _print(
        f"building {tree.name} {'with' if tls else 'WITHOUT'} TLS, once: "
        f"{'about two minutes' if tls else 'install libssl-dev and run again for TLS'}"
    )
    command = ["make", f"-j{os.cpu_count() or 1}", *(["BUILD_TLS=yes"] if tls else [])]
    _logged(command, tree, work / "build.log")
    made = work / "made"
    made.mkdir()
    for program in BUILT:
        shutil.copy2(tree / "src" / program, made / program)
    if tls:
        (made / "tls").touch()
    return made


def _unpack(wanted: Wanted, work: Path) -> Path:
    if not shutil.which("dpkg"):
        raise NotFound(f"{wanted.label} can only be installed on Debian and its derivatives")
    apt = _Apt.opened(wanted, work, "deb")
    _print(f"downloading {wanted.label}")
    apt.run("download", *REDIS7_PACKAGES, folder=work)
    made = work / "made"
    made.mkdir()
    for package in work.glob("*.deb"):
        _logged(["dpkg", "-x", str(package), str(made / "root")], work, work / "unpack.log")
    wrapper = made / "redis-server"
    wrapper.write_text(REDIS7_WRAPPER)
    wrapper.chmod(0o755)
    return made


@dataclass(frozen=True)
class _Apt:
    """apt with one package source and its own state, so that the machine is not changed."""

    options: tuple[str, ...]

    @classmethod
    def opened(cls, wanted: Wanted, work: Path, kind: str) -> _Apt:
        if not shutil.which("apt-get"):
            raise NotFound(
                f"{wanted.label} is not installed and apt is missing; "
                f"set {wanted.variable} to a redis-server"
            )
        trust = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        mirrors = _mirrors()
        for mirror in mirrors:
            folder = Path(tempfile.mkdtemp(prefix="apt-", dir=work))
            for name in ("lists/partial", "cache/archives/partial", "state"):
                (folder / name).mkdir(parents=True)
            (folder / "state/status").touch()
            (folder / "sources.list").write_text(f"{kind} {trust}{mirror} {wanted.suite} main\n")
            settings = {
                "Dir::Etc::sourcelist": folder / "sources.list",
                "Dir::Etc::sourceparts": "/dev/null",
                "Dir::Etc::preferences": "/dev/null",
                "Dir::Etc::preferencesparts": "/dev/null",
                "Dir::State": folder / "state",
                "Dir::State::status": folder / "state/status",
                "Dir::State::lists": folder / "lists",
                "Dir::Cache": folder / "cache",
                # Only this user can read the directory, so apt's own user cannot write there.
                "APT::Sandbox::User": "root",
            }
            apt = cls(tuple(f"-o{key}={value}" for key, value in settings.items()))
            with contextlib.suppress(NotFound):
                apt.run("update", "--error-on=any", folder=folder)
                return apt
        raise NotFound(
            f"none of the {len(mirrors)} package sources of this machine has the suite "
            f"{wanted.suite!r}; set {wanted.variable} to a redis-server"
        )

    def run(self, *arguments: str, folder: Path) -> None:
        _logged(["apt-get", "-q", *self.options, *arguments], folder, folder / "apt.log")


def _mirrors() -> Sequence[str]:
    """Return the archives that apt of this machine reads, the security ones last."""
    if mirror := os.environ.get("CHASQUI_DEBIAN_MIRROR"):
        return [mirror]
    listing = subprocess.run(
        ["apt-get", "indextargets", "--no-release-info", "--format", "$(CREATED_BY) $(REPO_URI)"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout
    mirrors = dict.fromkeys(
        line.split(" ", 1)[1] for line in listing.splitlines() if line.startswith("Packages ")
    )
    return sorted(mirrors, key=lambda mirror: "security" in mirror)


def _has_openssl() -> bool:
    compiler = shutil.which("cc")
    if not compiler:
        return False
    probe = [compiler, "-E", "-include", "openssl/ssl.h", "-x", "c", "/dev/null"]
    return subprocess.run(probe, capture_output=True).returncode == 0


def _logged(command: Sequence[str], folder: Path, log: Path) -> None:
    # An outer make would pass its flags through the environment.
    environ = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MFLAGS", "MAKELEVEL"}}
    with log.open("ab") as out:
        done = subprocess.run(command, cwd=folder, env=environ, stdout=out, stderr=out)
    if done.returncode:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise NotFound(f"`{command[0]}` failed ({done.returncode}):\n{tail}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _print("waiting for another process that builds or downloads Redis")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _print(text: str) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Print the path of the binary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--which", choices=["8", "7"], default="8", help="major version (default: 8)"
    )
    parser.add_argument("--no-get", action="store_true", help="never build or download")
    options = parser.parse_args()
    wanted = REDIS7 if options.which == "7" else REDIS8
    try:
        path = find(wanted) if options.no_get else obtain(wanted)
    except NotFound as problem:
        print(f"    {wanted.label}: {problem}", file=sys.stderr)
        return 1
    if path is None:
        print(f"    {wanted.label}: not found on this machine", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
