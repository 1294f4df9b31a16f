"""Names of MIG profiles (contracts/device-plugin-gfd.md 2.11; mig-exporter-validator.md 1.5 to 1.8), and placement."""

from decimal import ROUND_HALF_UP, Decimal
from itertools import permutations
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node.devices import geometry, models, profiles
from groundplane.node.devices.geometry import GeometryError, Wanted
from groundplane.node.devices.model import Profile

GIB = profiles.GIB

# mig-exporter-validator.md 1.8, most instances in parentheses
OFFERED = {
    "A30": "1g.6gb(4) 1g.6gb+me(1) 2g.12gb(2) 2g.12gb+me(1) 4g.24gb(1)",
    "A100-SXM4-40GB": "1g.5gb(7) 1g.5gb+me(1) 1g.10gb(4) 2g.10gb(3) 3g.20gb(2) 4g.20gb(1) 7g.40gb(1)",
    "A100-SXM4-80GB": "1g.10gb(7) 1g.10gb+me(1) 1g.20gb(4) 2g.20gb(3) 3g.40gb(2) 4g.40gb(1) 7g.80gb(1)",
    "H100-SXM5-80GB": "1g.10gb(7) 1g.10gb+me(1) 1g.20gb(4) 2g.20gb(3) 3g.40gb(2) 4g.40gb(1) 7g.80gb(1)",
    "H100-NVL": "1g.12gb(7) 1g.12gb+me(1) 1g.24gb(4) 2g.24gb(3) 3g.47gb(2) 4g.47gb(1) 7g.94gb(1)",
    "H20": "1g.12gb(7) 1g.12gb+me(1) 1g.24gb(4) 2g.24gb(3) 3g.48gb(2) 4g.48gb(1) 7g.96gb(1)",
    "GH200-480GB": "1g.12gb(7) 1g.12gb+me(1) 1g.24gb(4) 2g.24gb(3) 3g.48gb(2) 4g.48gb(1) 7g.96gb(1)",
    "H200-SXM5-141GB": "1g.18gb(7) 1g.18gb+me(1) 1g.35gb(4) 2g.35gb(3) 3g.71gb(2) 4g.71gb(1) 7g.141gb(1)",
    "H200-NVL": "1g.18gb(7) 1g.18gb+me(1) 1g.35gb(4) 2g.35gb(3) 3g.71gb(2) 4g.71gb(1) 7g.141gb(1)",
    "GH200-144GB": "1g.18gb(7) 1g.18gb+me(1) 1g.36gb(4) 2g.36gb(3) 3g.72gb(2) 4g.72gb(1) 7g.144gb(1)",
    "B200": "1g.23gb(7) 1g.23gb+me(1) 1g.45gb(4) 2g.45gb(3) 3g.90gb(2) 4g.90gb(1) 7g.180gb(1)",
    "GB200": "1g.23gb(7) 1g.23gb+me(1) 1g.47gb(4) 2g.47gb(3) 3g.93gb(2) 4g.93gb(1) 7g.186gb(1)",
    "B300": "1g.34gb(7) 1g.34gb+me(1) 1g.67gb(4) 2g.67gb(3) 3g.135gb(2) 4g.135gb(1) 7g.269gb(1)",
    "GB300": "1g.35gb(7) 1g.35gb+me(1) 1g.70gb(4) 2g.70gb(3) 3g.139gb(2) 4g.139gb(1) 7g.278gb(1)",
    "RTX-PRO-6000": (
        "1g.24gb(4) 1g.24gb+me(1) 1g.24gb+gfx(4) 1g.24gb+me.all(1) 1g.24gb-me(4) 2g.48gb(2) 2g.48gb+gfx(2) "
        "2g.48gb+me.all(1) 2g.48gb-me(2) 4g.96gb(1) 4g.96gb+gfx(1)"
    ),
    "RTX-PRO-5000": "1g.12gb(1) 1g.12gb+me(1) 1g.12gb+gfx(1) 1g.12gb-me(3) 2g.24gb-me(1) 4g.48gb(1) 4g.48gb+gfx(1)",
    "RTX-PRO-4500": "1g.16gb(2) 2g.32gb(1)",
}


@pytest.mark.parametrize("model", sorted(OFFERED))
def test_1_8_profiles_of_each_gpu(model: str) -> None:
    found = {f"{profile}({kind.most})" for profile, kind in models.MODELS[model].kinds.items()}
    assert found == set(OFFERED[model].split())


@pytest.mark.parametrize(
    ("number", "name"),
    [
        *[(0, "1g.10gb"), (1, "2g.10gb"), (2, "3g.10gb"), (3, "4g.10gb"), (4, "7g.10gb"), (5, "8g.10gb")],
        *[(6, "6g.10gb"), (7, "1g.10gb+me"), (8, "2g.10gb+me"), (9, "1g.10gb"), (10, "1g.10gb+gfx")],
        *[(11, "2g.10gb+gfx"), (12, "4g.10gb+gfx"), (13, "1g.10gb-me"), (14, "2g.10gb-me"), (15, "1g.10gb+me.all")],
        *[(16, "2g.10gb+me.all"), (17, "3g.10gb+gfx")],
    ],
)
def test_2_11_names_by_number(number: int, name: str) -> None:
    assert str(profiles.full(number, 10 * GIB, 80 * GIB)) == name


