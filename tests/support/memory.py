"""The peak memory of a program, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys

# Not ru_maxrss, which is at least the memory of the parent process at the fork.
_REPORT = """
import re
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def run_and_measure(code: str, *args: str) -> tuple[str, int]:
    """Run a program and return its output and its peak memory in kilobytes.

    :param code: the program.
    :param args: its arguments.
    """
    command = [sys.executable, "-c", code + _REPORT, *args]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    *lines, peak = output.strip().splitlines()
    return "\n".join(lines), int(peak)
