"""From GPUs, MIG strategy and sharing to resources and their devices (contract 1.4, 2, 2.1)."""

from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.node import resources
from groundplane.node.config import MigStrategy
from groundplane.node.devices.model import Gpu, Inventory, MigDevice, Placed, Profile
from groundplane.node.hostroot import HostRoot
from groundplane.node.resources import Offer, PhysicalDevice, ResourceError
from groundplane.node.sharing import Pattern, Resources, Shared, Sharing, SharingStrategy

GPU = "nvidia.com/gpu"
NONE, SINGLE, MIXED = MigStrategy
SMALL, LARGE = Profile(1, 1, 5), Profile(3, 3, 20)


def gpu(index: int, *, mig: tuple[MigDevice, ...] | None = None, **fields: Any) -> Gpu:
    """A GPU, whose minor number is not its index; MIG is enabled if ``mig`` is given."""
    known: dict[str, Any] = {
        "uuid": f"GPU-{index}",
        "minor": index + 4,
        "name": "NVIDIA A100-SXM4-40GB",
        "bus_id": f"00000000:{index + 16:02X}:00.0",
        "memory_bytes": 40 << 30,
        "compute": (8, 0),
        "mig": mig is not None,
        "mig_devices": mig or (),
        "profiles": (SMALL, LARGE, Profile(1, 1, 5, "+me")),
    }
    return Gpu(index=index, **(known | fields))


def mig(slot: int, parent: int = 0, profile: Profile = SMALL, **fields: Any) -> MigDevice:
    known: dict[str, Any] = {
        "uuid": f"MIG-{parent}-{slot}",
        "gi": slot + 7,
        "ci": 0,
        "memory_mib": profile.gb * 1000,
        "multiprocessors": profile.g * 14,
        "gi_slices": profile.g,
        "ci_slices": profile.c,
    }
    return MigDevice(slot=slot, profile=profile, **(known | fields))


class Node:
    """A machine's kernel, and what it warned of."""

    def __init__(self, folder: Path) -> None:
        self.kernel = HostRoot(folder)
        self.warnings: list[str] = []

    def allow(self, *gpus: Gpu) -> None:
        lines, minor = ["config 1", "monitor 2"], 3
        for each in gpus:
            for device in each.mig_devices:
                for name in (f"gi{device.gi}/access", f"gi{device.gi}/ci{device.ci}/access"):
                    lines.append(f"gpu{each.minor}/{name} {minor}")
                    minor += 1
        self.kernel.write_atomic(resources.MIG_MINORS, "\n".join(lines) + "\n")

    def offers(
        self, strategy: MigStrategy, *gpus: Gpu, sharing: Sharing | None = None, allow: bool = True
    ) -> tuple[Offer, ...]:
        if allow:
            self.allow(*gpus)
        inventory = Inventory("580.95.05", 13000, gpus)
        return resources.offers(inventory, strategy, sharing or Sharing(), self.kernel, self.warnings.append)

    def ids(self, strategy: MigStrategy, *gpus: Gpu) -> dict[str, list[str]]:
        return {offer.resource: offer.ids() for offer in self.offers(strategy, *gpus)}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


STRATEGIES = pytest.mark.parametrize("strategy", list(MigStrategy))


