"""Log-probabilities of a batch's tokens under a model, by the fastest way that the model allows.

Two short-cuts are taken where they give what the model itself gives, which `examine` finds out by
trying them on a few tokens:

- packing: sequences share one row, and common beginnings are computed once (`train.attention`).
  Otherwise every sequence has a padded row of its own;
- projection: logits are a linear function of the last hidden states, and are computed in chunks
  (`train.logprobs`). Otherwise the model's own logits of all trained positions are used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from frontrunner.algo.packing import pack
from frontrunner.train.attention import PrefixTree, install
from frontrunner.train.batch import Batch
from frontrunner.train.logprobs import projected_logprobs, token_logprobs
from frontrunner.train.replay import restrict


@dataclass(frozen=True, slots=True)
class ShortCuts:
    """What a model allows."""

    packing: bool
    projection: bool


def examine(model: Any) -> ShortCuts:
    """Try the short-cuts; a model that allows packing is left with our attention installed."""
    training, before = model.training, model.config._attn_implementation
    model.eval()
    with torch.no_grad():
        projection = _works(lambda: _plain_projection(model))
        packing = not _limits_attention(model.config) and _works(lambda: _plain_packing(model))
    if not packing and model.config._attn_implementation != before:
        model.set_attn_implementation(before)
    model.train(training)
    return ShortCuts(packing, projection)


def _works(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except Exception:  # a foreign model may refuse what it does not know in any way it likes
        return False


def _limits_attention(config: Any) -> bool:
    """Whether some layer looks at a part of the context only; a few tokens would not show it."""
    config = config.get_text_config()
    window = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    kinds = set(getattr(config, "layer_types", None) or ())
    return bool(window) or not kinds <= {"full_attention"}


def _probe_tokens(model: Any) -> list[list[int]]:
    """Three sequences, two of which begin with the same 12 tokens."""
    size = model.get_input_embeddings().num_embeddings
    ids = [(7 + 31 * n) % size for n in range(40)]
    return [ids[:20], ids[:12] + ids[20:30], ids[30:]]


def _plain_projection(model: Any) -> bool:
    """Whether logits are the projection of the last hidden states, to the bit: soft caps and
    scales may change so little that a tolerance would not see them."""
    ids = torch.tensor(_probe_tokens(model)[:1], device=model.device)
    head = model.get_output_embeddings()
    seen: list[Tensor] = []
    handle = head.register_forward_hook(lambda _, inputs, output: seen.extend([*inputs, output]))
    try:
        logits = model(input_ids=ids, use_cache=False).logits
    finally:
        handle.remove()
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    projected = torch.nn.functional.linear(hidden, head.weight, head.bias)
    given, made = seen
    return bool(
        torch.equal(given, hidden)
        and torch.equal(made, projected)
        and torch.equal(logits, made.to(logits))
    )


def _plain_packing(model: Any) -> bool:
    """Whether sequences in one tree get the logits that they get alone."""
    sequences = _probe_tokens(model)
    alone = [
        model(input_ids=torch.tensor([s], device=model.device), use_cache=False).logits[0]
        for s in sequences
    ]
    (tree,) = pack(sequences, 1000)
    assert tree.ends is not None
    ids, positions = torch.zeros(2, 1, tree.num_tokens, dtype=torch.long)
    for index, path in zip(tree.members, tree.paths, strict=True):
        ids[0, path] = torch.tensor(sequences[index])
        positions[0, path] = torch.arange(len(path))
    install(model)
    arguments = tree_arguments(
        ids.to(model.device), positions.to(model.device), PrefixTree(tree.ends, model.device)
    )
    packed = model(**arguments).logits[0]
    places = torch.cat([torch.from_numpy(p) for p in tree.paths]).to(model.device)
    expected = torch.cat([alone[i] for i in tree.members]).float()
    error = (packed[places].float() - expected).abs().mean() / expected.std()
    # What rounding may explain; a wrong attention pattern is off by a multiple. False for NaN too.
    return bool(error < (1e-3 if model.dtype == torch.float32 else 0.05))


def tree_arguments(ids: Tensor, positions: Tensor, tree: PrefixTree) -> dict[str, Any]:
    """Arguments of a forward pass over one pack; ids and positions `[1, T]`."""
    # A mask that is already four-dimensional keeps transformers from building a [T, T] one.
    return {
        "input_ids": ids,
        "position_ids": positions,
        "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=ids.device),
        "prefix_tree": tree,
        "use_cache": False,
    }


def score(model: Any, batch: Batch, temperature: float, ways: ShortCuts) -> tuple[Tensor, Tensor]:
    """log pi `[N]` of the trainable tokens and the entropy of their distributions `[N]`, float32.

    No gradient flows through the entropy.
    """
    if batch.tree is None:
        arguments = {"input_ids": batch.input_ids, "use_cache": False}
    else:
        arguments = tree_arguments(batch.input_ids, batch.positions, batch.tree)
    if ways.projection:
        hidden = model.base_model(**arguments).last_hidden_state
        head = model.get_output_embeddings()
        picked = hidden.flatten(0, 1)[batch.sources]
        logprobs, entropy = projected_logprobs(
            picked, head.weight, head.bias, batch.targets, temperature, batch.kept
        )
    else:
        logits = _picked_logits(model, arguments, batch.sources)
        logits = restrict(logits.float(), batch.kept)
        logprobs, entropy = token_logprobs(logits, batch.targets, temperature)
    return logprobs[batch.entries], entropy[batch.entries]


def _picked_logits(model: Any, arguments: dict[str, Any], sources: Tensor) -> Tensor:
    """Logits `[P, V]` of the places that predict.

    A hook picks them before the output projection, so that whatever the architecture does around
    its projection is done, and done to no other place.
    """
    head = model.get_output_embeddings()

    def pick(_: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (inputs[0].flatten(0, 1)[sources],)

    handle = head.register_forward_pre_hook(pick)
    try:
        logits: Tensor = model(**arguments).logits
    finally:
        handle.remove()
    return logits
