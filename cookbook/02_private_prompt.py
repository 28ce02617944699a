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
# **Who is kept from what.** The provider of a cloud model, and whoever reads the prompt, must not learn whether any one
# private message was used to write it, nor what it says. The model that reads the messages runs on this machine.
#
# The cloud is a server on this machine by default: a process of its own with an OpenAI-compatible endpoint, which
# writes down what it gets. With `OPENAI_API_KEY` and `COOKBOOK_CLOUD=1` the prompt goes to the real one.

# %%
import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from langchain_openai import ChatOpenAI

from langchain_dp import DPPromptOptimizer, PrivacyBudget, PrivacyLedger
from langchain_dp.attacks import find_leaks
from langchain_dp.opt import (
    CandidateOptions,
    Decoding,
    DLNSettings,
    OptPrompts,
    PromptAlternative,
    evaluate_prompt,
    load_prompt,
    optimize_with_dln1,
)
from langchain_dp.sample import load

FULL = os.environ.get("COOKBOOK") == "full"
CLOUD = "OPENAI_API_KEY" in os.environ and os.environ.get("COOKBOOK_CLOUD") == "1"
LABELS = ["praise", "complaint"]
START = "Is the message praise or complaint?"
train, test = load()
private = train[: 430 if FULL else 160]
asked = test if FULL else [*test[:20], *test[-20:]]
print(len(private), "private messages;", private[0])

# %% [markdown]
# ## What it will cost
#
# For each word piece of the new instruction, subsets of the private messages vote. A piece is released if it has votes
# enough beyond the noise. The plan says how many that takes, before anything is spent.
#
# The embedded model has 135 million parameters and tends to repeat the instruction that it was given. So the request
# says how to begin, and a few first words are banned. Both are public. What repeats a request is left out otherwise;
# here the beginning is to be repeated.
#
# What is written stands against prompts that we bring along: the initial instruction, and three that ask for other
# words. "Praise" and "complaint" are our words; which ones the model understands, the private messages tell. A share of
# the epsilon pays for the choice.


# %%
class Interrupted(LlamaCppEnsemble):
    """The embedded model; once, after five votes, it does what Ctrl-C does."""

    left = 5

    def next_tokens(self, *args, **options):
        self.left -= 1
        if self.left == -1:
            raise KeyboardInterrupt
        return super().next_tokens(*args, **options)


model = Interrupted(max_tokens=384, slots=32)
request = "Write the instruction as one full sentence that names praise and complaint."
first_words = {"Is", "I", "Rewrite", "Re", "Improve"}
banned = {token for token in range(model.vocabulary_size) if model.detokenize([token]).strip() in first_words}
ledger = PrivacyLedger(PrivacyBudget(epsilon=8.0, delta=1e-5), "prompt.ledger")
others = [
    PromptAlternative("Is the message good or bad?", {"praise": "good", "complaint": "bad"}),
    PromptAlternative("Say how the patient feels.", {"praise": "happy", "complaint": "unhappy"}),
    PromptAlternative(words={"praise": "Praise", "complaint": "Complaint"}),
]


def optimizer() -> DPPromptOptimizer:
    """As a new process would make it: same ledger, same name, same settings."""
    return DPPromptOptimizer(
        model=model,
        labels=LABELS,
        instruction=START,
        ledger=ledger,
        prompts=OptPrompts(messages=(request,)),
        shots=1,
        subsets=32,
        num_prompts=2 if FULL else 1,
        max_new_tokens=16,
        alternatives=others,
        validation=0.25,
        calibrate=False,  # a chat model answers as it is
        decoding=Decoding(banned=banned),
        candidate_options=CandidateOptions(filtered=False),
        name="clinic",
    )


print(optimizer().plan(private))

# %% [markdown]
# ## Ctrl-C, and on again
#
# What was released lies in the ledger, piece by piece, beside its charge. A run under the same name goes on from there.
# Nothing is paid twice, and nothing is refunded.

# %%
stopped = optimizer()
try:
    stopped.optimize(private)
except KeyboardInterrupt:
    print("stopped after", stopped.released(), "spent:", ledger.spent())
else:
    print("ended before five votes: too few members agreed on how to begin")
model.left = 10**9  # from here on it runs through
print(sorted(path.name for path in Path().iterdir()))

# %%
resumed = optimizer()
released = resumed.optimize(private)
print("written: ", resumed.released())
print("selected:", repr(released.instruction), list(released.words.values()))

# %% [markdown]
# The choice is a noisy one: a prompt that answers a few more of the selecting messages right than every other is likely
# to win. If no piece had votes enough, or the choice falls on the initial instruction, that is what comes out. Either
# way the account is charged.
#
# ## The certificate

# %%
print(released.certificate)

# %% [markdown]
# ## A file that may be published
#
# Prompt, certificate, settings and the model that wrote it. No private message is in it. A complete run gives out its
# prompt again, at no cost.

# %%
released.save("prompt.json")
loaded = load_prompt("prompt.json")
print(json.dumps({**loaded.to_dict(), "settings": "...", "certificate": "...", "created": "..."}, indent=1))
spent = ledger.spent()
print(optimizer().invoke(private) == loaded.template(), ledger.spent() == spent)

# %% [markdown]
# ## Over to the cloud
#
# The stand-in is the embedded model behind an HTTP server. It knows nothing but what arrives, and logs all of it. It
# holds its answers to the words that a prompt names, as hosts do for structured output: so small a model often says
# something else.

