"""What the frames of an error hold of private text, at every public entry point that takes some: nothing.

The frames that count are those below the entry point, in this package, in LangChain and in the standard library. Those
of tests stand for the caller's own code, and for models, which hold what they were told.
"""

from __future__ import annotations

import asyncio
import inspect
import pickle
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fakes.batches import table_folder
from fakes.canary import CANARY, shows_nothing
from fakes.encoders import failing_after, fitted, named
from fakes.optimizers import optimizer
from fakes.rapt import sanitizer
from fakes.scorer import WordScorer
from fakes.synthesizers import generator, synthesizer
from fakes.voters import VotingChat, classifier
from langchain_core.callbacks import CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.example_selectors import BaseExampleSelector
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import HumanMessage
from langchain_core.outputs import ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langgraph.store.memory import InMemoryStore

from langchain_dp import DPExampleSelector, DPLabelNamer, DPPrototypeClassifier, DPSurvey, PrivacyBudget
from langchain_dp.accounting import MetricLedger
from langchain_dp.errors import PrivateDataError
from langchain_dp.icl import DPICLClassifier
from langchain_dp.opt import DPPromptOptimizer, evaluate_prompt
from langchain_dp.rapt import (
    ParaphraseOptions,
    RAPTParaphraser,
    RAPTSanitizer,
    SanitizeBatches,
    SanitizingExampleSelector,
    SanitizingRetriever,
)
from langchain_dp.rapt.pseudonyms import PseudonymizeBatches, Pseudonymizer, PseudonymStore
from langchain_dp.rapt.tuning import PlainTokens, RAPTClassifier, RAPTClient
from langchain_dp.records import PrivacyBlocks, PrivateRecords
from langchain_dp.synth import DPAnswerGenerator, DPExampleSynthesizer

NOBODY = {"configurable": {"user_id": 3}}
WRONG: list[Any] = [{"text": f"{CANARY} {number}", "label": "a label that nobody named"} for number in range(40)]
ROWS: list[Any] = [{"text": f"{CANARY} {number}", "label": "billing"} for number in range(120)]
LABELS = ["billing", "delivery"]
TEMPLATE = ChatPromptTemplate.from_messages([("human", "Sort: {text}")])


class OutsideError(Exception):
    """What a server of somebody else raises."""


class DownChat(BaseChatModel):
    """A chat model whose server answers 429."""

    keeps_no_prompts: ClassVar[bool] = True

    @property
    def _llm_type(self) -> str:
        return "down"

    def bind_tools(self, tools: Any, **_: Any) -> BaseChatModel:
        return self

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        raise OutsideError("429")


class DownRetriever(BaseRetriever):
    """A retriever whose server answers 429."""

    def _get_relevant_documents(self, query: str, *, run_manager: CallbackManagerForRetrieverRun) -> list[Document]:
        raise OutsideError("429")


class DownSelector(BaseExampleSelector):
    """A selector whose server answers 429."""

    def add_example(self, example: dict[str, str]) -> Any:
        raise OutsideError("429")

    def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, Any]]:
        raise OutsideError("429")


class DownScorer(WordScorer):
    """An engine that fails once it is shown a text."""

    def score_next_token(self, public: Any, members: Any, **options: Any) -> Any:
        raise OutsideError("failed")


def stopping(_: object) -> None:
    raise KeyboardInterrupt


def down(*_: object, **__: object) -> Any:
    raise OutsideError("429")


async def pulled(stream: AsyncIterator[Any]) -> list[Any]:
    return [part async for part in stream]


async def one(value: Any) -> AsyncIterator[Any]:
    yield value


