"""Train a small masked language model on public texts, for a verbalizer: `masked_model.py --out FOLDER`.

No masked model with a head of its own can be had from an index of packages. This one starts from MiniLM, ties a head
for words to its table of vectors, as BERT has it, and learns to fill in 15% of the words of reviews and news:
LANGCHAIN_DP_DATA/{amazon,trustpilot,agnews}/train.jsonl, without labels. SST-2, on which it is used, is left out. A
folder that holds a model is not trained again. What it reaches is printed: the loss on texts that were held out, and
how often the word alone names the label of a dev row of SST-2.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from made import made

from langchain_dp.rapt.tuning import Backbone
from langchain_dp.records import read_jsonl

PUBLIC = ("amazon", "trustpilot", "agnews")
TEMPLATE = "It was {mask}."
VERBALIZER = {"negative": "terrible", "positive": "great"}
HELD_OUT = 512
BATCH, TOKENS, RATE = 32, 48, 2e-4


def main() -> None:
    """Train, save and say what came out."""
    options = _options()
    data = os.environ.get("LANGCHAIN_DP_DATA")
    if not data:
        sys.exit(f"Set LANGCHAIN_DP_DATA to a folder with {', '.join(PUBLIC)} and sst2.")
    train(Path(data), options.out, options.steps)
    told = json.loads((options.out / "made.json").read_text(encoding="utf-8"))
    print(json.dumps({**told, "words_alone": words_alone(Path(data), options.out)}, indent=2))


def train(data: Path, out: Path, steps: int = 1_000) -> None:
    """Train and save a model with its tokenizer, and beside it how it was made; nothing where one is."""
    if (out / "config.json").exists():
        return
    backbone = Backbone("minilm")
    model = untrained(backbone)
    texts = [row["text"] for name in PUBLIC for row in read_jsonl(data / name / "train.jsonl")]
    random.Random(0).shuffle(texts)
    held, texts = texts[:HELD_OUT], texts[HELD_OUT:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    began = time.perf_counter()
    model.train()
    for step in range(steps):
        start = step * BATCH % (len(texts) - BATCH)
        optimizer.zero_grad()
        lost = loss(model, backbone, texts[start : start + BATCH])
        lost.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0:
            print(f"{step} of {steps} steps: {lost.item():.3f}, {time.perf_counter() - began:.0f} s", flush=True)
    model.eval()
    with torch.no_grad():
        torch.manual_seed(0)
        losses = [loss(model, backbone, held[at : at + BATCH]).item() for at in range(0, HELD_OUT, BATCH)]
    model.save_pretrained(out)
    backbone.tokenizer.save_pretrained(out)
    told = {
        **{"steps": steps, "batch": BATCH, "tokens": TOKENS, "rate": RATE},
        "texts": len(texts),
        "held_out_loss": round(sum(losses) / len(losses), 3),
        "seconds": round(time.perf_counter() - began),
        **made(),
    }
    (out / "made.json").write_text(json.dumps(told), encoding="utf-8")


def untrained(backbone: Backbone) -> Any:
    """A backbone with a new head that predicts words, tied to its table of vectors."""
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(backbone.model.config)
    model.bert.load_state_dict(backbone.model.state_dict(), strict=False)
    model.tie_weights()
    return model


def loss(model: Any, backbone: Backbone, texts: list[str]) -> torch.Tensor:
    """Mean loss of the words that were hidden: 15%, of which eight in ten masked, one replaced and one kept."""
    tokenizer = backbone.tokenizer
    whole = tokenizer(texts, truncation=True, max_length=TOKENS, padding=True, return_tensors="pt")
    ids, attended = whole["input_ids"], whole["attention_mask"]
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    hidden = (torch.rand(ids.shape) < 0.15) & ~special
    how = torch.rand(ids.shape)
    shown = torch.where(hidden & (how < 0.8), torch.tensor(tokenizer.mask_token_id), ids)
    shown = torch.where(hidden & (how >= 0.9), torch.randint(1_000, len(tokenizer), ids.shape), shown)
    states = model.bert(input_ids=shown, attention_mask=attended).last_hidden_state
    return torch.nn.functional.cross_entropy(
        model.cls(states[hidden]), ids[hidden]
    )  # of these words alone: it is faster


def words_alone(data: Path, folder: Path) -> float:
    """Share of dev rows of SST-2 whose label's word is the more probable one: nothing is tuned."""
    model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = read_jsonl(data / "sst2" / "dev.jsonl")
    words = torch.tensor(tokenizer.convert_tokens_to_ids(list(VERBALIZER.values())))
    right = 0
    for start in range(0, len(rows), 32):
        some = rows[start : start + 32]
        asked = [f"{row['text']} {TEMPLATE.format(mask=tokenizer.mask_token)}" for row in some]
        batch = tokenizer(asked, truncation=True, max_length=128, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**batch).logits
        at = (batch["input_ids"] == tokenizer.mask_token_id).float().argmax(dim=1)
        chosen = logits[torch.arange(len(some)), at][:, words].argmax(dim=1)
        right += sum(list(VERBALIZER)[one] == row["label"] for one, row in zip(chosen.tolist(), some, strict=True))
    return round(right / len(rows), 4)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to save the model in")
    parser.add_argument("--steps", type=int, default=1_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
