"""What counts as a secret, in documents, in lines of text and in files."""

from __future__ import annotations

import json

import pytest

from mosaic_services.masking import MASK, blank, find_mask, mask, secrets_in

SECRET = 'sk-12 "3\\45'


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "OPENAI_API_KEY",
        "openaiApiKey",
        "accessToken",
        "hf_token",
        "token",
        "config.wandb.api-key",
        "db_password",
        "dbPassword",
        "client_secret",
        "privateKey",
        "Authorization",
        "aws_secret_access_key",
        "apikey",
        "api_keys",
        "credentials",
    ],
)
def test_names_of_secrets(name):
    assert mask({name: SECRET}) == {name: MASK}
    assert mask({name: [SECRET, {"password": SECRET, "size": 3}]}) == {name: [MASK, {"password": MASK, "size": 3}]}
    plain = "sk-12345"
    for text in (
        json.dumps({"event": "run_started", name: SECRET, "next": "shown"}),
        json.dumps({"event": "run_started", "config": {name: [SECRET, SECRET]}, "next": "shown"}),
        json.dumps({"reply": json.dumps({name: plain}), "next": "shown"}),
        f"{name}: {plain}\nnext: shown",
        f"python train.py --{name}={plain} --next=shown",
        f"https://example.org/?{name}={plain}&next=shown",
        f"{{'{name}': '{plain}', 'next': 'shown'}}",
        f'{{"next": "shown", "{name}": "{plain} cut off',
    ):
        hidden = mask([text])[0]
        assert "shown" in hidden
        assert MASK in hidden, text
        assert "sk-12" not in hidden, text
        assert "cut off" not in hidden
    line = json.dumps({"config": {name: [SECRET], "other": SECRET}})
    assert json.loads(mask(line)) == {"config": {name: [MASK], "other": SECRET}}
    assert mask(["train.py", f"--{name}", plain, plain]) == ["train.py", f"--{name}", MASK, plain]


@pytest.mark.parametrize(
    "document",
    [
        {"eos_token": "</s>", "padToken": "<pad>", "stop_tokens": ["\n"], "max_tokens": 100, "tokens": 3},
        {"key_env": "OPENAI_API_KEY", "token_field": "max_tokens", "key": "left", "keys": ["a"], "monkey": "x"},
        {"api_key": "", "token": None, "password": 5},
        {"properties": {"api_key": {"type": "string", "default": ""}}, "required": ["api_key"]},
        ["--key-env", "OPENAI_API_KEY", "--max_tokens=5", '{"prompt_tokens": 5, "eos_token": "</s>", "token": null}'],
        "KeyError: 'x'; key: left; at 12:30 max_tokens=5",
    ],
)
def test_what_is_no_secret(document):
    assert mask(document) == document
    assert secrets_in(document) == []


def test_long_lines_cost_little():
    """A name that never ends, quotes that never close: each once was a way to keep a search busy for minutes."""
    for text in ("a" * 10**6 + "=", "token" * 200_000 + ":", 'token="' * 150_000, "key=[" * 200_000, "key\\" * 200_000):
        assert len(mask(text)) <= len(text) + len(MASK)


def test_secrets_are_blanked_in_files_however_they_are_written():
    secret, short = "pass\\word-ü", "abc"
    config = {"api_key": secret, "args": ["--token", short], "shown": "abcdef"}
    assert set(secrets_in(config)) == {secret, short}
    for written in (secret, json.dumps(config), json.dumps(config, ensure_ascii=False), str(config)):
        data = written.encode()
        hidden = blank(data, secrets_in(config))
        assert len(hidden) == len(data)
        assert b"word" not in hidden
        assert b"abc" not in hidden.replace(b"abcdef", b"")


def test_mask_that_comes_back_is_found():
    assert find_mask({"spec": {"config": {"a": [1, {"api_key": MASK}]}}}) == "spec.config.a.1.api_key"
    assert find_mask({"args": [f"--api_key={MASK}"]}) == "args.0"
    assert find_mask({"spec": {"config": {"a": [1, None, "x"]}}}) is None