class TestMigStrategies:
    """The table of 2.1."""

    @STRATEGIES
    def test_no_gpu_in_mig_mode(self, node: Node, strategy: MigStrategy) -> None:
        knows_no_mig = msgspec.structs.replace(gpu(1), mig=None, profiles=())
        assert node.ids(strategy, gpu(0), knows_no_mig) == {GPU: ["GPU-0", "GPU-1"]}

    @STRATEGIES
    def test_no_gpu_at_all(self, node: Node, strategy: MigStrategy) -> None:
        assert node.offers(strategy) == ()

    @pytest.mark.parametrize(
        ("strategy", "expected"),
        [
            (NONE, {GPU: ["GPU-0", "GPU-1"]}),
            (SINGLE, {GPU: ["MIG-0-0", "MIG-0-1", "MIG-1-0"]}),
            (MIXED, {"nvidia.com/mig-1g.5gb": ["MIG-0-0", "MIG-0-1", "MIG-1-0"]}),
        ],
    )
    def test_all_gpus_uniform(self, node: Node, strategy: MigStrategy, expected: dict[str, list[str]]) -> None:
        gpus = gpu(0, mig=(mig(0), mig(1))), gpu(1, mig=(mig(0, 1),))
        assert node.ids(strategy, *gpus) == expected
        assert node.warnings == []

    def test_some_gpus_only(self, node: Node) -> None:
        gpus = gpu(0), gpu(1, mig=(mig(0, 1), mig(1, 1, LARGE)))
        assert node.ids(NONE, *gpus) == {GPU: ["GPU-0", "GPU-1"]}
        with pytest.raises(ResourceError, match=r"all devices on the node must have the same MIG setting.* device 0"):
            node.offers(SINGLE, *gpus)
        assert node.ids(MIXED, *gpus) == {
            GPU: ["GPU-0"],
            "nvidia.com/mig-1g.5gb": ["MIG-1-0"],
            "nvidia.com/mig-3g.20gb": ["MIG-1-1"],
        }

    def test_some_gpu_without_instances(self, node: Node) -> None:
        gpus = gpu(0, mig=(mig(0),)), gpu(1, mig=())
        assert node.ids(NONE, *gpus) == {GPU: ["GPU-0", "GPU-1"]}
        with pytest.raises(ResourceError, match="device 1 has no MIG devices configured"):
            node.offers(SINGLE, *gpus)
        assert node.warnings == []
        assert node.ids(MIXED, *gpus) == {"nvidia.com/mig-1g.5gb": ["MIG-0-0"]}
        assert len(node.warnings) == 1 and "device 1" in node.warnings[0]

    def test_an_empty_gpu_among_others(self, node: Node) -> None:
        with pytest.raises(ResourceError, match="device 0 has no MIG devices configured"):
            node.offers(SINGLE, gpu(0, mig=()), gpu(1))
        assert node.ids(MIXED, gpu(0, mig=()), gpu(1)) == {GPU: ["GPU-1"]}

    @pytest.mark.parametrize(
        "other",
        [
            mig(1, profile=LARGE),
            mig(1, profile=Profile(1, 1, 5, "+me")),
            *(mig(1, **{field: 99}) for field in ("memory_mib", "multiprocessors", "gi_slices", "ci_slices")),
            *(
                mig(1, **{f"{kind}s": 99})
                for kind in ("copy_engine", "decoder", "encoder", "jpeg_engine", "ofa_engine")
            ),
        ],
    )
    def test_different_types(self, node: Node, other: MigDevice) -> None:
        gpus = (gpu(0, mig=(mig(0), other)),)
        assert node.ids(NONE, *gpus) == {GPU: ["GPU-0"]}
        with pytest.raises(ResourceError, match="more than one MIG device type present on node"):
            node.offers(SINGLE, *gpus)
        assert sorted(chain(*node.ids(MIXED, *gpus).values())) == ["MIG-0-0", "MIG-0-1"]

    def test_compute_instances_that_fill_no_gpu_instance(self, node: Node) -> None:
        """2.12."""
        gpus = (gpu(0, mig=(mig(0, profile=Profile(1, 2, 10)),)),)
        assert node.ids(SINGLE, *gpus) == {GPU: ["MIG-0-0"]}
        with pytest.raises(ResourceError, match=r"MIG profile 1c\.2g\.10gb"):
            node.offers(MIXED, *gpus)


