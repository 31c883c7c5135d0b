"""Every engine keeps the contract of `gscalar.control.engine`."""

from __future__ import annotations

from gscalar.testing.engine_suite import EngineSuite


class TestLocalEngine(EngineSuite):
    make_engine = "from gscalar.engines.local.engine import LocalEngine; engine = LocalEngine()"
