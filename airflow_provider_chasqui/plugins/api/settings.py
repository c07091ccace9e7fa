"""The options of the `[chasqui]` section of the Airflow configuration that concern the page."""

from __future__ import annotations

from dataclasses import dataclass

from airflow.configuration import conf

from airflow_provider_chasqui.core.errors import InvalidArgument

CONFIG_SECTION = "chasqui"
DEFAULT_MASK_FIELDS = (
    "password, passwd, secret, token, api_key, apikey, access_key, private_key, authorization"
)

PAYLOADS_VALUES = ("none", "editors", "readers")
PAYLOADS_DEFAULT = "editors"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the page.

    :param connections: ids of the connections that the page may use; if empty, every connection of
        type chasqui that Airflow lists.
    :param queues: queues that are always shown, also if discovery does not find them.
    :param mask_fields: lower-case names of payload fields whose values are masked.
    :param payloads: who sees payloads, results and errors: `none`, `editors` of the connection or
        its `readers`.
    :param discover_queues: whether queues are discovered with SCAN.
    :param hide_payloads: whether payloads are hidden from the user of the request;
        `permissions.visible_settings` decides.
    """

    connections: tuple[str, ...]
    queues: tuple[str, ...]
    mask_fields: frozenset[str]
    payloads: str
    discover_queues: bool
    hide_payloads: bool = True


def read_settings() -> Settings:
    """Return the current settings."""
    return Settings(
        connections=_read_list("connections"),
        queues=_read_list("queues"),
        mask_fields=frozenset(
            name.lower() for name in _read_list("mask_fields", DEFAULT_MASK_FIELDS)
        ),
        payloads=_read_payloads(),
        discover_queues=conf.getboolean(CONFIG_SECTION, "discover_queues", fallback=True),
    )


def _read_payloads() -> str:
    value = conf.get(CONFIG_SECTION, "payloads", fallback=PAYLOADS_DEFAULT).strip().lower()
    if value not in PAYLOADS_VALUES:
        raise InvalidArgument(
            f"the option payloads of [{CONFIG_SECTION}] must be one of "
            f"{', '.join(PAYLOADS_VALUES)}, not {value!r}"
        )
    return value


def _read_list(option: str, default: str = "") -> tuple[str, ...]:
    text = conf.get(CONFIG_SECTION, option, fallback=default) or ""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
