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
# # 5. One budget for a whole application
#
# **Who is kept from what.** Two parts of an application answer from the same private messages, in two processes.
# Together they must not say more about any one message than one (epsilon, delta) allows.

# %%
import os
import subprocess
import sys

from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble

from langchain_dp import DPICLClassifier, DPPromptOptimizer, PrivacyBudget, PrivacyLedger
from langchain_dp.sample import LABELS, PROMPT, load

FULL = os.environ.get("COOKBOOK") == "full"
private = load()[0]
ledger = PrivacyLedger(PrivacyBudget(epsilon=8.0, delta=1e-5), "application.ledger")

# %% [markdown]
# ## A first part reserves its share
#
# A classifier gets epsilon 2 and a quarter of delta, for so many answers. What it reserves is its own, whatever the
# others do.

# %%
model = LlamaCppEnsemble(max_tokens=768, slots=32)
classifier = DPICLClassifier(
    model=model,
    examples=private[:320],
    labels=LABELS,
    prompt=PROMPT,
    ledger=ledger,
    budget=PrivacyBudget(2.0, 2.5e-6),
    max_queries=50,
    name="mailbox",
)
print(classifier.invoke("Nobody came when I rang the bell."))
print("reserved", ledger.reserved(), "spent", ledger.spent())

# %% [markdown]
# ## A second part, another mechanism
#
# A prompt is written from the same messages with epsilon 5. The ledger composes what differs: votes for labels, votes
# for tokens, a choice among candidates.
#
# With so few messages the votes may fall short of the threshold. Then nothing is released, the call is paid for, and
# the initial instruction stays in the race.

# %%
optimizer = DPPromptOptimizer(
    model=model,
    allow_small_model=True,
    labels=list(LABELS),
    instruction="Decide whether the message to the clinic is praise or a complaint.",
    ledger=ledger,
    budget=PrivacyBudget(5.0, 5e-6),
    shots=2,
    subsets=60,
    num_prompts=1,
    max_new_tokens=30 if FULL else 6,
    name="prompt",
)
examples = private[: 640 if FULL else 160]
prompt = optimizer.optimize(examples)
print(repr(prompt.instruction))
print("reserved", ledger.reserved(), "spent", ledger.spent())

# %% [markdown]
# ## Another process
#
# It opens the same file and sees the same account. It may go on with the classifier's plan under the same name, and it
# cannot reserve what is not left.

# %%
OTHER = """
from langchain_dp import BudgetExceeded, PrivacyBudget, PrivacyLedger
from langchain_dp.accounting import NoisyMaxEvent

ledger = PrivacyLedger(PrivacyBudget(epsilon=8.0, delta=1e-5), "application.ledger")
print("plans:", [plan.name for plan in ledger.plans()], "spent:", ledger.spent())
try:
    ledger.reserve([(NoisyMaxEvent(5.0, 0.1), 1000)], name="newsletter", delta=1e-6)
except BudgetExceeded as refusal:
    print("refused:", refusal)
"""
print(subprocess.run([sys.executable, "-c", OTHER], capture_output=True, text=True, check=True).stdout)

# %% [markdown]
# ## What the account says
#
# Every charge is an entry, made before the model was asked. This is what an auditor gets to see; no private text is in
# it.

# %%
entries = list(ledger.entries())
print(len(entries), "entries; the last:", entries[-1])

# %% [markdown]
# ## What was not protected
#
# - What the two parts do outside of the ledger. Only what is charged is counted.
# - The account, from somebody who replaces the file by an older copy of itself.
# - The examples, from the model that reads them: here it runs on this machine.

# %%
model.close()
ledger.close()
