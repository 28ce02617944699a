"""What each extra promises, and which tests need no other: the one table for `make package`."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import langchain_dp

ROOT = Path(__file__).parent.parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = "langchain-dp"

TOOLS = ("hypothesis", "langchain-tests", "mpmath", "pytest", "pytest-asyncio", "pytest-timeout")
"""Beside the package and one extra, what its tests run with."""


@dataclasses.dataclass(frozen=True)
class Promise:
    """What is there once an extra is installed.

    Args:
        imports: Public names, ``module:name``, that can be had.
        tests: Files and folders of tests/ that pass with this extra alone.
        uses: A line of Python that does something only this extra makes possible, and fails if it does not.
    """

    imports: tuple[str, ...]
    tests: tuple[str, ...] = ()
    uses: str = "pass"


MIDDLEWARE = ("PseudonymMiddleware", "RAPTMiddleware")
"""What needs the extra ``agents``."""

TOP = tuple(f"langchain_dp:{name}" for name in langchain_dp.__all__ if name not in MIDDLEWARE)
ROOMS = (
    "langchain_dp.accounting",
    "langchain_dp.audit",
    "langchain_dp.audit.report",
    "langchain_dp.cli",
    "langchain_dp.errors",
    "langchain_dp.icl",
    "langchain_dp.integrations.llama_cpp",
    "langchain_dp.integrations.openai",
    "langchain_dp.integrations.presidio",
    "langchain_dp.integrations.transformers",
    "langchain_dp.mechanisms",
    "langchain_dp.opt",
    "langchain_dp.ports",
    "langchain_dp.isolation.run",
    "langchain_dp.rapt",
    "langchain_dp.sample",
)
"""What can be imported without any extra, with every public name."""

CHECKOUT = ("docs", "package_checks", "test_cookbook.py", "test_layers.py", "test_package.py")
"""Tests of the checkout, not of what is installed; and below, those that need several extras at once."""

SEVERAL = (
    "contracts/test_agreement.py",
    "contracts/test_completion_server.py",
    "contracts/test_llama_cpp.py",  # on a file that torch made, as the next three
    "integrations/test_llama_engine.py",
    "integrations/test_llama_failures.py",
    "integrations/test_llama_wri*.py",
    "cli/test_demo.py",
    "audit/test_gauges.py",
    "audit/test_live.py",
    "cli/test_serving.py",
)

NEED = {
    "agents": ("rapt/test_middleware.py", "rapt/test_pseudonym_agents.py"),
    "decisions": ("icl/test_decision_models.py",),
    "encoder": ("aggregate", "cli/test_style.py"),
    "local": ("integrations/test_llama_chat.py", "integrations/test_llama_files.py"),
    "openai": ("isolation/test_logs.py",),
    "postgres": ("accounting/test_ledger_postgres.py",),
    "rapt": ("rapt/test_vocabulary.py",),
    "ray": ("rapt/test_bulk_workers.py", "records/test_ray_shards.py"),
    "transformers": ("contracts/test_transformers.py", "integrations/test_transformers_*.py"),
    "tuning": ("rapt_tuning",),
}
"""Tests that say nothing, or break, without the extra. All that stand nowhere here pass without any."""

PROMISES = {
    "": Promise(
        imports=(*(f"{room}:*" for room in ROOMS), *TOP),
        tests=("*",),
        uses="from langchain_dp import PrivacyBudget, PrivacyLedger; PrivacyLedger(PrivacyBudget(1.0))",
    ),
    "agents": Promise(("langchain_dp.rapt.middleware:RAPTMiddleware", "langchain_dp:*"), NEED["agents"]),
    "attacks": Promise(
        ("langchain_dp.attacks:*",),
        ("attacks",),
        "from langchain_dp.attacks import SentenceEmbeddings; assert SentenceEmbeddings()(['a']).shape == (1, 384)",
    ),
    "decisions": Promise(("langchain_dp.aggregate:*", "langchain_core.decisions:*"), NEED["decisions"]),
    "encoder": Promise(
        ("langchain_dp.aggregate:*",),
        NEED["encoder"],
        "from langchain_dp.aggregate import StaticEncoder; len(StaticEncoder().embed_query('a day')) == 256 or exit(1)",
    ),
    "encrypted": Promise(
        ("langchain_dp.rapt.pseudonyms:PatternEntities", "cryptography.fernet:Fernet"),
        uses="from langchain_dp.rapt.pseudonyms.keeping import Conversations; from cryptography.fernet import Fernet; "
        "Conversations(None, Fernet.generate_key())",
    ),
    "gliner": Promise(("langchain_dp.integrations.gliner:GlinerEntities", "gliner:GLiNER")),
    "local": Promise(
        ("langchain_dp.integrations.llama_cpp:*",),
        NEED["local"],
        "from langchain_dp.integrations.llama_cpp import ChatLlamaCpp; assert ChatLlamaCpp(max_tokens=2).invoke('Hi')",
    ),
    "minilm": Promise(
        ("langchain_dp.rapt:*",),
        ("rapt/test_privatize.py", "rapt/test_vocabulary.py"),
        "from langchain_dp import RAPTSanitizer; assert RAPTSanitizer('minilm', eta=50.0).invoke('a quiet day')",
    ),
    "openai": Promise(
        ("langchain_dp.integrations.openai:*", "langchain_openai:ChatOpenAI"),
        (*NEED["openai"], "integrations/test_completion_server.py"),
    ),
    "otel": Promise(
        ("langchain_dp.audit.watch:observe", "opentelemetry.metrics:get_meter"),
        uses="from langchain_dp import PrivacyBudget, PrivacyLedger; from langchain_dp.audit.watch import observe; "
        "observe({'it': PrivacyLedger(PrivacyBudget(1.0))})",
    ),
    "plot": Promise(
        ("langchain_dp.attacks:plot_attacks",),
        ("attacks/test_results.py", "rapt/test_calibrate.py"),
        "from langchain_dp._util.pictures import new_figure; new_figure(4.0, 3.0)",
    ),
    "postgres": Promise(
        ("langchain_dp.accounting.store.postgres:Postgres",),
        NEED["postgres"],
        "from langchain_dp.accounting.store.postgres import Place; assert Place('postgresql://h/d').schema",
    ),
    "presidio": Promise(
        ("langchain_dp.integrations.presidio:PresidioEntities", "presidio_analyzer:AnalyzerEngine"),
        ("integrations/test_presidio.py",),
    ),
    "prometheus": Promise(
        ("langchain_dp.audit.watch:LedgerCollector", "prometheus_client:generate_latest"),
        uses="from langchain_dp import PrivacyBudget, PrivacyLedger; import prometheus_client as client; "
        "from langchain_dp.audit.watch import LedgerCollector; registry = client.CollectorRegistry(); "
        "registry.register(LedgerCollector({'it': PrivacyLedger(PrivacyBudget(1.0))})); "
        "assert b'left_epsilon' in client.generate_latest(registry)",
    ),
    "rapt": Promise(
        ("langchain_dp.rapt:*",),
        ("rapt/test_calibrate.py", "rapt/test_privatize.py", "rapt/test_vocabulary.py", "cli/test_sanitize.py"),
        "from langchain_dp import RAPTSanitizer; assert RAPTSanitizer('glove', eta=5.0).invoke('a quiet day')",
    ),
    "ray": Promise(("langchain_dp.integrations.ray:map_private_batches", "ray.data:Dataset"), NEED["ray"]),
    "transformers": Promise(("langchain_dp.integrations.transformers:*",), NEED["transformers"]),
    "tuning": Promise(("langchain_dp.rapt.tuning:*",), NEED["tuning"]),
    "watch": Promise(
        ("langchain_dp.audit.watch:live_app", "uvicorn:Server"),
        uses="from langchain_dp import PrivacyBudget, PrivacyLedger; from langchain_dp.audit.watch import live_app; "
        "live_app(PrivacyLedger(PrivacyBudget(1.0)))",
    ),
}
"""Every extra of pyproject.toml but ``dev``, and "" for none."""


def without_extras() -> tuple[str, ...]:
    """Tests to leave out where no extra is installed."""
    return (*CHECKOUT, *SEVERAL, *(path for paths in NEED.values() for path in paths))


def requirements(extra: str = "") -> list[Requirement]:
    """What the package asks for with an extra, its own extras resolved. Read off pyproject.toml."""
    asked = [*PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] if extra else [])]
    found: list[Requirement] = []
    for requirement in map(Requirement, asked):
        if canonicalize_name(requirement.name) == NAME:
            found += [inner for name in sorted(requirement.extras) for inner in requirements(name)]
        else:
            found.append(requirement)
    return found


def parts(extra: str) -> set[str]:
    """An extra and those of our own that it consists of."""
    if not extra:
        return set()
    inner = [Requirement(line) for line in PROJECT["optional-dependencies"][extra]]
    return {extra}.union(*(parts(name) for r in inner if canonicalize_name(r.name) == NAME for name in r.extras))


def installed_with(asked: Iterable[Requirement]) -> dict[str, importlib.metadata.Distribution | None]:
    """Distributions that these requirements bring, by name; None for one that is not installed here."""
    todo, seen = list(asked), set()
    found: dict[str, importlib.metadata.Distribution | None] = {}
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras}:
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            try:
                found[name] = importlib.metadata.distribution(requirement.name)
            except importlib.metadata.PackageNotFoundError:
                found.setdefault(name, None)
                continue
            for line in found[name].requires or []:  # type: ignore[union-attr]  # set above
                inner = Requirement(line)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    todo.append(inner)
    return found


def named_in(message: str) -> list[str]:
    """Extras that a message tells to install."""
    return re.findall(r"\.\[([\w-]+)\]", message)
