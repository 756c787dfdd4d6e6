"""Conversations in tokens: what is appended turn by turn equals the template's own rendering."""

import pytest

from frontrunner.envs.chat import ChatFormat
from frontrunner.errors import UserError
from frontrunner.testing import byte_tokenizer

TEMPLATES = {
    "chatml": None,
    "markers without end-of-turn token": (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }}"
        "{% if m.role == 'assistant' %}<|im_end|>{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_appended_tokens_equal_the_whole_template(name: str) -> None:
    tokenizer = byte_tokenizer()
    if TEMPLATES[name]:
        tokenizer.chat_template = TEMPLATES[name]
    chat = ChatFormat(tokenizer)
    ids = chat.opening("Effort: low", "Fix `f`.")
    messages = [
        {"role": "system", "content": "Effort: low"},
        {"role": "user", "content": "Fix `f`."},
    ]
    for answer, observation in [("view f", "1 def f():"), ("edit 1 a => b", "1 b"), ("test", "ok")]:
        ids += chat.answer(answer) + chat.continuation(observation, closed=True)
        messages += [
            {"role": "assistant", "content": answer},
            {"role": "user", "content": observation},
        ]
    whole = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(ids) == whole


def test_an_answer_cut_by_length_is_closed_in_the_continuation() -> None:
    chat = ChatFormat(byte_tokenizer())
    stop = chat.stop_token_ids[0]
    assert chat.continuation("x", closed=False).count(stop) == 2
    assert chat.continuation("x", closed=True).count(stop) == 1


def test_special_markers_in_text_of_an_answer_are_not_shown_to_the_tools() -> None:
    chat = ChatFormat(byte_tokenizer())
    assert chat.decode(tuple(chat.answer("submit"))) == "submit"


def test_a_tokenizer_without_template_is_refused() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        ChatFormat(tokenizer)


def test_a_template_without_system_role_gets_it_in_the_users_message() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    text = tokenizer.decode(ChatFormat(tokenizer).opening("Effort: low", "Fix `f`."))
    assert text == "<|im_start|>user\nEffort: low\n\nFix `f`.<|im_end|>\n<|im_start|>assistant\n"
