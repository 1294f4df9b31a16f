"""EndpointSlices of Services, and what every namespace holds from the start."""

from __future__ import annotations

from typing import Any

from contract.ctrl_plane import Document, Plane


def service(plane: Plane, **spec: Any) -> Document:
    ports = [{"name": "http", "port": 80, "targetPort": 8080}]
    return plane.make("services", "s", spec={"selector": {"app": "s"}, "ports": ports, **spec})


def slices(plane: Plane) -> list[Document]:
    return plane.list("endpointslices", "kubernetes.io/service-name=s")


def endpoints(plane: Plane, *names: str) -> dict[str, Document]:
    """Wait until the slices hold exactly these pods; the endpoints by pod."""

    def look() -> dict[str, Document]:
        return {
            endpoint["targetRef"]["name"]: endpoint
            for each in slices(plane)
            for endpoint in each.get("endpoints") or ()
        }

    def held() -> bool:
        assert len(slices(plane)) == 1
        assert sorted(look()) == sorted(names), sorted(look())
        return True

    plane.until(held, "the endpoints")
    return look()


def states(endpoint: Document) -> tuple[bool, bool, bool]:
    conditions = endpoint["conditions"]
    return conditions["ready"], conditions["serving"], conditions["terminating"]


def running(plane: Plane, name: str, **spec: Any) -> Document:
    plane.pod(name, {"app": "s"}, nodeName=plane.node_name("a"), **spec)
    return plane.runs(name)


def test_slice(plane: Plane) -> None:
    plane.node("a")
    made = service(plane)
    pod = running(plane, "p")
    (endpoint,) = endpoints(plane, "p").values()
    assert endpoint["addresses"] == [pod["status"]["podIP"]]
    assert states(endpoint) == (True, True, False)
    assert endpoint["nodeName"] == plane.node_name("a")
    assert endpoint["targetRef"] == {
        "kind": "Pod",
        "namespace": plane.space,
        "name": "p",
        "uid": pod["metadata"]["uid"],
    }
    (found,) = slices(plane)
    assert found["metadata"]["generateName"] == "s-"
    assert found["metadata"]["labels"] == {
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        "kubernetes.io/service-name": "s",
    }
    (owner,) = found["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Service", made["metadata"]["uid"], True)
    assert found["addressType"] == "IPv4"
    assert found["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]


def test_service_s_labels_reach_the_slice(plane: Plane) -> None:
    plane.make(
        "services",
        "s",
        metadata={"labels": {"app": "metrics"}},
        spec={"selector": {"app": "s"}, "ports": [{"port": 80}], "clusterIP": "None"},
    )
    endpoints(plane)
    assert slices(plane)[0]["metadata"]["labels"] == {
        "app": "metrics",
        "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
        "kubernetes.io/service-name": "s",
        "service.kubernetes.io/headless": "",
    }
    plane.change("services", "s", {"metadata": {"labels": {"app": "other"}}})
    plane.until(lambda: slices(plane)[0]["metadata"]["labels"]["app"] == "other", "the slice to follow")


def test_readiness_and_deletion(plane: Plane) -> None:
    plane.node("a")
    service(plane)
    running(plane, "p")
    assert states(endpoints(plane, "p")["p"]) == (True, True, False)

    def becomes(*wanted: bool) -> None:
        plane.until(lambda: states(endpoints(plane, "p")["p"]) == wanted, f"{wanted}")

    plane.report("p", "Running")
    becomes(False, False, False)
    plane.runs("p")
    becomes(True, True, False)
    plane.remove("pods", "p")
    becomes(False, True, True)
    plane.ends("p")
    endpoints(plane)


def test_pods_that_are_not_ready_are_published_on_request(plane: Plane) -> None:
    plane.node("a")
    service(plane, publishNotReadyAddresses=True)
    plane.pod("p", {"app": "s"}, nodeName=plane.node_name("a"))
    plane.report("p", "Running")
    assert states(endpoints(plane, "p")["p"]) == (True, False, False)


def test_named_target_port(plane: Plane) -> None:
    plane.node("a")
    service(plane, ports=[{"port": 80, "targetPort": "web"}])
    running(plane, "p", ports=[{"name": "web", "containerPort": 9400}])
    endpoints(plane, "p")
    assert slices(plane)[0]["ports"] == [{"name": "", "port": 9400, "protocol": "TCP"}]


def test_ended_and_other_pods_are_left_out(plane: Plane) -> None:
    plane.node("a")
    service(plane)
    running(plane, "p")
    running(plane, "q")
    plane.pod("other", {"app": "other"}, nodeName=plane.node_name("a"))
    plane.runs("other")
    endpoints(plane, "p", "q")
    plane.report("q", "Succeeded")
    endpoints(plane, "p")
    plane.change("pods", "p", {"metadata": {"labels": {"app": "other"}}})
    endpoints(plane)


def test_deleted_slice_comes_back_and_goes_with_its_service(plane: Plane) -> None:
    plane.node("a")
    service(plane)
    running(plane, "p")
    endpoints(plane, "p")
    (first,) = slices(plane)
    plane.remove("endpointslices", first["metadata"]["name"])
    plane.gone("endpointslices", first["metadata"]["name"])
    endpoints(plane, "p")
    plane.remove("services", "s")
    plane.until(lambda: slices(plane) == [], "the slices to go")


def test_without_a_selector_nothing_is_made(plane: Plane) -> None:
    plane.node("a")
    service(plane, selector=None)
    plane.make("services", "t", spec={"selector": {"app": "s"}, "ports": [{"port": 80}]})
    plane.until(lambda: plane.list("endpointslices", "kubernetes.io/service-name=t"), "the other's slice")
    assert slices(plane) == []


# --- namespaces -------------------------------------------------------------------------------------------------------


def test_a_new_namespace_has_its_account_and_certificate(plane: Plane) -> None:
    account = plane.read("serviceaccounts", "default")
    assert "secrets" not in account
    found = plane.until(lambda: plane.get("configmaps", "kube-root-ca.crt"), "the certificate")
    assert found is not None
    assert list(found["data"]) == ["ca.crt"]
    assert "kubernetes.io/description" in found["metadata"]["annotations"]
    namespace = plane.read("namespaces", plane.space)
    assert namespace["status"] == {"phase": "Active"}
    assert namespace["spec"] == {"finalizers": ["kubernetes"]}
    assert namespace["metadata"]["labels"] == {"kubernetes.io/metadata.name": plane.space}


def test_account_and_certificate_come_back(plane: Plane) -> None:
    found = plane.until(lambda: plane.get("configmaps", "kube-root-ca.crt"), "the certificate")
    account = plane.read("serviceaccounts", "default")
    plane.remove("serviceaccounts", "default")
    plane.gone("serviceaccounts", "default", account["metadata"]["uid"])
    plane.until(lambda: plane.get("serviceaccounts", "default"), "the account")
    assert found is not None
    plane.change("configmaps", "kube-root-ca.crt", {"data": {"ca.crt": "tampered"}})
    plane.until(lambda: plane.read("configmaps", "kube-root-ca.crt")["data"] == found["data"], "it to be mended")
    plane.remove("configmaps", "kube-root-ca.crt")
    plane.until(lambda: plane.get("configmaps", "kube-root-ca.crt"), "the certificate")
