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
# # 8. Prompt tuning on sanitized text, as a service
#
# **Who is kept from what.** A provider tunes its model on a clinic's messages, and answers queries about new ones. It
# must never receive a raw message. It gets sanitized words, labels and lengths.
#
# Client and provider talk in bytes. Here they share a process, and everything that the provider receives is kept and
# searched. It needs `pip install ".[tuning]"`.

# %%
import json
import os
import warnings
from pathlib import Path

import numpy as np

with warnings.catch_warnings(action="ignore"):  # of progress bars that a notebook could show
    import transformers

from langchain_dp import RAPTSanitizer
from langchain_dp.rapt.tuning import (
    IdentitySanitizer,
    PrivatizedExamples,
    RAPTClassifier,
    RAPTPromptTuner,
    TuningSettings,
)
from langchain_dp.sample import LABELS, load

transformers.utils.logging.disable_progress_bar()
FULL = os.environ.get("COOKBOOK") == "full"
rows, more = load()
private, test = (rows[:480], [*more, *rows[480:]]) if FULL else (rows[:160], more)
texts = [row["text"] for row in test]
print(len(private), "private messages to learn from,", len(test), "to ask about")

# %% [markdown]
# ## The client sanitizes once
#
# Each message is released once, with about three words in ten replaced. The file holds the ids of the released words
# and a certificate, and may be sent.

# %%
settings = TuningSettings(
    method="prefix",
    learning_rate=1e-2,
    batch_size=16,
    epochs=4 if FULL else 1,
    max_tokens=40,
)
sanitizer = RAPTSanitizer("minilm", target_replacement=0.3)
client_side = RAPTPromptTuner(sanitizer, labels=LABELS, settings=settings)
client_side.privatize(private).save("examples.json")
received = [Path("examples.json").read_bytes()]  # everything that the provider gets

words = client_side.client.vocabulary
print("inside ", private[0]["text"])
print("outside", " ".join(words.words[i] for i in json.loads(received[0])["inputs"][0]))

# %% [markdown]
# ## The provider tunes
#
# A prefix of vectors is learned for each layer, and a small head. The model itself is frozen. The provider's own
# sanitizer lends its table of words alone.

# %%
examples = PrivatizedExamples.load("examples.json")
provider_side = RAPTPromptTuner(
    RAPTSanitizer("minilm", eta=examples.certificate.eta, mechanism=examples.certificate.mechanism),
    labels=LABELS,
    settings=settings,
)
classifier = provider_side.fit(examples, progress=False)
classifier.save("model")  # client.json in it goes to the client

# %% [markdown]
# ## The client asks
#
# With a function that sends bytes, the client's part is a Runnable: text in, label out. Each query is sanitized, and
# charged, like a training message.


# %%
def send(body: bytes) -> bytes:
    """The only line to the provider."""
    received.append(body)
    return classifier.provider.answer(body)


service = RAPTClassifier(client_side.client, send)
print(service.invoke("The ward was filthy and nobody answered the bell all night."))


def figures(answers) -> str:
    """Accuracy with its standard error."""
    share = np.mean([label == row["label"] for label, row in zip(answers, test, strict=True)])
    return f"{100 * share:.1f} ± {100 * np.sqrt(share * (1 - share) / len(test)):.1f}"


answers = service.batch(texts)
print("tuned on sanitized text:", figures(answers))

# %% [markdown]
# What did sanitizing cost? Only the owner of the messages can compare.

# %%
clear = RAPTPromptTuner(
    IdentitySanitizer(words),
    labels=LABELS,
    backbone=provider_side.backbone,
    settings=settings,
).fit(private, progress=False)
print("tuned on clear text:    ", figures(clear.batch(texts)))

# %% [markdown]
# ## What did the provider see?
#
# No raw message is among the bytes. Ids are words for everybody who has the table, so count the words that arrived
# unchanged, too.

# %%
arrived = b"".join(received).decode()
raw = [words.encode(row["text"])[:40] for row in private]
sent = json.loads(received[0])["inputs"]
same = sum(sum(map(int.__eq__, mine, theirs)) for mine, theirs in zip(raw, sent, strict=True))
print(f"{len(arrived):,} bytes; raw messages in them: {sum(row['text'] in arrived for row in [*private, *test])}")
print(f"words that arrived unchanged: {same / sum(map(len, raw)):.2f}")

# %% [markdown]
# ## What was not protected
#
# - The labels of the training messages, their number, and the number of words of each.
# - Every word that came out as itself, names and illnesses among them. The provider does not know which, and guesses
#   well (notebook 7).
# - The answers of the service: the provider computes them. It also sees that a query was repeated.
# - One message against another in the usual sense: metric privacy is no epsilon.
# - Whatever somebody sends besides what the client made.
