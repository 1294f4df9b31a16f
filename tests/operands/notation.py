"""Writes rendered pods in the notation of contracts/control-plane.md section 9, for comparison with its rows.

Written apart from the parser in operands/build.py on purpose: a mistake there must not cancel out here.
"""

PROPAGATION = {"Bidirectional": ":B", "HostToContainer": ":H"}
TYPES = {None: "-", "Directory": "D", "DirectoryOrCreate": "DC", "File": "F", "FileOrCreate": "FC", "CharDevice": "C"}


def env(container):
    rows = []
    for each in container.get("env", []):
        if "valueFrom" in each:
            rows.append(f"{each['name']}<-{each['valueFrom']['fieldRef']['fieldPath']}")
        else:
            rows.append(f"{each['name']}={each['value']}")
    return rows


def env_dict(container):
    return {each["name"]: each.get("value") for each in container.get("env", [])}


def mounts(container):
    rows = []
    for each in container.get("volumeMounts", []):
        row = f"{each['name']}:{each['mountPath']}"
        row += ":ro" if each.get("readOnly") else ""
        row += PROPAGATION[each["mountPropagation"]] if "mountPropagation" in each else ""
        row += f" (sub={each['subPath']})" if "subPath" in each else ""
        rows.append(row)
    return rows


def volumes(pod):
    return [_volume(each) for each in pod.get("volumes", [])]


def _volume(volume):
    if host := volume.get("hostPath"):
        return f"{volume['name']}={host['path']}({TYPES[host.get('type')]})"
    if "emptyDir" in volume:
        return f"{volume['name']}=empty"
    if secret := volume.get("secret"):
        items = "".join(f" {item['key']}->{item['path']}" for item in secret.get("items", []))
        return f"{volume['name']}=secret {secret['secretName']}{items}"
    source = volume["configMap"]
    mode = f"({source['defaultMode']:04o})" if "defaultMode" in source else ""
    items = "".join(f" {item['key']}->{item['path']}" for item in source.get("items", []))
    return f"{volume['name']}={source['name']}{mode}{items}"


def security(container):
    context = dict(container.get("securityContext", {}))
    flags = []
    if context.pop("privileged", False):
        flags.append("privileged")
    if context.get("runAsUser") == 0:
        context.pop("runAsUser")
        flags.append("U0")
    if context.get("seLinuxOptions") == {"level": "s0"}:
        context.pop("seLinuxOptions")
        flags.append("S0")
    assert not context, f"unexpected security settings {context}"
    return " ".join(flags)


def rules(role):
    """A role's rules as ``group/resource verbs`` rows, one resource a row."""
    rows = []
    for rule in role["rules"]:
        names = f" named {','.join(rule['resourceNames'])}" if "resourceNames" in rule else ""
        for group in rule["apiGroups"]:
            rows += [f"{group}/{resource}{names}: {','.join(rule['verbs'])}" for resource in rule["resources"]]
    return sorted(rows)


def pod(daemon_set):
    return daemon_set["spec"]["template"]["spec"]


def container(daemon_set, name):
    spec = pod(daemon_set)
    (found,) = [c for c in (*spec.get("initContainers", []), *spec["containers"]) if c["name"] == name]
    return found
