"""The golden files: what each policy of tests/data/clusterpolicy renders to, as one compact YAML file a policy.

The default policy of each release is kept in full; a variant keeps what differs from its release's default:
``added`` and ``changed`` objects in full, ``removed`` ones by name. ConfigMap data and whole objects that are equal
in both are not repeated, so that a person can read a change of the goldens in a review.
"""

from pathlib import Path

import yaml
from operands import rendering

GOLDEN = Path(__file__).parent.parent / "data" / "golden"


class _Dumper(yaml.CSafeDumper):
    def ignore_aliases(self, data):
        return True


def _text(dumper, value):
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)


def _keyed(name):
    return {f"{kind}/{obj_name}": each for (kind, obj_name), each in rendering.objects(name).items()}


def document(name):
    """What the golden file of policy ``name`` holds."""
    made = _keyed(name)
    default = rendering.DEFAULTS[rendering.release_of(name)]
    if name == default:
        return {"policy": name, "objects": made}
    base = _keyed(default)
    return {
        "policy": name,
        "differsFrom": default,
        "added": {key: each for key, each in made.items() if key not in base},
        "changed": {key: each for key, each in made.items() if key in base and each != base[key]},
        "removed": [key for key in base if key not in made],
    }


def path(name):
    return GOLDEN / f"{name}.yaml"


def write(name):
    text = yaml.dump(document(name), Dumper=_Dumper, sort_keys=False, width=120)
    path(name).write_text(f"# Written by tests/operands/regen_golden.py; reviewed, not edited.\n{text}")


def read(name):
    return yaml.load(path(name).read_text(), Loader=yaml.CSafeLoader)
