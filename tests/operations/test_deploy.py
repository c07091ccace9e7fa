"""The kustomize example and the systemd units in deploy/."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from airflow_provider_chasqui.core.durations import parse_duration
from tests import test_snippets
from tests.operations.test_chart import CUSTOM_RESOURCES, KUBERNETES, container, words

DEPLOY = Path(__file__).parents[2] / "deploy"
BASE = DEPLOY / "kustomize" / "base"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
# A unit reads these from its EnvironmentFile; the values are those of the comment in the unit.
VARIABLES = dict(
    re.findall(
        r"^#   ([A-Z]+)=(.*)$", (DEPLOY / "systemd/chasqui-worker@.service").read_text(), re.M
    )
)


def build(folder: Path) -> list[dict[str, Any]]:
    """Return the manifests of a kustomization."""
    if shutil.which("kubectl"):
        command = ["kubectl", "kustomize", folder]
    elif shutil.which("kustomize"):
        command = ["kustomize", "build", folder]
    else:
        pytest.skip("neither kubectl nor kustomize is installed")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def base_manifests() -> list[dict[str, Any]]:
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return [
        manifest for name in names for manifest in yaml.safe_load_all((BASE / name).read_text())
    ]


def pod_of(manifests: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (deployment,) = (
        manifest
        for manifest in manifests
        if manifest["kind"] == "Deployment" and manifest["metadata"]["name"] == name
    )
    return dict(deployment["spec"]["template"]["spec"])


def shutdown_timeout(arguments: list[str]) -> timedelta:
    text = " ".join(arguments).replace("=", " ")
    (duration,) = re.findall(r"--shutdown-timeout (\S+)", text)
    return parse_duration(duration)


def check_manifests(manifests: list[dict[str, Any]]) -> None:
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM_RESOURCES:
            for version in KUBERNETES:
                kubernetes_validate.validate(manifest, version, strict=True)
    for name in ("chasqui-emails", "chasqui-exporter"):
        _, *arguments = words(pod_of(manifests, name))
        test_snippets.parse(
            test_snippets.chasqui(), [word for word in arguments if "/run/secrets" not in word]
        )
    pod = pod_of(manifests, "chasqui-emails")
    grace = timedelta(seconds=pod["terminationGracePeriodSeconds"])
    assert grace >= shutdown_timeout(container(pod)["args"]) + timedelta(seconds=10)


def test_the_base_is_valid() -> None:
    check_manifests(base_manifests())
    (scaled,) = (manifest for manifest in base_manifests() if manifest["kind"] == "ScaledObject")
    (trigger,) = scaled["spec"]["triggers"]
    (service,) = (manifest for manifest in base_manifests() if manifest["kind"] == "Service")
    port = service["spec"]["ports"][0]["port"]
    assert trigger["metadata"]["url"] == f"http://{service['metadata']['name']}:{port}/work/emails"
    assert f"--port={port}" in words(pod_of(base_manifests(), "chasqui-exporter"))


@pytest.mark.parametrize("folder", ["base", "production"])
def test_kustomize_builds_valid_manifests(folder: str) -> None:
    manifests = build(DEPLOY / "kustomize" / folder)
    check_manifests(manifests)
    (config,) = (manifest for manifest in manifests if manifest["kind"] == "ConfigMap")
    for name in ("chasqui-emails", "chasqui-exporter"):
        (source,) = container(pod_of(manifests, name))["envFrom"]
        assert source["configMapRef"]["name"] == config["metadata"]["name"]
    if folder == "production":
        assert config["data"]["CHASQUI_URL"].startswith("rediss://")
        pod = pod_of(manifests, "chasqui-emails")
        assert shutdown_timeout(container(pod)["args"]) == timedelta(minutes=10)


def service_section(unit: Path) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit.read_text())
    return parser["Service"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_a_valid_command_and_has_the_least_rights(unit: Path, tmp_path: Path) -> None:
    service = service_section(unit)
    text = service["ExecStart"]
    for name, value in VARIABLES.items():
        text = text.replace(f"${name}", value)
    (tmp_path / "password").write_text("S3cretPw\n")
    program, *arguments = shlex.split(text.replace("%d", str(tmp_path)))
    assert program.endswith("/bin/chasqui")
    assert "$" not in text
    test_snippets.parse(test_snippets.chasqui(), arguments)
    # The password is a credential of the unit, not a variable.
    assert service["LoadCredential"].startswith("password:")
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert "User" in service or service["DynamicUser"] == "yes"
    if "worker" in unit.name:
        stop = timedelta(seconds=int(service["TimeoutStopSec"]))
        assert stop >= shutdown_timeout(arguments) + timedelta(seconds=10)
        assert service["KillMode"] == "mixed"


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_a_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # systemd-analyze also checks that the program exists.
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.M)
    file = tmp_path / unit.name.replace("@", "@emails")
    file.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", file], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