STYLES: dict[str, Callable[..., Any]] = {
    "invoke": lambda chain, value, *config: chain.invoke(value, *config),
    "ainvoke": lambda chain, value, *config: asyncio.run(chain.ainvoke(value, *config)),
    "batch": lambda chain, value, *config: chain.batch([value], *config),
    "abatch": lambda chain, value, *config: asyncio.run(chain.abatch([value], *config)),
    "batch_as_completed": lambda chain, value, *config: list(chain.batch_as_completed([value, value], *config)),
    "abatch_as_completed": lambda chain, value, *config: asyncio.run(
        pulled(chain.abatch_as_completed([value, value], *config))
    ),
    "stream": lambda chain, value, *config: list(chain.stream(value, *config)),
    "astream": lambda chain, value, *config: asyncio.run(pulled(chain.astream(value, *config))),
    "transform": lambda chain, value, *config: list(chain.transform(iter([value]), *config)),
    "atransform": lambda chain, value, *config: asyncio.run(pulled(chain.atransform(one(value), *config))),
    "astream_log": lambda chain, value, *config: asyncio.run(pulled(chain.astream_log(value, *config))),
    "astream_events": lambda chain, value, *config: asyncio.run(
        pulled(chain.astream_events(value, *config, version="v2"))
    ),
}


def agent() -> Any:
    agents = pytest.importorskip("langchain.agents", reason="needs the extra agents")
    from langchain_dp.rapt.pseudonyms.middleware import PseudonymMiddleware

    middleware = PseudonymMiddleware(Pseudonymizer(terms=[CANARY]))
    return middleware.around(agents.create_agent(DownChat(), [], middleware=[middleware]))


def tuned() -> RAPTClassifier:
    pytest.importorskip("torch", reason="needs the extra tuning")
    return RAPTClassifier(client(), down)


def client() -> RAPTClient:
    return RAPTClient(sanitizer(), PlainTokens(length=0), kind="text")


RUNNABLES: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "a sanitizer, a kind": (sanitizer, ({"note": CANARY},)),
    "a sanitizer, nobody": (sanitizer, (CANARY, NOBODY)),
    "pseudonyms, a kind": (Pseudonymizer, ({"note": CANARY},)),
    "pseudonyms, a recognizer": (lambda: Pseudonymizer(down), (CANARY,)),
    "a paraphrase": (
        lambda: RAPTParaphraser(DownScorer(), paraphrasing=ParaphraseOptions(clip=1.0, max_new_tokens=6)),
        (CANARY,),
    ),
    "a retriever, a kind": (lambda: SanitizingRetriever(retriever=DownRetriever(), sanitizer=sanitizer()), ([CANARY],)),
    "a retriever, the server": (
        lambda: SanitizingRetriever(retriever=DownRetriever(), sanitizer=sanitizer()),
        (CANARY,),
    ),
    "documents, the server": (
        lambda: SanitizingRetriever(retriever=DownRetriever(), sanitizer=sanitizer(), query=False, documents=True),
        (CANARY,),
    ),
    "an agent, a kind": (agent, ([CANARY],)),
    "an agent, the server": (agent, ({"messages": [("user", CANARY)]},)),
    "tuned, a kind": (tuned, ({"note": CANARY},)),
    "tuned, the server": (tuned, (CANARY,)),
    "examples": (synthesizer, (list(WRONG),)),
    "examples, the engine": (lambda: synthesizer(DownScorer()), (list(ROWS),)),
    "a prompt": (optimizer, (list(WRONG),)),
}
OWN_STYLES = {
    # Refused, whatever is given.
    "an agent, a kind": {"astream_events"},
    "an agent, the server": {"astream_events"},
}