@pytest.mark.parametrize(("number", "slices"), [(0, 1), (1, 2), (2, 3), (3, 4), (4, 7), (5, 8), (6, 6), (7, 1), (8, 7)])
def test_1_7_compute_slices_by_number(number: int, slices: int) -> None:
    assert profiles.name(5, number, 80 * GIB, 80 * GIB).c == slices


def test_unknown_numbers_have_no_name() -> None:
    with pytest.raises(profiles.ProfileError, match="GPU instance profile 18 is not known; known are 0 to 17"):
        profiles.name(18, 0, GIB, GIB)
    with pytest.raises(profiles.ProfileError, match="compute instance profile 9 is not known"):
        profiles.name(0, 9, GIB, GIB)


@pytest.mark.parametrize(
    ("eighths", "gib", "named"),
    [(1, 180, 23), (4, 141, 71), (2, 186, 47), (1, 80, 10), (1, 94, 12), (2, 94, 24), (4, 94, 47), (8, 278, 278)],
)
def test_1_6_halves_are_rounded_up(eighths: int, gib: int, named: int) -> None:
    assert profiles.memory_gb(eighths * gib * GIB // 8, gib * GIB) == named


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 40))
def test_1_6_memory_as_it_is_defined(instance: int, gpu: int) -> None:
    share = Decimal(-(-8 * instance // gpu)) / 8 * ceil(Decimal(gpu) / GIB)
    assert profiles.memory_gb(instance, gpu) == int(share.quantize(Decimal(1), ROUND_HALF_UP))


# --- 1.5: as a person writes them -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "profile", "printed"),
    [
        ("1g.10gb", Profile(1, 1, 10), "1g.10gb"),
        ("1c.1g.10gb", Profile(1, 1, 10), "1g.10gb"),
        ("1c.3g.20gb", Profile(1, 3, 20), "1c.3g.20gb"),
        ("1g.5gb+me", Profile(1, 1, 5, "+me"), "1g.5gb+me"),
        ("1g.24gb+me.all", Profile(1, 1, 24, "+me.all"), "1g.24gb+me.all"),
        ("1g.24gb-me", Profile(1, 1, 24, "-me"), "1g.24gb-me"),
        ("1g.24gb+me,gfx", Profile(1, 1, 24, "+gfx,me"), "1g.24gb+gfx,me"),
        ("0g.0gb", Profile(0, 0, 0), "0g.0gb"),
    ],
)
def test_1_5_profiles(text: str, profile: Profile, printed: str) -> None:
    assert profiles.parse(text) == profile
    assert str(profile) == printed


@pytest.mark.parametrize(
    "text",
    [
        *["", "1g", "1g.", "10gb", "1.10gb", "1g.10", "1c.1g", "1x.1g.10gb", "1c.1g.10gb.me", "ag.10gb", "1g.bgb"],
        *["1G.10gb", "1g.10GB", " 1g.10gb", "1g.10gb ", "1g .10gb", "1g.10gb\n", "-1g.10gb", "1.5g.10gb"],
        *["1g.10gb+", "1g.10gb-", "1g.10gb+me-gfx", "1g.10gb-me+gfx", "1g.10gb+me,", "1g.10gb+me,me", "1g.10gb+ me"],
        *["1g.10gb+1me", "1g.10gb+.me", "1g.10gb+me.", "1g.10gb+m_e", "1g.10gbme", "٣g.20gb"],
    ],
)
def test_1_5_what_is_no_profile(text: str) -> None:
    with pytest.raises(profiles.ProfileError, match="is no MIG profile"):
        profiles.parse(text)


suffixes = st.sampled_from(["", "+me", "+me.all", "+gfx", "-me", "+gfx,me"])


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 300), suffixes)
def test_1_5_what_is_printed_is_read_back(c: int, g: int, gb: int, suffix: str) -> None:
    profile = Profile(c, g, gb, suffix)
    assert profiles.parse(str(profile)) == profile


@pytest.mark.parametrize(
    ("text", "resource"),
    [
        ("1g.5gb", "1g.5gb"),
        ("1g.10gb+me", "1g.10gb.me"),
        ("1g.24gb+me.all", "1g.24gb.me.all"),
        ("1g.24gb+gfx", "1g.24gb.gfx"),
        ("1g.24gb-me", "1g.24gb-me"),
    ],
)
def test_2_12_names_in_resources(text: str, resource: str) -> None:
    assert profiles.parse(text).in_resource == resource


# --- 1.8, 1.9: what fits ----------------------------------------------------------------------------------------------


