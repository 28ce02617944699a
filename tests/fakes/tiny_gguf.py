"""The tiny model as a GGUF file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fakes.tiny_model import TEMPLATE, tiny_model, tiny_tokenizer


class TinyGGUF:
    """A GGUF file of the tiny model in ``folder``, written by the package that defines the format.

    ``metadata`` changes it: ``pre`` (of the tokenizer), ``start`` (texts begin with a token for it), ``length`` (of a
    text), ``template`` (of chats) and ``wide`` (256 numbers a row: K-quants need a multiple of that).
    """

    def __init__(self, folder: Path, **metadata: Any) -> None:
        import gguf

        width = {"hidden_size": 256, "intermediate_size": 256} if metadata.pop("wide", False) else {}
        self.model = tiny_model(max_position_embeddings=metadata.pop("length", 512), **width).eval()
        self.tokenizer = tiny_tokenizer()
        self.path = str(folder / "tiny.gguf")
        config = self.model.config
        writer = gguf.GGUFWriter(self.path, "llama")
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(metadata.pop("pre", "gpt-2"))
        tokens = self.tokenizer.convert_ids_to_tokens(list(range(len(self.tokenizer))))
        unused = [f"[PAD{i}]" for i in range(304 - len(tokens))]
        writer.add_token_list([*tokens, *unused])
        writer.add_token_types([3 if i < 4 else 1 for i in range(len(tokens))] + [5] * len(unused))
        merges = json.loads(self.tokenizer._tokenizer.to_str())["model"]["merges"]
        writer.add_token_merges([" ".join(merge) for merge in merges])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(metadata.pop("start", False))
        writer.add_chat_template(metadata.pop("template", TEMPLATE))
        for name, weight in self.model.state_dict().items():
            writer.add_tensor(self._name(name), self._array(name, weight.numpy()))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    @staticmethod
    def _name(name: str) -> str:
        for old, new in (
            ("model.layers.", "blk."),
            ("model.embed_tokens", "token_embd"),
            ("model.norm", "output_norm"),
            ("lm_head", "output"),
            ("input_layernorm", "attn_norm"),
            ("post_attention_layernorm", "ffn_norm"),
            ("self_attn.o_proj", "attn_output"),
            ("self_attn.", "attn_"),
            ("mlp.", "ffn_"),
            ("_proj", ""),
        ):
            name = name.replace(old, new)
        return name

    @staticmethod
    def _array(name: str, array: Any) -> Any:
        heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
        if not heads:
            return array
        return array.reshape(heads, 2, array.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(array.shape)
