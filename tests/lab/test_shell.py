"""The lab's shell: scripts as pods carry them, compared with the results a POSIX shell gives."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from groundplane.lab import clock, host, images, nodes, programs
from groundplane.lab.shell import parser
from groundplane.node.hostroot import HostRoot

SCRIPTS = [
    "echo hello world",
    "echo 'a  b' \"c  d\" e\\ f",
    'x=1; y="$x-2"; echo $y ${z:-none} ${x:+set} ${y%-*} ${y#*-}',
    "for i in a b c; do echo $i; done | grep -v b",
    "if [ 1 -eq 2 ]; then echo no; elif test -n x; then echo yes; else echo other; fi",
    'i=; while [ "$i" != xxx ]; do i=x$i; echo $i; done',
    "until false; do echo once; break; done; echo after",
    'case "A=b" in [A-Za-z_]*=*) echo assignment ;; *) echo no ;; esac',
    'f() { echo "$1 of $#"; return 3; }; f one two; echo $?',
    "set -e; false || echo caught; if false; then :; fi; echo alive; false; echo dead",
    "set -eu; echo ${missing:-fine}; echo $missing",
    "(cd /; x=inner; exit 4); echo $? ${x:-outer}",
    "v=1; cat <<EOF\nvalue: $v\nEOF\ncat <<'E'\nraw: $v\nE",
    "echo one > f; echo two >> f; cat f; cat < f | head -1",
    "echo err >&2; echo out; { echo a; echo b >&2; } 2>/dev/null",
    'n=$(echo inner; exit 5); echo "$n $?"',
    'while IFS= read -r line || [ -n "$line" ]; do echo "<$line>"; done <<E\n a b\nc\nE',
    'read -r a b <<E\none two three\nE\necho "$b"',
    "export A=1; sh -c 'echo $A $0 $1' name arg",
    'eval "v=\\${undefined:-}"; [ -z "$v" ] && echo empty',
    "! true; echo $?; true && ! false; echo $?",
    "touch a-ready b-ready .c-ready; rm -f *-ready; ls -A",
    "trap 'echo bye' EXIT; echo hi; exit 7",
    "printf '%s\\n' x 'y z'",
    "for i in 1 2 3; do [ $i = 2 ] && continue; echo $i; done",
    'echo a; # comment\necho "b # not"',
    "true & wait $!; echo $?",
    "x='a b'; for w in $x; do echo $w; done; for w in \"$x\"; do echo $w; done",
    "no-such-command 2>/dev/null; echo $?",
    "mkdir -p d/e && [ -d d/e ] && [ ! -f d ] && echo made",
]


@pytest.fixture
def container() -> Iterator[programs.Container]:
    folder = Path(tempfile.mkdtemp(prefix="gp-"))
    simulated = host.SimulatedHost(HostRoot(folder), nodes.NodeSpec("n"))
    yield programs.Container(
        host=simulated,
        clock=clock.LabClock(1000),
        registry=programs.ProgramRegistry.standard(),
        pod={"metadata": {"name": "p", "namespace": "default"}, "spec": {}},
        spec={"name": "c", "image": "busybox"},
        image=images.IMAGES["busybox"],
        rootfs=HostRoot(folder / "rootfs"),
    )
    shutil.rmtree(folder)


async def run(container: programs.Container, script: str) -> tuple[int, str]:
    shutil.rmtree(container.rootfs.base, ignore_errors=True)
    container.rootfs.base.mkdir(parents=True)
    output = bytearray()
    ctx = programs.ContainerContext(container, ("sh", "-c", script), out=output.extend, err=lambda _: None, env={})
    return await ctx.run(), output.decode()


@pytest.mark.parametrize("script", SCRIPTS)
async def test_as_the_system_shell(container: programs.Container, script: str, tmp_path: Path) -> None:
    real = subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, env={}, check=False)
    code, text = await run(container, script)
    assert (text, code) == (real.stdout, real.returncode)


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("if true; then echo", "expected"),
        ("echo 'open", "single quote"),
        ("done", "unexpected 'done'"),
        ("echo $((1+1))", "arithmetic"),
        ("\n\necho a &&", "line 3"),
    ],
)
def test_syntax_errors_name_line_and_cause(script: str, complaint: str) -> None:
    with pytest.raises(parser.ShellSyntaxError, match=complaint.replace("(", r"\(")):
        parser.parse(script)


async def test_a_trap_ends_a_sleep_and_without_one_nothing_does(container: programs.Container) -> None:
    for script, ends in (("trap 'exit 9' TERM; sleep 99999999 & wait", True), ("sleep 99999999", False)):
        container.stopping.clear()
        task = asyncio.create_task(run(container, script))
        await asyncio.sleep(0.02)
        container.stopping.set()
        done, _ = await asyncio.wait({task}, timeout=0.2)
        assert bool(done) is ends
        if ends:
            assert task.result()[0] == 9
        task.cancel()
    container.stopping.clear()
