"""Who asks a classifier: found in the config on every face, charged to the right share, and told to nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fakes.voters import VotingChat, classifier
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tracers import BaseTracer

from langchain_dp import ChatDPICL, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import Quotas
from langchain_dp.errors import BudgetExceeded, InvalidParameter, PlanError, QuotaExceeded

BUDGET = PrivacyBudget(50.0)
SHARES = Quotas(default=2, overrides={"ward-3": 4})
PRIVATE = "Zebedee Quillfeather has gout"
FACES = (
    "invoke",
    "certified",
    "batch",
    "stream",
    "tool",
    "chain",
    "ainvoke",
    "acertified",
    "abatch",
    "astream",
    "atool",
)


def by(user_id: Any) -> RunnableConfig:
    return {"configurable": {"user_id": user_id}}


async def asked(chain: Any, face: str, question: str, config: RunnableConfig | None) -> Any:
    if face == "batch":
        return chain.batch([question], config)[0]
    if face == "abatch":
        return (await chain.abatch([question], [config] if config else None))[0]
    if face == "stream":
        return next(iter(chain.stream(question, config)))
    if face == "astream":
        return "".join([piece async for piece in chain.astream(question, config)])
    if face == "certified":
        return chain.invoke_with_certificate(question, config).label
    if face == "acertified":
        return (await chain.ainvoke_with_certificate(question, config)).label
    if face == "tool":
        return chain.as_tool(exit_behavior="error").invoke({"text": question}, config)
    if face == "atool":
        return await chain.as_tool(exit_behavior="error").ainvoke({"text": question}, config)
    if face == "chain":  # inside another, which passes its config on by itself
        return RunnableLambda(lambda text: chain.invoke(text)).invoke(question, config)
    return chain.invoke(question, config) if face == "invoke" else await chain.ainvoke(question, config)


def used(chain: Any) -> dict[str, int]:
    shares: dict[str, int] = chain._reservation.plan.used_by()
    return shares


@pytest.mark.parametrize("face", FACES)
async def test_every_face_charges_who_asks_and_stops_at_the_share(face: str) -> None:
    """If it breaks, one face asks at somebody else's cost, or for nobody's, or beyond a share."""
    model = VotingChat()
    chain = classifier(model, max_queries=20, quotas=SHARES)
    for config, says in (
        (None, "Say who asks"),
        (by(None), "Say who asks"),
        (by(7), "user_id of type int to be 1 to 200 printable characters"),
        (by("two\nlines"), "printable characters"),
        (by("x" * 201), "printable characters"),
    ):
        with pytest.raises((PlanError, InvalidParameter), match=says) as refused:
            await asked(chain, face, "zero", config)
        assert "\n" not in str(refused.value)
    assert (used(chain), chain.answers_left(), model.asked.prompts, model.asked.probes) == ({}, 20, [], 0)
    for question in ("one", "two", "two"):
        assert await asked(chain, face, question, by("user-1")) == "positive"
    with pytest.raises(QuotaExceeded, match="This user's share of the plan 'dp-icl' is 2 releases, and 0 are left"):
        await asked(chain, face, "three", by("user-1"))
    assert await asked(chain, face, "three", by("ward-3")) == "positive"
    assert await asked(chain, face, "three", by("user-1")) == "positive"  # it was released: free for all
    assert used(chain) == {"user-1": 2, "ward-3": 1}
    lefts = [chain.answers_left(user_id=user_id) for user_id in ("user-1", "ward-3", "another", None)]
    assert lefts == [0, 3, 2, 17]


def test_an_asker_without_an_account_is_refused_and_not_named() -> None:
    """If it breaks, a stranger asks, or a private text that was given as a name stands in an error."""
    chain = classifier(quotas=Quotas(overrides={"ward-3": 4}))
    chain.invoke("x", by("ward-3"))
    for ask in (lambda: chain.invoke("x", by(PRIVATE)), lambda: chain.answers_left(user_id=PRIVATE)):
        with pytest.raises(PlanError, match="no account for this user") as refused:
            ask()
        assert PRIVATE not in str(refused.value)
    with pytest.raises(InvalidParameter, match=r"quotas of type dict to be Quotas\(...\)"):
        classifier(quotas={"ward-3": 4})
    free = classifier()
    assert free.invoke("x", by(PRIVATE)) == "positive"  # a config that is meant for another chain
    assert (free.answers_left(), free.quotas) == (4, None)


def test_the_plan_ends_before_shares_that_add_up_to_more() -> None:
    """If it breaks, all users together get more answers than the noise was made for."""
    chain = classifier(max_queries=5, quotas=SHARES)
    given = refused = 0
    for user_id in ("a", "b", "c", "ward-3"):
        for number in range(4):
            try:
                chain.invoke(f"{user_id} {number}", by(user_id))
                given += 1
            except BudgetExceeded:
                refused += 1
    assert (given, refused, chain.answers_left(), sum(used(chain).values())) == (5, 11, 0, 5)
    with pytest.raises(BudgetExceeded, match="0 of 5 planned releases are left") as ended:
        chain.invoke("last", by("d"))
    assert not isinstance(ended.value, QuotaExceeded)


async def test_questions_that_overlap_are_charged_to_their_own_askers() -> None:
    """If it breaks, a user who waits is taken for the one who came meanwhile."""
    chain = classifier(max_queries=40, quotas=Quotas(default=5))
    quotas = [f"user-{number % 7}" for number in range(28)]
    await asyncio.gather(*(chain.ainvoke(f"q{i}", by(user_id)) for i, user_id in enumerate(quotas)))
    chain.batch([f"r{i}" for i in range(7)], [by(f"user-{i}") for i in range(7)])
    assert used(chain) == {f"user-{number}": 5 for number in range(7)}


def test_the_end_of_a_share_in_a_tool_is_this_askers_alone() -> None:
    """If it breaks, one user's end ends the tool of all others, or an agent's model is told who asks."""
    chain = classifier(max_queries=20, quotas=SHARES)
    calls = [{"type": "tool_call", "name": "dp-icl", "args": {"text": f"q{i}"}, "id": str(i)} for i in range(6)]
    for behavior, direct in (("continue", False), ("end", True)):
        tool = chain.as_tool(exit_behavior=behavior)
        user_id = f"user-{behavior}"
        first = 0 if behavior == "continue" else 3
        said = [tool.invoke(call, by(user_id)) for call in calls[first : first + 3]]
        assert [message.status for message in said] == ["success", "success", "error"]
        assert isinstance(said[2], ToolMessage)
        assert str(said[2].content).startswith("No answer: this user's share of the privacy budget of this tool")
        assert user_id not in str(said[2].content)
        assert tool.return_direct is direct
        assert tool.invoke(calls[first + 2], by("ward-3")).status == "success"
        assert tool.return_direct is False
        with pytest.raises(PlanError, match="Say who asks"):  # the caller's mistake, and none of the model's
            tool.invoke(calls[0])
    with pytest.raises(QuotaExceeded):
        chain.as_tool(exit_behavior="error").invoke({"text": "another"}, by("user-end"))


def test_a_restart_keeps_the_shares_and_what_was_used(tmp_path: Path) -> None:
    """If it breaks, a restart refills shares of the same rows, or drops them."""
    path = tmp_path / "privacy.ledger"
    with PrivacyLedger(BUDGET, path) as ledger:
        classifier(ledger=ledger, quotas=SHARES).batch(["x", "y"], by("a"))
    for changed, says in (
        (Quotas(default=3, overrides={"ward-3": 4}), r"quotas was Quotas\(default=2, .*, now Quotas\(default=3"),
        (None, r"quotas was Quotas\(default=2, .*, now None"),
    ):
        with PrivacyLedger(BUDGET, path) as ledger, pytest.raises(PlanError, match=says):
            classifier(ledger=ledger, quotas=changed)
    with PrivacyLedger(BUDGET, path) as ledger:
        again = classifier(ledger=ledger, quotas=SHARES)
        with pytest.raises(QuotaExceeded):
            again.invoke("z", by("a"))
        assert again.invoke("z", by("b")) == "positive"
    many = Quotas(overrides={f"user-{i}": 1 for i in range(1000)})
    assert repr(many) == "Quotas(default=None, overrides=1,000 names)"


def test_a_second_budget_and_a_chat_face_do_not_go_around_the_shares() -> None:
    """If it breaks, a share ends and the same chain goes on without it by another door."""
    chain = classifier(quotas=SHARES)
    assert chain.with_budget(PrivacyBudget(40.0)).quotas == SHARES
    other = chain.with_budget(PrivacyBudget(40.0), quotas=Quotas(default=1))
    assert other.answers_left(user_id="ward-3") == 1
    with pytest.raises(InvalidParameter, match=r"classifier without quotas="):
        ChatDPICL(classifier=chain)
    assert chain.certificate().notes[-1] == "users can pool their answers: the promise is the whole plan's"


class Watching(BaseTracer):
    """Keeps what a tracer is told of errors and of inputs and outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def _persist_run(self, run: Any) -> None:
        self.seen += [str(each) for each in (run.error, run.inputs, run.outputs, run.serialized, run.tags)]


