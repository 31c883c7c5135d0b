"""Which of the two Keras packages a script means."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from gscalar.frameworks.keras.flavors import meant_package


@pytest.mark.parametrize(
    ("loaded", "switch", "want"),
    [
        ((), None, "keras"),
        ((), "1", "tf_keras"),
        ((), "True", "tf_keras"),
        ((), "0", "keras"),  # as TensorFlow reads it
        (("keras",), None, "keras"),
        (("keras",), "1", "keras"),  # the script has imported it in spite of the switch
        (("tf_keras",), None, "tf_keras"),
        (("keras", "tf_keras"), None, "keras"),
        (("keras", "tf_keras"), "1", "tf_keras"),
    ],
)
def test_the_loaded_package_is_meant_and_else_the_one_of_the_switch(
    loaded: tuple[str, ...], switch: str | None, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("keras", "tf_keras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in loaded:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delenv("TF_USE_LEGACY_KERAS", raising=False)
    if switch is not None:
        monkeypatch.setenv("TF_USE_LEGACY_KERAS", switch)
    assert meant_package() == want
