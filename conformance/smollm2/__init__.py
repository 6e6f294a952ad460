"""A real model without an account: SmolLM2-135M-Instruct from a package. scripts/model.sh makes it in vendor/."""

from conformance import ROOT

# The directories by the names that the commands take, and what makes them.
MODELS = {name: ROOT / "vendor" / name for name in ("smollm2", "smollm2-4bit")}
COMMANDS = {"smollm2": "scripts/model.sh", "smollm2-4bit": "scripts/model.sh --4bit"}


class NotMade(Exception):
    """The model is not in vendor/ yet. The message says what makes it."""


def path_of(model: str) -> str:
    """The directory of a model that scripts/model.sh makes, for its name. Other names stay as they are.

    Raises:
        NotMade: if it was not made yet.
    """
    if model not in MODELS:
        return model
    if not MODELS[model].exists():
        raise NotMade(f"{model} is not there yet: {COMMANDS[model]} makes it.")
    return str(MODELS[model])
