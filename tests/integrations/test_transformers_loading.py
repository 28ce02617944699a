"""TransformersEnsemble: which models, folders and files it takes, and what it says of the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.gguf_model import gguf_engine
from fakes.tiny_gguf import TinyGGUF
from fakes.tiny_model import TEMPLATE, one_thread, tiny_model, tiny_tokenizer
from langchain_dp.integrations.transformers import TransformersEnsemble

from langchain_dp.errors import InvalidParameter
from langchain_dp.ports import Continuation, Decoding, MemberPrompt

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")

CROWD = [Continuation(MemberPrompt("Read.\n", f"Label: {word}\n", "Label:", word), (), 0.5) for word in ("good", "bad")]


@pytest.fixture(scope="module", autouse=True)
def on_one_thread() -> Iterator[None]:
    with one_thread():
        yield


def test_a_folder_is_loaded_without_network_and_in_the_type_that_is_asked_for(tmp_path: Path) -> None:
    """If it breaks, a model of one's own cannot be used, or comes out as another."""
    tiny_model().save_pretrained(tmp_path / "mine")
    tiny_tokenizer().save_pretrained(tmp_path / "mine")
    with (
        TransformersEnsemble(tmp_path / "mine", max_tokens=256) as loaded,
        TransformersEnsemble(tiny_model(), tiny_tokenizer(), max_tokens=256) as engine,
    ):
        assert loaded.name == "mine"
        assert loaded.next_tokens(CROWD, Decoding()) == engine.next_tokens(CROWD, Decoding())
    with TransformersEnsemble(str(tmp_path / "mine"), max_tokens=256, dtype="bfloat16") as half:
        assert half._model.dtype == torch.bfloat16
        assert None not in half.next_tokens(CROWD, Decoding())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model": "no/such/folder"}, "folder that exists"),
        ({"model": 3}, "type int"),
        ({"tokenizer": None}, "tokenizer=None"),
        ({"dtype": "int8"}, "dtype"),
        ({"device": "nowhere"}, "device"),
        ({"max_tokens": 3}, "max_tokens"),
        ({"max_tokens": 513}, "at most 512"),
        ({"cache_bytes": -1}, "cache_bytes"),
    ],
    ids=str,
)
def test_parameters_out_of_bounds_are_refused(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    """If it breaks, a typing error ends in a crash deep inside a library, or a page of another library's advice."""
    with pytest.raises(InvalidParameter, match="causal language model"):
        TransformersEnsemble(tmp_path)
    settings = {"model": tiny_model(), "tokenizer": tiny_tokenizer(), "max_tokens": 256} | change
    with pytest.raises(InvalidParameter, match=expected):
        TransformersEnsemble(**settings)


def test_models_and_tokenizers_that_do_not_serve_are_refused() -> None:
    """If it breaks, a model whose memory cannot be cut back mixes texts, or special tokens are read in records."""
    with pytest.raises(InvalidParameter, match="at most 100"):
        TransformersEnsemble(tiny_model(vocab_size=100), tiny_tokenizer(), max_tokens=256)
    state = transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=304, hidden_size=32, num_hidden_layers=1, state_size=4)
    )
    with pytest.raises(InvalidParameter, match="keys and values"):
        TransformersEnsemble(state, tiny_tokenizer(), max_tokens=256)

    compiled = tiny_model()
    compiled.model.layers[0].compile()
    with pytest.raises(InvalidParameter, match="not compiled"):
        TransformersEnsemble(compiled, tiny_tokenizer(), max_tokens=256)

    class Naive(transformers.PreTrainedTokenizerFast):  # type: ignore[misc, name-defined]  # torch-free stubs
        def __call__(self, text: str, **options: Any) -> Any:
            options.pop("split_special_tokens", None)
            return super().__call__(text, **options)

    backend = tiny_tokenizer()._tokenizer
    with pytest.raises(InvalidParameter, match="split_special_tokens"):
        TransformersEnsemble(tiny_model(), Naive(tokenizer_object=backend, eos_token="<|im_end|>"), max_tokens=256)


@pytest.mark.parametrize("template", ["{{ messages[0]['role'] }}", TEMPLATE + "{{ messages[0]['content'] }}"])
def test_a_template_that_does_not_hold_the_turn_once_is_refused(template: str) -> None:
    """If it breaks, the model is asked without the examples, or twice with them."""
    with pytest.raises(InvalidParameter, match="chat template"):
        TransformersEnsemble(tiny_model(), tiny_tokenizer(template=template), max_tokens=256)


def test_a_gguf_file_gives_the_model_and_the_tokenizer_it_was_made_of(tmp_path: Path) -> None:
    """If it breaks, weights are loaded into the wrong places, or texts become other tokens."""
    file = TinyGGUF(tmp_path, start=True)
    with gguf_engine(file.path, max_tokens=256) as engine:
        assert engine.name == "tiny"
        for name, weight in file.model.state_dict().items():
            assert torch.equal(engine._model.state_dict()[name], weight), name
        text = "Label: 12 good é"
        assert engine._texts.plain(text) == file.tokenizer(text)["input_ids"]
        assert engine._texts.start == [1]
        assert engine.end_tokens == {0, 2}
        assert engine._texts.turn[0].count(1) == 1
        assert None not in engine.next_tokens(CROWD, Decoding())
    with gguf_engine(TinyGGUF(tmp_path, pre="smollm").path, max_tokens=256) as engine:
        split = engine._texts._tokenizer._tokenizer.pre_tokenizer.pre_tokenize_str("a12")
        assert [piece for piece, _ in split] == ["a", "1", "2"]  # digits are split where the file says so
