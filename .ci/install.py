"""Installs what is named into the environment of the Python that runs this: by uv, else by pip.

uv downloads in parallel and links files out of its cache, which takes a fraction of pip's time. It does not read pip's
configuration, and where packages come from is often said there alone (a company's index, a folder of wheels): what pip
has been told is passed on. Where uv cannot be had or does not succeed, pip does the work.

    python .ci/install.py --constraint constraints.txt --editable ".[test]"

takes the arguments of `pip install` that `uv pip install` has too.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

#: What pip calls a setting that may have several values, and uv's option for each of them.
LISTS = {
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "constraint": "--constraint",
    "trusted-host": "--allow-insecure-host",
    "no-binary": "--no-binary",
    "only-binary": "--only-binary",
}

#: What pip calls a setting, and the variables of the environment in which uv and its client look for it.
VARIABLES = {
    "cert": ("SSL_CERT_FILE",),
    "proxy": ("ALL_PROXY", "HTTPS_PROXY", "HTTP_PROXY"),
    "timeout": ("UV_HTTP_TIMEOUT",),
    "default-timeout": ("UV_HTTP_TIMEOUT",),
}

PIP = (sys.executable, "-m", "pip")


def parse_settings(listing: str) -> dict[str, str]:
    """Return the settings in what `pip config list` prints, by pip's long name of the option.

    The environment wins over files, and a section `install` over `global`, as in pip.
    """
    found: dict[tuple[int, str], str] = {}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.strip().rpartition(".")
        rank = {"global": 0, "install": 1, ":env:": 2}.get(section)
        if rank is not None:
            found[rank, name.replace("_", "-")] = str(ast.literal_eval(value.strip()))
    return {name: value for (_, name), value in sorted(found.items())}


def translate(settings: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the options and the environment that tell uv what pip has been told."""
    # pip takes the best version of all places; uv, unless told so, only those of the first that has the package.
    options = ["--index-strategy", "unsafe-best-match"]
    if settings.get("index-url"):
        options += ["--default-index", settings["index-url"]]
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        options += ["--no-index"]
    for name, option in LISTS.items():
        for value in settings.get(name, "").split():
            options += [option, value]
    names = [(variable, name) for name, variables in VARIABLES.items() for variable in variables]
    return options, {variable: settings[name] for variable, name in names if settings.get(name)}


def have_uv() -> bool:
    """Install uv where it is missing, and say whether it is there."""
    return subprocess.run([*PIP, "install", "--quiet", "uv"], stderr=subprocess.DEVNULL).returncode == 0


def install_by_uv(words: Sequence[str]) -> bool:
    """Install, and say whether that went well."""
    listing = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True).stdout
    options, variables = translate(parse_settings(listing))
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable, *options, *words]
    return subprocess.run(command, env={**os.environ, **variables}).returncode == 0


def main(words: Sequence[str]) -> int:
    """Return pip's exit code, or 0."""
    if have_uv():
        if install_by_uv(words):
            return 0
        print("uv did not install it: pip does", file=sys.stderr)
    return subprocess.run([*PIP, "install", "--quiet", *words]).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
