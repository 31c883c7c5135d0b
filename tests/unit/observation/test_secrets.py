"""What is taken out of a record and what stays."""

from __future__ import annotations

import base64
import json
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gscalar.observation.secrets import (
    REDACTED,
    is_secret_name,
    redact,
    redact_spec,
    redact_text,
    redact_variables,
    redact_words,
)

SECRET_NAMES = [
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN",
    "PGPASSWORD", "MYSQL_PWD", "DB_PASS", "GITHUB_PAT", "GHTOKEN", "SENTRY_DSN", "openai_apikey", "apiKey",
    "--api-key", "-token", "GOOGLE_APPLICATION_CREDENTIALS", "client.secret", "SSH_AUTH_SOCK", "private-key", "sig",
    "X-Amz-Signature", "SLACK_TOKEN_PROD", "password2", "KEY", "encryption_key",
]  # fmt: skip
PLAIN_NAMES = [
    "TOKENIZERS_PARALLELISM", "num_tokens", "max_tokens", "--pad-token-id", "eos_token", "token_dim", "PWD", "OLDPWD",
    "PATH", "PYTHONPATH", "OMP_NUM_THREADS", "KEYBOARD", "monkey", "sort_key", "compass", "author", "authority",
    "bypass", "--key-size", "pattern", "signal", "HF_HOME", "NCCL_DEBUG", "passes",
]  # fmt: skip
# Made up, with the prefixes that the services publish.
KEYS = [
    "hf_" + "a1B2" * 8, "sk-proj-" + "a1B2" * 8, "ghp_" + "a1B2" * 9, "github_pat_" + "a1B2" * 8, "AKIA" + "A1B2" * 4,
    "AIza" + "a1B2" * 8, "xoxb-" + "1234567890-" * 2, "glpat-" + "a1B2" * 5, "pypi-" + "a1B2" * 8,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl", "nvapi-" + "a1B2" * 5,
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nMIIEow",
]  # fmt: skip
KEPT_VALUES = [
    "/usr/lib/x86_64-linux-gnu:/opt/Cuda12/lib64", "GPU-1b9f0c3e-2a41-4f0e-9c57-0123456789ab",
    "MIG-GPU-1b9f0c3e-2a41-4f0e-9c57-0123456789ab/7/0", "0123456789abcdef0123456789abcdef01234567",
    "meta-llama/Llama-3.1-70B-Instruct-with-a-rather-long-name", "data/Models2/cache/llama-3-70B-chat-hf/shards",
    "node[01-32,40],gpu[1-4]", "NCCL_SOCKET_IFNAME=eth0", "expandable_segments:True,max_split_size_mb:512",
    "https://example.org/data.tar?version=2#part", "git@github.com:owner/repo.git", "run.py --lr 3e-4 --num_tokens=100",
    "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_4:1,mlx5_5:1", "a=b", "{\"lr\": 0.1, \"name\": \"x\"}", "",
    "/a1B/c2D/e3F/g4H/i5J/k6L/m7N/o8P/q9R", "a1B/c2D/e3F/g4H/i5J/k6L/m7N/o8P/q9R",
    "A_RATHER_LONG_CONSTANT_NAME_WITH_4_DIGITS_2024", "/home/me/MyProject2024/src/MyPackage/SomeLongModuleName",
]  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_that_says_secret_hides_the_value(name: str) -> None:
    assert is_secret_name(name)
    assert redact(name, "hunter2") == REDACTED


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_name_that_only_sounds_like_one_does_not(name: str) -> None:
    assert redact(name, "hunter2") == "hunter2"


@pytest.mark.parametrize("value", KEPT_VALUES)
def test_values_that_a_training_needs_stay_as_they_are(value: str) -> None:
    assert redact("NAME", value) == value


@pytest.mark.parametrize("switch", ["0", "1", "true", "False", "off"])
def test_a_switch_is_no_secret(switch: str) -> None:
    assert redact("HF_HUB_DISABLE_IMPLICIT_TOKEN", switch) == switch


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[:12])
def test_the_keys_of_known_services_go_wherever_they_stand(key: str) -> None:
    for text in (key, f"curl -H 'X: {key}' https://x.org", f"https://x.org/?q={key}", f"a,{key}"):
        got = redact("NAME", text)
        assert REDACTED in got
        assert not any(part in got for part in key.split("\n") if "-----" not in part)


