"""A causal language model of transformers with some thousands of random weights, and a byte-level tokenizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|file|>")

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread: two of them wait for each other for ages where another process is busy."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def tiny_tokenizer(*, template: str | None = TEMPLATE) -> Any:
    """Bytes, a few merges, and control tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = "Read the text. Label: good Label: bad Label: great dull positive negative label text the"
    backend.train_from_iterator([text] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", bos_token="<|im_start|>")
    tokenizer.chat_template = template
    return tokenizer


def tiny_model(**changes: Any) -> Any:
    """Two layers of random weights that are the same in every process. Not in evaluation mode, and with dropout."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": 304,  # as padded as those of large models
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "attention_dropout": 0.5,
        "initializer_range": 0.1,  # large enough to tell prompts apart, small enough to write in circles
        "eos_token_id": 2,
        "bos_token_id": 1,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**(settings | changes)))
    return model.train()
