"""Names stay home where traces leave: LangSmith's anonymizer, Langfuse's mask, OpenTelemetry's spans."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import langsmith
import pytest
from fakes._http import RecordingServer
from fakes.langsmith_server import LangSmithServer
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_core.tracers import LangChainTracer
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from langchain_dp import Pseudonymizer
from langchain_dp.rapt.pseudonyms.runnable import WITHHELD
from langchain_dp.rapt.pseudonyms.tracing import PseudonymSpanProcessor, PseudonymTracerProvider

ANN = "Ann Smith"
MAIL = "ann@example.org"
TERMS = {ANN: "person"}


def says(answer: str) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=iter([AIMessage(answer)]))


@tool
def look_up(person: str) -> str:
    """Look a person up."""
    raise ValueError(f"no entry for {person}, {MAIL}")


def fails(value: Any) -> Any:
    raise RuntimeError(f"{ANN} is not there: {value}")


CHAINS: list[Callable[[], tuple[Any, Any]]] = [
    lambda: (ChatPromptTemplate.from_messages([("user", "{q}")]) | says(f"{ANN} called."), {"q": f"Who is {ANN}?"}),
    lambda: (RunnableLambda(lambda text: {"docs": [{"page_content": text, "metadata": {"by": ANN}}]}), MAIL),
    lambda: (RunnableLambda(fails), f"{ANN}, {MAIL}"),
    lambda: (look_up, {"person": ANN}),
    lambda: (RunnableLambda(lambda value: {ANN: value}), {MAIL: [{"deep": {"er": (ANN, MAIL)}}]}),
]


def run_all(config: Callable[[], dict[str, Any]]) -> None:
    """Every chain in a stream, those that fail as well."""
    for chain, given in (case() for case in CHAINS):
        with contextlib.suppress(RuntimeError, ValueError):
            list(chain.stream(given, config()))


def test_no_name_reaches_langsmith() -> None:
    """If it breaks, what people write about others is in the traces of a third party."""
    mask = Pseudonymizer(terms=TERMS).as_langsmith_anonymizer()
    with LangSmithServer() as server:
        client = langsmith.Client(api_url=server.url, api_key="not-a-key", anonymizer=mask)
        tracer = LangChainTracer(client=client, project_name="p")
        run_all(lambda: {"callbacks": [tracer], "metadata": {"asked by": ANN}})
        client.flush()
        sent = server.text()
        client.cleanup()
    assert "<PERSON_1>" in sent
    assert not [name for name in (ANN, MAIL) if name in sent]


def test_a_trace_stays_readable() -> None:
    """If it breaks, two people are one in a trace, or one is two."""
    mask = Pseudonymizer(terms=["Ann Smith", "Bob Jones"]).as_langsmith_anonymizer()
    assert mask({"q": "Ann Smith met Bob Jones", "n": 3, "ok": True, "none": None})["q"] == "<TERM_1> met <TERM_2>"
    assert mask({"a": ["Bob Jones, ann smith"]}) == {"a": ["<TERM_2>, <TERM_1>"]}
    assert mask({"n": 3, "ok": True, "none": None, "x": 0.5}) == {"n": 3, "ok": True, "none": None, "x": 0.5}


def test_langfuse_calls_its_mask_by_name() -> None:
    """If it breaks, Langfuse sends everything in clear, or nothing."""
    mask = Pseudonymizer(terms=TERMS).as_langfuse_mask()
    assert mask(data={"input": f"{ANN}"}, further=1) == {"input": "<PERSON_1>"}


def test_what_cannot_be_searched_is_withheld() -> None:
    """If it breaks, an outage of a recognizer shows everything to the tracer, or ends the user's chain."""

    def down(text: str) -> Sequence[Any]:
        raise RuntimeError(text)

    deep: Any = ANN
    for _ in range(60):
        deep = [deep]
    assert Pseudonymizer(down).as_langsmith_anonymizer()({"q": ANN, "n": 1}) == {WITHHELD: 1}
    assert ANN not in json.dumps(Pseudonymizer().as_langsmith_anonymizer()(deep))


def test_no_name_is_in_a_span_that_is_exported() -> None:
    """If it breaks, an OpenTelemetry backend gets the names."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(PseudonymSpanProcessor(SimpleSpanProcessor(exporter), Pseudonymizer(terms=TERMS)))
    tracer = provider.get_tracer("t")
    with contextlib.suppress(ValueError), tracer.start_as_current_span(f"ask {ANN}") as span:
        span.set_attributes({"prompt": f"{ANN}, {MAIL}", "tokens": 3, "list": [ANN, "b"]})
        span.add_event(f"seen {ANN}", {"who": MAIL})
        span.add_link(span.get_span_context(), {"of": ANN})
        raise ValueError(f"{ANN} failed")
    [other] = exporter.get_finished_spans()
    text = other.to_json() + repr(other.links[0].attributes)
    assert "<PERSON_1>" in text
    assert ANN not in text
    assert MAIL not in text
    assert other.attributes["tokens"] == 3
    assert other.attributes["list"] == ("<PERSON_1>", "b")
    assert other.status.description == "ValueError: <PERSON_1> failed"
    provider.force_flush()
    provider.shutdown()


def test_a_processor_that_another_library_adds_sees_placeholders() -> None:
    """If it breaks, a library such as Langfuse, which adds its own processor, exports names, or loses attributes."""

    class Stamping(SimpleSpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            span.set_attribute("environment", "test")

    exporter = InMemorySpanExporter()
    provider = PseudonymTracerProvider(Pseudonymizer(terms=TERMS))
    provider.add_span_processor(Stamping(exporter))
    with provider.get_tracer("t").start_as_current_span(f"ask {ANN}", attributes={"user": MAIL}):
        pass
    [span] = exporter.get_finished_spans()
    assert span.name == "ask <PERSON_1>"
    assert span.attributes == {"environment": "test", "user": "<EMAIL_1>"}


def test_no_name_reaches_langfuse() -> None:
    """If it breaks, Langfuse's own client sends names: its mask leaves out errors, tags, metadata and names of runs."""
    langfuse = pytest.importorskip("langfuse")
    handlers = pytest.importorskip("langfuse.langchain")
    with RecordingServer(lambda path, body: (200, {"Content-Type": "application/json"}, b"{}")) as server:
        provider = PseudonymTracerProvider(Pseudonymizer(terms=TERMS))
        client = langfuse.Langfuse(
            public_key="pk-lf-1", secret_key="sk-lf-1", base_url=server.url, tracer_provider=provider
        )
        shown = {"metadata": {"by": ANN}, "tags": [f"of {ANN}"], "run_name": f"ask {ANN}"}
        run_all(lambda: {"callbacks": [handlers.CallbackHandler()], **shown})
        client.flush()
        client.shutdown()
        sent = b"".join(server.bodies)
    assert b"<PERSON_1>" in sent or b"PERSON_1" in sent
    assert ANN.encode() not in sent
    assert MAIL.encode() not in sent
