"""Seconds per token that an ensemble writes, beside the published way and beside what the machine allows.

Run by ``make bench``. One run, one machine, the same weights, texts and number of threads:

- warm step: one more token for 32 members of 5 examples each through ``LlamaCppEnsemble.next_tokens``;
- whole prompt: 50 tokens of all members, from empty caches;
- published: torch and transformers evaluate every member's whole prompt anew for every token, in batches of 8, on the
  embedded file unpacked to float32. Measured at the first and at the last token of the text, the tokens between are
  interpolated;
- floor: the floating-point operations of the rows that a warm step must evaluate over the measured speed of a large
  float32 matrix product, or the bytes that it must read over the measured speed of reading, whichever is longer.

With --types it measures instead, for files of these types made from --model-path ("as-is": that file itself), the rule
under which members share batches, and a warm step of all members together, beside the members one by one and beside
2 x parameters x members floating-point operations at the speed of that product. The three take turns in one run. Then
the same step once more, beside a process that keeps one core busy.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from langchain_dp.integrations._engine import Choice
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble, embedded_model_path
from langchain_dp.integrations.llama_cpp.evaluate import ALONE
from langchain_dp.integrations.llama_cpp.model_files import _quantize, prepared_model_path
from langchain_dp.integrations.llama_cpp.writer import Writer
from made import keep, made

from langchain_dp.ports import Continuation, Decoding, MemberPrompt, Token
from langchain_dp.sample import load

sys.path.insert(0, str(Path(__file__).parents[1]))
from fakes.gguf_model import from_gguf

HEAD = "Here are messages to a clinic and what they were sorted into.\n\n"
TAIL = "\nWrite the instruction by which they were sorted. The instruction begins with"
BATCH = 8

now: Callable[[], float] = time.perf_counter


def prompts(members: int, shots: int) -> list[MemberPrompt]:
    """Disjoint subsets of the sample's rows."""
    rows, _ = load()
    texts = [f"Message: {row['text']}\nFeedback: {row['label']}\n\n" for row in rows]
    return [MemberPrompt(HEAD, "".join(texts[i * shots : (i + 1) * shots]), TAIL, i) for i in range(members)]


def seconds(call: Callable[[], object]) -> float:
    """Time of one call."""
    began = now()
    call()
    return now() - began


class Clock:
    """Adds up the time spent inside a method of a class or of an object."""

    def __init__(self, owner: Any, name: str) -> None:
        self.total = 0.0
        inner = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            began = now()
            try:
                return inner(*args, **options)
            finally:
                self.total += now() - began

        setattr(owner, name, timed)


class Published:
    """Every prompt whole, for every token, in padded batches."""

    def __init__(self, path: str) -> None:
        self.model = from_gguf(path)[0].eval()

    def step(self, texts: Sequence[Sequence[int]]) -> list[int]:
        """Most probable next token of every text."""
        found: list[int] = []
        for at in range(0, len(texts), BATCH):
            part = texts[at : at + BATCH]
            longest = max(map(len, part))
            tokens = torch.zeros(len(part), longest, dtype=torch.long)
            mask = torch.zeros_like(tokens)
            for i, text in enumerate(part):  # padding on the left: all end together
                tokens[i, longest - len(text) :] = torch.tensor(text)
                mask[i, longest - len(text) :] = 1
            with torch.inference_mode():
                logits = self.model(input_ids=tokens, attention_mask=mask, use_cache=False).logits
            found += logits[:, -1].argmax(dim=-1).tolist()
        return found


class Floor:
    """What this machine can do at most with these threads, and what one row of this model needs."""

    def __init__(self, model: Any) -> None:
        one, other = torch.rand(1024, 1024), torch.rand(1024, 1024)
        self.operations_per_second = 2 * 1024**3 / min(seconds(lambda: one @ other) for _ in range(20))
        big = torch.ones(2**26)
        self.bytes_per_second = 4 * big.numel() / min(seconds(big.sum) for _ in range(5))
        shape = model.config
        matrices = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "layers" in name)
        self._row = 2 * (matrices + shape.vocab_size * shape.hidden_size)
        self._width, self._inner = shape.hidden_size, shape.intermediate_size
        self._cell = 4 * shape.num_hidden_layers * shape.hidden_size
        self._kept = 4 * shape.num_hidden_layers * shape.num_key_value_heads * shape.hidden_size
        self._kept //= shape.num_attention_heads  # bytes of keys and values of one token in half precision

    def narrow(self, rows: int) -> float:
        """Operations per second of a product of few rows with a matrix of the model's size."""
        one, other = torch.rand(rows, self._width), torch.rand(self._inner, self._width)
        call = partial(torch.nn.functional.linear, one, other)
        best: float = min(seconds(call) for _ in range(50))
        return float(2 * rows * self._width * self._inner / best)

    def seconds(self, lengths: Sequence[int], file_bytes: int) -> tuple[float, float]:
        """Time to compute one more token of sequences of these lengths, and to read what that takes."""
        operations = sum(self._row + self._cell * length for length in lengths)
        read = file_bytes + self._kept * sum(lengths)
        return operations / self.operations_per_second, read / self.bytes_per_second


