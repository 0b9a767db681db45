"""Transformers of Hugging Face, from small configurations, without weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as hf
from torch import Tensor, nn

from tests.zoo.entry import Entry, Model, Through, energy

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 11}
SMALL |= {"intermediate_size": 16, "max_position_embeddings": 16, "use_cache": False}


def embedded(model: nn.Module, x: Tensor) -> Tensor:
    """The hidden states of a language model whose points are the embeddings of its tokens."""
    return model(inputs_embeds=x).last_hidden_state


def pixels(model: nn.Module, x: Tensor) -> Tensor:
    """The hidden states of a vision model whose points are images."""
    return model(pixel_values=x).last_hidden_state


def language(kind: Any, config: Any, **options: Any) -> Callable[[], Model]:
    """A model of `kind` in evaluation mode, with 3 tokens of 16 coordinates as points."""

    def build() -> Model:
        model = kind(config(**(SMALL | options))).eval()
        return energy(Through(model, embedded), 3, 16, num=4)

    return build


def dropout() -> Model:
    model = hf.GPT2Model(hf.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=11)).train()
    return energy(Through(model, embedded), 3, 16, num=4)


def translation() -> Model:
    config = hf.T5Config(
        vocab_size=11,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        use_cache=False,
    )
    return energy(Through(hf.T5EncoderModel(config).eval(), embedded), 3, 16, num=4)


def vision(kind: Any, config: Any, **options: Any) -> Callable[[], Model]:
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2} | options
    sizes |= {"intermediate_size": 16, "image_size": 4, "patch_size": 2, "num_channels": 1}
    return lambda: energy(Through(kind(config(**sizes)).eval(), pixels), 1, 4, 4, num=4)


def convnext() -> Model:
    config = hf.ConvNextConfig(
        num_channels=1, patch_size=2, hidden_sizes=[4, 8], depths=[1, 1], num_stages=2
    )
    return energy(Through(hf.ConvNextModel(config).eval(), pixels), 1, 8, 8, num=3)


gpt = {"n_embd": 16, "n_layer": 1, "n_head": 2}
ENTRIES = [
    Entry("transformers", "Llama", language(hf.LlamaModel, hf.LlamaConfig)),
    Entry(
        "transformers",
        "Llama, eager attention",
        language(hf.LlamaModel, hf.LlamaConfig, attn_implementation="eager"),
    ),
    Entry("transformers", "GPT-2", language(hf.GPT2Model, hf.GPT2Config, **gpt)),
    Entry(
        "transformers",
        "GPT-2, ReLU",
        language(hf.GPT2Model, hf.GPT2Config, activation_function="relu", **gpt),
        "kinked",
        "ReLU",
    ),
    Entry("transformers", "GPT-2, dropout, training", dropout, random=True),
    Entry("transformers", "BERT", language(hf.BertModel, hf.BertConfig)),
    Entry(
        "transformers",
        "RoBERTa, eager attention",
        language(hf.RobertaModel, hf.RobertaConfig, attn_implementation="eager"),
    ),
    Entry("transformers", "T5 encoder, gated GELU", translation),
    Entry(
        "transformers",
        "Mistral",
        language(hf.MistralModel, hf.MistralConfig, num_key_value_heads=1, sliding_window=2),
    ),
    Entry("transformers", "Qwen2", language(hf.Qwen2Model, hf.Qwen2Config, num_key_value_heads=2)),
    Entry(
        "transformers",
        "Gemma",
        language(hf.GemmaModel, hf.GemmaConfig, num_key_value_heads=1, head_dim=8),
    ),
    Entry("transformers", "GPT-NeoX", language(hf.GPTNeoXModel, hf.GPTNeoXConfig)),
    Entry(
        "transformers",
        "OPT, ReLU",
        language(hf.OPTModel, hf.OPTConfig, ffn_dim=16, word_embed_proj_dim=16),
        "kinked",
        "ReLU",
    ),
    Entry(
        "transformers",
        "Mamba",
        language(
            hf.MambaModel, hf.MambaConfig, state_size=4, expand=1, conv_kernel=2, time_step_rank=2
        ),
    ),
    Entry("transformers", "ViT", vision(hf.ViTModel, hf.ViTConfig)),
    Entry("transformers", "DeiT", vision(hf.DeiTModel, hf.DeiTConfig)),
    Entry("transformers", "ConvNeXt", convnext),
]
