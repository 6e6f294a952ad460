"""Ask of a model on a device how it is decoded: python -m conformance check|probe|report --model PATH_OR_REPO

check   is it decoded exactly with drafting on, and if not, is it a fault or a near tie?
probe   which blocks of tokens are computed as single tokens are, how far off are the others, and what do they cost?
report  both, and the speed of six short workloads, in a file: scripts/report.sh --model MODEL
"""

from __future__ import annotations

import argparse
import importlib
import json
import signal
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from conformance import missing
from conformance.arguments import at_least_one, margin
from conformance.check.prompts import Unusable, from_file
from conformance.smollm2 import path_of

# As mlx_lm.draft.options has them, which is not to be imported before the device is known.
DRAFT_TYPES = ("auto", "edit", "suffix", "ngram-simple", "ngram-mod")
# The tool did not get to an answer; 0, 1 and 2 are answers.
FAILED = 3


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(FAILED, f"{self.prog}: {message}\n")


def length_or_auto(text: str) -> int | str:
    return text if text == "auto" else at_least_one(text)


def new_file(text: str) -> Path:
    if Path(text).is_dir() or not Path(text).parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no file in a folder that is there")
    return Path(text)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    form = argparse.RawDescriptionHelpFormatter
    parser = Parser(prog="python -m conformance", description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="decode prompts plain and drafted, and compare")
    probe = commands.add_parser("probe", help="compare blocks with single tokens")
    report = commands.add_parser("report", help="report how this machine decodes a model")
    for one in (check, probe, report):
        one.add_argument(
            "--model", required=True, help="a directory, a Hugging Face repo, or smollm2 after scripts/model.sh"
        )
        one.add_argument("--device", choices=["cpu", "gpu"], help="default: what mlx chooses")
        one.add_argument("--json", type=new_file, metavar="FILE", help="write all numbers to a file, too")
    check.add_argument("--prompts", type=Path, metavar="FILE", help="a prompt a line: text, or a JSON string")
    check.add_argument("--max-tokens", type=at_least_one, default=128, help="the longest answer, default %(default)s")
    check.add_argument("--draft-type", default="auto", choices=DRAFT_TYPES, help="default: auto")
    check.add_argument("--num-draft-tokens", type=length_or_auto, default="auto", help="the longest draft")
    check.add_argument("--draft-margin", type=margin, default=0.0, help="a number or auto, default 0")
    check.add_argument("--ungated", action="store_true", help="feed whole drafts, also where that does not pay")
    probe.add_argument("--quick", action="store_true", help="fewer lengths and repeats")
    report.add_argument("--minutes", type=float, default=20, help="begin no part after this time, default %(default)s")
    # So short that a report is made while somebody waits.
    drafted = {"draft_type": "auto", "num_draft_tokens": "auto", "draft_margin": 0.0, "ungated": False}
    report.set_defaults(quick=True, max_tokens=64, **drafted)
    return parser.parse_args(arguments)


def say(text: str) -> None:
    """Show the current step on one line. The next output replaces it."""
    if sys.stderr.isatty():
        print(f"\033[K{text}", file=sys.stderr, end="\r", flush=True)


def load(model: str) -> tuple[Any, Any]:
    import mlx_lm

    path = path_of(model)
    try:
        found: tuple[Any, Any] = mlx_lm.load(path)
    except Exception as error:
        told = (str(error).strip() or type(error).__name__).splitlines()[0]
        if not isinstance(error, (OSError, ValueError, RuntimeError)):
            # What a strange config.json leads to, such as "'model_type'", says little alone.
            told = f"{type(error).__name__}: {told}"
        if "tokenizer" in told:
            told = "there is no tokenizer in it that transformers can load, such as a tokenizer.json"
        where = "" if Path(model).is_dir() else ", which is no directory here,"
        raise Unusable(f"{model}{where} cannot be loaded: {told}") from error
    return found


def main(arguments: list[str] | None = None) -> int:
    args = parsed(arguments)
    try:
        return answered(args)
    except (ImportError, Unusable) as error:
        say("")
        print(missing(error) if isinstance(error, ImportError) else error, file=sys.stderr)
        return FAILED


def answered(args: argparse.Namespace) -> int:
    import mlx.core as mx

    if args.device is not None:
        if not mx.is_available(getattr(mx, args.device)):
            raise Unusable(f"This mlx has no {args.device}: leave --device out.")
        # mlx_lm makes its stream for the default device when it is imported: nothing imports it before this.
        mx.set_default_device(getattr(mx, args.device))
    command = importlib.import_module(f"conformance.check.{args.command}")
    import mlx_lm

    from conformance.device import device
    from conformance.lab.bench.models import weights_of

    if getattr(args, "prompts", None) is not None:
        args.prompts = from_file(args.prompts)
    say(f"loading {args.model}")
    model, tokenizer = load(args.model)
    # Without a path and without a name of the owner: users send the files.
    about = {"model": Path(args.model).name if Path(args.model).is_dir() else args.model, "weights": weights_of(model)}
    about |= {"mlx-lm": mlx_lm.__version__, "mlx": version("mlx"), "device": device()}
    print(", ".join(f"{name} {value}" for name, value in about.items()) + "\n")
    found: dict[str, Any] = command.main(args, model, tokenizer, say)
    if args.json is not None:
        args.json.write_text(json.dumps(about | found) + "\n", "utf-8")
    return int(found["exit"])


if __name__ == "__main__":
    # Python hears Ctrl-C only after a pass of the model, which may take seconds.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        code = main()
    except Exception:
        traceback.print_exc()
        code = FAILED
    sys.exit(code)
