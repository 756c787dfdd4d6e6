"""The checks that need a GPU: run with `pytest -m gpu tests/gpu`."""

import pytest
import torch

from frontrunner.algo.packing import pack
from frontrunner.config import AlgoSection, TrainSection
from frontrunner.engine.engine import LocalEngine
from frontrunner.protocols import GenerateRequest
from frontrunner.testing import FAMILIES, tiny_model
from frontrunner.train.attention import PrefixTree, _cuda, _masked
from frontrunner.train.trainer import LocalTrainer
from frontrunner.types import Sample

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_engine_and_trainer_agree(family: str, dtype: torch.dtype) -> None:
    model = tiny_model(family).to("cuda", dtype)
    engine = LocalEngine(model, max_batch=4, max_context=128)
    prompts = [tuple(range(3 + n, 30 + n)) for n in range(8)]
    for n, prompt in enumerate(prompts):
        engine.submit(GenerateRequest(str(n), prompt, 16, 1.0, n, (2,)))
    samples = []
    while engine.num_pending:
        for r in engine.step():
            prompt = prompts[int(r.request_id)]
            mask = (False,) * len(prompt) + (True,) * len(r.token_ids)
            logprobs = (0.0,) * len(prompt) + r.logprobs
            samples.append(Sample(prompt + r.token_ids, mask, logprobs, 1.0, "low", 0))
    metrics = LocalTrainer(model, AlgoSection(), TrainSection(), 1.0).train_step(samples).metrics
    if dtype == torch.float32:
        assert metrics["mismatch/max_abs"] < 1e-3
    else:
        assert metrics["mismatch/mean_abs"] < 2e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_along_a_tree_equals_its_mask(dtype: torch.dtype) -> None:
    opening = list(range(300))
    sequences = [[*opening, *range(1000 * n, 1000 * n + 70 * n)] for n in range(1, 5)]
    (plan,) = pack(sequences, 10**6)
    assert plan.ends is not None
    tree = PrefixTree(plan.ends, "cuda")
    torch.manual_seed(0)
    inputs = [
        torch.randn(1, heads, plan.num_tokens, 64, device="cuda", dtype=dtype, requires_grad=True)
        for heads in (6, 2, 2)
    ]
    found, expected = _cuda(*inputs, tree, 0.1), _masked(*inputs, tree, 0.1)
    limit = 1e-3 if dtype == torch.float32 else 3e-2
    assert float((found - expected).abs().max()) < limit
    grad = torch.randn_like(expected)
    for ours, exact in zip(
        torch.autograd.grad(found, inputs, grad),
        torch.autograd.grad(expected, inputs, grad),
        strict=True,
    ):
        assert float((ours - exact).norm() / exact.norm()) < limit


def test_a_model_on_the_gpu_is_packed() -> None:
    trainer = LocalTrainer(tiny_model(head_dim=64).cuda(), AlgoSection(), TrainSection(), 1.0)
    assert trainer.ways.packing
    assert trainer.ways.projection
