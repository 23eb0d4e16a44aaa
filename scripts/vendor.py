"""Checks or fetches the lab's front-end libraries, unchanged from their published packages.

    python scripts/vendor.py           check that every file exists and has the hash in its manifest
    python scripts/vendor.py --fetch   fetch the versions below from the npm registry again (needs npm)

Files are not built or changed, so each equals the published file byte by byte.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHIPPED = ROOT / "src/grpo/lab/static/vendor"
FOR_TESTS = ROOT / "tests/lab/vendor"


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    licence: str
    files: tuple[str, ...]
    """Paths in the package, or patterns of them."""


PACKAGES: dict[Path, tuple[Package, ...]] = {
    SHIPPED: (
        Package("preact", "11.2.0", "MIT", ("LICENSE", "dist/preact.mjs", "hooks/dist/hooks.mjs")),
        Package("htm", "3.1.1", "Apache-2.0", ("LICENSE", "dist/htm.mjs", "preact/index.mjs")),
        Package("@preact/signals", "2.11.4", "MIT", ("LICENSE", "dist/signals.mjs")),
        Package("@preact/signals-core", "1.14.5", "MIT", ("LICENSE", "dist/signals-core.mjs")),
        Package("d3", "7.9.2", "ISC", ("LICENSE", "dist/d3.min.js")),
        Package("@observablehq/plot", "0.6.17", "ISC", ("LICENSE", "dist/plot.umd.min.js")),
        Package(
            "@fontsource-variable/inter",
            "5.3.0",
            "OFL-1.1",
            ("LICENSE", "files/inter-latin-wght-normal.woff2", "files/inter-greek-wght-normal.woff2"),
        ),
        Package("katex", "0.19.1", "MIT", ("LICENSE", "dist/katex.min.js", "dist/katex.min.css", "dist/fonts/*.woff2")),
    ),
    FOR_TESTS: (Package("axe-core", "4.14.0", "MPL-2.0", ("LICENSE", "LICENSE-3RD-PARTY.txt", "axe.min.js")),),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fetch", action="store_true", help="fetch the packages again before checking them")
    if parser.parse_args().fetch:
        for folder, packages in PACKAGES.items():
            fetch(folder, packages)
    problems = [problem for folder in PACKAGES for problem in check(folder)]
    print("\n".join(problems) or "every vendored file matches its manifest")
    return 1 if problems else 0


def check(folder: Path) -> list[str]:
    """Files that are missing, changed or not listed in the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    listed = {f"{name}/{file}": digest for name, about in manifest.items() for file, digest in about["files"].items()}
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {"manifest.json"}
    problems = [f"{folder / path}: missing" for path in sorted(listed.keys() - found)]
    problems += [f"{folder / path}: not in the manifest" for path in sorted(found - listed.keys())]
    changed = (path for path in sorted(listed.keys() & found) if sha256(folder / path) != listed[path])
    return [*problems, *(f"{folder / path}: differs from the published file" for path in changed)]


def fetch(folder: Path, packages: tuple[Package, ...]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    manifest = {}
    for package in packages:
        with tempfile.TemporaryDirectory() as scratch:
            command = ["npm", "pack", f"{package.name}@{package.version}", "--json", "--pack-destination", scratch]
            [about] = as_list(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
            [archive] = Path(scratch).glob("*.tgz")
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
            files = copy(Path(scratch) / "package", folder / package.name, package.files)
        manifest[package.name] = {
            "version": package.version,
            "licence": package.licence,
            "package": about["integrity"],
            "files": {file: sha256(folder / package.name / file) for file in files},
        }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


def as_list(answer: list[dict[str, str]] | dict[str, dict[str, str]]) -> list[dict[str, str]]:
    """Versions of npm print either a list or a dict."""
    return answer if isinstance(answer, list) else list(answer.values())


def copy(source: Path, target: Path, patterns: tuple[str, ...]) -> list[str]:
    files = sorted(path.relative_to(source).as_posix() for pattern in patterns for path in source.glob(pattern))
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)
    return files


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
