"""The page on several machines: its manifest holds together, and each of its failures has a test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/several-machines.md").read_text(encoding="utf-8")


def manifest() -> dict[str, list[dict[str, Any]]]:
    """Its parts, by kind."""
    yaml = pytest.importorskip("yaml")
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    found: dict[str, list[dict[str, Any]]] = {}
    for part in yaml.safe_load_all(text):
        found.setdefault(part["kind"], []).append(part)
    return found


def test_the_manifest_names_what_is_there() -> None:
    """If it breaks, who applies it gets pods that wait for ever for a secret, a port or a name that nobody made."""
    parts = manifest()
    secrets = {name: set(re.findall(r"--from-file=(\S+)", rest)) for name, rest in re.findall(
        r"kubectl create secret generic (\S+) (.*)", PAGE)}  # fmt: skip
    labels, ports = {}, {}
    for each in parts["Deployment"]:
        pod = each["spec"]["template"]
        assert each["spec"]["selector"]["matchLabels"] == pod["metadata"]["labels"]
        labels[each["metadata"]["name"]] = pod["metadata"]["labels"]
        volumes = {volume["name"]: volume["secret"]["secretName"] for volume in pod["spec"].get("volumes", [])}
        assert set(volumes.values()) <= secrets.keys()
        for container in pod["spec"]["containers"]:
            ports[each["metadata"]["name"]] = {port["name"]: port["containerPort"] for port in container["ports"]}
            files = {
                f"{mount['mountPath']}/{name}"
                for mount in container.get("volumeMounts", [])
                for name in secrets[volumes[mount["name"]]]
            }
            for value in (setting["value"] for setting in container.get("env", [])):
                for path in re.findall(r"(?:^|=)(/[^&]*)", value):
                    assert path in files
    (service,) = parts["Service"]
    name = service["metadata"]["name"]
    assert service["spec"]["selector"] == labels[name]
    (port,) = service["spec"]["ports"]
    assert ports[name][port["targetPort"]] == port["port"]
    (policy,) = parts["NetworkPolicy"]
    assert policy["spec"]["podSelector"]["matchLabels"] == labels["answers"]
    model = policy["spec"]["egress"][0]
    assert model["to"][0]["podSelector"]["matchLabels"] == labels[name]
    assert model["ports"][0]["port"] == port["port"]


def test_the_manifest_s_ledger_is_one() -> None:
    """If it breaks, the URL on the page is refused, or holds a password, or its model is another service."""
    postgres = pytest.importorskip("langchain_dp.accounting.store.postgres")
    env = {
        setting["name"]: setting["value"]
        for each in manifest()["Deployment"]
        for container in each["spec"]["template"]["spec"]["containers"]
        for setting in container.get("env", [])
    }
    place = postgres.Place(env["LEDGER"])
    assert (place.schema, place.key_file) == ("mail", "/etc/dp/mail.key")
    assert place._server["host"] in PAGE.partition("## The picture")[0]
    assert env["MODEL"] == "http://model:8080/v1"
    assert "PGPASSFILE" in env


def test_each_failure_is_a_test() -> None:
    """If it breaks, the page promises what happens after a failure, and nothing shows it."""
    table = PAGE.partition("| failure | effect | test |\n|---|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert len(table) > 10
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    for row in table:
        names = re.findall(r"`(test_\w+)`", row.split("|")[-2])
        assert names, row
        for name in names:
            assert re.search(rf"def {name}\(", written), name