class TestDevices:
    def test_a_gpu_whose_device_node_is_not_known(self, node: Node) -> None:
        with pytest.raises(ResourceError, match="device 1: the driver knows no minor number of it"):
            node.offers(NONE, gpu(0), gpu(1, minor=None))

    def test_a_gpu_on_no_bus_is_near_no_memory(self, node: Node) -> None:
        (offer,) = node.offers(NONE, gpu(0, bus_id=""))
        assert [device.numa for device in offer.devices] == [None]

    def test_whole(self, node: Node) -> None:
        """2.4: the path is by minor number."""
        (found,) = node.offers(NONE, gpu(0))
        assert found.base == found.resource == GPU and found.replicas == 1 and not found.shared
        (device,) = found.devices
        assert device == PhysicalDevice(id="GPU-0", index="0", paths=("/dev/nvidia4",), gpu=gpu(0))
        assert not device.is_mig and device.placed is None and device.gpu_uuid == "GPU-0"
        assert device.memory_bytes == 40 << 30 and device.compute == (8, 0)

    def test_mig(self, node: Node) -> None:
        """2.5: nodes of the parent, the GPU instance and the compute instance; capabilities by the parent's minor."""
        parent = gpu(1, mig=(mig(0, 1), mig(3, 1, ci=1)))
        node.kernel.write_atomic(f"{parent.sysfs}/numa_node", "1\n")
        (found,) = node.offers(SINGLE, parent)
        first, second = found.devices
        assert (first.id, first.index, first.paths) == (
            "MIG-1-0",
            "1:0",
            ("/dev/nvidia5", "/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4"),
        )
        assert (second.index, second.paths[1:]) == (
            "1:3",
            ("/dev/nvidia-caps/nvidia-cap5", "/dev/nvidia-caps/nvidia-cap6"),
        )
        assert first.is_mig and first.placed == Placed("GPU-1", 7, 0) and second.placed == Placed("GPU-1", 10, 1)
        assert first.memory_bytes == 5000 << 20 and first.compute == (8, 0)
        assert first.numa == second.numa == 1, "the parent's"

    @pytest.mark.parametrize("strategy", [SINGLE, MIXED])
    @pytest.mark.parametrize("missing", ["gpu4/gi7/access", "gpu4/gi7/ci0/access"])
    def test_a_missing_capability_is_fatal(self, node: Node, strategy: MigStrategy, missing: str) -> None:
        parent = gpu(0, mig=(mig(0),))
        node.allow(parent)
        text = node.kernel.read_text(resources.MIG_MINORS).replace(missing, "gpu9/gi9/access")
        node.kernel.write_atomic(resources.MIG_MINORS, text)
        with pytest.raises(ResourceError, match=f"MIG-0-0: capability {missing} is missing"):
            node.offers(strategy, parent, allow=False)
        assert node.offers(NONE, parent, allow=False)

    def test_no_file_of_capabilities(self, node: Node) -> None:
        with pytest.raises(ResourceError, match="is missing"):
            node.offers(SINGLE, gpu(0, mig=(mig(0),)), allow=False)
        assert resources.read_mig_minors(node.kernel) == {}
        node.kernel.mkdir(resources.MIG_MINORS)
        with pytest.raises(ResourceError, match="mig-minors cannot be read"):
            resources.read_mig_minors(node.kernel)

    def test_memory_that_cannot_be_asked_for(self, node: Node) -> None:
        (found,) = node.offers(NONE, gpu(0, memory_bytes=0))
        assert found.devices[0].memory_bytes == 0

    @pytest.mark.parametrize(
        ("bus", "folder"),
        [
            ("00000000:3B:00.0", "0000:3b:00.0"),
            ("00000001:00:00.0", "0001:00:00.0"),
            ("00010000:3B:00.0", "00010000:3b:00.0"),
        ],
    )
    @pytest.mark.parametrize(
        ("text", "numa"), [("0\n", 0), ("1\n", 1), (" 3 ", 3), ("-1\n", None), ("", None), ("x", None), (None, None)]
    )
    def test_numa(self, node: Node, bus: str, folder: str, text: str | None, numa: int | None) -> None:
        """2.9."""
        if text is not None:
            node.kernel.write_atomic(f"/sys/bus/pci/devices/{folder}/numa_node", text)
        (found,) = node.offers(NONE, gpu(0, bus_id=bus))
        assert found.devices[0].numa == numa

    def test_devices_that_stand_for_all(self) -> None:
        """2.7, 2.8."""
        wsl, tegra = resources.WSL_DEVICE, resources.TEGRA_DEVICE
        assert (wsl.id, wsl.index, wsl.paths, wsl.numa) == ("all", "all", ("/dev/dxg",), None)
        assert (tegra.id, tegra.index, tegra.paths, tegra.numa) == ("tegra", "0", (), None)
        assert wsl.gpu_uuid == "" and wsl.memory_bytes == 0 and wsl.compute is None and not wsl.is_mig
        shared = resources.offer(GPU, (wsl,), sliced(Shared(GPU, GPU, 2)))
        assert shared.ids() == ["all::0", "all::1"]


