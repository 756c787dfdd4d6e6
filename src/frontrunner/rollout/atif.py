"""Stored rollouts as ATIF v1.8 trajectories (Agent Trajectory Interchange Format).

One agent step per turn, with the token ids and log-probabilities that were sampled, so that the
file holds what training needs. Written without the `atif` package; a test reads it with that one
where it is installed.
"""

from __future__ import annotations

from typing import Any

from frontrunner import __version__
from frontrunner.envs.tools import parse
from frontrunner.types import Rollout, Turn

SCHEMA_VERSION = "ATIF-v1.8"


def trajectory(
    rollout: Rollout, *, instruction: str, system: str = "", model_name: str | None = None
) -> dict[str, Any]:
    """A rollout as an ATIF document; `system` is left out where it is not known."""
    steps: list[dict[str, Any]] = []
    if system:
        steps.append({"source": "system", "message": system})
    steps.append({"source": "user", "message": instruction})
    context: list[int] = []
    for number, turn in enumerate(rollout.turns, 1):
        context += turn.prompt
        steps.append(_step(turn, number, rollout.effort, list(context)))
        context += turn.output
    steps = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    agent: dict[str, Any] = {"name": "frontrunner", "version": __version__}
    if model_name:
        agent["model_name"] = model_name
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": f"{rollout.task_id}-{rollout.effort}-{rollout.seed}",
        "agent": agent,
        "steps": steps,
        "final_metrics": _final(rollout, len(steps)),
        "extra": {
            "task_id": rollout.task_id,
            "seed": rollout.seed,
            "status": rollout.status,
            "reward": rollout.reward,
            "verdict": {
                "kind": rollout.verdict.kind,
                "value": rollout.verdict.value,
                "reason": rollout.verdict.reason,
                "tests": rollout.verdict.tests,
                "verifier": rollout.verdict.verifier,
            },
            "submission": rollout.submission,
        },
    }


def _step(turn: Turn, number: int, effort: str, context: list[int]) -> dict[str, Any]:
    command = parse(turn.text)
    result: dict[str, Any] = {"content": turn.observation}
    step: dict[str, Any] = {
        "source": "agent",
        "reasoning_effort": effort,
        "message": turn.text,
        "observation": {"results": [result]},
        "metrics": {
            "prompt_tokens": len(context),
            "completion_tokens": len(turn.output),
            "cached_tokens": turn.usage.cached,
            "prompt_token_ids": context,
            "completion_token_ids": list(turn.output),
            "logprobs": list(turn.logprobs),
            "extra": {"weight_version": turn.version, "tool_seconds": turn.usage.tool_seconds},
        },
        "llm_call_count": 1,
    }
    if command is not None and turn.action != "malformed":
        call = f"call-{number}"
        arguments = {"argument": command.argument} if command.argument else {}
        step["tool_calls"] = [
            {"tool_call_id": call, "function_name": turn.action, "arguments": arguments}
        ]
        result["source_call_id"] = call
    return step


def _final(rollout: Rollout, num_steps: int) -> dict[str, Any]:
    usages = [turn.usage for turn in rollout.turns]
    final: dict[str, Any] = {
        "total_prompt_tokens": sum(u.fresh + u.cached + u.write for u in usages),
        "total_completion_tokens": sum(u.output for u in usages),
        "total_cached_tokens": sum(u.cached for u in usages),
        "total_steps": num_steps,
    }
    if rollout.cost is not None:
        # C also prices time; the ledger of tokens above allows any other price.
        final["extra"] = {"cost": rollout.cost}
    return final
