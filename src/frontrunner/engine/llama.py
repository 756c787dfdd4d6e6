"""Decoders of the Llama shape, computed directly from a Hugging Face model's weights.

Llama, Mistral, Qwen2, Qwen3, SmolLM2 and SmolLM3 share one layer:

    h += W_o attention(rotate(q), rotate(k), v)      q, k, v = W_qkv norm(h)
    h += W_down (silu(g) * u)                         g, u   = W_gate_up norm(h)

with an optional norm of q and k per head, optional biases, and layers without rotation. Computing
it here saves most of the time that small models spend between matrix products: q, k, v and gate, up
are one product each, rotation works in place, and residuals are added by the product itself.

The fused weights are the model's own: its parameters become views of them, so `state_dict` and
in-place weight updates work as before, and no weight exists twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from frontrunner.engine.attention import Layout, attend
from frontrunner.engine.kv_cache import KVCache, kv_shape

CLASSES = {
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "SmolLM3ForCausalLM",
}
ROTATIONS = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embedding that depend on a token's position alone."""


def is_llama_shaped(model: Any) -> bool:
    """Whether `LlamaDecoder` computes what the model computes."""
    if type(model).__name__ not in CLASSES or not type(model).__module__.startswith("transformers"):
        return False
    rotation = getattr(model.config, "rope_parameters", None) or {}
    linear = all(
        type(m) is nn.Linear for name, m in model.named_modules() if name.endswith("_proj")
    )
    return linear and rotation.get("rope_type") in ROTATIONS and model.config.hidden_act == "silu"


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one layer; fused ones are `[out, in]`."""

    norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    rotates: bool
    o: Tensor
    o_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class LlamaDecoder:
    """Computes logits of a pass. N tokens, C hidden size, Hq query heads, H key-value heads."""

    def __init__(self, model: Any, cache: KVCache, max_context: int) -> None:
        inner, config = model.model, model.config
        self.cache = cache
        self.num_heads = config.num_attention_heads
        self.num_kv_heads, self.head_dim = kv_shape(config)
        self.eps: float = config.rms_norm_eps
        self.scale: float = inner.layers[0].self_attn.scaling
        self.embed, self.norm = inner.embed_tokens.weight, inner.norm.weight
        self.head = model.get_output_embeddings()
        self.layers = [_layer_of(layer) for layer in inner.layers]
        positions = torch.arange(max_context, device=self.embed.device)[None]
        cos, sin = inner.rotary_emb(self.embed[:1], positions)
        self._cos = cos[0, :, None]  # [T, 1, D]
        # rotate_half(x) * sin = roll(x, D / 2) * (-sin on the first half, sin on the second)
        half = self.head_dim // 2
        self._sin = torch.cat([-sin[0, :, None, :half], sin[0, :, None, half:]], dim=-1)

    def logits(self, ids: Tensor, positions: Tensor, layout: Layout, wanted: Tensor) -> Tensor:
        """`[len(wanted), V]` for the tokens at places `wanted`, from `ids`, `positions` `[N]`."""
        hidden = F.embedding(ids, self.embed)
        cos, sin = self._cos[positions], self._sin[positions]
        for number, layer in enumerate(self.layers):
            self._attention(hidden, number, layer, cos, sin, layout)
            self._mlp(hidden, layer)
        last = F.rms_norm(hidden[wanted], self.norm.shape, self.norm, self.eps)
        logits: Tensor = self.head(last)
        return logits

    def _attention(
        self, hidden: Tensor, number: int, layer: Layer, cos: Tensor, sin: Tensor, layout: Layout
    ) -> None:
        """Add the attention of a layer to `hidden` `[N, C]`, in place."""
        queries, turned = self.num_heads, self.num_heads + self.num_kv_heads
        x = F.rms_norm(hidden, layer.norm.shape, layer.norm, self.eps)
        qkv = F.linear(x, layer.qkv, layer.qkv_bias)
        heads = qkv.view(len(x), -1, self.head_dim)  # [N, Hq + 2 H, D]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = heads[:, :queries], heads[:, queries:turned]
            q.copy_(F.rms_norm(q, layer.q_norm.shape, layer.q_norm, self.eps))
            k.copy_(F.rms_norm(k, layer.k_norm.shape, layer.k_norm, self.eps))
        if layer.rotates:
            both = heads[:, :turned]
            rolled = both.roll(self.head_dim // 2, -1)
            both.mul_(cos).addcmul_(rolled, sin)
        self.cache.write(number, layout.places, qkv[:, queries * self.head_dim :])
        out = attend(
            heads[:, :queries],
            heads[:, queries:turned],
            heads[:, turned:],
            self.cache,
            number,
            layout,
            self.scale,
        )
        _add_product(hidden, out.reshape(len(x), -1), layer.o, layer.o_bias)

    def _mlp(self, hidden: Tensor, layer: Layer) -> None:
        """Add the feed-forward part of a layer to `hidden` `[N, C]`, in place."""
        x = F.rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, self.eps)
        gate, up = F.linear(x, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        _add_product(hidden, F.silu(gate).mul_(up), layer.down, layer.down_bias)


def _add_product(hidden: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    hidden.addmm_(x, weight.t())
    if bias is not None:
        hidden.add_(bias)


def _layer_of(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    qkv, qkv_bias = _fuse(attention.q_proj, attention.k_proj, attention.v_proj)
    gate_up, gate_up_bias = _fuse(mlp.gate_proj, mlp.up_proj)
    return Layer(
        norm=layer.input_layernorm.weight,
        qkv=qkv,
        qkv_bias=qkv_bias,
        q_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        k_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        rotates=bool(getattr(attention, "use_rope", True)),
        o=attention.o_proj.weight,
        o_bias=attention.o_proj.bias,
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=gate_up,
        gate_up_bias=gate_up_bias,
        down=mlp.down_proj.weight,
        down_bias=mlp.down_proj.bias,
    )


def _fuse(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """One weight and bias for several products; the modules' own become views of them."""
    weight = _join([linear.weight for linear in linears])
    biased = linears[0].bias is not None
    return weight, _join([linear.bias for linear in linears]) if biased else None


def _join(parts: list[Tensor]) -> Tensor:
    """One tensor that holds `parts` below each other, and of which they become views."""
    whole = torch.cat([part.data for part in parts])
    held = parts[0].data.as_strided(whole.shape, whole.stride()) if _adjoin(parts) else whole
    start = 0
    for part in parts:
        part.data = held[start : start + len(part)]
        start += len(part)
    return held


def _adjoin(parts: list[Tensor]) -> bool:
    """Whether they are views of one tensor already: another engine has the same model."""
    ends = [part.data_ptr() + part.nbytes for part in parts]
    follow = all(part.data_ptr() == end for part, end in zip(parts[1:], ends, strict=False))
    same = len({part.untyped_storage().data_ptr() for part in parts}) == 1
    return follow and same and all(part.is_contiguous() for part in parts)
