"""Reading a job spec: YAML, `--set`, GSCALAR_SET and the script's arguments become one `ResolvedSpec`.

    text -> document.py -> tree                     scalars.py says what a plain word means
    --set -> overrides.py -> tree                   tree.py: values that know their place and origin
    trees, laid over each other -> building.py -> JobSpec      shapes.py: what each field takes

Every mistake is a `SpecError` with the place, what was expected and the nearest known key; all
mistakes of one spec are reported together.
"""

from gscalar.model.parsing.plain import from_plain, to_plain
from gscalar.model.parsing.resolving import (
    load_environment,
    load_spec,
    merge_script_arguments,
    override_spec,
)
from gscalar.model.parsing.schema import json_schema

__all__ = [
    "from_plain",
    "json_schema",
    "load_environment",
    "load_spec",
    "merge_script_arguments",
    "override_spec",
    "to_plain",
]
