# ---
# jupyter:
#   jupytext:
#     formats: py:percent,ipynb
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 4. An agent behind RAPTMiddleware
#
# **Who is kept from what.** The provider of an agent's model must not be certain of any word of a patient, or of the
# clinic's own tools. Each word is replaced at random, and many come out unchanged. Tools and patient are on this side,
# and work with the raw text.
#
# The model is scripted, since a small model calls tools by luck. Yours would be `ChatOpenAI`. It needs
# `pip install ".[rapt,agents]"`.

# %%
import re
from typing import Any, TypedDict

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from pydantic import Field

from langchain_dp import BudgetExceeded, RAPTMiddleware, RAPTSanitizer, private_run
from langchain_dp.accounting import MetricLedger
from langchain_dp.rapt import Policies


class Provider(BaseChatModel):
    """The provider's side. It calls the tool once with the number that it reads, and keeps all messages."""

    told: list[list[BaseMessage]] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> BaseChatModel:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **options: Any) -> ChatResult:
        self.told.append(messages)
        number = next(iter(re.findall(r"\d+", messages[-1].text)), "unknown")
        call = {"name": "booking", "args": {"number": number}, "id": "call-1"}
        answer = AIMessage("I have noted this.") if messages[-1].type == "tool" else AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=answer)])


class Desk(TypedDict):
    patient: str


@tool
def booking(number: str) -> str:
    """Look up a booking by its number."""
    record = "Anna Weber, dermatology, Dr Petrov. She has had a rash since Friday and fears it is shingles."
    return record if number == "4711" else "There is no such booking."


def show(messages: list[BaseMessage]) -> None:
    """One line per message, with tool calls."""
    for message in messages:
        calls = "".join(f"-> {call['name']}({call['args']})" for call in getattr(message, "tool_calls", []))
        print(f"{message.type:6} {message.text}{calls}")


QUESTION = HumanMessage("Booking 4711: my daughter Anna has a rash and cannot come on Monday, is there another day?")

# %% [markdown]
# ## Without the middleware

# %%
bare = Provider()
create_agent(bare, [booking]).invoke({"messages": [QUESTION]})
show(bare.told[-1])

# %% [markdown]
# ## How much noise?
#
# `target_replacement` is the chance that a word is replaced. The calibration gives the eta for it, and how often an
# attacker who knows the language guesses a word on its own.

# %%
calibration = RAPTSanitizer("glove", target_replacement=0.5).calibration()
print(calibration)

# %% [markdown]
# ## With the middleware
#
# The tool needs the booking's number, so numbers are kept. That is a hole on purpose, and the certificate lists it.
# Each patient has an account of eight releases. A text that was released before is sent again as it was, at no cost.

# %%
ledger = MetricLedger(limit=8 * calibration.eta)


def guarded(policies: Policies) -> tuple[Any, Provider]:
    """The same agent, with the middleware last in its list."""
    provider = Provider()
    sanitizer = RAPTSanitizer("glove", eta=calibration.eta, ledger=ledger, policies=policies, keep=["booking"])
    middleware = RAPTMiddleware(sanitizer, user=lambda request: request.runtime.context["patient"])
    return create_agent(provider, [booking], middleware=[middleware], context_schema=Desk), provider


agent, provider = guarded(Policies(numbers="keep"))
with private_run():  # no tracer sees the agent's raw state
    state = agent.invoke({"messages": [QUESTION]}, context=Desk(patient="17"))
print("The provider was told:")
show(provider.told[-1])
print("\nThe state on this side:")
show(state["messages"])

# %% [markdown]
# Without the number, the tool finds nothing. Privacy is paid for in usefulness.

# %%
blind, _ = guarded(Policies())
with private_run():
    print(blind.invoke({"messages": [QUESTION]}, context=Desk(patient="17"))["messages"][2].text)

# %% [markdown]
# ## The account of a patient
#
# New text is charged before it leaves, and refused at the limit. The provider hears nothing of a refused turn.

# %%
history, calls = [], len(provider.told)
try:
    for day in range(20):
        with private_run():
            history = [*history, HumanMessage(f"Is there a free day in the week after day {day}?")]
            history = agent.invoke({"messages": history}, context=Desk(patient="18"))["messages"]
except BudgetExceeded as refusal:
    print(f"refused after {day} turns and {len(provider.told) - calls} calls:\n{refusal}")
print("spent by patient 17:", round(ledger.spent(user="17") / calibration.eta), "releases of 8")

# %% [markdown]
# ## What an auditor reads

# %%
print(RAPTSanitizer("glove", eta=calibration.eta, policies=Policies(numbers="keep"), keep=["booking"]).certificate())

# %% [markdown]
# Pseudonyms keep far more meaning: they hide everything that a recognizer finds, and put it back
# in the reply. They promise nothing for what it misses.
#
# ## What was not protected
#
# - Numbers and the kept word, and every word that came out as itself, names among them. Context often tells which.
# - The number of messages and words, names of tools and arguments, keys of JSON, and the system prompt.
# - Actions of a tool with arguments that the model made up. This one only reads.
# - The account counts eta, in nats per unit of distance between word vectors. It is no epsilon.
