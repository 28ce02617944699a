"""One GGUF file of the Llama architecture as a model and a tokenizer of transformers: the same weights on torch."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
from langchain_dp.integrations.transformers import TransformersEnsemble

_CONTROL, _USER_DEFINED = 3, 4

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def from_gguf(path: str) -> tuple[Any, Any]:
    """Model of a GGUF file, in float32, and its tokenizer."""
    file = GGUFFile(path)
    return file.model(), file.tokenizer()


def gguf_engine(path: str, **options: Any) -> TransformersEnsemble:
    """The engine over a GGUF file."""
    name = os.path.basename(path).removesuffix(".gguf")
    return TransformersEnsemble(*from_gguf(path), **{"name": name, **options})


class GGUFFile:
    """One GGUF file of the Llama architecture as a model and a tokenizer of transformers.

    transformers loads such files itself (``gguf_file=``), but skips tensors that it does not know, among them those
    that change a rotary embedding, invents missing ones, reads other files of the folder, and does not split digits.
    """

    def __init__(self, path: str) -> None:
        import gguf

        reader = gguf.GGUFReader(path)
        self.values: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        self._tensors = list(reader.tensors)

    def model(self) -> Any:
        """The model in float32."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        if self.values.get("general.architecture") != "llama" or any("rope" in tensor.name for tensor in self._tensors):
            raise ValueError("no Llama architecture with plain rotary embeddings")
        tied = all(tensor.name != "output.weight" for tensor in self._tensors)
        config = LlamaConfig(**self._config(), tie_word_embeddings=tied)
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
        weights = {self._name(tensor.name): tensor for tensor in self._tensors}
        expected = set(shapes) - ({"lm_head.weight"} if tied else set())
        if set(weights) != expected or any(_shape(tensor) != shapes[name] for name, tensor in weights.items()):
            raise ValueError("not the weights of a plain Llama model")
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
        loaded = {
            name: torch.from_numpy(self._weights(tensor, heads.get(name.split(".")[-2]) or 0))
            for name, tensor in weights.items()
        }
        model.load_state_dict(loaded, strict=False, assign=True)
        model.tie_weights()
        model.model.rotary_emb = LlamaRotaryEmbedding(config)  # computed, not stored
        return model

    def tokenizer(self) -> Any:
        """The tokenizer, as llama.cpp reads it from the same file."""
        import tokenizers
        from tokenizers import AddedToken, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        kind = self.values.get("tokenizer.ggml.model"), self.values.get("tokenizer.ggml.pre")
        if kind not in (("gpt2", "smollm"), ("gpt2", "gpt-2")):
            raise ValueError(f"no tokenizer 'gpt2' with 'smollm' or 'gpt-2': {kind}")
        tokens, types = self.values["tokenizer.ggml.tokens"], self.values["tokenizer.ggml.token_type"]
        merges = [tuple(merge.split(" ", 1)) for merge in self.values["tokenizer.ggml.merges"]]
        backend = tokenizers.Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, level]) if kind[1] == "smollm" else level
        backend.decoder = decoders.ByteLevel()
        pairs = list(zip(tokens, types, strict=True))
        backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t, k in pairs if k == _CONTROL])
        backend.add_tokens([AddedToken(t, special=False, normalized=False) for t, k in pairs if k == _USER_DEFINED])
        named = {
            f"{role}_token": tokens[self.values[key]]
            for role in ("bos", "eos")
            if (key := f"tokenizer.ggml.{role}_token_id") in self.values
        }
        if self.values.get("tokenizer.ggml.add_bos_token", False):
            start = named["bos_token"]
            backend.post_processor = tokenizers.processors.TemplateProcessing(
                single=f"{start} $A", special_tokens=[(start, self.values["tokenizer.ggml.bos_token_id"])]
            )
        built = PreTrainedTokenizerFast(tokenizer_object=backend, **named)  # type: ignore[no-untyped-call]
        built.chat_template = self.values.get("tokenizer.chat_template")
        return built

    def _config(self) -> dict[str, Any]:
        values = self.values
        heads, size = values["llama.attention.head_count"], values["llama.embedding_length"]
        return {
            "hidden_size": size,
            "num_hidden_layers": values["llama.block_count"],
            "intermediate_size": values["llama.feed_forward_length"],
            "num_attention_heads": heads,
            "num_key_value_heads": values.get("llama.attention.head_count_kv", heads),
            "head_dim": values.get("llama.rope.dimension_count", size // heads),
            "max_position_embeddings": values["llama.context_length"],
            "rms_norm_eps": values["llama.attention.layer_norm_rms_epsilon"],
            "rope_parameters": {"rope_type": "default", "rope_theta": values.get("llama.rope.freq_base", 10_000.0)},
            "vocab_size": len(values["tokenizer.ggml.tokens"]),
            "bos_token_id": values.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": values.get("tokenizer.ggml.eos_token_id"),
            "attn_implementation": "sdpa",
        }

    def _name(self, name: str) -> str:
        place = name.split(".")
        if place[0] == "blk" and len(place) == 4:
            return f"model.layers.{place[1]}.{_LAYER.get(place[2], place[2])}.{place[3]}"
        return f"{_OUTSIDE.get(place[0], place[0])}.{place[-1]}"

    def _weights(self, tensor: Any, heads: int) -> npt.NDArray[Any]:
        import gguf

        shape = _shape(tensor)
        whole = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
        if heads:
            # llama.cpp turns neighboring pairs where transformers turns the two halves of a head.
            pairs = whole.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
            whole = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(shape)
        return whole


def _shape(tensor: Any) -> tuple[int, ...]:
    """Shape with the fastest axis last; the file has it first."""
    return tuple(int(size) for size in reversed(tensor.shape))