class TestMinors:
    def test_lines(self) -> None:
        """2.5."""
        text = (
            "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu12/gi13/ci6/access 345\n\n"
            "gpu0/gi1/access\ngpu0/gi1/access x\ngpu0/gi1 5\ngpux/gi1/access 5\nconfig -1\nother 9\n"
            "gpu0/gi1/access 5 6\n"
        )
        assert resources.mig_minors(text) == {
            "config": 1,
            "monitor": 2,
            "gpu0/gi0/access": 3,
            "gpu0/gi0/ci0/access": 4,
            "gpu12/gi13/ci6/access": 345,
        }

    @given(st.text(max_size=200))
    def test_any_text(self, text: str) -> None:
        found = resources.mig_minors(text + "\ngpu1/gi2/access 77\n" + text)
        assert found["gpu1/gi2/access"] == 77

    @given(
        st.dictionaries(
            st.tuples(st.integers(0, 31), st.integers(0, 14), st.none() | st.integers(0, 7)), st.integers(0, 9999)
        )
    )
    def test_what_is_written_is_read(self, known: dict[tuple[int, int, int | None], int]) -> None:
        named = {f"gpu{g}/gi{i}/{'' if c is None else f'ci{c}/'}access": minor for (g, i, c), minor in known.items()}
        assert resources.mig_minors("".join(f"{name} {minor}\n" for name, minor in named.items())) == named


def sliced(*shared: Shared, fail: bool = False, strategy: SharingStrategy = SharingStrategy.TIME_SLICING) -> Sharing:
    return Sharing(strategy, fail_requests_greater_than_one=fail, resources=shared)


class TestSharing:
    def test_replicas(self, node: Node) -> None:
        """4.1: <uuid>::<n>, n from 0."""
        sharing = sliced(Shared(GPU, GPU, 3), fail=True)
        (found,) = node.offers(NONE, gpu(0), gpu(1), sharing=sharing)
        assert found.ids() == ["GPU-0::0", "GPU-0::1", "GPU-0::2", "GPU-1::0", "GPU-1::1", "GPU-1::2"]
        assert found.shared and found.replicas == 3 and len(found.devices) == 2
        assert found.strategy is SharingStrategy.TIME_SLICING and found.fail_requests_greater_than_one
        assert {resources.physical_id(each) for each in found.ids()} == {"GPU-0", "GPU-1"}
        assert resources.physical_id("GPU-0") == "GPU-0"

    def test_renamed(self, node: Node) -> None:
        (found,) = node.offers(NONE, gpu(0), sharing=sliced(Shared(GPU, f"{GPU}.shared", 2)))
        assert (found.resource, found.base) == ("nvidia.com/gpu.shared", GPU)

    def test_only_the_resource_that_is_named(self, node: Node) -> None:
        """1.5: MIG devices under mixed by their own name; an entry of no resource here is ignored."""
        profile = "nvidia.com/mig-1g.5gb"
        sharing = sliced(Shared(profile, profile, 2), Shared("nvidia.com/none", "nvidia.com/none", 9), fail=True)
        whole, parts = node.offers(MIXED, gpu(0), gpu(1, mig=(mig(0, 1),)), sharing=sharing)
        assert whole.ids() == ["GPU-0"] and not whole.shared
        assert whole.strategy is SharingStrategy.NONE and not whole.fail_requests_greater_than_one
        assert parts.ids() == ["MIG-1-0::0", "MIG-1-0::1"]

    def test_mig_devices_under_single(self, node: Node) -> None:
        (found,) = node.offers(SINGLE, gpu(0, mig=(mig(0),)), sharing=sliced(Shared(GPU, GPU, 2)))
        assert found.ids() == ["MIG-0-0::0", "MIG-0-0::1"]

    def test_mps(self, node: Node) -> None:
        sharing = sliced(Shared(GPU, GPU, 2), strategy=SharingStrategy.MPS)
        (found,) = node.offers(NONE, gpu(0), sharing=sharing)
        assert found.strategy is SharingStrategy.MPS

    def test_the_first_entry_of_a_name_counts(self, node: Node) -> None:
        (found,) = node.offers(NONE, gpu(0), sharing=sliced(Shared(GPU, GPU, 2), Shared(GPU, GPU, 5)))
        assert found.replicas == 2

    @given(count=st.integers(1, 12), replicas=st.integers(2, 10))
    def test_ids_are_as_many_as_devices_times_replicas_and_differ(self, count: int, replicas: int) -> None:
        devices = [PhysicalDevice(id=f"GPU-{number}", index=str(number)) for number in range(count)]
        ids = resources.offer(GPU, devices, sliced(Shared(GPU, GPU, replicas))).ids()
        assert len(set(ids)) == len(ids) == count * replicas
        assert [resources.physical_id(each) for each in ids[::replicas]] == [device.id for device in devices]


