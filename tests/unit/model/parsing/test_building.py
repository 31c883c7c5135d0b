"""Each key takes its own type and limits; a mistake is named at its place with the way out."""

from __future__ import annotations

from typing import Any

import pytest

from gscalar.base.errors import SpecError
from gscalar.model.parsing import load_spec
from gscalar.model.spec import AllReduce, CosineSchedule, JobSpec, ParameterServers, WarmupStableDecaySchedule


def load(text: str, **flags: Any) -> JobSpec:
    return load_spec(text.encode(), "job.yaml", (), {}, {"command": ["true"], **flags}).spec


GOOD = {
    "a whole number is a number": ("hang_after_s: 60", "hang_after_s", 60.0),
    "an exponent is a number": ("hang_after_s: 6e1", "hang_after_s", 60.0),
    "off is a word": ("elastic: off", "elastic", "off"),
    "null is allowed where it means something": ("checkpoint: {every_s: null}", "checkpoint.every_s", None),
    "an optional number is a number": ("checkpoint: {every_steps: 5}", "checkpoint.every_steps", 5),
    "a limit itself is allowed": ("workers: 4096", "workers", 4096),
    "a section with nothing in it has its defaults": ("plan:", "plan.accumulate", 1),
    "a mapping with nothing in it is empty": ("config:", "config", {}),
    "hyperparameters may be nested": ("config: {a: {b: [1, {c: x}]}}", "config", {"a": {"b": [1, {"c": "x"}]}}),
    "hyperparameters may be null": ("config: {a: ~}", "config", {"a": None}),
    "a hyperparameter may be infinite": ("config: {a: .inf}", "config", {"a": float("inf")}),
    "variables take numbers as they are written": (
        "env: {A: 1.10, B: 0o17, C: true, D: off}",
        "env",
        {"A": "1.10", "B": "0o17", "C": "true", "D": "off"},
    ),
    "a variable may be empty": ("env: {A: }", "env", {"A": ""}),
    "tags take numbers as they are written": ("tags: {fold: 3}", "tags", {"fold": "3"}),
    "a kind chooses the schedule": (
        "plan: {schedule: {kind: cosine, warmup_steps: 10}}",
        "plan.schedule",
        CosineSchedule(warmup_steps=10),
    ),
    "each kind has its own keys": (
        "plan: {schedule: {kind: wsd, decay_steps: 5, decay: sqrt}}",
        "plan.schedule",
        WarmupStableDecaySchedule(decay_steps=5, decay="sqrt"),
    ),
    "parameter servers": (
        "plan: {sync: {kind: parameter_servers, servers: 2}}",
        "plan.sync",
        ParameterServers(servers=2),
    ),
    "the kind that a plan has by default need not be named": (
        "plan: {sync: {unused_parameters: true}}",
        "plan.sync",
        AllReduce(unused_parameters=True),
    ),
}


@pytest.mark.parametrize("sentence", GOOD)
def test_takes(sentence: str) -> None:
    text, key, want = GOOD[sentence]
    got: Any = load(text)
    for name in key.split("."):
        got = getattr(got, name)
    assert got == want
    assert type(got) is type(want)


COMMANDS = {
    "a line is split as a shell would": ("command: python x.py --note 'a b'", ("python", "x.py", "--note", "a b")),
    "a list is taken as it is": ("command: [python, 'a b.py']", ("python", "a b.py")),
    "numbers in a list are taken as they are written": ("command: [x, 1e-3, 007, true]", ("x", "1e-3", "007", "true")),
    "a folded text is one line": ("command: >-\n  python\n  train.py\n", ("python", "train.py")),
    "nothing is expanded": ("command: echo $HOME ~ *", ("echo", "$HOME", "~", "*")),
}  # fmt: skip


@pytest.mark.parametrize("sentence", COMMANDS)
def test_command(sentence: str) -> None:
    text, want = COMMANDS[sentence]
    assert load_spec(text.encode(), "job.yaml", (), {}, {}).spec.command == want


