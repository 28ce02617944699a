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
# # 13. A router for an agent, learned from private tickets
#
# **Who is kept from what.** Past tickets teach an agent which model should answer. Whoever uses the agent, or gets the
# router's file, learns nearly nothing about any one customer who wrote a ticket.
#
# Runs in seconds, without a language model: `pip install ".[encoder,agents,decisions]"`.

# %%
import warnings
from collections import Counter

from langchain.agents import create_agent
from langchain.agents.middleware import ModelChoice, ModelRouterMiddleware
from langchain_core.language_models import FakeListChatModel

from langchain_dp import DPPrototypeClassifier, PrivacyBudget, PrivateRecords, private_run
from langchain_dp.aggregate import DPDecisionModel
from langchain_dp.sample import load_tickets

warnings.simplefilter("ignore")  # LangChain's router is in beta
tickets, later = load_tickets()  # 1,003 invented tickets of 617 customers, and 198 later ones
ROUTES = dict.fromkeys(("cancellation", "delivery", "technical"), "large")  # the others go to the small model


def routed(rows):
    """Rows whose label is the model that should answer."""
    return [{**row, "label": ROUTES.get(row["label"], "small")} for row in rows]


# %% [markdown]
# ## Learn the routes
#
# One release at epsilon 3. It protects all tickets of a customer together.

# %%
records = PrivateRecords(routed(tickets), user_key="customer")
routes = DPPrototypeClassifier.fit(records, labels=["small", "large"], budget=PrivacyBudget(3.0))
answers = routes.batch([row["text"] for row in later])
right = sum(answer == row["label"] for answer, row in zip(answers, routed(later), strict=True))
print(
    f"right on {right} of {len(later)} later tickets; the more frequent route alone on "
    f"{Counter(row['label'] for row in routed(later)).most_common(1)[0][1]}"
)

# %% [markdown]
# ## The agent
#
# `DPDecisionModel` makes the classifier a decision model of LangChain. A route costs no call to a language model and no
# budget. The two models here are stand-ins.

# %%
small = FakeListChatModel(responses=["the small model answers"])
large = FakeListChatModel(responses=["the large model answers"])
router = ModelRouterMiddleware(
    choices={"small": ModelChoice(small, "simple tickets"), "large": ModelChoice(large, "tickets that need thought")},
    instructions="Which model should answer?",
    classifier=DPDecisionModel(routes),
)
agent = create_agent(small, middleware=[router])
for text in (
    "The firmware update failed, and Bluetooth and wifi keep disconnecting.",
    "Please send the invoice of my last order again.",
):
    with private_run():  # no tracer sees the customer's text
        state = agent.invoke({"messages": [("user", text)]})
    print(f"{state['messages'][-1].text}: {text}")
    print("   ", state["model_route"])

# %% [markdown]
# ## Where it is unsure
#
# The larger model should get what the router cannot tell.

# %%
careful = routes.abstaining(below=0.6, otherwise="large")
moved = sum(a != b for a, b in zip(careful.batch([row["text"] for row in later]), answers, strict=True))
print(f"{moved} of {len(later)} tickets go to the large model instead")

# %% [markdown]
# ## What an auditor reads

# %%
print(DPDecisionModel(routes).certificate())

# %% [markdown]
# ## What was not protected
#
# - The text that is routed: the encoder sees it, and so does the model that answers.
# - The routes of all customers in general: the router is there to learn them.
# - A wrong route shows nothing to anybody, but it costs time or quality. The accuracy above is that of invented
#   tickets.