def together(path: str, options: argparse.Namespace) -> None:
    """One file: the rule that holds, and what a warm step takes with members together and one by one."""
    decoding = Decoding(temperature=options.temperature)
    # Short ones: a step evaluates one row of each, and their caches take long to build.
    short = [dataclasses.replace(one, body=one.body[:60], tail="\nLabel:") for one in prompts(options.members, 1)]
    began = now()
    with LlamaCppEnsemble(
        model_path=path, slots=options.members, max_tokens=options.max_tokens, n_threads=options.threads
    ) as engine:
        started = now() - began
        torch.set_num_threads(engine.n_threads)
        context, batches, slots = engine._context, engine._evaluator, engine._slots
        room = context.llama.llama_model_desc(context._model, about := ctypes.create_string_buffer(128), len(about))
        parameters = int(context.llama.llama_model_n_params(context._model))
        rule, count = batches.rule, slots.count
        words = [5 + i for i in range(2 + 2 * options.rounds)]

        def step(at: int) -> float:
            return seconds(
                lambda: engine.next_tokens([Continuation(one, tuple(words[:at]), 0.5) for one in short], decoding)
            )

        one, other = torch.rand(2048, 2048), torch.rand(2048, 2048)
        step(0)
        joint, products = [], []
        for at in range(1, 2 + options.rounds):
            joint.append(step(at))
            products.append(seconds(lambda: one @ other))
        load = os.getloadavg()[0]
        with busy_process():
            beside = [step(2 + options.rounds + at) for at in range(options.rounds)]
        # As where no rule holds: every member by itself in a context that holds nobody else.
        slots.put_away()
        batches.rule, slots.count = ALONE, 1
        step(0)
        lone = [step(at) for at in range(1, 2 + max(1, options.rounds // 3))]
        batches.rule, slots.count = rule, count
    warm, single, besides = (statistics.median(some) for some in (joint[1:], lone[1:] or lone, beside))
    floor = 2 * parameters * options.members * statistics.median(products) / (2 * 2048**3)
    kind = about.value.decode().split(" ", 2)[-1] if room > 0 else "unknown"
    print(f"{engine.name} ({kind}): {rule.name}; together {warm:.3f} s, one by one {single:.3f} s", end="; ")
    print(f"{single / warm:.1f} x as fast, {warm / floor:.2f} x its floor of {floor:.3f} s", end="; ")
    print(f"{besides / warm:.1f} x as long beside a busy process; started in {started:.0f} s")
    settings = {
        "model": engine.name,
        "type": kind,
        "rule": rule.name,
        "threads": engine.n_threads,
        "members": options.members,
        "load": round(load, 2),
    }
    figures = {"together": warm, "one by one": single, "floor": floor, "beside": besides, "start": started}
    out: Path | None = options.out
    keep(out, "together", settings, figures)


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """Another process that never rests."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            yield
        finally:
            other.kill()


def types(options: argparse.Namespace) -> None:
    """A line for each file type."""
    source = options.model_path or embedded_model_path()
    for kind in options.types:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(source)
            if kind != "as-is":
                path = Path(folder) / f"{path.name.split('.')[0]}.{kind}.gguf"
                if not _quantize(source, path, kind):
                    sys.exit(f"llama.cpp could not write {kind}.")
            together(str(path), options)


def main() -> None:
    """Print times, ratios and where a warm step goes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model-path", default=None, help="the embedded model in another file type")
    parser.add_argument("--members", type=int, default=32)
    parser.add_argument("--shots", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of both (default: what is fastest)")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--cpu-time", action="store_true", help="count CPU time, on a busy machine with --threads 1")
    parser.add_argument("--out", type=Path, help="results file to append the figures to")
    parser.add_argument("--types", nargs="+", help="measure files of these types, such as Q4_K_M or as-is, instead")
    parser.add_argument("--max-tokens", type=int, default=256, help="with --types: longest member")
    parser.add_argument("--rounds", type=int, default=9, help="with --types: steps whose median is kept")
    options = parser.parse_args()
    made()
    if options.types:
        types(options)
        return
    if options.cpu_time:
        global now
        now = time.process_time
    asked = prompts(options.members, options.shots)
    decoding = Decoding(temperature=options.temperature, chat=True)
    path = options.model_path or prepared_model_path()
    with LlamaCppEnsemble(
        model_path=path,
        slots=options.members,
        max_tokens=768,
        n_threads=options.threads,
    ) as engine:
        torch.set_num_threads(engine.n_threads)
        clocks = {
            "the model": Clock(engine._context, "decode"),
            "choosing tokens": Clock(Choice, "token"),
            "all of the writer": Clock(Writer, "next_tokens"),
        }
        written: tuple[Token, ...] = ()
        steps: list[float] = []
        shares: list[dict[str, float]] = []
        for _ in range(options.tokens):
            before = {name: clock.total for name, clock in clocks.items()}
            began = now()
            votes = engine.next_tokens(
                [Continuation(one, written, i / 97 % 1) for i, one in enumerate(asked)], decoding
            )
            steps.append(now() - began)
            shares.append({name: clock.total - before[name] for name, clock in clocks.items()})
            written += (max(set(votes) - {None}, key=votes.count),)  # most votes; end tokens too: the work is the same
        warm, whole = statistics.median(steps[1:]), sum(steps)
        before, after = engine._context.chat
        ending = engine._context.tokenize(TAIL) + engine._context.tokenize(after, special=True)
        opening = engine._context.tokenize(before, special=True) + engine._context.tokenize(HEAD)
        texts = [[*opening, *engine._context.tokenize(one.body), *ending] for one in asked]
        name, threads = engine.name, engine.n_threads
        together, file_bytes = engine._together, os.path.getsize(path)
    published = Published(embedded_model_path())
    floor = Floor(published.model)
    first = seconds(lambda: published.step(texts))
    last = seconds(lambda: published.step([[*text, *map(int, written[:-1])] for text in texts]))
    old_step, old_whole = (first + last) / 2, options.tokens * (first + last) / 2
    lengths = [len(text) + options.tokens // 2 for text in texts]
    computing, reading = floor.seconds(lengths, file_bytes)
    lowest = max(computing, reading)
    part = {name: statistics.median(share[name] for share in shares[1:]) for name in clocks}
    print(f"model {name}, {threads} threads, {options.members} members, {together} in one batch")
    print(f"prompts of {min(map(len, texts))} to {max(map(len, texts))} tokens, {options.tokens} tokens written")
    rate, speed = floor.operations_per_second / 1e9, floor.bytes_per_second / 1e9
    print(f"matrix product {rate:.0f} GFLOP/s, reading {speed:.1f} GB/s")
    print(f"warm step        {warm:8.3f} s   published {old_step:8.2f} s   {old_step / warm:6.0f} x as fast")
    print(f"first step       {steps[0]:8.2f} s   (builds all caches)")
    print(f"whole prompt     {whole:8.1f} s   published {old_whole:8.0f} s   {old_whole / whole:6.0f} x as fast")
    print(f"floor of a warm step {lowest:.3f} s (computing {computing:.3f}, reading {reading:.3f})")
    print(f"warm step = {warm / lowest:.2f} times its floor")
    shares_of_step = {
        "the model": part["the model"],
        "choosing tokens": part["choosing tokens"],
        "seats and batches": part["all of the writer"] - part["the model"] - part["choosing tokens"],
        "texts and checks": warm - part["all of the writer"],
    }
    for label, share in shares_of_step.items():
        print(f"  {label:18} {share * 1e3:7.1f} ms {share / warm:5.0%}")
    print(f"a matrix product of {options.members} rows reaches {floor.narrow(options.members) / 1e9:.0f} GFLOP/s here")
    settings = {
        "model": name,
        "threads": threads,
        "members": options.members,
        "shots": options.shots,
        "tokens": options.tokens,
        "clock": "processor" if options.cpu_time else "wall",
        "prompts": [min(map(len, texts)), max(map(len, texts))],
    }
    figures = {
        "warm step": warm,
        "published step": old_step,
        "whole": whole,
        "published whole": old_whole,
        "floor": lowest,
        "in the model": part["the model"],
    }
    keep(options.out, "writer", settings, figures)


if __name__ == "__main__":
    main()
