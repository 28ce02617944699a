"""Input embeddings of four kinds of model as the table of a sanitizer. The models are small and random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from langchain_dp.integrations.transformers import TransformersTable
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from langchain_dp import RAPTSanitizer
from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import EmbedsSubwords

TEXT = "the doctor was in the house and the patient was not"
SPECIAL = {
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "gpt2": {"unk": "<|endoftext|>", "bos": "<|endoftext|>", "eos": "<|endoftext|>"},
    "roberta": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
    "t5": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
}
FAMILIES = list(SPECIAL)


def tokenizer(family: str) -> Any:
    """One of the family's own kind, learned from a line: word pieces, byte pairs, or a unigram model."""
    special = list(dict.fromkeys(SPECIAL[family].values()))
    if family == "bert":
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer, backend.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        trainer: Any = trainers.WordPieceTrainer(
            vocab_size=120, special_tokens=[*special, "[unused0]"], show_progress=False
        )
    elif family == "t5":
        backend = Tokenizer(models.Unigram())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=60, special_tokens=[*special, "<extra_id_0>"], unk_token="<unk>", show_progress=False
        )
    else:
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )  # fmt: skip
    backend.train_from_iterator([TEXT] * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, **{f"{role}_token": token for role, token in SPECIAL[family].items()}
    )


def model(family: str, size: int) -> Any:
    """Two layers, 16 wide, and three rows more than there are tokens, as large models have them."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if family == "t5":
            return transformers.T5Model(
                transformers.T5Config(vocab_size=size + 3, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
            )
        if family == "gpt2":
            return transformers.GPT2Model(
                transformers.GPT2Config(vocab_size=size + 3, n_embd=16, n_layer=2, n_head=2, n_positions=64)
            )
        kind = {"bert": "Bert", "roberta": "Roberta"}[family]
        config = getattr(transformers, f"{kind}Config")(
            vocab_size=size + 3, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=66,
        )  # fmt: skip
        return getattr(transformers, f"{kind}Model")(config)


def table(family: str) -> TransformersTable:
    cut = tokenizer(family)
    return TransformersTable(model(family, len(cut)), tokenizer=cut)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_is_the_models_input_embeddings(family: str) -> None:
    """If it breaks, words are drawn by the distances of other words, or padding rows become words."""
    cut = tokenizer(family)
    loaded = model(family, len(cut))
    made = TransformersTable(loaded, tokenizer=cut)
    assert isinstance(made, EmbedsSubwords)
    assert len(made.words) == len(made.vectors) == len(cut) == len(loaded.get_input_embeddings().weight) - 3
    np.testing.assert_array_equal(made.vectors, loaded.get_input_embeddings().weight.detach().numpy()[:-3])
    assert [cut.convert_tokens_to_ids(word) for word in made.words] == list(range(len(cut)))


@pytest.mark.parametrize("mechanism", ["exponential", "laplace"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_sanitizer_cuts_and_joins_with_it(family: str, mechanism: Any) -> None:
    """If it breaks, text comes back with other spaces or joints even where no word was changed."""
    assert RAPTSanitizer(table(family), eta=1e6, mechanism=mechanism).invoke(TEXT) == TEXT


@pytest.mark.parametrize("family", FAMILIES)
def test_special_and_unused_tokens_are_never_written(family: str) -> None:
    """If it breaks, a released text can begin, end or mask something where it is read (500 draws at random)."""
    made = table(family)
    special = {*SPECIAL[family].values(), *{"bert": ["[unused0]"], "t5": ["<extra_id_0>"]}.get(family, [])}
    assert {made.words[i] for i in made.special_ids} == special
    released = RAPTSanitizer(made, eta=1e-6).batch([TEXT] * 50)
    assert not [text for text in released for token in special if token in text]
    assert len(set(released)) == 50


@pytest.mark.parametrize("family", FAMILIES)
def test_a_special_token_in_a_text_is_plain_text(family: str) -> None:
    """If it breaks, whoever writes a text chooses control ids, whose vectors are like no word's."""
    made = table(family)
    for token in SPECIAL[family].values():
        assert set(made.encode(token)) <= {i for i in range(len(made.words)) if i not in made.special_ids} | {
            made.unknown_id
        }


def test_what_everything_can_be_cut_into_has_no_unknown() -> None:
    """If it breaks, GPT-2's end token stands for the unknown, and is replaced by a random word."""
    assert table("gpt2").unknown_id is None
    assert table("bert").words[table("bert").unknown_id or 0] == "[UNK]"


def test_a_folder_is_enough(tmp_path: Path) -> None:
    """If it breaks, a model that was saved or downloaded has to be loaded by hand."""
    cut = tokenizer("bert")
    loaded = model("bert", len(cut))
    loaded.save_pretrained(tmp_path)
    cut.save_pretrained(tmp_path)
    made = TransformersTable(tmp_path)
    np.testing.assert_array_equal(made.vectors, table("bert").vectors)
    assert RAPTSanitizer(made, eta=1e6).invoke(TEXT) == TEXT
    assert repr(made) == f"TransformersTable(bert ({len(cut)} subwords))"


def test_bad_input(tmp_path: Path) -> None:
    """If it breaks, a mistake ends in a traceback from deep inside, or in vectors of other words."""
    cut = tokenizer("bert")
    with pytest.raises(InvalidParameter, match=f"tokenizer of {len(cut)} tokens to have at most 13"):
        TransformersTable(model("bert", 10), tokenizer=cut)
    with pytest.raises(InvalidParameter, match="Give the tokenizer"):
        TransformersTable(model("bert", len(cut)))
    with pytest.raises(InvalidParameter, match="folder that exists"):
        TransformersTable(tmp_path / "nothing")
    with pytest.raises(InvalidParameter, match="to hold a model of transformers"):
        TransformersTable(tmp_path)
    with pytest.raises(InvalidParameter, match="of type int"):
        TransformersTable(7)
