"""What is judged before an installation, what is recorded of it, how an interrupted one goes on, what is exported."""

import base64
import contextlib
import gzip
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from groundplane.admin import exports, helm, install, plans, uninstall
from groundplane.admin.propose import Setting
from groundplane.diagnose.findings import Outcome
from groundplane.diagnose.survey import Survey

CHART = helm.Chart("gpu-operator", "v26.3.3", helm.NVIDIA_REPOSITORY)
DEFAULTS = {
    "cdi": {"enabled": True, "nriPluginEnabled": False},
    "driver": {"enabled": True},
    "toolkit": {"enabled": True},
}
Document = dict[str, Any]


@pytest.fixture(autouse=True)
def _records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUNDPLANE_HOME", str(tmp_path))


def namespace(labels: dict[str, str] | None = None, phase: str = "Active") -> Document:
    metadata = {
        "name": "gpu-operator",
        "labels": {f"{install.PSA}{key}": level for key, level in (labels or {}).items()},
    }
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata, "status": {"phase": phase}}


def pod(name: str, **labels: str) -> Document:
    metadata = {"name": name, "namespace": "gpu-operator", "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}}


def release(status: str, revision: int = 1, name: str = "gpu-operator", values: Document | None = None) -> Document:
    stored = {
        "name": name,
        "namespace": "gpu-operator",
        "version": revision,
        "info": {"status": status},
        "chart": {"metadata": {"name": "gpu-operator", "version": "v26.3.3"}, "values": DEFAULTS},
        "config": values or {},
    }
    data = base64.b64encode(base64.b64encode(gzip.compress(json.dumps(stored).encode()))).decode()
    metadata = {"name": f"sh.helm.release.v1.{name}.v{revision}", "namespace": "gpu-operator"}
    kind = {"apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1"}
    return {**kind, "metadata": metadata, "data": {"release": data}}


def seen(*documents: Document, **more: Any) -> install.Seen:
    survey = Survey.of(documents, read=("namespaces", "pods", "secrets", "clusterpolicies"))
    return install.Seen(survey, DEFAULTS, more.get("rendered", ()), more.get("there", {}), more.get("proposed", ()))


def wanted(**more: Any) -> install.Wanted:
    return install.Wanted(**{"chart": CHART, "values": {}, **more})


def outcomes(number: str, of: install.Wanted, what: install.Seen, *, resumes: bool = False) -> list[str]:
    return [each.outcome.value for each in install.judge(of, what, resumes=resumes) if each.id == number]


THERE = {("ClusterPolicy", "", "cluster-policy"): {"metadata": {"name": "cluster-policy"}}}
PATHS = {"hostPaths": {"kubeletRootDir": "/data/kubelet"}}
ASKED = Setting("hostPaths.kubeletRootDir", "/data/kubelet", "where the kubelets keep their files", "A31")
NRI = {"cdi": {"enabled": False, "nriPluginEnabled": True}}
CASES = {
    "A51 pinned": ("A51", wanted(), seen(), ["pass"]),
    "A51 not": ("A51", wanted(chart=CHART._replace(version="")), seen(), ["fail"]),
    "A52 this machine": ("A52", wanted(chart=helm.Chart("./chart", "0.1.0")), seen(), ["pass"]),
    "A52 encrypted": ("A52", wanted(), seen(), ["pass"]),
    "A52 not encrypted": ("A52", wanted(chart=CHART._replace(repository="http://charts.example")), seen(), ["warn"]),
    "A53 to be made": ("A53", wanted(), seen(), ["pass"]),
    "A53 there": ("A53", wanted(), seen(namespace()), ["pass"]),
    "A53 going": ("A53", wanted(), seen(namespace(phase="Terminating")), ["fail"]),
    "A54 free": ("A54", wanted(), seen(namespace()), ["pass"]),
    "A54 will be labelled": ("A54", wanted(), seen(namespace({"enforce": "baseline"})), ["pass"]),
    "A54 kept": ("A54", wanted(label="never"), seen(namespace({"enforce": "restricted"})), ["fail"]),
    "A54 warn and audit": ("A54", wanted(), seen(namespace({"warn": "baseline", "audit": "restricted"})),
                           ["pass", "warn", "warn"]),
    "A55 alone": ("A55", wanted(), seen(pod("op", app="gpu-operator")), ["pass"]),
    "A55 strangers": ("A55", wanted(), seen(pod("web", app="shop")), ["warn"]),
    "A57 needed": ("A57", wanted(values={"driver": {"enabled": False}}), seen(), ["pass"]),
    "A57 as the guide": ("A57", wanted(values={"driver": {"enabled": True}}), seen(), ["pass"]),
    "A57 as the chart": ("A57", wanted(values={"cdi": {"nriPluginEnabled": False}}), seen(), ["warn"]),
    "A58 none": ("A58", wanted(values={"driver": {"enabled": False}}), seen(), ["pass"]),
    "A58 asked for": ("A58", wanted(values=PATHS), seen(proposed=(ASKED,)), ["pass"]),
    "A58 nobody asks": ("A58", wanted(values=PATHS), seen(), ["warn"]),
    "A59 kept": ("A59", wanted(), seen(), ["pass"]),
    "A59 nothing to keep": ("A59", wanted(), seen()._replace(defaults={}), ["warn"]),
    "A60 accepted": ("A60", wanted(), seen(), ["pass"]),
    "A60 refused": ("A60", wanted(values=NRI), seen(), ["fail"]),
    "A60 somebody else's": ("A60", wanted(), seen(there=THERE), ["pass", "fail"]),
    "A62 none yet": ("A62", wanted(), seen(), ["pass"]),
    "A62 what is wanted": ("A62", wanted(), seen(release("deployed")), ["pass"]),
    "A62 other values": ("A62", wanted(values={"a": 1}), seen(release("deployed")), ["fail"]),
    "A62 pending": ("A62", wanted(), seen(release("pending-install")), ["fail"]),
    "A62 to be cleared": ("A62", wanted(recover=True), seen(release("pending-upgrade")), ["pass"]),
    "A62 two releases": ("A62", wanted(), seen(release("deployed", name="other")), ["fail"]),
}  # fmt: skip


@pytest.mark.parametrize("case", list(CASES))
def test_what_is_judged_before_an_installation(case: str) -> None:
    number, of, what, expected = CASES[case]
    assert outcomes(number, of, what) == expected


def test_every_check_of_an_installation_says_something() -> None:
    found = {each.id for each in install.judge(wanted(), seen())}
    assert found == {f"A{number}" for number in range(51, 63)}


def test_each_further_value_carries_the_check_that_asks_for_it() -> None:
    (found,) = [each for each in install.judge(wanted(values=PATHS), seen(proposed=(ASKED,))) if each.id == "A58"]
    assert "(A31)" in found.evidence[0].excerpt


def test_a_chart_that_is_not_to_be_had_is_a_finding() -> None:
    found = install.without_chart(wanted(), helm.ChartNotFound("the repository has 26.3.2, 26.3.1"))
    assert [(each.id, each.outcome) for each in found][-1] == ("A56", Outcome.FAIL)
    assert "26.3.2" in found[-1].cause


def test_what_helm_calls_deployed_is_no_installation_without_the_nodes() -> None:
    found = install.unvalidated(wanted(), "gpu-a: L2 waits")
    assert (found.id, found.outcome) == ("A61", Outcome.FAIL)


def test_what_could_not_be_read_is_unknown() -> None:
    unread = dict.fromkeys(("namespaces", "pods", "secrets"), "no permission")
    blind = install.Seen(Survey.of([], unread=unread), DEFAULTS, (), {})
    found = {each.id: each.outcome for each in install.judge(wanted(), blind)}
    assert {found["A53"], found["A55"], found["A62"]} == {Outcome.UNKNOWN}


def test_a_pending_release_of_this_very_plan_is_cleared() -> None:
    assert outcomes("A62", wanted(), seen(release("pending-install")), resumes=True) == ["pass"]


def test_the_plan_has_verify_last_and_always_and_shows_no_value() -> None:
    of = wanted(values={"driver": {"licenseToken": "hunter2"}}, sets=("driver.licenseToken=hunter2",))
    plan = install.plan(of, seen().survey, "helm")
    assert [step.id for step in plan.steps] == ["namespace", "defaults", "helm", "layers", "verify"]
    assert plan.steps[-1].repeat
    text = "\n".join(plan.text()) + json.dumps(plan.document())
    assert "hunter2" not in text
    assert "--set 'driver.licenseToken=...'" in text or "--set driver.licenseToken=..." in text


def test_the_chart_s_own_values_are_kept() -> None:
    path = Path(install.save_defaults(wanted(), DEFAULTS))
    assert json.loads(path.read_text()) == {"chart": list(CHART), "values": DEFAULTS}
    assert path.stat().st_mode & 0o077 == 0


def test_the_difference_names_paths_and_never_values() -> None:
    made = {"kind": "ConfigMap", "metadata": {"name": "m", "namespace": "n"}, "data": {"a": "hunter2"}}
    new = {"kind": "ConfigMap", "metadata": {"name": "o", "namespace": "n"}}
    hidden = {"kind": "ConfigMap", "metadata": {"name": "p", "namespace": "n"}}
    live = {**made, "data": {"a": "other"}}
    there = {install.key(made): live, install.key(new): None}
    lines = install.difference(seen(rendered=(made, new, hidden), there=there))
    assert lines == ["+ ConfigMap n/o", "? ConfigMap n/p (could not be looked at)", "~ ConfigMap n/m: data.a"]


class Recorder:
    """A Helm that notes what it is asked to do, and may fail in the middle."""

    name = "a recorder"

    def __init__(self, breaks: bool = False) -> None:
        self.did: list[str] = []
        self.breaks = breaks

    async def install(self, *_: Any, **__: Any) -> helm.Done:
        self.did.append("install")
        if self.breaks:
            raise KeyboardInterrupt
        return helm.Done("gpu-operator", "gpu-operator", 1, "deployed")

    async def uninstall(self, *_: Any, **__: Any) -> None:
        self.did.append("uninstall")

    async def rollback(self, _release: str, _namespace: str, revision: int, **_: Any) -> None:
        self.did.append(f"rollback {revision}")


def journal(of: install.Wanted) -> plans.Journal:
    survey = seen().survey
    return plans.Journal(install.journal_file(of, survey.server), install.plan(of, survey, "a recorder"))


async def did(*documents: Document, breaks: bool = False, of: install.Wanted | None = None) -> Sequence[str]:
    maker: Any = Recorder(breaks)
    with contextlib.suppress(KeyboardInterrupt, helm.ReleaseExists):
        await install.install(maker, of or wanted(), seen(*documents).survey, journal(of or wanted()))
    did: list[str] = maker.did
    return did


async def test_helm_runs_once_and_not_for_what_is_there() -> None:
    assert await did() == ["install"]
    assert await did(release("deployed")) == []


async def test_a_run_that_was_killed_inside_helm_goes_on() -> None:
    assert await did(breaks=True) == ["install"]
    assert await did(release("pending-install")) == ["uninstall", "install"]


async def test_a_pending_release_of_somebody_else_is_left_alone_unless_told() -> None:
    with pytest.raises(helm.ReleasePending, match="--recover"):
        await did(release("pending-install"))
    assert await did(release("pending-install"), of=wanted(recover=True)) == ["uninstall", "install"]
    pair = (release("deployed"), release("pending-upgrade", 2))
    assert await did(*pair, of=wanted(recover=True)) == ["rollback 1"]


def test_two_runs_at_once_are_told_apart() -> None:
    import os

    record = journal(wanted())
    record.note("helm began", {"pid": 1, "host": os.uname().nodename})
    with pytest.raises(install.AlreadyRunsError, match="process 1"):
        install.began(record)


# --- exports ----------------------------------------------------------------------------------------------------------

VALUES = {"driver": {"enabled": False}, "toolkit": {"env": [{"name": "A", "value": "${b}"}]}}
OCI = helm.Chart("oci://registry.example/charts/gpu-operator", "0.1.0")


def test_argo_cd_gets_an_application() -> None:
    (one,) = exports.argocd(wanted(values=VALUES))
    source = one["spec"]["source"]
    assert (source["repoURL"], source["chart"], source["targetRevision"]) == (*reversed(CHART[::2]), "v26.3.3")
    assert source["helm"]["valuesObject"] == VALUES
    (two,) = exports.argocd(wanted(chart=OCI))
    assert (two["spec"]["source"]["repoURL"], two["spec"]["source"]["chart"]) == (
        "registry.example/charts",
        "gpu-operator",
    )


@pytest.mark.parametrize("chart, kind", [(CHART, "HelmRepository"), (OCI, "OCIRepository")], ids=["repository", "oci"])
def test_flux_gets_a_source_and_a_release(chart: helm.Chart, kind: str) -> None:
    space, source, made = exports.flux(wanted(chart=chart, values=VALUES))
    assert [space["kind"], source["kind"], made["kind"]] == ["Namespace", kind, "HelmRelease"]
    assert made["spec"]["values"] == VALUES
    assert chart.version in json.dumps([source, made])


def test_terraform_gets_a_helm_release_with_its_templates_escaped() -> None:
    text = exports.terraform(wanted(values=VALUES))
    assert text.startswith('resource "helm_release" "gpu_operator" {\n')
    rows = dict(re.findall(r"^  (\w+) += (.+)$", text, re.M))
    assert json.loads(rows["version"]) == "v26.3.3"
    assert "$${b}" in rows["values"]
    (values,) = json.loads(rows["values"].replace("$${", "${"))
    assert json.loads(values) == VALUES


@pytest.mark.parametrize("form", [exports.argocd, exports.flux, exports.terraform], ids=["argocd", "flux", "terraform"])
def test_documents_that_are_committed_hold_no_secret(form: Any) -> None:
    with pytest.raises(exports.ExportError, match=r"driver\.apiToken look like secrets") as told:
        form(wanted(values={"driver": {"apiToken": "hunter2-hunter2"}}))
    assert "hunter2" not in str(told.value)


def test_what_fetches_charts_itself_cannot_take_one_of_this_machine() -> None:
    for form in (exports.argocd, exports.flux):
        with pytest.raises(exports.ExportError, match="helm push"):
            form(wanted(chart=helm.Chart("./deploy/chart", "0.1.0")))


def test_the_commands_pin_the_chart() -> None:
    line = exports.commands(wanted(value_files=("my values.yaml",)))[2]
    assert "--version v26.3.3" in line
    assert "--values 'my values.yaml'" in line


# --- uninstalling -----------------------------------------------------------------------------------------------------


def test_uninstalling_never_takes_people_s_resources_silently() -> None:
    mine = {"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "mine"}}
    survey = Survey.of([mine], read=("nodes", "pods", "nvidiadrivers", "secrets"))
    with pytest.raises(uninstall.UninstallError, match="ClusterPolicy mine"):
        uninstall.check(uninstall.Removal("r", "gpu-operator", crds=True), survey)
    uninstall.check(uninstall.Removal("r", "gpu-operator", crds=True, custom_resources=True), survey)
    uninstall.check(uninstall.Removal("r", "gpu-operator"), survey)


def test_uninstalling_lists_who_uses_gpus_and_what_stays() -> None:
    user = pod("train", app="train")
    user["metadata"]["namespace"] = "team"
    user["spec"] = {"nodeName": "n1", "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    user["status"] = {"phase": "Running"}
    survey = Survey.of([user], read=("nodes", "secrets"))
    notes = uninstall.plan(uninstall.Removal("r", "gpu-operator"), survey).notes
    assert notes[0] == "uses a GPU now: team/train on n1"
    assert any("--crds" in each for each in notes)
    assert any("lease" in each for each in notes)
