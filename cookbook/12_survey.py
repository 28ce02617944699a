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
# # 12. What do customers write about?
#
# **Who is kept from what.** A product manager gets tables about 2,000 conversations of a help desk. Neither she, nor
# anybody to whom she shows the page, learns much about any one customer, however often that customer wrote.
#
# Runs in seconds, without a language model: `pip install ".[encoder]"`.

# %%
import random

from langchain_dp import DPSurvey, PrivacyBudget, PrivacyLedger, Question
from langchain_dp.sample import load, load_tickets

# %% [markdown]
# ## The conversations
#
# Yours would come from LangSmith, from the states of a graph, or from a file. These are made of the invented tickets
# and messages of the package. Some customers write once, and some every day.

# %%
coins = random.Random(12)  # noqa: S311  # it makes up conversations, no noise
openings = [row["text"] for part in load_tickets() for row in part]
replies = [row["text"] for part in load() for row in part]
conversations = []
for number in range(2000):
    customer = f"customer {int(coins.paretovariate(0.7)) if number % 4 == 0 else number}"
    turns = [("human", coins.choice(openings)), ("ai", "Thank you. We look into it."), ("human", coins.choice(replies))]
    conversations.append({"messages": turns[: coins.choice([1, 3])], "customer": customer})
customers = len({each["customer"] for each in conversations})
most = max(sum(each["customer"] == "customer 1" for each in conversations), 1)
print(f"{customers} customers; the one who writes most has {most} conversations")

# %% [markdown]
# ## The questions, and what the bars will be
#
# Two questions, and a finer one about deliveries. The plan spends nothing.

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
print(survey.plan(customers, budget=PrivacyBudget(1.0)))

# %% [markdown]
# ## One release
#
# Each customer has one vote per question. The noise is drawn once, over all questions.

# %%
ledger = PrivacyLedger(PrivacyBudget(3.0), "conversations.ledger")
result = survey.run(
    conversations, budget=PrivacyBudget(1.0, 3e-6), ledger=ledger, text_key="messages", user_key="customer"
)
print(result)

# %%
result.to_html("survey.html", title="What customers write about")  # this page may be shown to anybody
print(result["topic"].shares["delivery"])

# %% [markdown]
# The ledger keeps the release. To run this cell again, tomorrow or in another process, costs nothing.

# %%
again = survey.run(
    conversations, budget=PrivacyBudget(1.0, 3e-6), ledger=ledger, text_key="messages", user_key="customer"
)
print("the same tables:", again["topic"].shares == result["topic"].shares)
print("spent in all: epsilon {:.3g}, delta {:.2g}".format(*ledger.spent()))

# %% [markdown]
# ## What an auditor reads

# %%
print(result.certificate)

# %% [markdown]
# ## What was not protected
#
# - The encoder reads every conversation, in this process. A model in its place would see them at its operator's.
# - The tables are those of the encoder's reading. It mistakes topics, and no error bar covers that.
# - How many customers there are. The tables are shares of that number.
