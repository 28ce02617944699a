"""Whether a private paraphrase keeps more meaning than words drawn anew, at equal success of attacks.

A text is rewritten token by token by the embedded model, under an exponential mechanism on clipped scores:

- clipped: DP-Prompt (Utpala, Hooker, Chen 2023): weights exp(max(l, -B) / T) over the whole vocabulary, l the
  log-probability of a token behind the text. Another text moves a weight and the sum of all by exp(B / T) each: a token
  costs 2 B / T;
- difference: weights exp((p + clip(l - p, -C, C)) / T), p the log-probability behind the same prompt without the text,
  which is public: a token costs 4 C / T;
- package: the same as RAPTParaphraser does it, from the 4,096 tokens that are likeliest without the text;
- free: the model's own distribution at T, without a promise: as far as a paraphrase by this model can get.

Beside them words drawn anew by the two mechanisms of RAPTSanitizer. Tokens of all but "package" are drawn by numpy
here, which is enough to measure and no release. Epsilon is that of a text against any other text, pure and local, for
the longest paraphrase.

Two attacks on what comes out: which telling words of the text stand in it, and which of several hundred texts it came
from (nearest by MiniLM's sentence vectors or by shared words weighed by rarity, whichever finds more). Afterwards a
linear classifier on MiniLM's sentence vectors, trained on public texts in clear, names sentiment or topic. Of reviews
(trustpilot), of which the first 30 words are taken, it names the author's gender: there it is the third attack.

Reads LANGCHAIN_DP_DATA/{sst2,agnews,trustpilot}/{train,test}.jsonl. Finished arms are kept in the results file and not
run again; ``--minutes`` bounds one call: no arm is begun after it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from langchain_dp.integrations._engine import log_softmax
from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
from made import made, so_far
from sklearn.linear_model import LogisticRegression

from langchain_dp import RAPTSanitizer
from langchain_dp._util.binomial import clopper_pearson
from langchain_dp.attacks import SentenceEmbeddings
from langchain_dp.attacks.words import FUNCTION_WORDS, Rarity, words_of
from langchain_dp.ports import Continuation, MemberPrompt
from langchain_dp.rapt import CalibrationTarget, ParaphraseOptions, RAPTParaphraser
from langchain_dp.rapt.paraphrase import PAIRS
from langchain_dp.records import read_jsonl

Scores = npt.NDArray[np.float64]
Rule = Callable[[Scores, Scores | None], Scores]
SETS = ("sst2", "agnews", "trustpilot")
WORDS = tuple(("words", name, target) for target in (0.1, 0.3, 0.5, 0.7, 0.9) for name in ("exponential", "laplace"))
PARAPHRASES = (
    ("free", 1.0, 0.5), ("clipped", 8.0, 0.5), ("difference", 4.0, 1.0), ("clipped", 12.0, 1.0),
    ("difference", 8.0, 1.0), ("clipped", 6.0, 0.5), ("difference", 2.0, 1.0), ("package", 4.0, 1.0),
    ("package", 2.0, 1.0), ("package", 1.0, 1.0),
)  # fmt: skip
"""Mechanism, clip in nats, temperature."""
TAIL = "\nThe same in other words:"
_TOGETHER = 16


class Distributions(LlamaCppEnsemble):
    """The engine, with all log-probabilities of a member's next token, of texts that are at different places."""

    def next(self, asked: Sequence[Continuation]) -> list[Scores | None]:
        """One row per member, (vocabulary,)."""
        with self._in_use():
            never = self._never()
            return self._taken(asked, False, lambda row, *_: np.where(never, -np.inf, log_softmax(row)))


def rule_of(mechanism: str, clip: float, temperature: float) -> tuple[Rule, float]:
    """Log-weights of all tokens, and what a token costs."""
    if mechanism == "free":
        return (lambda row, _: row / temperature), math.inf
    if mechanism == "package":
        return (lambda row, _: row), 4 * clip / temperature
    if mechanism == "clipped":
        return (lambda row, _: np.where(np.isfinite(row), np.maximum(row, -clip), row) / temperature), (
            2 * clip / temperature
        )

    def difference(row: Scores, public: Scores | None) -> Scores:
        assert public is not None
        moved = np.clip(np.subtract(row, public, where=np.isfinite(row), out=np.zeros_like(row)), -clip, clip)
        return (public + moved) / temperature

    return difference, 4 * clip / temperature


