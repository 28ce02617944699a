"""Seconds per answer of a private vote, beside the same model without caches. Run by ``make bench``.

Compared on the same weights, threads and texts, interleaved so that a busy machine slows all of them:

- vote: 10 members x 4 examples through ``LlamaCppEnsemble.score_labels``, warm, calibrated;
- plain: one 4-shot prompt, evaluated whole, no cache;
- ten calls: ten 4-shot prompts, each evaluated whole, no cache: the plain way to ask ten subsets.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import keep, made

from langchain_dp.ports import MemberPrompt

HEAD = "Sort each message to the shop into one of the topics delivery, payment and praise.\n\n"
OPENINGS = ("Good morning,", "Hello there,", "To whom it may concern:", "Hi,", "Dear shop,")
MESSAGES = (
    ("my parcel was to come on Tuesday and is still nowhere to be seen, can you find out where it is?", "delivery"),
    ("the card was charged twice for one pair of shoes, please send the second amount back to me.", "payment"),
    ("the lady on the phone was so kind and quick that I have told all my neighbors about you.", "praise"),
    ("the driver left the box in the rain, and the books inside are ruined from cover to cover.", "delivery"),
    ("the voucher from your letter is refused at the till, although it runs until the end of May.", "payment"),
    ("this is the third lamp I buy from you, and each has been lovelier than the one before.", "praise"),
    ("I moved house last week, so please bring the table to the new address by the harbour.", "delivery"),
)
TAIL = "Message: Hi, I paid by transfer a week ago, but the order still says unpaid.\nTopic:"
WORDS = (" delivery", " payment", " praise")
FREE = ("Message: N/A\nTopic:", "Message:\nTopic:", "Message: [MASK]\nTopic:")


def member(number: int, shots: int) -> MemberPrompt:
    """The prompt of one subset."""
    body = ""
    for i in range(shots):
        text, topic = MESSAGES[(number * 3 + i * 2) % len(MESSAGES)]
        body += f"Message: {OPENINGS[(number + i) % len(OPENINGS)]} {text}\nTopic: {topic}\n\n"
    return MemberPrompt(head=HEAD, body=body, tail=TAIL, member=number)


def seconds(call: Callable[[], object]) -> float:
    """Wall-clock time of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def main() -> None:
    """Print medians, ratios and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model-path", default=None, help="a GGUF file (default: the embedded model)")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--shots", type=int, default=4)
    parser.add_argument("--out", type=Path, help="results file to append the medians to")
    options = parser.parse_args()
    made()
    with LlamaCppEnsemble(model_path=options.model_path) as engine:
        prompts = [member(i, options.shots) for i in range(options.members)]
        warming = seconds(lambda: engine.score_labels(prompts, WORDS, content_free=FREE))
        context = engine._context  # the floor is measured through the same weights, context and threads
        whole = [
            context.tokenize(asked.head, start=True) + context.tokenize(asked.body) + context.tokenize(asked.tail)
            for asked in prompts
        ]

        def plain(tokens: list[int]) -> None:
            context.clear()
            last = len(tokens) - 1
            context.decode([(token, i, 0, i == last) for i, token in enumerate(tokens)])
            context.logits(last)

        def vote() -> None:
            engine.score_labels(prompts, WORDS, content_free=FREE)

        votes: list[float] = []
        plains: list[float] = []
        tens: list[float] = []
        for _ in range(options.repetitions):
            votes.append(seconds(vote))
            plains.append(seconds(lambda: plain(whole[0])))
            tens.append(sum(seconds(partial(plain, tokens)) for tokens in whole))
        per_vote, per_plain, per_ten = (statistics.median(times) for times in (votes, plains, tens))
        # Linux counts ru_maxrss in kilobytes, macOS in bytes.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        print(f"model {engine.name}, {engine.n_threads} threads, {engine._together} members together")
        print(f"prompt {len(whole[0])} tokens, question {engine.count_tokens(TAIL)} tokens")
        print(f"vote of {len(prompts)}, warm      {per_vote:7.3f} s   {per_vote / per_plain:5.2f} x one plain call")
        print(f"one plain call         {per_plain:7.3f} s   1.00 x")
        print(f"{len(prompts)} plain calls         {per_ten:7.3f} s   {per_ten / per_plain:5.2f} x one plain call")
        print(f"first vote, cold       {warming:7.3f} s   kept states {engine._store.bytes / 2**20:.0f} MiB")
        print(f"peak memory            {peak / 2**20:7.0f} MiB")
        settings = {
            "model": engine.name,
            "threads": engine.n_threads,
            "members": options.members,
            "shots": options.shots,
            "repetitions": options.repetitions,
        }
        figures = {"vote": per_vote, "plain": per_plain, "plain calls": per_ten, "cold": warming, "peak": peak}
        keep(options.out, "icl", settings, figures)


if __name__ == "__main__":
    main()