BAD = {
    "a typing error in a key": ("wrokers: 2", "unknown-key", "1:1", "Did you mean `workers`?"),
    "a typing error in an inner key": (
        "plan:\n  acumulate: 2",
        "unknown-key",
        "2:3",
        "Did you mean `plan.accumulate`?",
    ),
    "a key at the wrong level": ("precision: bf16", "unknown-key", "1:1", "Did you mean `plan.precision`?"),
    "a hyperparameter at the top": ("lr: 0.1", "unknown-key", "1:1", "`config.lr`"),
    "a missing blank after a colon": (
        "plan: {accumulate:2}",
        "unknown-key",
        "1:8",
        "space after the colon",
    ),
    "a key of another kind": (
        "plan: {schedule: {kind: constant, floor: 0}}",
        "unknown-key",
        "1:35",
        "`warmup_steps`",
    ),
    "a word for a whole number": ("seed: 1\nworkers: two", "wrong-type", "2:10", "whole number from 1 to 4096"),
    "a quoted number": ('workers: "4"', "wrong-type", "1:10", "Write 4 without quotes."),
    "a fraction for a whole number": ("workers: 1.5", "wrong-type", "1:10", "a whole number"),
    "a point in a whole number": ("seed: 3.0", "wrong-type", "1:7", "Write 3."),
    "an exponent in a whole number": ("seed: 1e3", "wrong-type", "1:7", "Write 1000."),
    "a boolean for a whole number": ("seed: true", "wrong-type", "1:7", "a whole number"),
    "a boolean for a number": ("hang_after_s: true", "wrong-type", "1:15", "a number above 0"),
    "a number for a boolean": ("deterministic: 1", "wrong-type", "1:16", "true or false"),
    "yes for a boolean": ("deterministic: yes", "wrong-type", "1:16", "write true"),
    "a number for a string": ("name: 2024", "wrong-type", "1:7", 'Put it in quotes: "2024".'),
    "a list for a string": ("name: [a]", "wrong-type", "1:7", "a string"),
    "null where nothing is meant by it": ("workers:", "wrong-type", "1:9", "a whole number"),
    "null for a command": ("command: ~", "wrong-type", "1:10", "a list of strings"),
    "null in a command": ("command: [a, ~]", "wrong-type", "1:14", "a string"),
    "null in a variable": ("env: {A: null}", "wrong-type", "1:10", "a string"),
    "a mapping in a tag": ("tags: {a: {b: c}}", "wrong-type", "1:11", "a string"),
    "a word for a section": ("plan: fast", "wrong-type", "1:7", "`accumulate`"),
    "a list for a section": ("checkpoint: [1]", "wrong-type", "1:13", "`every_s`"),
    "a word for a mapping": ("config: 3", "wrong-type", "1:9", "a mapping"),
    "a word for a schedule": ("plan: {schedule: cosine}", "wrong-type", "1:18", "Write {kind: cosine}."),
    "a number for a choice": ("on_nonfinite: 1", "wrong-type", "1:15", "`warn`, `stop`"),
    "an unknown choice": ("on_nonfinite: stopp", "impossible-value", "1:15", "Did you mean `stop`?"),
    "an unknown kind": ("plan: {schedule: {kind: cosin}}", "impossible-value", "1:25", "Did you mean `cosine`?"),
    "a schedule without a kind": ("plan: {schedule: {floor: 0}}", "missing-key", "1:18", "`kind: constant`"),
    "a negative number of workers": ("workers: -1", "impossible-value", "1:10", "from 1 to 4096"),
    "too many workers": ("workers: 5000", "impossible-value", "1:10", "from 1 to 4096"),
    "a number at its excluded limit": ("hang_after_s: 0", "impossible-value", "1:15", "above 0"),
    "FLOPs told twice": (
        "flops: {per_sample: 1e9, per_token: 1e6}",
        "impossible-value",
        "1:26",
        "Change one of the two.",
    ),
    "a transformer without a width": (
        "flops: {transformer: {layers: 2, seq: 128}}",
        "impossible-value",
        "1:22",
        "Change one of the two.",
    ),
    "a share above one": (
        "plan: {schedule: {kind: cosine, floor: 2}}",
        "impossible-value",
        "1:40",
        "from 0 to 1",
    ),
    "infinity where a number is counted with": (
        "checkpoint: {every_s: .inf}",
        "impossible-value",
        "1:23",
        "Write a finite number or null.",
    ),
    "no number": ("hang_after_s: .nan", "impossible-value", "1:15", "Write a finite number."),
    "a whole number too large for a float": (
        f"hang_after_s: {'9' * 400}",
        "impossible-value",
        "1:15",
        "Write a finite number.",
    ),
    "a whole number of more than 64 bits": ("retries: 9223372036854775808", "impossible-value", "1:10", "at least 0"),
    "a hyperparameter of more than 64 bits": (
        "config: {a: [18446744073709551616]}",
        "impossible-value",
        "1:14",
        "JSON",
    ),
    "a number too large for a float": ("config: {a: 1e999}", "impossible-value", "1:13", "JSON"),
    "an empty command": ("command: []", "impossible-value", "1:10", "Name a program"),
    "a blank command": ("command: ' '", "impossible-value", "1:10", "Name a program"),
    "a program without a name": ("command: ['', a]", "impossible-value", "1:10", "Name a program"),
    "a command with an open quote": ("command: python 'a", "impossible-value", "1:10", "No closing quotation"),
    "NUL in a command": ('command: [a, "b\\0"]', "impossible-value", "1:14", "without NUL"),
    "an empty project": ('project: ""', "impossible-value", "1:10", "1 to 250 characters"),
    "a slash in a project": ("project: a/b", "impossible-value", "1:10", "none of them a slash"),
    "a line break in a name": ('name: "a\\n"', "impossible-value", "1:7", "control character"),
    "an equals sign in a variable's name": ("env: {A=B: 1}", "impossible-value", "1:7", "without `=`"),
    "a variable that the launcher sets": ("env: {WORLD_SIZE: 2}", "impossible-value", "1:7", "the launcher sets"),
    "a variable of our own": ("env: {GSCALAR_HOME: /x}", "impossible-value", "1:7", "the launcher sets"),
    "an empty tag": ("tags: {'': x}", "impossible-value", "1:8", "at most 250 letters"),
    "a later version of the format": ("version: 2", "impossible-value", "1:10", "from 1 to 1"),
    "a warm-up longer than the training": (
        "plan: {schedule: {kind: linear, total_steps: 5, warmup_steps: 9}}",
        "impossible-value",
        "1:49",
        "Change one of the two.",
    ),
    "a warm-up and a decay longer than the training": (
        "plan: {schedule: {kind: wsd, decay_steps: 8, total_steps: 9, warmup_steps: 2}}",
        "impossible-value",
        "1:30",
        "Change one of the two.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("sentence", BAD)
def test_refuses(sentence: str) -> None:
    text, code, place, advice = BAD[sentence]
    with pytest.raises(SpecError) as caught:
        load_spec(text.encode(), "job.yaml", (), {}, {"command": None if "command" in text else ["true"]})
    assert (caught.value.code, caught.value.where) == (code, f"job.yaml:{place}")
    assert advice in caught.value.next_step


def test_a_message_has_the_place_what_was_expected_the_value_and_the_next_step() -> None:
    with pytest.raises(SpecError) as caught:
        load("plan:\n  accumulate: 0\n")
    assert str(caught.value) == (
        "job.yaml:2:15: `plan.accumulate` takes a whole number of at least 1 (got 0) [impossible-value]\n"
        "  next: Give a whole number of at least 1."
    )


def test_all_mistakes_of_a_file_are_told_together() -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(b"nam: x\nworkers: 0\nplan: {precison: bf16}\n", "job.yaml", (), {}, {})
    assert str(caught.value).splitlines() == [
        "job.yaml:1:1: `nam` is not a key of the job spec [unknown-key]",
        "  next: Did you mean `name`?",
        "  also: job.yaml:2:10: `workers` takes a whole number from 1 to 4096 (got 0) [impossible-value]",
        "  also: job.yaml:3:8: `plan.precison` is not a key of the job spec [unknown-key]",
        "  also: job.yaml:1:1: `command` is missing: the job does not say what to run. [missing-key]",
    ]


def test_mistakes_beyond_ten_are_counted() -> None:
    with pytest.raises(SpecError) as caught:
        load("".join(f"x{n}: 1\n" for n in range(15)))
    assert str(caught.value).splitlines()[-1] == "  also: 4 more"


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(SpecError) as caught:
        load(f"workers: {'x' * 500}")
    assert caught.value.value == "x" * 77 + "..."