def placed(model: str, *names: str) -> list[int]:
    return geometry.place(models.MODELS[model], [Wanted(profiles.parse(name)) for name in names])


A100 = "A100-SXM4-40GB"
FITS = [
    ["1g.5gb"] * 3 + ["2g.10gb"] * 2,
    ["4g.20gb", "3g.20gb"],
    ["2g.10gb"] * 3 + ["1g.5gb"],
    ["3g.20gb"] + ["1g.5gb"] * 4,
    ["1g.5gb+me"] + ["1g.5gb"] * 6,
    ["1g.10gb"] * 4,
    ["7g.40gb"],
]


@pytest.mark.parametrize("names", FITS)
def test_1_9_what_fits_is_placed_in_any_order(names: list[str]) -> None:
    for order in set(permutations(names)):
        starts = placed(A100, *order)
        kinds = [models.MODELS[A100].kinds[profiles.parse(name)] for name in order]
        taken = [at for start, kind in zip(starts, kinds, strict=True) for at in range(start, start + kind.size)]
        assert len(taken) == len(set(taken))
        assert all(start in kind.starts for start, kind in zip(starts, kinds, strict=True))
        ids = [
            geometry.instance_id(models.MODELS[A100].sliced, kind, start)
            for start, kind in zip(starts, kinds, strict=True)
        ]
        assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["1g.5gb"] * 8, "1g.5gb 8 times; NVIDIA A100-SXM4-40GB has room for 7"),
        (["1g.5gb"] * 4 + ["2g.10gb"] * 2, "8 compute slices in all; NVIDIA A100-SXM4-40GB has 7"),
        (["3g.20gb"] * 2 + ["1g.5gb"], "do not fit NVIDIA A100-SXM4-40GB: there is no place for all of them at once"),
        (["1g.5gb+me"] * 2, r"1g.5gb\+me 2 times; NVIDIA A100-SXM4-40GB has room for 1"),
        (["7g.40gb", "1g.5gb"], "8 compute slices in all"),
        (["1g.24gb"], "1g.24gb is no GPU instance of NVIDIA A100-SXM4-40GB; it offers 1g.5gb, 2g.10gb,"),
    ],
)
def test_1_9_what_does_not_fit_is_refused(names: list[str], why: str) -> None:
    with pytest.raises(GeometryError, match=why):
        placed(A100, *names)


def test_media_engines_are_given_once() -> None:
    with pytest.raises(GeometryError, match=r"5 decoders in all; .* has 4"):
        placed("RTX-PRO-6000", "1g.24gb+me.all", "1g.24gb")
    assert len(placed("RTX-PRO-6000", "1g.24gb+me.all", "1g.24gb-me", "1g.24gb-me", "1g.24gb-me")) == 4


def test_a_start_is_kept_or_refused() -> None:
    whole = profiles.parse("3g.20gb")
    assert geometry.place(models.MODELS[A100], [Wanted(profiles.parse("1g.5gb")), Wanted(whole, 4)]) == [0, 4]
    assert geometry.place(models.MODELS[A100], [Wanted(profiles.parse("1g.5gb")), Wanted(whole, 0)])[0] >= 4
    with pytest.raises(GeometryError, match=r"3g.20gb cannot start at memory slice 2; it can at 0, 4"):
        geometry.place(models.MODELS[A100], [Wanted(whole, 2)])


@given(st.data())
def test_1_9_a_fit_does_not_depend_on_the_order(data: st.DataObject) -> None:
    model = models.MODELS[data.draw(st.sampled_from(sorted(OFFERED)))]
    names = data.draw(st.lists(st.sampled_from(list(model.kinds)), max_size=7))
    shuffled = data.draw(st.permutations(names))

    def fits(order: list[Profile]) -> bool:
        try:
            geometry.place(model, [Wanted(profile) for profile in order])
        except GeometryError:
            return False
        return True

    assert fits(names) == fits(shuffled)


# --- models -----------------------------------------------------------------------------------------------------------


def test_every_model_is_sound() -> None:
    for name, model in models.MODELS.items():
        assert len(model.pci_id) == 4 and int(model.pci_id, 16), name
        assert model.pci_class in ("0x030000", "0x030200"), name
        assert model.mig == bool(model.layout), name
        for profile, kind in model.kinds.items():
            assert geometry.place(model, [Wanted(profile)] * kind.most), (name, profile)
    assert all(models.find(alias) is models.MODELS[name] for alias, name in models.ALIASES.items())
    assert models.find("H1000") is None


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        *[("580.126.20", "13.0"), ("590.48.01", "13.1"), ("535.104.05", "12.2"), ("470.57.02", "11.4")],
        *[("583.1", "13.0"), ("999.1", "13.2"), ("340.1", "9.0")],
    ],
)
def test_cuda_version_of_a_driver(driver: str, cuda: str) -> None:
    assert models.cuda_version(driver) == cuda
