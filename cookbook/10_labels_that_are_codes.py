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
# # 10. Labels that are codes: pay once, use for ever
#
# **Who is kept from what.** Messages to a clinic go to "queue A" or "queue B". No model knows what that means, and the
# messages that would tell must not leave. A second model, on somebody else's server, is to sort new messages. Whoever
# runs it, and whoever ever sees what it is shown, must not learn whether any one private message was used.
#
# A model on this machine finds out from the private messages what the queues stand for, and writes examples, under one
# budget of epsilon 3. Both may then be shown to anybody, for ever.
#
# The embedded model has 135 million parameters. It finds words for the queues; its examples are hardly of use. A larger
# GGUF, whose path may stand in `COOKBOOK_GGUF`, writes better ones.

# %%
import json
import os
import subprocess
import sys
from collections import Counter

import httpx
from langchain_core.prompts import ChatPromptTemplate
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble, embedded_model_path
from langchain_openai import ChatOpenAI

from langchain_dp import DPExampleSynthesizer, PrivacyBudget, PrivacyLedger
from langchain_dp.attacks import find_leaks
from langchain_dp.parsing import parse_label
from langchain_dp.sample import load
from langchain_dp.synth import LabelDescriptionOptions

FULL = os.environ.get("COOKBOOK") == "full"
GGUF = os.environ.get("COOKBOOK_GGUF")
QUEUES = {"praise": "queue A", "complaint": "queue B"}
train, test = ([{"text": row["text"], "label": QUEUES[row["label"]]} for row in rows] for rows in load())
asked = test if FULL else [*test[:4], *test[-4:]]
print(len(train), "private messages;", train[0])

# %% [markdown]
# ## What is asked
#
# What tells the queues apart is no topic: all messages are about the clinic. We think that it is the mood, and show by
# three public sentences what we mean. They are not about clinics, and their moods are others.

# %%
mood = LabelDescriptionOptions(
    kind="mood",
    shown=[
        ("I have no idea which of the two forms this is.", "confused"),
        ("The bus left early and we had to run.", "hurried"),
        ("Our team has won for the third time!", "proud"),
    ],
)
model = LlamaCppEnsemble(model_path=GGUF, max_tokens=256, slots=72)
ledger = PrivacyLedger(PrivacyBudget(epsilon=3.0, delta=1e-5), "queues.ledger")
synthesizer = DPExampleSynthesizer(
    model=model,
    labels=["queue A", "queue B"],
    count=8,
    members=20,
    max_new_tokens=16 if FULL else 8,
    describe=mood,
    ledger=ledger,
    name="queues",
)
print(synthesizer.plan(train))

# %%
examples = synthesizer.invoke(train)
print(examples.descriptions)
for example in examples:
    print(f"{example.label}: {example.text}")
print("left out:", [(example.text, example.dropped) for example in examples.dropped])

# %% [markdown]
# ## The certificate
#
# The file holds it in its first line. Nothing that is done with the examples from here on costs anything.

# %%
examples.save("examples.jsonl")
print(examples.certificate)
print("spent of the budget:", ledger.spent())

# %% [markdown]
# ## A second model answers
#
# It stands behind an OpenAI-compatible server, a process of its own that knows nothing but what arrives.
# `examples.chain(model)` asks it for names that come from the descriptions, and puts the queues back.

# %%
PROVIDER = """
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

import llama_cpp

model = llama_cpp.Llama(sys.argv[1], n_ctx=2048, verbose=False)


class Chat(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = model.create_chat_completion(asked["messages"], max_tokens=6, temperature=0.0)
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
command = [sys.executable, "-c", PROVIDER, GGUF or str(embedded_model_path())]
provider = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
address = f"http://127.0.0.1:{int(provider.stdout.readline())}/v1"
cloud = ChatOpenAI(model="stand-in", base_url=address, api_key="none", temperature=0.0, max_tokens=6, http_client=http)


def tried(chain) -> str:
    """What became of the test messages: right, wrong, or an answer that names no queue."""
    found = Counter()
    answers = chain.batch([{"text": row["text"]} for row in asked], return_exceptions=True)
    for row, said in zip(asked, answers, strict=True):
        found["right" if said == row["label"] else "wrong" if isinstance(said, str) else "none"] += 1
    return f"{found['right']} of {len(asked)} right, {found['wrong']} wrong, {found['none']} named no queue"


print(examples.as_chat_prompt(named=True).format(text="Thank you all!"))

# %% [markdown]
# Beside it: the same model with nothing but the codes, and with the names alone.

# %%
rule = "Sort the text into one of these, and answer with its name alone:\n- queue A\n- queue B"
bare = ChatPromptTemplate.from_messages([("system", rule), ("human", "{text}")])


def queue(answer) -> str | None:
    """The queue that an answer names; None for none."""
    place = parse_label(answer, list(QUEUES.values()))
    return None if place is None else f"queue {'AB'[place]}"


print("codes:             ", tried(bare | cloud | queue))
print("names:             ", tried(examples.chain(cloud, 0)))
print("names and examples:", tried(examples.chain(cloud)))

# %% [markdown]
# So small a reader answers nothing in words until examples show it how, and then leans on what little they say: 48,
# 50, 54 and 59 of 80 in four runs of this notebook. What names do for a larger one is in `docs/benchmarks.md`.
#
# ## What the provider got
#
# All that left is searched for what private messages alone hold: names, numbers, rare words, and runs of words. The
# messages of the test must be found, or the search would be blind. A run of four everyday words turns up by chance now
# and then; a name or a reference would be another matter.

# %%
bodies = "\n".join({message["content"]: None for body in sent for message in json.loads(body)["messages"]})
known = {"public": [row["text"] for row in asked], "held_out": [row["text"] for row in test]}
print(len(sent), "bodies left")
leaks = find_leaks(bodies, [row["text"] for row in train], **known)
print("found of private messages:", [span.text for span in leaks.spans])
print("test messages, which must be there:", sum(row["text"] in bodies for row in asked), "of", len(asked))

# %% [markdown]
# ## What was not protected
#
# - The new messages: the second model reads every one that it is asked about. Notebooks 3 and 4 are about those.
# - The private messages, from the model on this machine, and from whoever runs it.
# - What we said of the queues ("mood") and showed, which is public, and the number of messages.
# - The ledger's key: who holds it together with the ledger can test guesses at the messages. It stays where they are.
# - A person with several messages is protected one message at a time.

# %%
provider.kill()
provider.wait()
http.close()
model.close()
ledger.close()
