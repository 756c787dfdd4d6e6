"""The checks that need a GPU: run with `pytest -m gpu tests/gpu`."""

import pytest
import torch

from frontrunner.config import AlgoSection, TrainSection
from frontrunner.engine.engine import LocalEngine
from frontrunner.protocols import GenerateRequest
from frontrunner.testing import FAMILIES, tiny_model
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
