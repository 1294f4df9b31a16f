"""Redaction: no planted secret survives, twice is once, other text stays as it is (admin-workflow.md 13.4)."""

import base64
import json
import string
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from groundplane.diagnose import redact
from groundplane.diagnose.redact import LONGEST, Pseudonyms, Redactor, redacted

WORDS = string.ascii_letters + string.digits
# mixed so that a planted secret is in none of the texts around it
SECRET = st.builds("Zq7{}x".format, st.text(WORDS, min_size=10, max_size=30))
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ{}.c2lnbmF0dXJl"

PLANTS = [
    "NGC_API_KEY={}",
    'export REGISTRY_PASSWORD="{}"',
    "      DB_PASSWORD:  {}",
    '{{"name":"LICENSE_TOKEN","value":"{}"}}',
    "- name: MY_SECRET\n  value: {}",
    "- name: MY_SECRET\n  value: |\n    {}\n    {}\n- name: OTHER",
    "password: {}",
    "  client-secret: '{}'",
    '"apiKey": "{}"',
    "Authorization: Bearer {}",
    "> authorization: Basic {}==",
    '"Authorization": ["Token {}"]',
    "curl -H 'Proxy-Authorization: Basic {}' x",
    "using bearer {} for the registry",
    "Cookie: session={}; theme=dark",
    "HTTP_PROXY is http://joe:{}@proxy.example:3128/",
    "git clone https://{}@git.example/x.git",
    JWT,
    '{{"auths":{{"nvcr.io":{{"username":"$oauthtoken","auth":"{}"}}}}}}',
    ".dockerconfigjson: {}",
    "  .dockercfg: {}",
    "-----BEGIN RSA PRIVATE KEY-----\nMII{}\nabc{}\n-----END RSA PRIVATE KEY-----",
    "x=-----BEGIN PRIVATE KEY-----\\nMII{}\\n-----END PRIVATE KEY-----",
    "login --password {} --verbose",
    "client_configuration_token={}",
    "the password is {}",
    "ghp_{}",
    "nvapi-{}",
    "https://blob.example/x?sv=1&sig={}&se=2",
    "password = {}",
    'password= "{} {}"',
    'password: "{} {}"',
    'level=info msg="login" password = "{}" user=joe',
    "DB_PASSWORD = {}",
    "  NGC_API_KEY =    {} {}",
    "export A_TOKEN = {}",
    "client.secret_key ={}",
    'run --password "{} {}" --verbose',
    "run --registry-token {}",
    'docker run -e "DB_PASSWORD={} {}" x',
    "machine nvcr.io login joe password {}",
    "ENV DB_PASSWORD {}",
    "DB_PASSWORD {}",
    "tried password {} in vain",
    'using token: "{}" for it',
    '[plugins."x".registry.configs."nvcr.io".auth]\n  auth = "{}"',
    'identitytoken = "{}"',
]
FILLER = [
    "reconcile loop done in 12 ms",
    "NVRM: Xid (PCI:0000:17:00): 79, pid=1234, GPU has fallen off the bus.",
    "Could not resolve Linux kernel version",
    "Key was rejected by service",
    "modprobe: ERROR: Required key not available",
    "spec:",
    '  tolerations: [{key: nvidia.com/gpu, operator: Exists}]',
    "- effect: NoSchedule",
    "serviceAccountName: nvidia-driver",
    "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
    "GPU 0: NVIDIA H100 (UUID: GPU-8f6d1c2e-1111-2222-3333-444455556666)",
    "image: nvcr.io/nvidia/driver:580.65.06-ubuntu22.04",
    "see https://docs.example/a/b?c=d",
    'MountVolume.SetUp failed for volume "v1" : secret "ngc-pull-2" not found',
    "secret not found",
    "client-side token bucket of 50 per second, rate limiter waits",
    "password required",
    "password authentication failed for user admin2",
    "invalid bearer token",
    "bearer authentication is required",
    "the token has expired, 2 tokens are left",
    "unauthorized: authentication required",
    "SECRET KEY material is not read",
    "if token == nil and key != other",
    'User "system:serviceaccount:a:b" cannot list resource "secrets" in API group ""',
    "kube-api-access-x7k2p: token rotated",
    "taint key: nvidia.com/gpu",
    "imagePullSecrets: [ngc]",
    "secretName: nvidia-validator-tls-2",
    "key = nvidia.com/gpu",
    "",
]  # fmt: skip


@pytest.mark.parametrize("plant", PLANTS)
@given(secret=SECRET, before=st.sampled_from(FILLER), after=st.sampled_from(FILLER))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_no_planted_secret_survives(plant: str, secret: str, before: str, after: str) -> None:
    redactor = Redactor()
    said = redactor.text("\n".join((before, plant.format(*[secret] * plant.count("{}")), after)))
    assert secret not in said
    assert said.startswith(before) and said.endswith(after)
    assert sum(redactor.counts.values()) > 0
    again = Redactor()
    assert again.text(said) == said and not again.counts