def test_a_password_in_a_url_goes_and_the_rest_stays() -> None:
    assert redact_text("postgresql://me:pa@ss@db.org:5432/runs?sslmode=on") == (
        f"postgresql://{REDACTED}@db.org:5432/runs?sslmode=on"
    )
    assert redact_text("https://bucket.org/a?sig=abc&part=2&X-Amz-Credential=d") == (
        f"https://bucket.org/a?sig={REDACTED}&part=2&X-Amz-Credential={REDACTED}"
    )


def test_named_values_inside_a_text_go() -> None:
    assert redact_text("host=db password=abc dbname=x") == f"host=db password={REDACTED} dbname=x"
    assert redact_text('{"api_key": "abc", "n": "2"}') == f'{{"api_key": "{REDACTED}", "n": "2"}}'
    assert redact_text("Authorization: Bearer abc.def") == f"Authorization: Bearer {REDACTED}"


def test_a_command_line_loses_the_values_of_secret_options() -> None:
    words = [
        "train.py",
        "--api-key",
        "abc",
        "--password=abc",
        "--lr",
        "3e-4",
        "--token",
        "--num-tokens",
        "7",
        "key=abc",
    ]
    want = ["train.py", "--api-key", REDACTED, f"--password={REDACTED}", "--lr", "3e-4", "--token", "--num-tokens", "7"]
    assert redact_words(words) == [*want, f"key={REDACTED}"]


def test_a_spec_loses_the_secrets_of_its_environment_command_and_config() -> None:
    spec = {
        "name": "x",
        "env": {"HF_TOKEN": "abc", "TZ": "UTC"},
        "command": ["train.py", "--api-key", "abc"],
        "config": {
            "lr": 3e-4,
            "text_key": "content",
            "logger": {"api_key": "abc", "urls": ["https://me:abc@host.org/x"]},
            "eos_token": "</s>",
            "token": None,
        },
    }
    assert redact_spec(spec) == {
        "name": "x",
        "env": {"HF_TOKEN": REDACTED, "TZ": "UTC"},
        "command": ["train.py", "--api-key", REDACTED],
        "config": {
            "lr": 3e-4,
            "text_key": "content",
            "logger": {"api_key": REDACTED, "urls": [f"https://{REDACTED}@host.org/x"]},
            "eos_token": "</s>",
            "token": None,
        },
    }


@given(st.sampled_from(SECRET_NAMES), TEXT)
def test_no_secret_survives_its_name(name: str, value: str) -> None:
    is_switch = value.lower() in ("", "0", "1", "true", "false", "yes", "no", "on", "off", "none")
    assert redact_variables({name: value, "OTHER": "x"}) == {name: value if is_switch else REDACTED, "OTHER": "x"}


@given(TEXT, st.text(string.ascii_letters + string.digits + "!%$^*()-_", min_size=6, max_size=30), TEXT)
def test_no_password_of_a_url_survives(before: str, password: str, after: str) -> None:
    marked = f"QQ{password}QQ"
    assert marked not in redact_text(f"{before} https://me:{marked}@host.org/{after}")


def test_long_random_words_go() -> None:
    source = random.Random(0)
    for _ in range(500):
        word = "".join(source.choices(string.ascii_letters + string.digits, k=64))
        assert redact("NAME", word) == REDACTED
        encoded = base64.urlsafe_b64encode(source.randbytes(48)).decode()
        assert redact("NAME", f"x {encoded}") == f"x {REDACTED}"


@given(st.dictionaries(TEXT, TEXT, max_size=5))
def test_redacting_twice_is_redacting_once(variables: dict[str, str]) -> None:
    once = redact_variables(variables)
    assert redact_variables(once) == once
    json.dumps(once)


@given(st.lists(TEXT, max_size=6))
def test_a_command_line_keeps_its_length(words: list[str]) -> None:
    assert len(redact_words(words)) == len(words)