def test_no_trace_names_the_asker_but_in_langchains_own_metadata() -> None:
    """If it breaks, error messages carry the names of users to a tracing service."""
    chain, watcher = classifier(max_queries=20, quotas=Quotas(default=1)), Watching()
    config: RunnableConfig = {"callbacks": [watcher], **by("user-4711")}
    chain.invoke("x", config)
    with pytest.raises(QuotaExceeded):
        chain.invoke("y", config)
    chain.as_tool().invoke({"text": "y"}, config)
    assert len(watcher.seen) > 10
    assert any("This user's share" in seen for seen in watcher.seen)
    assert "user-4711" not in "".join(watcher.seen)


def test_a_graph_that_goes_on_is_charged_to_who_goes_on() -> None:
    """If it breaks, whoever resumes a thread asks at the cost of the one who began it."""
    graphs = pytest.importorskip("langgraph.graph")
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.types import Command, interrupt

    chain = classifier(max_queries=20, quotas=SHARES)

    def first(state: dict[str, Any]) -> dict[str, Any]:
        return {"said": chain.invoke("first")}

    def second(state: dict[str, Any]) -> dict[str, Any]:
        interrupt("may I?")
        return {"said": chain.invoke("second")}

    graph = graphs.StateGraph(dict)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(graphs.START, "first")
    graph.add_edge("first", "second")
    app = graph.compile(checkpointer=InMemorySaver())
    thread = {"thread_id": "1"}
    app.invoke({"said": ""}, {"configurable": {**thread, "user_id": "user-1"}})
    assert used(chain) == {"user-1": 1}
    with pytest.raises(PlanError, match="Say who asks"):
        app.invoke(Command(resume=True), {"configurable": thread})
    app.invoke(Command(resume=True), {"configurable": {**thread, "user_id": "ward-3"}})
    assert used(chain) == {"user-1": 1, "ward-3": 1}


def test_the_schema_of_the_config_tells_who_has_to_be_named() -> None:
    """A server that shows a chain's config schema says nothing of the user, without whom every call is refused."""
    chain = classifier(budget=BUDGET, max_queries=100, quotas=SHARES)
    assert list(chain.config_schema().model_json_schema()["$defs"]["Configurable"]["properties"]) == ["user_id"]
    assert classifier(budget=BUDGET, max_queries=100).config_specs == []
