"""docs/production.md is true: its Python blocks run in order, its commands print what it shows, and
Kubernetes takes its manifest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.page import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "production.md").read_text()

pytestmark = pytest.mark.integration


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.timeout(1800)
def test_the_page_runs(tmp_path: Path) -> None:
    page = Page(DOCS / "production.md")
    printed, *of_commands = page.follow(tmp_path)
    assert "bytes per call" in printed
    assert len(page.prints) == 7
    assert len(of_commands) == len(page.commands) == 3
    assert all(command.prints for command in page.commands)


# --- the manifest -------------------------------------------------------------------------------


def manifest() -> Any:
    return yaml.safe_load(blocks("yaml")[0])


def pod() -> Any:
    return manifest()["spec"]["template"]["spec"]


def containers() -> dict[str, Any]:
    return {one["name"]: one for one in (*pod()["initContainers"], *pod()["containers"])}


@pytest.mark.parametrize("version", ["1.29", "1.33", "1.37"])
def test_kubernetes_takes_the_manifest(version: str) -> None:
    validation = pytest.importorskip("kubernetes_validate")
    whole = manifest()
    validation.validate(whole, version, strict=True)  # strict: no unknown field
    whole["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(validation.ValidationError):
        validation.validate(whole, version, strict=True)


def test_the_manifest_fits_the_recorder() -> None:
    server, move = containers()["server"], containers()["move"]
    assert move["restartPolicy"] == "Always"
    mounts = [{m["name"]: m["mountPath"] for m in one["volumeMounts"]} for one in (server, move)]
    assert mounts[0]["tapes"] == mounts[1]["tapes"] == "/tapes"
    assert {"name": "TAPES", "value": "/tapes"} in server["env"]
    assert {volume["name"] for volume in pod()["volumes"]} == {*mounts[0], *mounts[1]}
    for one in (server, move):  # both are the user who alone can read tapes
        assert "runAsUser" not in one["securityContext"]
        assert one["securityContext"]["readOnlyRootFilesystem"]
    assert pod()["securityContext"]["runAsUser"] > 0
    assert pod()["terminationGracePeriodSeconds"] > 30


def test_the_sidecar_takes_closed_files_and_at_the_end_all(tmp_path: Path) -> None:
    """With an rclone that writes its arguments down, and no time between two looks."""
    (script,) = containers()["move"]["args"]
    (tmp_path / "rclone").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/said\n')
    (tmp_path / "sleep").write_text('#!/bin/sh\nkill -TERM "$PPID"\n')  # the end of the pod
    for name in ("rclone", "sleep"):
        (tmp_path / name).chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "POD": "pod-1"}
    ran = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (0, "")
    looks = (tmp_path / "said").read_text().splitlines()
    assert looks == [
        "move /tapes store:tapes/pod-1 --exclude *.ahead-* --min-age 10m",
        "move /tapes store:tapes/pod-1 --exclude *.ahead-*",
    ]


def test_the_page_begins_with_the_installation() -> None:
    first = re.search(r"^```.*?^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert first is not None
    assert first[0].startswith("```sh\npip install ./schema ./recorder ")


# --- the examples -------------------------------------------------------------------------------

SERVES = {
    "fastapi_server": """
async def serve():
    async with server.lifespan(server.app):
        print(len(lifecycle.registered()))
asyncio.run(serve())
""",
    "litserve_server": """
server.Generate(api_path="/generate").setup("cpu")
print(len(lifecycle.registered()))
""",
}


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("example", SERVES)
def test_an_example_makes_a_recorder_only_if_it_is_told_where(
    tmp_path: Path, example: str, records: bool
) -> None:
    for library in ("transformers", example.partition("_")[0]):
        pytest.importorskip(library)
    environment = {name: value for name, value in os.environ.items() if name != "TAPES"}
    if records:
        environment["TAPES"] = str(tmp_path / "tapes")
    head = "import asyncio, server\nfrom calltape_recorder.host import lifecycle\n"
    done = subprocess.run(
        [sys.executable, "-c", head + SERVES[example]],
        cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False,
        env={**environment, "PYTHONPATH": str(ROOT / "examples" / example)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(int(records))
    assert len(list(tmp_path.rglob("*.tape"))) == records
