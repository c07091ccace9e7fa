"""Passwords that live in a file, as those of Kubernetes and Vault do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from redis.credentials import CredentialProvider

from airflow_provider_chasqui.core.errors import BadInput


@dataclass(frozen=True)
class PasswordFile(CredentialProvider):
    """Reads the file at every login, so whoever rotates the password only writes the file."""

    path: Path
    username: str | None = None

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self.read()
        return (self.username, password) if self.username else (password,)

    def read(self) -> str:
        """The password; BadInput if there is none to be read."""
        name = str(self.path)
        try:
            text = self.path.read_text().rstrip("\r\n")
        except (OSError, UnicodeError, ValueError) as cause:
            why = (
                cause.strerror or str(cause) if isinstance(cause, OSError) else type(cause).__name__
            )
            raise BadInput(f"cannot read the password file {name!r}: {why}") from cause
        if not text:
            raise BadInput(f"the password file {name!r} is empty")
        return text
