"""The faces of other trainers where what they need is not installed."""

from __future__ import annotations

import sys

import pytest

import gscalar


@pytest.mark.parametrize("trainer", ["huggingface", "lightning"])
@pytest.mark.parametrize("call", ["callback", "last_checkpoint"])
def test_an_absent_package_is_named_with_what_installs_it(
    trainer: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    face = getattr(gscalar, trainer)
    package = sys.modules.get("gscalar.frameworks.torch")
    if package is not None:
        monkeypatch.delattr(package, trainer, raising=False)
    for name in [name for name in sys.modules if name.startswith("gscalar.frameworks.torch")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not there
    with pytest.raises(gscalar.EnvironmentProblem, match=rf"gscalar\.{trainer} needs") as caught:
        getattr(face, call)()
    assert caught.value.code == "package-missing"
    assert caught.value.value == "torch"
    assert f"gscalar[{trainer}]" in caught.value.next_step


def test_a_trainers_face_is_there_after_importing_the_package_alone() -> None:
    assert gscalar.lightning.__name__ == "gscalar.lightning"
    assert gscalar.huggingface.__name__ == "gscalar.huggingface"
    assert {"huggingface", "lightning", "keras"} <= set(dir(gscalar))
