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
# # 12. What do customers write about, and is the chain right?
#
# **Who is kept from what.** A product manager gets tables about support tickets, an engineer gets the accuracy of two
# classifiers, and an agent gets a router. None of them, and nobody who sees what they publish, learns much about any
# one customer.
#
# Runs in seconds, without a language model: `pip install ".[encoder,agents,decisions]"`.

# %%
import warnings

from langchain.agents import create_agent
from langchain.agents.middleware import ModelChoice, ModelRouterMiddleware
from langchain_core.language_models import FakeListChatModel

from langchain_dp import (
    DPPrototypeClassifier,
    DPSurvey,
    PrivacyBudget,
    PrivacyLedger,
    PrivateRecords,
    Question,
    private_accuracy,
)
from langchain_dp.aggregate import DPDecisionModel
from langchain_dp.sample import load_tickets

tickets, later = load_tickets()  # 1,003 invented tickets of 617 customers, and 198 later ones
queues = sorted({row["label"] for row in tickets})

# %% [markdown]
# ## A survey
#
# Two questions, and a finer one below deliveries. One release answers them all. Each customer has one vote per
# question, however many tickets that customer wrote.

# %%
topic = Question(
    "topic",
    {
        "account": "login, password, profile",
        "billing": "invoices, payments, refunds",
        "delivery": "parcels that are late, lost or damaged",
        "technical": "an app or a device that does not work",
    },
    below={"delivery": ["late", "damaged", "wrong address"]},
)
device = Question(
    "device", {"phone": "a phone or an app", "appliance": "a kettle, a lamp, a heater", "none": "no device"}
)
survey = DPSurvey([topic, device])
print(survey.plan(617, budget=PrivacyBudget(1.0)))

# %%
ledger = PrivacyLedger(PrivacyBudget(3.0), "tickets.ledger")
result = survey.run(tickets, budget=PrivacyBudget(1.0, 3e-6), ledger=ledger, user_key="customer")
result.to_html("survey.html", title="What customers write about")  # this page may be shown to anybody
print(result)

# %% [markdown]
# ## Two classifiers, compared on private tickets
#
# The later tickets are private, too. Both classifiers are scored in one release, with error bars.

# %%
records = PrivateRecords(tickets, user_key="customer")
few = DPPrototypeClassifier.fit(
    records, labels=queues, budget=PrivacyBudget(0.5, 2e-6), ledger=ledger, name="half an epsilon"
)
more = DPPrototypeClassifier.fit(
    records, labels=queues, budget=PrivacyBudget(1.5, 2e-6), ledger=ledger, name="three times"
)

# %%
held_out = PrivacyLedger(PrivacyBudget(1.0), "later.ledger")  # other customers, other ledger
first, second = private_accuracy([few, more], later, labels=queues, ledger=held_out)
print(f"epsilon 0.5: {first}")
print(f"epsilon 1.5: {second}")

# %% [markdown]
# ## A router for an agent
#
# `DPDecisionModel` makes the classifier a decision model of LangChain. The router below sends each ticket to the model
# of its queue, without a call to a language model, and queries cost nothing further.

# %%
warnings.simplefilter("ignore")  # LangChain's router is in beta
teams = {queue: FakeListChatModel(responses=[f"The {queue} team will answer."]) for queue in queues}
router = ModelRouterMiddleware(
    choices={queue: ModelChoice(model=model, criteria=f"tickets about {queue}") for queue, model in teams.items()},
    instructions="Which team should answer?",
    classifier=DPDecisionModel(more),
)
agent = create_agent(teams["technical"], middleware=[router])
for text in ("The courier left my parcel with a stranger.", "My invoice has the wrong VAT number."):
    print(agent.invoke({"messages": [("user", text)]})["messages"][-1].text)

# %% [markdown]
# ## What an auditor reads

# %%
print(result.certificate)
print("spent in all: epsilon {:.3g}, delta {:.2g}".format(*ledger.spent()))

# %% [markdown]
# ## What was not protected
#
# - The encoder reads every ticket, in this process. A model in its place would see them at its operator's.
# - The tables are those of the encoder's reading. It mistakes topics, and no error bar covers that.
# - The later tickets have a ledger of their own. A customer who wrote in both sets pays both.
# - The router protects past tickets, not the text that it routes. LangChain traces an agent's state. Wrap the call in
#   `private_run()` where that matters.