DOCUMENT = Document(CANARY, metadata={"note": CANARY})
CALLS: dict[str, Callable[[], Any]] = {
    "sanitize": lambda: sanitizer().sanitize({"note": CANARY}),  # type: ignore[type-var]
    "sanitize, a key": lambda: sanitizer().sanitize(CANARY, keys_keep=[3]),  # type: ignore[list-item]
    "sanitize, further": lambda: sanitizer().invoke(CANARY, foo=1),
    "sanitize_mappings": lambda: sanitizer().sanitize_mappings([CANARY]),  # type: ignore[list-item]
    "transform_documents": lambda: sanitizer().transform_documents([CANARY]),  # type: ignore[list-item]
    "transform_documents, further": lambda: sanitizer().transform_documents([DOCUMENT], foo=1),
    "atransform_documents": lambda: asyncio.run(sanitizer().atransform_documents([DOCUMENT, CANARY])),  # type: ignore[list-item]
    "pseudonyms": lambda: Pseudonymizer().sanitize({"note": CANARY}),  # type: ignore[type-var]
    "pseudonyms, a store": lambda: PseudonymStore(InMemoryStore()).batch([CANARY]),  # type: ignore[list-item]
    "pseudonyms, a recognizer": lambda: Pseudonymizer(down).sanitize(CANARY),
    "select_examples": lambda: selector([{"text": CANARY}]).select_examples({}),
    "aselect_examples": lambda: asyncio.run(selector([{"text": CANARY}]).aselect_examples({})),
    "select_examples, the account": lambda: SanitizingExampleSelector(
        [{"text": CANARY, "u": "a"}, {"text": "two", "u": "a"}], sanitizer(eta=1.0, limit=1.5), user_key="u"
    ).select_examples({}),
    "select_examples, the server": lambda: selector(DownSelector()).select_examples({"text": CANARY}),
    "aselect_examples, the server": lambda: asyncio.run(selector(DownSelector()).aselect_examples({"text": CANARY})),
    "add_example": lambda: selector([]).add_example([CANARY]),  # type: ignore[arg-type]
    "aadd_example": lambda: asyncio.run(selector([]).aadd_example([CANARY])),  # type: ignore[arg-type]
    "batches of pseudonyms": lambda: PseudonymizeBatches(lambda: Pseudonymizer(down), "text")({"text": [CANARY]}),
    "restore of batches": lambda: PseudonymizeBatches(
        lambda: Pseudonymizer(), "text", map_column="map", key=lambda: b"0" * 43 + b"="
    ).restore({"text": [CANARY], "map": [CANARY]}),
    "wrap_model_call": lambda: middleware().wrap_model_call(model_request(), down),
    "awrap_model_call": lambda: asyncio.run(middleware().awrap_model_call(model_request(), adown)),
    "before_model": lambda: hiding().before_model({"messages": [CANARY]}, None),
    "abefore_model": lambda: asyncio.run(hiding().abefore_model({"messages": [CANARY]}, None)),
    "wrap_model_call of pseudonyms": lambda: hiding().wrap_model_call(model_request(), down),
    "awrap_model_call of pseudonyms": lambda: asyncio.run(hiding().awrap_model_call(model_request(), adown)),
    "request": lambda: client().request([CANARY, 3]),  # type: ignore[list-item]
    "privatize": lambda: client().privatize([{"text": CANARY, "label": "x"}], labels=["a", "b"]),
    "privatize, labels": lambda: client().privatize([{"text": CANARY, "label": "x"}], labels=["a"]),
    "predict_proba": lambda: tuned().predict_proba([CANARY]),
    "predict_proba, one text": lambda: tuned().predict_proba(CANARY),
    "tuned, further": lambda: tuned().invoke(CANARY, foo=1),
    "evaluate_prompt": lambda: evaluate_prompt(TEMPLATE, DownChat(), ROWS, ["billing", "delivery"]),
    "evaluate_prompt, a label": lambda: evaluate_prompt(
        TEMPLATE, FakeListChatModel(responses=["x"]), WRONG, ["a", "b"]
    ),
    "evaluate_prompt, an argument": lambda: evaluate_prompt(TEMPLATE, DownChat(), ROWS, ["a", "b"], foo=1),  # type: ignore[call-arg]
    "prototypes, a label": lambda: fitted(list(WRONG)),
    "prototypes, an outage": lambda: fitted(list(ROWS), labels=LABELS, encoder=failing_after(CANARY)),
    "prototypes, afit": lambda: asyncio.run(
        DPPrototypeClassifier.afit(list(ROWS), labels=LABELS, encoder=failing_after(CANARY), budget=PrivacyBudget(1.0))
    ),
    "prototypes, update": lambda: fitted(labels=LABELS, examples=list(ROWS)).update(
        list(WRONG), budget=PrivacyBudget(1.0)
    ),
    "names, a label": lambda: named(list(WRONG)),
    "names, an outage": lambda: named(list(ROWS), labels=LABELS, encoder=failing_after(CANARY)),
    "records, users": lambda: PrivateRecords([{**row, "who": None} for row in ROWS], user_key="who"),
    "records": lambda: PrivateRecords(WRONG, label_key="kind"),
    "records, blocks": lambda: PrivacyBlocks(tempfile.mkdtemp(), PrivacyBudget(1.0)).select(
        [{**row, "time": "soon"} for row in ROWS], ["2026-11"]
    ),
    "records, add": lambda: PrivateRecords().add({"text": CANARY}),
    "records, read": lambda: PrivateRecords().read({"text": CANARY}),
    "votes": lambda: classifier(VotingChat(), examples=list(WRONG)),
    "votes, auto": lambda: DPICLClassifier.auto(
        model=VotingChat(), examples=list(WRONG), labels=LABELS, max_queries=5, budget=PrivacyBudget(1.0)
    ),
    "votes, an unknown argument": lambda: DPICLClassifier(model=VotingChat(), examples=list(WRONG), timeout=3),  # type: ignore[call-arg]
    "votes, add": lambda: classifier().add({"text": CANARY, "label": "bad"}),
    "votes, from_dataframe": lambda: DPICLClassifier.from_dataframe(ROWS, text_key="note"),
    "answers": lambda: generator(WordScorer(), examples=[{"text": "", "said": CANARY}]),
    "examples, further": lambda: synthesizer().invoke(list(WRONG), foo=1),
    "examples, in the middle of a run": lambda: synthesizer(progress=stopping).invoke(list(ROWS)),
    "examples, plan": lambda: synthesizer().plan(list(WRONG)),
    "examples, from_dataframe": lambda: DPExampleSynthesizer.from_dataframe(ROWS, text_key="note"),
    "a prompt, further": lambda: optimizer().invoke(list(WRONG), foo=1),
    "a prompt, plan": lambda: optimizer().plan(list(WRONG)),
    "a prompt, check": lambda: optimizer().check(list(WRONG)),
    "a prompt, optimize": lambda: optimizer().optimize(list(WRONG)),
    "a prompt, aoptimize": lambda: asyncio.run(optimizer().aoptimize(list(WRONG))),
    "a prompt, from_dataframe": lambda: DPPromptOptimizer.from_dataframe(ROWS, text_key="note"),
}


