"""The default MIG layouts: contracts/mig-exporter-validator.md 1.8 and 2, transcribed a second time by GPU."""

import pytest
import yaml
from operands import rendering

from groundplane.operands import mig_layouts

LAYOUTS = yaml.safe_load(mig_layouts.document())["mig-configs"]

# Table 1.8: what each GPU has, by one of its PCI ids.
GPUS = {
    "20B7": "1g.6gb*4 1g.6gb+me*1 2g.12gb*2 2g.12gb+me*1 4g.24gb*1",
    "20B0": "1g.5gb*7 1g.5gb+me*1 1g.10gb*4 2g.10gb*3 3g.20gb*2 4g.20gb*1 7g.40gb*1",
    "2330": "1g.10gb*7 1g.10gb+me*1 1g.20gb*4 2g.20gb*3 3g.40gb*2 4g.40gb*1 7g.80gb*1",
    "2321": "1g.12gb*7 1g.12gb+me*1 1g.24gb*4 2g.24gb*3 3g.47gb*2 4g.47gb*1 7g.94gb*1",
    "2342": "1g.12gb*7 1g.12gb+me*1 1g.24gb*4 2g.24gb*3 3g.48gb*2 4g.48gb*1 7g.96gb*1",
    "2335": "1g.18gb*7 1g.18gb+me*1 1g.35gb*4 2g.35gb*3 3g.71gb*2 4g.71gb*1 7g.141gb*1",
    "2348": "1g.18gb*7 1g.18gb+me*1 1g.36gb*4 2g.36gb*3 3g.72gb*2 4g.72gb*1 7g.144gb*1",
    "2901": "1g.23gb*7 1g.23gb+me*1 1g.45gb*4 2g.45gb*3 3g.90gb*2 4g.90gb*1 7g.180gb*1",
    "2941": "1g.23gb*7 1g.23gb+me*1 1g.47gb*4 2g.47gb*3 3g.93gb*2 4g.93gb*1 7g.186gb*1",
    "3182": "1g.34gb*7 1g.34gb+me*1 1g.67gb*4 2g.67gb*3 3g.135gb*2 4g.135gb*1 7g.269gb*1",
    "31C2": "1g.35gb*7 1g.35gb+me*1 1g.70gb*4 2g.70gb*3 3g.139gb*2 4g.139gb*1 7g.278gb*1",
    "2BB5": "1g.24gb*4 1g.24gb+me*1 1g.24gb+gfx*4 1g.24gb+me.all*1 1g.24gb-me*4 2g.48gb*2 2g.48gb+gfx*2"
    " 2g.48gb+me.all*1 2g.48gb-me*2 4g.96gb*1 4g.96gb+gfx*1",
}
UNVERIFIED_BOARD = {"3g.95gb", "4g.95gb", "7g.189gb"}
BALANCED = {
    "2941": "1g.23gb*2 2g.47gb*1 3g.93gb*1",
    "2BB5": "1g.24gb*2 2g.48gb*1",
    "2901": "1g.23gb*2 2g.45gb*1 3g.90gb*1",
    "2348": "1g.18gb*2 2g.36gb*1 3g.72gb*1",
    "233B": "1g.18gb*2 2g.35gb*1 3g.71gb*1",
    "233A": "1g.12gb*2 2g.24gb*1 3g.47gb*1",
    "20B2": "1g.10gb*2 2g.20gb*1 3g.40gb*1",
    "20F6": "1g.5gb*2 2g.10gb*1 3g.20gb*1",
    "20B7": "1g.6gb*2 2g.12gb*1",
    "2329": "1g.12gb*2 2g.24gb*1 3g.48gb*1",
    "3182": "1g.34gb*2 2g.67gb*1 3g.135gb*1",
    "31C2": "1g.35gb*2 2g.70gb*1 3g.139gb*1",
}


def counts(text):
    return {profile: int(count) for profile, count in (item.split("*") for item in text.split())}


def matching(layout, gpu):
    return [each for each in LAYOUTS[layout] if f"0x{gpu}10DE" in each.get("device-filter", [f"0x{gpu}10DE"])]


def test_there_are_81_layouts():
    assert len(LAYOUTS) == 81
    named = {profile for row in GPUS.values() for profile in counts(row)} | UNVERIFIED_BOARD
    expected = {"all-disabled", "all-enabled", "all-balanced", *(f"all-{each.replace('+', '.')}" for each in named)}
    assert set(LAYOUTS) == expected


def test_on_and_off():
    assert LAYOUTS["all-disabled"] == [{"devices": "all", "mig-enabled": False}]
    assert LAYOUTS["all-enabled"] == [{"devices": "all", "mig-enabled": True, "mig-devices": {}}]


@pytest.mark.parametrize("gpu", GPUS)
def test_each_gpu_is_filled_with_each_of_its_profiles(gpu):
    for profile, count in counts(GPUS[gpu]).items():
        (entry,) = matching(f"all-{profile.replace('+', '.')}", gpu)
        assert entry["mig-devices"] == {profile: count}, profile
        assert entry["mig-enabled"] is True and entry["devices"] == "all"


@pytest.mark.parametrize("gpu", BALANCED)
def test_balanced(gpu):
    (entry,) = matching("all-balanced", gpu)
    assert entry["mig-devices"] == counts(BALANCED[gpu])


@pytest.mark.parametrize(
    ("profile", "by_gpu"),
    [("1g.10gb", {"20B2": 7, "2324": 7, "20F1": 4}), ("1g.35gb", {"2335": 4, "233B": 4, "31C2": 7})],
)
def test_profiles_that_mean_different_numbers_on_different_gpus(profile, by_gpu):
    for gpu, count in by_gpu.items():
        (entry,) = matching(f"all-{profile}", gpu)
        assert entry["mig-devices"] == {profile: count}


def test_every_gpu_is_balanced_once():
    ids = [gpu for entry in LAYOUTS["all-balanced"] for gpu in entry["device-filter"]]
    assert len(ids) == len(set(ids)) == 27


@pytest.mark.parametrize("file", rendering.DEFAULTS.values())
def test_the_config_map_holds_them_in_both_releases(file):
    data = rendering.objects(file)["ConfigMap", "default-mig-parted-config"]["data"]
    assert yaml.safe_load(data["config.yaml"]) == {"version": "v1", "mig-configs": LAYOUTS}