def paraphrase(engine: Distributions, texts: Sequence[str], arm: tuple[str, float, float], longest: int) -> list[str]:
    """Every text rewritten; a line's end or the model's own ends it."""
    if arm[0] == "package":
        how = ParaphraseOptions(clip=arm[1], temperature=arm[2], max_new_tokens=longest)
        return RAPTParaphraser(engine, paraphrasing=how).batch(list(texts))
    head = "".join(f"Text: {one}{TAIL} {other}\n\n" for one, other in PAIRS) + "Text:"
    rule, _ = rule_of(*arm)
    rng, found = np.random.default_rng(5), []
    for start in range(0, len(texts), _TOGETHER):
        some = [" ".join(text.split()) for text in texts[start : start + _TOGETHER]]
        written: list[list[int]] = [[] for _ in some]
        prompts = [MemberPrompt(head, f" {text}", TAIL, ("text", text)) for text in some]
        publics = [MemberPrompt(head, "", TAIL, ("public", place)) for place in range(len(some))]
        open_ = list(range(len(some)))
        for _ in range(longest):
            asked = [Continuation(prompts[i], tuple(written[i]), 0.0) for i in open_]
            if arm[0] == "difference":
                asked += [Continuation(publics[i], tuple(written[i]), 0.0) for i in open_]
            rows, still = engine.next(asked), []
            for place, i in enumerate(open_):
                public = rows[len(open_) + place] if arm[0] == "difference" else None
                weights = rule(rows[place], public)
                token = int(np.argmax(weights + rng.gumbel(size=len(weights))))
                if token in engine.end_tokens:
                    continue
                written[i].append(token)
                if "\n" not in engine.detokenize(written[i]).lstrip():
                    still.append(i)
            open_ = still
            if not open_:
                break
        found += [(engine.detokenize(tokens).strip().splitlines() or [""])[0] for tokens in written]
    return found


@cache
def embeddings() -> SentenceEmbeddings:
    """MiniLM, whole."""
    return SentenceEmbeddings("minilm", longest=128)


def rows_of(name: str, part: str) -> list[dict[str, Any]]:
    """Rows of a data set, always in the same order."""
    found = read_jsonl(Path(os.environ["LANGCHAIN_DP_DATA"]) / name / f"{part}.jsonl")
    random.Random(part).shuffle(found)
    if name == "trustpilot":
        return [{**row, "text": " ".join(row["text"].split()[:30])} for row in found]
    return found


def kept(options: argparse.Namespace, key: Sequence[Any]) -> Path:
    """Where the paraphrases of an arm are kept, to be measured apart from the writing."""
    folder = options.out.with_suffix(".texts")
    folder.mkdir(parents=True, exist_ok=True)
    return Path(folder / f"{'_'.join(map(str, key))}.json")


