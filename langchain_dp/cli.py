"""Command line: ``langchain-dp demo``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from langchain_dp.errors import LangChainDPError, MissingExtra

_EXAMPLES = """\
examples:
  langchain-dp demo
  langchain-dp demo --data tickets.jsonl --json
  langchain-dp demo --data train.jsonl --test test.jsonl --prompt sst2 --queries 10000 --limit 200

exit codes: 0 done, 1 refused or failed (one line on stderr says why), 2 wrong arguments
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _demo(options)
    except (LangChainDPError, OSError) as error:
        print(f"langchain-dp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("langchain-dp: interrupted", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="langchain-dp",
        description="Differential privacy for LangChain.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="accuracy against epsilon, with a model that runs on this machine",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    demo.add_argument("--data", type=Path, help="JSONL of {text, label}: the private rows (default: the own sample)")
    demo.add_argument("--test", type=Path, help="JSONL of rows to score (default: a held-out fifth of --data)")
    demo.add_argument("--labels", nargs="+", help="the public labels (default: those found in --data)")
    demo.add_argument("--prompt", choices=["plain", "sst2", "amazon", "agnews", "trec"], default="plain")
    demo.add_argument("--limit", type=int, default=80, help="rows to score at most (default: %(default)s)")
    demo.add_argument("--rows", type=int, default=8000, help="private rows at most (default: %(default)s)")
    demo.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0, 8.0], help="default: 1 3 8")
    demo.add_argument("--delta", type=float, default=1e-5, help="default: %(default)s")
    demo.add_argument("--queries", type=int, help="releases the noise is made for (default: the rows scored)")
    demo.add_argument("--shots", type=int, default=4, help="examples per subset (default: %(default)s)")
    demo.add_argument("--subsets", type=int, default=10, help="expected votes per question (default: %(default)s)")
    demo.add_argument("--model", help="path of a GGUF (default: the embedded SmolLM2-135M-Instruct)")
    demo.add_argument("--gpu-layers", type=int, default=0, help="layers to put on a GPU (default: %(default)s)")
    demo.add_argument("--picture", type=Path, default=Path("accuracy_vs_epsilon.png"), help="default: %(default)s")
    demo.add_argument("--json", action="store_true", help="print rows {method, epsilon, accuracy, n} and nothing else")
    return parser


def _demo(options: argparse.Namespace) -> int:
    from langchain_dp import demo, sample
    from langchain_dp.icl import ICLPrompt, prompts
    from langchain_dp.integrations.llama_cpp import LlamaCppEnsemble
    from langchain_dp.records import PrivateRecords, read_jsonl

    if options.data is None:
        train, test = sample.load()
        labels = list(sample.LABELS)
        prompt: ICLPrompt | None = sample.PROMPT
        name = "Feedback to a clinic (invented)"
    else:
        train = read_jsonl(options.data)
        train, test = (train, read_jsonl(options.test)) if options.test else demo.split(train)
        PrivateRecords(train)  # names the row that lacks text or label
        PrivateRecords(test)
        labels = options.labels or sorted({str(row["label"]) for row in train})
        prompt, name = getattr(prompts, options.prompt.upper(), None), options.data.stem
    test = test[: options.limit]
    task = demo.Task(name, train[: options.rows], test, labels, prompt)
    engine = LlamaCppEnsemble(model_path=options.model, n_gpu_layers=options.gpu_layers)
    try:
        result = demo.run(
            task,
            engine,
            epsilons=sorted(options.epsilon),
            delta=options.delta,
            queries=options.queries or len(test),
            shots=options.shots,
            subsets=options.subsets,
            quiet=not sys.stderr.isatty(),
        )
    finally:
        engine.close()
    if options.json:
        print(json.dumps([score.to_dict() for score in result.scores]))
        return 0
    print(demo.table(result))
    if options.data is not None and options.labels is None:
        print(
            f"\nNote: the labels {labels} were read off the private rows and count as public from here on. Name them "
            "with --labels to keep them a constant."
        )
    try:
        demo.picture(result, options.picture)
        print(f"\nPicture of accuracy against epsilon: {options.picture}")
    except MissingExtra as missing:
        print(f"\n{missing}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