@pytest.mark.parametrize("text", [*FILLER, *(f"time=1 level=error msg={each!r}" for each in FILLER)])
def test_ordinary_text_stays(text: str) -> None:
    assert redacted(text) == text


@given(st.lists(st.sampled_from(FILLER), max_size=8).map("\n".join))
@settings(deadline=None, derandomize=True)
def test_other_text_stays(text: str) -> None:
    redactor = Redactor()
    assert redactor.text(text) == text and redactor.counts == {}


@given(st.text(max_size=300))
@settings(deadline=None, derandomize=True)
def test_any_text_is_redacted_once(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


PIECES = st.sampled_from([*PLANTS, *FILLER, "token:", "=", '"', "'", "Bearer ", "key", "://", "@", "***", "|", "\\"])


@given(st.lists(PIECES, max_size=6).map(" ".join))
@settings(deadline=None, derandomize=True)
def test_any_mixture_is_redacted_once(text: str) -> None:
    once = redacted(text)
    assert redacted(once) == once


@given(text=st.lists(st.sampled_from([*PLANTS, *FILLER]), max_size=6).map("\n".join), size=st.integers(1, 40))
@settings(deadline=None, derandomize=True)
def test_pieces_make_no_difference(text: str, size: int) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert "".join(Redactor().stream(pieces)) == redacted(text)


def test_a_huge_line_keeps_its_text_and_loses_its_secrets() -> None:
    words = "reconcile loop done in 12 ms " * 40_000
    line = f"{words}REGISTRY_PASSWORD=Zq7hunter2x {words}"
    pieces = (line[at : at + 8192] for at in range(0, len(line), 8192))
    parts = list(Redactor().stream(pieces))
    said = "".join(parts)
    assert said == line.replace("Zq7hunter2x", "***")
    assert max(map(len, parts)) <= 2 * LONGEST


def test_a_secret_at_the_cut_does_not_survive() -> None:
    for shift in range(0, 60, 3):
        line = "w " * ((LONGEST - shift) // 2) + "the Authorization: Bearer Zq7abcdefgh0123456789 " + "w " * LONGEST
        assert "Zq7abc" not in redacted(line)


def test_a_run_that_cannot_be_cut_is_left_out() -> None:
    said = redacted("a" * (LONGEST + 5) + " Zq7 end")
    assert said == redact.LEFT_OUT + " Zq7 end"
    assert redacted(said) == said


def secret_object(**data: str) -> dict[str, Any]:
    encoded = {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": encoded,
        "stringData": {"x": "Zq7plain-text"},
    }


@given(secret=SECRET, before=st.text(WORDS, max_size=5), after=st.text(WORDS, max_size=5))
@settings(deadline=None, derandomize=True)
def test_a_secrets_data_are_known_from_then_on(secret: str, before: str, after: str) -> None:
    redactor = Redactor()
    said = redactor.document({"kind": "List", "items": [secret_object(some=secret)]})
    encoded = base64.b64encode(secret.encode()).decode()
    assert secret not in str(said) and encoded not in str(said) and "Zq7plain-text" not in str(said)
    assert said["items"][0]["metadata"] == {"name": "s"}
    log = f"{before} {secret} and {encoded}"
    assert secret not in redactor.line(log) and encoded not in redactor.line(log)
    inside = base64.b64encode(f"{before}{secret}{after}".encode()).decode()
    hidden = redactor.line(inside)
    head = hidden.partition("***")[0]
    assert hidden != inside and secret[:6].encode() not in base64.b64decode(head[: len(head) // 4 * 4])
    assert "Zq7plain-text" not in redactor.text("Zq7plain-text")


def test_documents() -> None:
    document = {
        "kind": "Pod",
        "metadata": {"annotations": {"last": json.dumps(secret_object(p="Zq7annotated"))}},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "args": ["--password=Zq7argument", "--verbose"],
                    "env": [
                        {"name": "NGC_API_KEY", "value": "Zq7environment"},
                        {"value": "Zq7valuefirst", "name": "A_TOKEN"},
                        {"name": "PLAIN", "value": "seen"},
                        {"name": "FROM_SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                    ],
                }
            ],
            "imagePullSecrets": [{"name": "pull"}],
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "password": "Zq7password",
            "pin": {"token": 123456},
            "automountServiceAccountToken": False,
            "url": "http://u:Zq7url@h/",
            "script": "x\nPASSWORD=Zq7script\ny",
        },
    }
    before = json.dumps(document)
    redactor = Redactor()
    said = redactor.document(document)
    assert "Zq7" not in json.dumps(said) and "123456" not in json.dumps(said)
    assert json.dumps(document) == before
    container = said["spec"]["containers"][0]
    assert container["args"] == ["--password=***", "--verbose"]
    assert container["env"][2:] == document["spec"]["containers"][0]["env"][2:]  # type: ignore[index]
    for same in ("imagePullSecrets", "tolerations", "automountServiceAccountToken"):
        assert said["spec"][same] == document["spec"][same]
    again = Redactor()
    assert again.document(said) == said and not again.counts
    assert yaml.safe_load(Redactor().text(yaml.safe_dump(said))) == said


def test_the_report_has_counts_and_no_values() -> None:
    redactor = Redactor()
    redactor.text("A_TOKEN=Zq7one\nB_TOKEN=Zq7two\nBearer Zq7threefour")
    assert redactor.report() == {"bearer token": 1, "value by name": 2}


def test_short_values_are_not_looked_for() -> None:
    redactor = Redactor()
    redactor.learn("yes")
    assert redactor.line("yes it is") == "yes it is"


def test_pseudonyms_are_the_same_throughout() -> None:
    redactor = Redactor(Pseudonyms(["gpu-a", "gpu-a-2", "node-01"]))
    text = (
        "gpu-a and gpu-a-2 and node-01 (10.1.2.3, fe80::1:2, aa:bb:cc:dd:ee:ff) joe@example.org 10.1.2.3\n"
        "GPU-8f6d1c2e-1111-2222-3333-444455556666 Serial Number : 1320021036453 v 570.172.08 PCI 0000:17:00.0 12:30:45"
    )
    said = redactor.text(text)
    assert said == (
        "node-02 and node-03 and node-04 (ip-01, ip-02, mac-01) email-01 ip-01\n"
        "gpu-uuid-01 Serial Number : serial-01 v 570.172.08 PCI 0000:17:00.0 12:30:45"
    )
    assert redactor.text(said) == said
    assert redactor.counts["ip (pseudonym)"] == 3
    assert redactor.line("again gpu-a at 127.0.0.1") == "again node-02 at 127.0.0.1"


def test_pseudonyms_in_documents() -> None:
    said = Redactor(Pseudonyms(["gpu-a"])).document({"spec": {"nodeName": "gpu-a"}, "gpu-a": ["http://10.1.2.3:80/"]})
    assert said == {"spec": {"nodeName": "node-01"}, "node-01": ["http://ip-01:80/"]}


@pytest.mark.parametrize("line", ["A" * 200_000, "key" * 60_000, "a=" * 90_000, "token: " * 30_000, '"' * 200_000])
def test_hostile_lines_take_no_time(line: str) -> None:
    once = redacted(line)
    assert redacted(once) == once


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run --env NGC_API_KEY=abc --tty", "run --env NGC_API_KEY=*** --tty"),
        ('docker -e "DB_PASSWORD=a b"', 'docker -e "DB_PASSWORD=***"'),
        ("      DB_PASSWORD:   two words", '      DB_PASSWORD:   "***"'),
        ("- name: NGC_TOKEN\n  value: abc def\n- name: PATH", '- name: NGC_TOKEN\n  value: "***"\n- name: PATH'),
        ('{"name":"my-secret","value":"x","k":1}', '{"name":"my-secret","value":"***","k":1}'),
        ("- name: NGC_TOKEN\n  valueFrom: {a: b}", "- name: NGC_TOKEN\n  valueFrom: {a: b}"),
        ('password = "x y"', 'password = "***"'),
        ("password = x y", "password = ***"),
        ("a password = x, then", "a password = ***, then"),
        ("API_TOKEN = [redacted]", "API_TOKEN = [redacted]"),
    ],
)
def test_what_is_shown_instead(text: str, shown: str) -> None:
    assert redacted(text) == shown == redacted(shown)


@given(st.from_regex(r"[A-Z_]{0,9}(TOKEN|PASSWORD|SECRET|KEY|CREDENTIAL)[A-Z_]{0,9}", fullmatch=True))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_no_value_of_a_sensitive_variable_is_shown(name: str) -> None:
    forms = (
        "{}=v4lu3",
        "  {}:  v4lu3",
        "- name: {}\n  value: v4lu3",
        "cmd {}='v4lu3' x",
        "{} = v4lu3",
        "{}= 'v4lu3 x'",
    )
    assert redact.is_sensitive(name)
    assert not [form for form in forms if "v4lu3" in redacted(form.format(name))]


@pytest.mark.parametrize("name", ["PATH", "NVIDIA_VISIBLE_DEVICES", "HTTP_PROXY"])
def test_names_that_hold_no_secret(name: str) -> None:
    assert not redact.is_sensitive(name)


@pytest.mark.parametrize("run", ["K", "\n", "password ", "password=", "TOKEN\t", "a_token = ", "bearer a", "-"])
def test_long_runs_are_quick(run: str) -> None:
    """With patterns that look across lines, or without bounds, each of these takes minutes."""
    once = redacted(run * (200_000 // len(run)) + "KEY")
    assert redacted(once) == once