class Task:
    """One data set: what is attacked, among which, and the classifier."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        train, test = rows_of(name, "train")[: options.known], rows_of(name, "test")
        self.texts = [row["text"] for row in test[: options.rows]]
        self.labels = [row["label"] for row in test[: options.rows]]
        self.public = [row["text"] for row in train]
        among = [row["text"] for row in test[: options.among]]
        self._vectors = self._unit(among)
        self._words = [self._telling(text) for text in among]
        self._rarity = Rarity(self._words)
        self._model = LogisticRegression(max_iter=2000).fit(self._unit(self.public), [row["label"] for row in train])

    def measure(self, released: Sequence[str]) -> dict[str, Any]:
        """Accuracy, and what the attacks reach, of one release per text."""
        vectors, count = self._unit(released), len(released)
        right = self._model.predict(vectors) == np.array(self.labels)
        said = [self._telling(text) for text in released]
        own = self._words[:count]
        told = sum(len(a & b) for a, b in zip(own, said, strict=True)) / sum(map(len, own))
        by_words = np.array([[sum(map(self._rarity.bits, a & b)) for b in self._words] for a in said])
        linked = max(
            int((found.argmax(axis=1) == np.arange(count)).sum()) for found in (vectors @ self._vectors.T, by_words)
        )
        accuracy = float(right.mean())
        return {
            "accuracy": accuracy,
            "standard_error": math.sqrt(accuracy * (1 - accuracy) / count),
            "telling_words": told,
            "linked": linked / count,
            "linked_interval": list(clopper_pearson(linked, count)),
            "among": len(self._words),
            "rows": count,
            "words": statistics.fmean(len(words_of(text)) for text in released),
        }

    @staticmethod
    def _telling(text: str) -> set[str]:
        return {word.folded for word in words_of(text)} - FUNCTION_WORDS

    @staticmethod
    def _unit(texts: Sequence[str]) -> Scores:
        vectors = np.asarray(embeddings()([text or "." for text in texts]), dtype=np.float64)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def main() -> None:
    """Run arms until the time is over, and print all that is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--rows", type=int, default=80, help="texts that are released (default: %(default)s)")
    parser.add_argument("--among", type=int, default=300, help="texts that one of them is looked for among")
    parser.add_argument("--known", type=int, default=1000, help="public texts that the classifier learns from")
    parser.add_argument("--longest", type=int, default=40, help="tokens of a paraphrase, at most")
    parser.add_argument("--only", nargs="+", help="only these mechanisms: plain, words, free, clipped, difference")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--write", action="store_true", help="write paraphrases and measure nothing yet")
    parser.add_argument("--show", type=int, default=0, help="releases to print of each arm (public data)")
    parser.add_argument("--out", type=Path, default=Path("bench_paraphrase.jsonl"))
    options = parser.parse_args()
    if not os.environ.get("LANGCHAIN_DP_DATA"):
        sys.exit("Set LANGCHAIN_DP_DATA to a folder with sst2/, agnews/, trustpilot/ (train.jsonl, test.jsonl each).")
    made()
    done, until = so_far(options.out), time.monotonic() + 60 * options.minutes
    task = cache(lambda name: Task(name, options))
    engine = cache(
        lambda: Distributions(max_tokens=512, slots=2 * _TOGETHER, n_threads=options.threads, cache_bytes=2 * 2**30)
    )
    for arm in (("plain", 0.0, 0.0), *WORDS, *PARAPHRASES):
        for name in options.sets:
            key = [name, *arm, options.rows]
            if any(row["key"] == key for row in done) or (options.only and arm[0] not in options.only):
                continue
            if time.monotonic() > until:
                print("out of time: call again to go on")
                break
            print("begun", *key, flush=True)
            start, row = time.monotonic(), {"key": key}
            texts = rows_of(name, "test")[: options.rows]
            texts = [one["text"] for one in texts]
            if arm[0] == "words":
                given: Any = {"mechanism": arm[1], "target_replacement": arm[2]}
                sanitizer = RAPTSanitizer("glove", target=CalibrationTarget(texts=task(name).public[:500]), **given)
                released = sanitizer.batch(texts)
                row["eta"] = sanitizer.calibration().eta
            elif arm[0] == "plain":
                released = texts
            else:
                path = kept(options, key)
                if not path.exists():
                    path.write_text(json.dumps(paraphrase(engine(), texts, arm, options.longest)), encoding="utf-8")
                released = json.loads(path.read_text(encoding="utf-8"))
                if options.write:
                    continue
                _, cost = rule_of(*arm)
                if math.isfinite(cost):
                    row |= {"epsilon_token": cost, "epsilon_text": cost * options.longest}
            row |= {**task(name).measure(released), "seconds": round(time.monotonic() - start, 1), **made()}
            for text, shown in zip(texts[: options.show], released, strict=False):
                print(f"  {text[:100]}\n    -> {shown[:160]}")
            done.append(row)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    for row in done:
        unit = f"eta {row['eta']:.2f}" if "eta" in row else f"epsilon {row.get('epsilon_text', math.inf):.0f}"
        print(
            f"{' '.join(map(str, row['key'][:4])):<36} accuracy {row['accuracy']:.3f} +- {row['standard_error']:.3f}  "
            f"telling words {row['telling_words']:.3f}  linked {row['linked']:.3f}  words {row['words']:4.1f}  {unit}"
        )


if __name__ == "__main__":
    main()
