"""What clients may send: every field is checked, and every refusal is one sentence.

Fields of the OpenAI interface that would change what is sampled and that the engine does not know
are refused, never ignored. Those that change nothing (`user`, `store`, ...) are accepted.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from frontrunner.engine.engine import PauseMode
from frontrunner.errors import UserError

MAX_CHOICES = 128
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-3, 100.0
"""Beyond these, and but for 0, float32 probabilities are no longer those of a softmax."""

B = TypeVar("B", bound="Body")


def _listed(value: Any) -> Any:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)]
Stop = Annotated[list[Annotated[str, Field(min_length=1)]], BeforeValidator(_listed)]
Nothing = Annotated[None, BeforeValidator(lambda value: value or None)]
"""A field that may be sent, but must ask for nothing: null, 0, false, {} or []."""


class Body(BaseModel):
    """The JSON object of a request; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Sampling(Body):
    """How to sample; null and absent mean the same."""

    temperature: Temperature | None = None
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    """-1 and 0: all tokens."""
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = None
    stop: Stop = Field([], max_length=16)
    stream: bool | None = None

    @model_validator(mode="after")
    def _reachable(self) -> Sampling:
        if self.temperature and self.temperature < MIN_TEMPERATURE:
            raise ValueError(f"temperature must be 0 or at least {MIN_TEMPERATURE:g}")
        return self


class GenerateBody(Sampling):
    """POST /generate: tokens in, tokens out."""

    token_ids: list[int] = Field(min_length=1)
    max_new_tokens: int = Field(ge=1)
    stop_token_ids: list[int] = []


class StreamOptions(Body):
    include_usage: bool = False
    include_obfuscation: Nothing = None


class OpenAIBody(Sampling):
    """What text and chat completions share."""

    model: str | None = None
    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=1)
    stream_options: StreamOptions | None = None
    # Accepted where they ask for nothing.
    frequency_penalty: Nothing = None
    presence_penalty: Nothing = None
    logit_bias: Nothing = None
    # Accepted, and without influence on what is sampled.
    user: Any = None
    metadata: Any = None
    store: Any = None
    service_tier: Any = None
    prompt_cache_key: Any = None
    safety_identifier: Any = None


class CompletionBody(OpenAIBody):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    logprobs: Literal[0] | None = None
    """0: of the sampled tokens. Alternatives are not offered."""
    echo: Nothing = None
    suffix: Nothing = None
    best_of: Nothing = None


class TextPart(Body):
    type: Literal["text"]
    text: str


class Function(Body):
    name: str
    arguments: str = "{}"


class Call(Body):
    id: str = ""
    type: Literal["function"] = "function"
    function: Function


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    refusal: Nothing = None
    audio: Nothing = None
    annotations: Any = None
    function_call: Nothing = None

    @property
    def text(self) -> str:
        if isinstance(self.content, list):
            return "".join(part.text for part in self.content)
        return self.content or ""


class ToolFunction(Body):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Body):
    type: Literal["function"]
    function: ToolFunction


class ResponseFormat(Body):
    type: Literal["text"]


class ChatBody(OpenAIBody):
    """POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    reasoning_effort: str | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: Literal[0] | None = None
    response_format: ResponseFormat | None = None


class PauseBody(Body):
    """POST /pause."""

    mode: PauseMode = "wait"


class UpdateBody(Body):
    """POST /update_weights: weights from a model folder that the server can read."""

    path: str
    version: int | None = Field(None, ge=0)
    checksum: str = ""
    mode: PauseMode | None = None


def parse(kind: type[B], body: bytes) -> B:
    """A checked request; raises `UserError` with one sentence that names field and reason."""
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise UserError(_sentence(error.errors()[0])) from None


def _sentence(problem: Any) -> str:
    """The first problem in words. Of a union's several complaints the first one is as good."""
    where = ".".join(str(part) for part in problem["loc"] if not str(part).endswith("]"))
    kind, message = problem["type"], str(problem["msg"]).removeprefix("Value error, ")
    if kind == "json_invalid":
        return f"the body is not valid JSON: {problem['ctx']['error']}"
    if kind == "extra_forbidden":
        return f"{where}: this server does not know the field; leave it out"
    if kind == "missing":
        return f"{where}: the field is missing"
    if kind in ("none_required", "literal_error") and where:
        given = json.dumps(problem["input"], default=str)[:80]
        wanted = problem.get("ctx", {}).get("expected", "null")
        return f"{where}: {given} is not supported here; give {wanted} or leave the field out"
    return f"{where}: {message}" if where else message
