"""Which weight version samples which step."""

import time

import pytest

from frontrunner.rollout.pipeline import Pipeline


class Recorder:
    """Stands where an engine stands; notes versions in the order in which they arrive."""

    def __init__(self) -> None:
        self.version = 0
        self.fail_at = -1

    def load_weights(self, state: dict, version: int) -> None:
        if version == self.fail_at:
            raise ValueError("weights refused")
        self.version = version


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_versions_follow_the_staleness(staleness: int) -> None:
    engine = Recorder()
    sampled: dict[int, int] = {}

    def collect(step: int) -> list:
        time.sleep(0.001 * (step % 3))
        sampled[step] = engine.version
        return []

    with Pipeline(engine, collect, first_step=0, last_step=9, max_staleness=staleness) as pipeline:
        for step in range(10):
            pipeline.take()
            pipeline.publish({}, step + 1)
    assert sampled == {step: max(0, step - staleness) for step in range(10)}
    assert engine.version == 10


def test_a_resumed_pipeline_starts_where_it_stopped() -> None:
    engine = Recorder()
    steps: list[int] = []
    with Pipeline(
        engine, lambda s: steps.append(s) or [], first_step=4, last_step=6, max_staleness=5
    ) as pipeline:
        for step in range(4, 7):
            pipeline.take()
            pipeline.publish({}, step + 1)
    assert steps == [4, 5, 6]


def test_a_refused_update_is_raised() -> None:
    engine = Recorder()
    engine.fail_at = 1

    def run() -> None:
        with Pipeline(engine, lambda _: [], first_step=0, last_step=5, max_staleness=0) as pipeline:
            for step in range(6):
                pipeline.take()
                pipeline.publish({}, step + 1)

    with pytest.raises(ValueError, match="refused"):
        run()


def test_a_failed_collection_is_raised() -> None:
    def collect(step: int) -> list:
        raise RuntimeError("engine broke")

    with (
        pytest.raises(RuntimeError, match="engine broke"),
        Pipeline(Recorder(), collect, first_step=0, last_step=5, max_staleness=1) as pipeline,
    ):
        pipeline.take()