def middleware() -> Any:
    pytest.importorskip("langchain.agents", reason="needs the extra agents")
    from langchain_dp.rapt.middleware import RAPTMiddleware

    return RAPTMiddleware(sanitizer())


def hiding() -> Any:
    pytest.importorskip("langchain.agents", reason="needs the extra agents")
    from langchain_dp.rapt.pseudonyms.middleware import PseudonymMiddleware

    return PseudonymMiddleware(Pseudonymizer(terms=[CANARY]))


def model_request() -> Any:
    agents = pytest.importorskip("langchain.agents.middleware", reason="needs the extra agents")
    messages = [HumanMessage(CANARY)]
    return agents.ModelRequest(model=DownChat(), messages=messages, state={"messages": messages}, tools=[])


async def adown(*_: object) -> Any:
    raise OutsideError("429")


def selector(examples: Any) -> SanitizingExampleSelector:
    return SanitizingExampleSelector(examples, sanitizer(), user_key="nobody")


def check(call: Callable[[], Any]) -> None:
    with pytest.raises(BaseException) as caught:  # noqa: PT011  # whatever it is
        call()
    assert not isinstance(caught.value, (NotImplementedError, AttributeError)), caught.value
    shows_nothing(caught.value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("case", RUNNABLES)
def test_no_style_of_a_call_leaves_its_input_in_a_frame(case: str, style: str) -> None:
    """If it breaks, an error reporter that reads the locals of each frame is sent the private text of a call."""
    make, given = RUNNABLES[case]
    if style in OWN_STYLES.get(case, ()):
        pytest.skip("refused, whatever is given")
    chain = make()
    check(lambda: STYLES[style](chain, *given))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("call", CALLS)
def test_no_entry_point_leaves_its_private_arguments_in_a_frame(call: str) -> None:
    """If it breaks, an error reporter that reads the locals of each frame is sent the records or texts of a call."""
    check(CALLS[call])


@pytest.mark.parametrize("call", ["columns", "units"])
def test_no_batch_stays_in_a_frame(call: str, tmp_path: Path) -> None:
    """If it breaks, an error reporter on a worker is sent the texts of a batch."""
    ledger, table = MetricLedger(100.0, tmp_path / "account"), table_folder(tmp_path / "table")
    made = SanitizeBatches("text", document="id", ledger=ledger, embeddings=table, eta=1.0, table_folder=tmp_path)
    check(lambda: made({"text": [CANARY], "id": [None]}) if call == "columns" else made.release([CANARY]))  # type: ignore[list-item]


WALKED: dict[type, set[str]] = {
    RAPTSanitizer: {
        "sanitize", "sanitize_mappings", "transform_documents", "atransform_documents",
    },
    Pseudonymizer: {"sanitize"},
    SanitizingRetriever: set(),
    SanitizingExampleSelector: {"select_examples", "aselect_examples", "add_example", "aadd_example"},
    SanitizeBatches: {"release"},
    PseudonymizeBatches: {"restore"},
    RAPTClient: {"request", "privatize"},
    RAPTClassifier: {"predict_proba"},
    PrivateRecords: {"add", "read"},
    PrivacyBlocks: {"select"},
    DPPrototypeClassifier: {"fit", "afit", "update"},
    DPLabelNamer: {"fit"},
    DPSurvey: {"run", "arun"},
    DPExampleSelector: {"select"},
    DPICLClassifier: {"add", "auto", "from_dataframe"},
    DPPromptOptimizer: {"optimize", "aoptimize", "plan", "check", "from_dataframe"},
    DPExampleSynthesizer: {"plan", "from_dataframe"},
    DPAnswerGenerator: {"from_dataframe"},
}  # fmt: skip
PUBLIC = {
    # They take nothing, or only what is public or released: settings, ids, questions, what holds placeholders.
    "answers_left", "as_sources", "as_tool", "auto", "baseline", "calibration", "certificate", "check_limit",
    "count_tokens", "differences", "forget", "get", "give_up_round", "ids", "in_pandas", "load", "mark", "mark_reply",
    "new_conversation", "model_post_init",
    "abstaining", "as_langfuse_mask", "as_langsmith_anonymizer", "count_users", "langsmith_options", "ledger", "margin",
    "names", "one_per_user", "parts_that_read", "probabilities", "public_examples", "released",
    "report", "restorer", "save", "records_of", "unit_notes", "user_of", "users", "warm", "with_budget", "with_prior",
    # What they take was taken apart behind an entry point that is walked.
    "privatize_checked", "release", "total",
}  # fmt: skip
QUESTIONS = {
    DPICLClassifier: {"invoke_with_certificate", "ainvoke_with_certificate"},
    DPAnswerGenerator: {"plan"},
    DPPrototypeClassifier: {"plan"},
}
"""Methods that take public questions, or nothing, where those of other classes take private text."""
RESTORING = {RAPTSanitizer, Pseudonymizer}


@pytest.mark.parametrize("kind", WALKED, ids=lambda kind: str(kind.__name__))
def test_every_public_method_is_walked_or_takes_no_private_text(kind: type) -> None:
    """If it breaks, a method was added that takes private text and of which no test looks at the frames."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("langchain_dp.")]
    methods = {
        name
        for base in ours
        for name, value in vars(base).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, (classmethod, staticmethod)))
    }
    asked = {*STYLES, *WALKED[kind], *PUBLIC, *QUESTIONS.get(kind, ()), *({"restore"} if kind in RESTORING else ())}
    if kind in (DPICLClassifier, DPSurvey):  # it takes a number
        asked |= {"plan"}
    assert sorted(methods - asked) == []


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("make", [sanitizer, lambda: Pseudonymizer(terms=[CANARY]), synthesizer, optimizer])
def test_no_event_shows_the_private_input(make: Callable[[], Any], version: Any) -> None:
    """If it breaks, whoever reads a chain's events reads the text that a sanitizer keeps back, or the records."""
    records = hasattr(chain := make(), "settings")
    given = [{"text": row["text"], "label": next(iter(chain.settings.labels))} for row in ROWS] if records else CANARY
    events = asyncio.run(pulled(chain.astream_events(given, version=version)))
    assert any(event["event"] == "on_chain_end" for event in events)
    assert CANARY not in repr(events)
    if records:
        with pytest.raises(PrivateDataError):
            pickle.dumps(events)
