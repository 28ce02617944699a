"""Models and tokenizers of transformers, from a folder or from one GGUF file."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from langchain_dp._util.extras import needs
from langchain_dp.errors import InvalidParameter

DTYPES = ("float32", "bfloat16", "float16")
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


def import_transformers() -> Any:
    """Return the module ``transformers``, with torch behind it."""
    with needs("transformers", "torch", "transformers"):
        import torch  # noqa: F401  # transformers alone imports without it, and fails later with a text of its own
        import transformers
    return transformers


def from_folder(
    path: str, tokenizer: Any, kind: str = "AutoModel", what: str = "a model of transformers", **options: Any
) -> tuple[Any, Any]:
    """Load a folder's model, and its tokenizer unless one is given. Download nothing, run no code of the folder."""
    transformers = import_transformers()
    if not os.path.isdir(path):
        raise InvalidParameter(
            f"Expected model={path!r} to be a folder that exists. Save the model with save_pretrained, or download it."
        )
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        model = getattr(transformers, kind).from_pretrained(path, **local, **options)
        if tokenizer is None:
            tokenizer = transformers.AutoTokenizer.from_pretrained(path, **local)
    except (OSError, ValueError, KeyError) as problem:
        raise InvalidParameter(
            f"Expected model={path!r} to hold {what} and its tokenizer ({type(problem).__name__})."
        ) from problem
    return model, tokenizer


def from_gguf(path: str, tokenizer: Any) -> tuple[Any, Any]:
    """Model of a GGUF file, in float32, and its tokenizer unless one is given."""
    import_transformers()
    with needs("transformers", "gguf", why=" to read such a file"):
        import gguf  # noqa: F401  # as above
    if not os.path.isfile(path):
        raise InvalidParameter(f"Expected path={path!r} to be a GGUF file that exists. Check the path.")
    file = GGUFFile(path)
    return file.model(), file.tokenizer() if tokenizer is None else tokenizer


def prepared(model: Any, tokenizer: Any, device: str, dtype: str) -> Any:
    """The model on its device, of its type, in evaluation mode."""
    transformers = import_transformers()
    import torch

    if not isinstance(model, transformers.PreTrainedModel) or model.config.is_encoder_decoder:
        raise InvalidParameter(
            f"Expected model of type {type(model).__name__} to be a folder or a causal language model of transformers."
        )
    if any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules()):
        raise InvalidParameter(
            "Expected model to be one that is not compiled: which kernels a compiled one takes hangs on the lengths "
            "that it saw before, of other members. Load it anew, without compile()."
        )
    if tokenizer is None:
        raise InvalidParameter("Expected tokenizer=None only with a folder. Give the tokenizer of the loaded model.")
    try:
        model.to(device=device, dtype=getattr(torch, dtype))
    except RuntimeError as problem:
        raise InvalidParameter(f"Expected device={device!r} to be one that torch can use.") from problem
    return model.eval()


def width(model: Any) -> int:
    """Number of logits."""
    return int(model.config.get_text_config().vocab_size)


def ends(model: Any) -> set[int]:
    """Tokens that end a text by the model's configuration."""
    named: set[int] = set()
    for config in (model.config, model.generation_config):
        value = getattr(config, "eos_token_id", None)
        named |= {value} if isinstance(value, int) else set(value or ())
    return named


def trained_on(model: Any) -> int | None:
    """Longest sequence that the model was trained on, if its configuration tells."""
    value = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return value if isinstance(value, int) else None


class GGUFFile:
    """One GGUF file of the Llama architecture as a model and a tokenizer of transformers.

    transformers loads such files itself (``gguf_file=``), but skips tensors that it does not know, among them those
    that change a rotary embedding, invents missing ones, reads other files of the folder, and needs one more package.
    It does not split digits either: the same text would be other tokens than in llama.cpp.
    """

    def __init__(self, path: str) -> None:
        import gguf

        self._path = path
        try:
            reader = gguf.GGUFReader(path)
            self.values: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
        except OSError:
            raise
        except Exception:  # whatever a damaged file makes of the reader
            raise InvalidParameter(f"Expected path={path!r} to be a GGUF file of version 2 or 3.") from None
        self._tensors = list(reader.tensors)

    def model(self) -> Any:
        """The model in float32."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        if self.values.get("general.architecture") != "llama" or any("rope" in tensor.name for tensor in self._tensors):
            raise self._unfit("hold the Llama architecture with plain rotary embeddings")
        tied = all(tensor.name != "output.weight" for tensor in self._tensors)
        try:
            config = LlamaConfig(**self._config(), tie_word_embeddings=tied)
        except KeyError as missing:
            raise self._unfit(f"hold a plain Llama model: {missing.args[0]!r} is missing") from None
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
        weights = {self._name(tensor.name): tensor for tensor in self._tensors}
        expected = set(shapes) - ({"lm_head.weight"} if tied else set())
        if set(weights) != expected or any(_shape(tensor) != shapes[name] for name, tensor in weights.items()):
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
        """The tokenizer, as llama.cpp reads it from the same file."""
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

    def _weights(self, tensor: Any, heads: int) -> npt.NDArray[Any]:
        import gguf

        shape = _shape(tensor)
        whole = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(shape)
        if heads:
            # llama.cpp turns neighbouring pairs where transformers turns the two halves of a head.
            pairs = whole.reshape(heads, shape[0] // heads // 2, 2, *shape[1:])
            whole = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(shape)
        return whole

    def _unfit(self, what: str) -> InvalidParameter:
        return InvalidParameter(
            f"Expected path={self._path!r} to {what}. Load the model's own folder, or the file with LlamaCppEnsemble."
        )


def _shape(tensor: Any) -> tuple[int, ...]:
    """Shape with the fastest axis last; the file has it first."""
    return tuple(int(size) for size in reversed(tensor.shape))
