"""Taking secrets out of what is recorded: environment variables, command lines, URLs.

A value goes when its name says that it is a secret, when it has the form of a known service's key
(the prefixes that services publish so that scanners find them), or when it is one long word of
random letters and digits. Passwords inside URLs go, the rest of the URL stays. Better once too
often: a record is copied to places that its writer never sees. Nothing of a secret is left, not
even its length. Limit: a secret of hexadecimal digits looks like a commit or a digest and is only
known by its name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

REDACTED: Final = "[redacted]"

# Secret wherever they stand in a name (PGPASSWORD), at the end of a word (GHTOKEN), and as whole words.
_SECRET_NAME = re.compile(
    r"password|passwd|passphrase|secret|credential|api_?key|access_?key|private_?key"
    r"|token(?:_|$)"
    r"|(?:^|_)(?:keys?$|pwd|pass|passcode|auth|authorization|bearer|cookie|jwt|pat|sig|signature|dsn)(?:_|$)"
)
# What looks like one and is none: the working directory, keys to sort by or of a sample's columns, the tokens
# of a language model.
_HARMLESS_NAME = re.compile(
    r"^(?:old)?pwd$"
    r"|(?:^|_)(?:public|primary|foreign|sort|cache|hash|group|join|dict)_keys?$"
    r"|(?:^|_)(?:text|label|input|output|target|image|feature|column|prompt|response|query|value)_keys?$"
    r"|(?:^|_)(?:pad|bos|eos|unk|mask|sep|cls|image|audio|video|special|per|by|num|max|min|each)_token(?=_|$)"
    r"|(?:^|_)token_(?:ids?|dim|type|count|budget|rate|len|length|size)(?=_|$)"
)
_HARMLESS_VALUES: Final = frozenset(("0", "1", "true", "false", "yes", "no", "on", "off", "none"))
_KNOWN_KEYS = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16}|AIza[\w-]{30,}|ya29\.[\w-]{16,}|xox[abeoprs]-[\w-]{10,}"
    r"|[srp]k_(?:live|test)_[A-Za-z0-9]{16,}|pypi-[\w-]{16,}|npm_[A-Za-z0-9]{30,}|dop_v1_[a-f0-9]{32,}"
    r"|nvapi-[\w-]{16,}|gsk_[A-Za-z0-9]{20,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*-----|\Z))"
)
_USERINFO = re.compile(r"(?<=://)[^/?#\s]+(?=@)")
# name=value in a URL or a connection string, "name": "value" in JSON.
_NAMED = re.compile(r"""([\w.-]+)(["']?\s*=\s*["']?|["']\s*:\s*["']?)([^\s"',;&#]+)""")
_BEARER = re.compile(r"\b(Bearer|Basic)(\s+)\S+", re.IGNORECASE)
_LONG_WORD = re.compile(r"(?<![\w+/=.-])[A-Za-z0-9+/_-]{32,}={0,2}(?![\w+/=.-])")
# Of random letters and digits 62 % follow one of another kind; of names and paths, fewer than 30 %.
_RANDOM_CHANGES: Final = 0.4
_RANDOM_LETTERS: Final = 24
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")  # a GPU's name, no secret


def redact(name: str, value: str) -> str:
    """Return the value as it may be recorded under this name; a value without secrets stays as it is."""
    if value and is_secret_name(name) and value.lower() not in _HARMLESS_VALUES:
        return REDACTED
    return redact_text(value)


def redact_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables as they may be recorded."""
    return {name: redact(name, value) for name, value in variables.items()}


def redact_words(words: Sequence[str]) -> list[str]:
    """Return a command line as it may be recorded; knows `--api-key VALUE` and `--api-key=VALUE`."""
    safe: list[str] = []
    secret_follows = False
    for word in words:
        is_option = word.startswith("-")
        safe.append(REDACTED if secret_follows and not is_option else redact_text(word))
        secret_follows = is_option and "=" not in word and is_secret_name(word)
    return safe


def redact_spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job spec's plain dict as it may be recorded: its command, environment and config without secrets."""
    env, command, config = spec.get("env") or {}, spec.get("command") or [], spec.get("config") or {}
    return {
        **spec,
        "env": redact_variables(env),
        "command": redact_words(command),
        "config": _redact_values("", config),
    }


def _redact_values(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _redact_values(key, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_redact_values(name, item) for item in value]
    return redact(name, value) if isinstance(value, str) else value


def redact_text(text: str) -> str:
    """Return text without the keys, the passwords in URLs and the long random words in it."""
    text = _KNOWN_KEYS.sub(REDACTED, text)
    text = _USERINFO.sub(REDACTED, text)
    text = _BEARER.sub(rf"\1\2{REDACTED}", text)
    text = _NAMED.sub(lambda match: match[1] + match[2] + redact_named(match[1], match[3]), text)
    return _LONG_WORD.sub(lambda match: REDACTED if _is_random(match[0]) else match[0], text)


def redact_named(name: str, value: str) -> str:
    """Return a value, or what stands for it if its name is that of a secret."""
    return REDACTED if is_secret_name(name) and value.lower() not in _HARMLESS_VALUES else value


def is_secret_name(name: str) -> bool:
    """Whether a variable, option or parameter of this name holds a secret."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip().lstrip("-"))
    snake = re.sub(r"[^a-z0-9]+|(?<=[a-z])\d+$", "_", words.lower()).strip("_")
    return bool(_SECRET_NAME.search(_HARMLESS_NAME.sub("_", snake)))


def _is_random(word: str) -> bool:
    """Whether letters and digits change places as they do at random, and all three kinds are there."""
    letters = [letter for letter in _UUID.sub("", word) if letter.isalnum()]
    kinds = ["digit" if letter.isdigit() else "upper" if letter.isupper() else "lower" for letter in letters]
    changes = sum(kind != before for before, kind in itertools.pairwise(kinds))
    is_path = word.startswith("/") or word.count("/") > len(word) // 16
    is_long = len(letters) >= _RANDOM_LETTERS and len(set(kinds)) == 3
    return is_long and not is_path and changes >= _RANDOM_CHANGES * len(letters)