class TestDefaultResources:
    """1.4."""

    ALL = Pattern("*", GPU)

    def found(self, strategy: MigStrategy, *gpus: Gpu) -> Resources:
        return resources.patterns(strategy, Inventory("580.95.05", 13000, gpus))

    def test_none_and_single(self) -> None:
        assert self.found(NONE, gpu(0)) == Resources((self.ALL,))
        assert self.found(SINGLE, gpu(0)) == Resources((self.ALL,), (self.ALL,))

    def test_mixed_has_each_full_profile_once(self) -> None:
        found = self.found(MIXED, gpu(0), gpu(1, profiles=(SMALL, Profile(1, 1, 24, "-me"))), gpu(2, profiles=()))
        assert found.gpus == (self.ALL,)
        assert {each.pattern: each.name for each in found.mig} == {
            "1g.5gb": "nvidia.com/mig-1g.5gb",
            "1g.5gb+me": "nvidia.com/mig-1g.5gb.me",
            "1g.24gb-me": "nvidia.com/mig-1g.24gb-me",
            "3g.20gb": "nvidia.com/mig-3g.20gb",
        }
        assert len(found.mig) == 4

    def test_profiles_come_in_the_order_in_which_gpus_offer_them(self) -> None:
        graphics, own = Profile(1, 1, 24, "-me"), Profile(1, 1, 10)
        part = mig(0, profile=own)
        found = self.found(MIXED, gpu(0, profiles=(LARGE, SMALL)), gpu(1, mig=(part,), profiles=(SMALL, graphics)))
        assert [each.pattern for each in found.mig] == ["3g.20gb", "1g.5gb", "1g.24gb-me", "1g.10gb"]

    @pytest.mark.parametrize(
        ("profile", "resource"),
        [
            (Profile(1, 1, 5), "nvidia.com/mig-1g.5gb"),
            (Profile(1, 1, 10, "+me"), "nvidia.com/mig-1g.10gb.me"),
            (Profile(1, 1, 24, "+me.all"), "nvidia.com/mig-1g.24gb.me.all"),
            (Profile(1, 1, 24, "+gfx"), "nvidia.com/mig-1g.24gb.gfx"),
            (Profile(1, 1, 24, "-me"), "nvidia.com/mig-1g.24gb-me"),
            (Profile(3, 3, 48, "+gfx"), "nvidia.com/mig-3g.48gb.gfx"),
        ],
    )
    def test_names_of_profiles(self, node: Node, profile: Profile, resource: str) -> None:
        """2.12."""
        assert resources.mig_resource(profile) == resource
        plain = Profile(profile.c, profile.g, profile.gb)
        parent = gpu(0, mig=(mig(0, profile=profile), mig(1, profile=plain)), profiles=(plain, profile))
        found = node.ids(MIXED, parent)
        assert found[resource] == (["MIG-0-0", "MIG-0-1"] if profile == plain else ["MIG-0-0"]), "never merged"
