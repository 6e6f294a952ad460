"""Train a draft head, record what it drafts, and show what it gains.

python -m conformance.lab.trained gains                     # three tables of costs, from what is recorded

The other steps need PyTorch (pip install torch==2.13.0 numpy safetensors tokenizers), and for smollm2 the model of
scripts/model.sh. Together they take less than two hours on two cores:

python -m conformance.lab.trained texts smollm2             # let it answer 900 prompts, and keep its hidden states
python -m conformance.lab.trained train smollm2 --minutes 60
python -m conformance.lab.trained drafts smollm2            # what the head drafts on streams that it was not trained on
"""

from __future__ import annotations

import sys

from conformance.testing.arguments import parser

MODELS = ("smollm2", "fixture")


def main() -> int:
    options = parser(__doc__, "python -m conformance.lab.trained")
    options.add_argument("what", choices=("texts", "train", "drafts", "gains"))
    options.add_argument("model", nargs="?", choices=MODELS, default=MODELS[0])
    options.add_argument("--minutes", type=float, default=60, help="how long to train (default: %(default)s)")
    args = options.parse_args()
    # Each needs packages that the others do not.
    if args.what == "texts":
        from conformance.lab.trained.texts import write

        write(args.model)
    elif args.what == "train":
        from conformance.lab.trained.train import train

        train(args.model, args.minutes)
    elif args.what == "drafts":
        from conformance.lab.trained.drafts import record

        record(args.model)
    else:
        from conformance.lab.trained.simulated import main as gains

        gains()
    return 0


if __name__ == "__main__":
    sys.exit(main())
