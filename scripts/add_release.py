"""Pin another release: in vendor/releases.toml, the environments of tox.ini, and the expected failures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from pin import PATCHES, ROOT, VENDOR, Refused, Release, fetch_unpinned, releases

sys.path.insert(0, str(ROOT))
from conformance.expectations.files import FOLDER, nearest

FLAVOURS = ("patched", "stock")
READ = "New in {version}; somebody has to read it and give the reason."


def edited(tox: str, version: str, last: str) -> str:
    """The text of tox.ini with environments for another release, next to those of the last one."""
    tox = tox.replace(f",-{last}}}{{,-lowest}}", f",-{last},-{version}}}{{,-lowest}}")
    tox = tox.replace(f",series-{last}}}]", f",series-{last},series-{version}}}]")
    line = f"    {last}: RELEASE = --release {last}\n"
    tox = tox.replace(line, line + line.replace(last, version))
    more = ", ".join([*(f"{one}-{version}" for one in FLAVOURS), f"{{{','.join(FLAVOURS)}}}-{version}-lowest"])
    return re.sub(r"^(    matrix = .*)$", rf"\1, {more}", tox, count=1, flags=re.MULTILINE)


def pin(version: str, root: Path = ROOT) -> list[Path]:
    """Pin a release in every file that lists releases. Returns the files that changed or are new."""
    known, default = releases()
    if version in known:
        raise Refused(f"{version} is pinned.")
    release = fetch_unpinned(version)
    last = next(v for v in known if v != default)
    toml, tox = root / "vendor" / "releases.toml", root / "tox.ini"
    before = tox.read_text()
    after = edited(before, version, last)
    if after.count(version) < 6:
        raise Refused(f"tox.ini does not list {last} as it did: add {version} by hand.")
    files = [toml, tox]
    for flavour in FLAVOURS:
        made = root / FOLDER.relative_to(ROOT) / f"{version}-{flavour}.txt"
        made.write_text(nearest(version, flavour, made.parent).read_text())
        files.append(made)
    toml.write_text(f'{toml.read_text().rstrip()}\n\n[releases."{version}"]\nsha256 = "{release.sha256}"\n')
    tox.write_text(after)
    return files


def expect(scorecard: Path, expectations: Path, version: str) -> int:
    """Add the failures of a run to the expectations, and drop those that passed or name no test.

    Returns how many new lines somebody has to read.
    """
    tests = {t: r for row in json.loads(scorecard.read_text())["rows"].values() for t, r in row.items()}
    failed = {test: result.get("reason", "") for test, result in tests.items() if result["outcome"] == "failed"}
    stale = {test for test, why in failed.items() if why.startswith("[XPASS") or "no test is" in why}
    gone = stale | {why.rpartition("no test is ")[2] for why in failed.values() if "no test is" in why}
    kept = [line for line in expectations.read_text().splitlines() if line not in gone]
    new = sorted(set(failed) - stale)
    for test in new:
        kept += [
            "",
            f"# {READ.format(version=version)} {failed[test].splitlines()[0][:90] if failed[test] else ''}",
            test,
        ]
    expectations.write_text("\n".join(kept) + "\n")
    return len(new)


def add(version: str) -> int:
    """Pin it, apply the series to it, run the suite on it, and write what to read.

    Raises:
        Refused: if the series does not apply; what was pinned is taken back.
    """
    where = Release(version, "").checkout
    if (where / ".git" / "rebase-apply").exists():
        raise Refused(_not_pinned(version, f"{where} is in the middle of a port."))
    made = [VENDOR / "releases.toml", ROOT / "tox.ini", *(FOLDER / f"{version}-{flavour}.txt" for flavour in FLAVOURS)]
    before = {path: path.read_text() if path.exists() else None for path in made}
    variants = (PATCHES / version).exists()
    files = pin(version)
    try:
        if where.exists():
            # Somebody has mended the patches there.
            _script("export.py", version)
        _script("apply.py", version, "--no-install")
    except Refused:
        for path, text in before.items():
            path.unlink(missing_ok=True) if text is None else path.write_text(text)
        if not variants:
            shutil.rmtree(PATCHES / version, ignore_errors=True)
        raise
    print(f"pinned {version}: {', '.join(str(file.relative_to(ROOT)) for file in files)}", flush=True)
    environments = [f"{flavour}-{version}" for flavour in FLAVOURS]
    scorecards = [ROOT / ".tox" / "scorecards" / f"{environment}.json" for environment in environments]
    for scorecard in scorecards:
        scorecard.unlink(missing_ok=True)
    subprocess.run([ROOT / "scripts" / "tox.sh", "-e", ",".join(environments)])
    for flavour, scorecard in zip(FLAVOURS, scorecards, strict=True):
        if not scorecard.exists():
            raise Refused(
                f"{version} is pinned, but the suite did not run: scripts/tox.sh -e {scorecard.stem} says why."
            )
        expected = FOLDER / f"{version}-{flavour}.txt"
        n = expect(scorecard, expected, version)
        print(f"{expected.relative_to(ROOT)}: {n} new lines to read; a reason belongs above each")
    return 0


def _script(name: str, version: str, *options: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / name), "--release", version, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no word"]
        raise Refused(_not_pinned(version, said[0].removeprefix("error: ")))


def _not_pinned(version: str, why: str) -> str:
    return (
        f"{version} is not pinned, and nothing was changed: {why}\n"
        f"Next: scripts/port.sh {version} leaves the first conflict in vendor/mlx-lm-{version}. Mend it there as\n"
        "docs/releases.md says, go on to the last patch, then run this again."
    )


__all__ = ["VENDOR", "add", "edited", "expect", "pin"]
