"""Detection of a fork, for state that a child process must not share with its parent."""

from __future__ import annotations

import os


class _ForkState:
    """A counter that is increased in every forked child."""

    __slots__ = ("generation",)

    def __init__(self) -> None:
        self.generation = 0

    def increase(self) -> None:
        """Record that this process is a forked child."""
        self.generation += 1


#: An object remembers `fork_state.generation` when it is made. If the value differs later, the
#: object was inherited from the parent process. Reading the attribute is cheaper than
#: `os.getpid()`.
fork_state = _ForkState()
os.register_at_fork(after_in_child=fork_state.increase)
