"""``langchain-dp doctor``."""

from __future__ import annotations

import importlib.metadata as metadata
import platform
import sqlite3
from collections.abc import Iterator
from typing import Any

from langchain_dp import __version__
from langchain_dp._util.extras import install_hint
from langchain_dp.cli.options import JsonOptions, ledger_at
from langchain_dp.cli.parser import DONE, FAILED
from langchain_dp.cli.runs import because
from langchain_dp.cli.show import columns, print_json
from langchain_dp.errors import LangChainDPError

PACKAGES = ("langchain-core", "langchain", "langchain-openai", "dp-accounting", "numpy", "scipy", "torch")


class Doctor(JsonOptions):
    """Inspects the installation."""

    path = "doctor"
    what = "Show versions and a ledger's health, for bug reports."
    examples = """\
  langchain-dp doctor
  langchain-dp doctor --ledger privacy.ledger --json
"""
    notes = """\
Nothing private is shown: no path, no name of a plan, no record. It ends with 1 if the ledger cannot be used.
--json: {"versions": {package: version or null}, "extras": {extra: missing packages}, "model", "ledger"}.
"""
    ledger: str | None = ledger_at(help="ledger to open and verify, a file or a postgresql:// URL")

    def run(self) -> int:
        extras = {extra: sorted(missing) for extra, missing in _missing_by_extra().items()}
        found: dict[str, Any] = {
            "versions": dict(_versions()),
            "extras": extras,
            "model": "missing" if extras.get("local") else "SmolLM2-135M-Instruct",
            "ledger": None if self.ledger is None else _ledger(self.ledger),
        }
        if self.json:
            print_json(found)
        else:
            print(
                columns(((name, version or "not installed") for name, version in found["versions"].items()), indent=0)
            )
            print("\nextras")
            print(columns((extra, _remedy(extra, missing)) for extra, missing in extras.items()))
            print(f"\nembedded model  {found['model']}")
            if found["ledger"] is not None:
                print(f"ledger          {found['ledger']}")
        return DONE if found["ledger"] in (None, "sound") else FAILED


def _versions() -> Iterator[tuple[str, str | None]]:
    yield "langchain-dp", __version__
    yield "Python", platform.python_version()
    yield "platform", f"{platform.system()} {platform.machine()}"
    yield "SQLite", sqlite3.sqlite_version
    for package in PACKAGES:
        yield package, _version(package)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _missing_by_extra() -> dict[str, set[str]]:
    from packaging.requirements import Requirement

    distribution = metadata.distribution("langchain-dp")
    found: dict[str, set[str]] = {
        extra: set() for extra in distribution.metadata.get_all("Provides-Extra") or () if extra not in ("dev", "check")
    }
    for requirement in map(Requirement, distribution.requires or ()):
        for extra, missing in found.items():
            of_extra = requirement.marker is not None and requirement.marker.evaluate({"extra": extra})
            if of_extra and requirement.name != "langchain-dp" and _version(requirement.name) is None:
                missing.add(requirement.name)
    return found


def _remedy(extra: str, missing: list[str]) -> str:
    return f"lacks {', '.join(missing)}: {install_hint(extra)}" if missing else "installed"


def _ledger(place: str) -> str:
    """Return ``sound``, or the problem."""
    from langchain_dp.audit.report.opening import open_ledger

    try:
        with open_ledger(place) as ledger:
            ledger.verify()
    except (LangChainDPError, OSError) as error:
        return because(error)
    return "sound"
