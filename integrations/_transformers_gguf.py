"""One GGUF file of the Llama architecture as a model and a tokenizer of transformers.

transformers loads such files itself, but parses their vocabulary three times over at some seconds each, wants one
more package for it, and rebuilds neither the splitting of digits nor the control tokens: the same text would be other
tokens than in llama.cpp. The format is described in ggml's docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from langchain_dp.errors import InvalidParameter

_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
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


class GGUFFile:
    """A file's metadata, and where its tensors are.

    Raises:
        InvalidParameter: It is no GGUF file that can be read.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._at = 4
        self.values: dict[str, Any] = {}
        try:
            with open(path, "rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            if self._bytes[:4] != b"GGUF" or self._number("I") not in (2, 3):
                raise ValueError
            tensors, keys = self._number("Q"), self._number("Q")
            for _ in range(keys):
                key = self._string()
                self.values[key] = self._value(self._number("I"))
            self._tensors = [self._tensor() for _ in range(tensors)]
        except (ValueError, KeyError, IndexError, struct.error):
            raise InvalidParameter(f"Expected path={path!r} to be a GGUF file of version 2 or 3.") from None
        alignment = int(self.values.get("general.alignment", 32))
        self._data = -(-self._at // alignment) * alignment

    def model(self) -> Any:
        """The model in float32.

        Raises:
            InvalidParameter: The file is of another architecture, or lacks something of it.
        """
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        if self.values.get("general.architecture") != "llama" or any("rope" in name for name, *_ in self._tensors):
            raise self._unfit("hold the Llama architecture with plain rotary embeddings")
        tied = all(name != "output.weight" for name, *_ in self._tensors)
        try:
            config = LlamaConfig(**self._config(), tie_word_embeddings=tied)
        except KeyError as missing:
            raise self._unfit(f"hold a plain Llama model: {missing.args[0]!r} is missing") from None
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
        weights = {self._name(tensor[0]): tensor for tensor in self._tensors}
        expected = set(shapes) - ({"lm_head.weight"} if tied else set())
        if set(weights) != expected or any(tensor[1] != shapes[name] for name, tensor in weights.items()):
            raise self._unfit("hold the weights of a plain Llama model, and no others")
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
        """The tokenizer, as llama.cpp reads it from the same file.

        Raises:
            InvalidParameter: It is none of the kinds that are known here.
        """
        import tokenizers
        from tokenizers import AddedToken, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        kind = self.values.get("tokenizer.ggml.model"), self.values.get("tokenizer.ggml.pre")
        if kind not in (("gpt2", "smollm"), ("gpt2", "gpt-2")):
            raise self._unfit(f"hold a tokenizer 'gpt2' with 'smollm' or 'gpt-2', not {kind}; give tokenizer=")
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
        built = PreTrainedTokenizerFast(tokenizer_object=backend, **named)  # type: ignore[no-untyped-call]  # as it is
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

    def _weights(self, tensor: tuple[str, tuple[int, ...], int, int], heads: int) -> npt.NDArray[Any]:
        import gguf

        _, shape, kind, offset = tensor
        elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        row, start = shape[-1] // elements * size, self._data + offset
        stored = np.frombuffer(self._bytes, np.uint8, row * int(np.prod(shape[:-1])), start).reshape(*shape[:-1], row)
        whole = np.array(gguf.dequantize(stored, gguf.GGMLQuantizationType(kind)), np.float32).reshape(shape)
        if heads:
            # llama.cpp turns neighbouring pairs where transformers turns the two halves of a head.
            pairs = whole.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
            whole = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(shape)
        return whole

    def _unfit(self, what: str) -> InvalidParameter:
        return InvalidParameter(
            f"Expected path={self._path!r} to {what}. Load the model's own folder, or the file with LlamaCppEnsemble."
        )

    def _number(self, form: str) -> Any:
        (value,) = struct.unpack_from(f"<{form}", self._bytes, self._at)
        self._at += struct.calcsize(f"<{form}")
        return value

    def _string(self) -> str:
        length = self._number("Q")
        self._at += length
        return self._bytes[self._at - length : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._number(_FORMATS[kind])
        inner, count = self._number("I"), self._number("Q")
        if inner in _FORMATS:
            values = struct.unpack_from(f"<{count}{_FORMATS[inner]}", self._bytes, self._at)
            self._at += struct.calcsize(f"<{count}{_FORMATS[inner]}")
            return list(values)
        return [self._value(inner) for _ in range(count)]

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape with the fastest axis last, number of its type, and offset in the data."""
        name = self._string()
        axes = [self._number("Q") for _ in range(self._number("I"))]
        kind, offset = self._number("I"), self._number("Q")
        return name, tuple(reversed(axes)), kind, offset