# %%
PROVIDER = """
import json
import re
from http.server import BaseHTTPRequestHandler, HTTPServer

import llama_cpp
from langchain_dp.integrations.llama_cpp import embedded_model_path

model = llama_cpp.Llama(str(embedded_model_path()), n_ctx=2048, verbose=False)


class Chat(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open("provider.log", "ab") as log:
            log.write(body + b"\\n")
        asked = json.loads(body)
        words = re.search(r"Answer with one of: (.*)\\.", asked["messages"][-1]["content"])[1].split(", ")
        named = llama_cpp.LlamaGrammar.from_string("root ::= " + " | ".join(map(json.dumps, words)), verbose=False)
        answer = model.create_chat_completion(asked["messages"], max_tokens=6, temperature=0.0, grammar=named)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *args):
        pass


server = HTTPServer(("127.0.0.1", 0), Chat)
print(server.server_port, flush=True)
server.serve_forever()
"""
sent: list[str] = []  # every body that leaves this process for the provider
http = httpx.Client(event_hooks={"request": [lambda request: sent.append(request.content.decode())]})
if CLOUD:
    provider = None
    cloud = ChatOpenAI(model=os.environ.get("COOKBOOK_MODEL", "gpt-4.1-mini"), max_tokens=16, http_client=http)
else:
    provider = subprocess.Popen([sys.executable, "-c", PROVIDER], stdout=subprocess.PIPE, text=True)
    address = f"http://127.0.0.1:{int(provider.stdout.readline())}/v1"
    cloud = ChatOpenAI(
        model="stand-in", base_url=address, api_key="none", temperature=0.0, max_tokens=6, http_client=http
    )

chain = loaded.template() | cloud | StrOutputParser()
print(chain.invoke({"text": "Nobody washed their hands on ward 5."}))

# %% [markdown]
# How good is it, on messages that took no part? `evaluate_prompt` asks the cloud model itself, and tells the words of a
# prompt from the labels that they stand for.

# %%
start = ChatPromptTemplate.from_messages([("human", OptPrompts().forward(START, LABELS))])
print("initial  ", evaluate_prompt(start, cloud, asked, LABELS))
print("released ", evaluate_prompt(loaded.template(), cloud, asked, LABELS, words=loaded.words))

# %% [markdown]
# ## What the provider got
#
# Every body is searched for every private message, as a whole and by runs of four words. The questions of the test
# must be found, or the search would be blind.


# %%
def folded(text: str) -> str:
    """Lower case words, one space between them, and one at each end."""
    return " " + " ".join("".join(c if c.isalnum() else " " for c in text.lower()).split()) + " "


def runs(text: str, length: int = 4) -> set[str]:
    """All runs of so many words."""
    words = folded(text).split()
    return {" ".join(words[at : at + length]) for at in range(len(words) - length + 1)}


bodies = [message["content"] for body in sent for message in json.loads(body)["messages"]]
got, got_runs = "\n".join(map(folded, bodies)), set().union(*map(runs, bodies))
public = set().union(*(runs(row["text"]) for row in asked), runs(START), runs(request))
public |= runs("Nobody washed their hands on ward 5.")  # our own question
print("the body of one call:", sent[0])
print(
    len(sent),
    "bodies left",
    "" if CLOUD else f"; the provider logged {len(Path('provider.log').read_text().splitlines())}",
)
print("private messages in them as a whole: ", sum(folded(row["text"]) in got for row in private), "of", len(private))
print("private messages with a run in them: ", sum(bool(runs(row["text"]) & got_runs - public) for row in private))
print("test messages, which must be there:  ", sum(folded(row["text"]) in got for row in asked), "of", len(asked))

# %% [markdown]
# ## What a search without privacy gives away
#
# DLN-1 is the ancestor of DP-OPT: it shows private messages to the local model and lets it write whole prompts. It
# promises nothing. `find_leaks` looks for runs of the private messages in each. Whether one is found differs from run
# to run, and a search that finds nothing proves nothing.

# %%
improve = "Improve the instruction. Show two of the examples above in it."
same_task = DPPromptOptimizer(
    model=model,
    labels=LABELS,
    instruction=START,
    prompts=OptPrompts(messages=(improve,)),
    candidate_options=CandidateOptions(stop=("\n\n\n",)),
    validation=0.05,
    calibrate=False,
    budget=PrivacyBudget(8.0),
)
numbers = DLNSettings(steps=2 if FULL else 1, prompts_per_step=12, demonstrations=3, temperature=0.7, max_new_tokens=60)
dln = optimize_with_dln1(same_task, private, numbers)
texts = [row["text"] for row in private]
known = {"public": [START, request, improve, *LABELS], "held_out": [row["text"] for row in test]}
for name, prompts in {"DLN-1": [candidate.text for candidate in dln.candidates], "DP-OPT": resumed.released()}.items():
    for text in dict.fromkeys(prompts):
        leaks = find_leaks(text, texts, **known)
        print(f"{name:7} {len(leaks.spans)} runs of private messages  {' '.join(text.split())[:90]}")
        for span in leaks.spans:
            print(f"        found: {' '.join(span.text.split())}")

# %% [markdown]
# ## What was not protected
#
# - The questions: the cloud model reads every message that it is asked about. Notebooks 3 and 4 are about those.
# - The private messages, from the local model, and from whoever runs this machine.
# - The initial instruction and the request, which are public, and the number of messages.
# - The ledger's key: who holds it together with the ledger can test a guess at all messages. It stays where they are.
# - A person with several messages is protected one message at a time.
# - How long the run took.

# %%
if provider:
    provider.kill()
    provider.wait()
http.close()
model.close()
ledger.close()
