"""A lab API server with a tiny fake of the kubelets, and kubectl to drive it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path

import yaml

from groundplane.lab import http
from groundplane.lab.api import Api


class FakeNodes:
    """Every container logs two lines; `cat` echoes, `false` fails, anything else prints its arguments."""

    async def logs(
        self,
        ns: str,
        pod: str,
        container: str,
        *,
        follow: bool = False,
        tail_lines: int | None = None,
        since: datetime | None = None,
        previous: bool = False,
        timestamps: bool = False,
    ) -> AsyncIterator[bytes]:
        lines = [f"{pod}/{container} one\n".encode(), b"two\n"]
        for line in lines[-tail_lines:] if tail_lines else lines:
            yield line

    async def exec(
        self,
        ns: str,
        pod: str,
        container: str,
        argv: list[str],
        stdin: AsyncIterator[bytes] | None,
        stdout: Callable[[bytes], None],
        stderr: Callable[[bytes], None],
    ) -> int:
        if argv[0] == "cat" and stdin is not None:
            async for piece in stdin:
                stdout(piece)
            return 0
        if argv[0] == "false":
            stderr(b"no luck\n")
            return 3
        stdout(" ".join(argv).encode() + b"\n")
        return 0


class Kubectl:
    def __init__(self, api: Api, server: http.Server, home: Path) -> None:
        self.api = api
        self.server = server
        self._home = home
        self._binary = Path(sys.executable).with_name("kubectl")
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": server.url}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
            "current-context": "lab",
        }
        (home / "kubeconfig").write_text(yaml.safe_dump(config))

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self._home), "KUBECONFIG": str(self._home / "kubeconfig"), "PATH": os.environ["PATH"]}

    async def start(self, *args: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(
            str(self._binary), *args, stdin=pipe, stdout=pipe, stderr=pipe, env=self.environment
        )

    async def run(self, *args: str, stdin: str = "") -> tuple[int, str, str]:
        process = await self.start(*args)
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 30)
        return process.returncode or 0, out.decode(), err.decode()

    async def ok(self, *args: str, stdin: str = "") -> str:
        code, out, err = await self.run(*args, stdin=stdin)
        assert code == 0, f"kubectl {' '.join(args)}: {err}"
        return out

    async def fails(self, *args: str, stdin: str = "") -> str:
        code, out, err = await self.run(*args, stdin=stdin)
        assert code != 0, f"kubectl {' '.join(args)} succeeded: {out}"
        return err


def has_diff() -> bool:
    return shutil.which("diff") is not None
