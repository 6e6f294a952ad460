"""A real model without an account: SmolLM2-135M-Instruct from a package. scripts/model.sh makes it in vendor/."""

from conformance import ROOT
from conformance.check.prompts import Unusable

# The directories by the names that the commands take.
MODELS = {name: ROOT / "vendor" / name for name in ("smollm2", "smollm2-4bit")}


def path_of(model: str) -> str:
    """The directory of a model that scripts/model.sh makes, for its name. Other names stay as they are.

    Raises:
        Unusable: if it was not made yet. The message says what makes it.
    """
    if model in MODELS and not MODELS[model].exists():
        option = " --4bit" * model.endswith("4bit")
        raise Unusable(f"{model} is not there yet: scripts/model.sh{option} makes it.")
    return str(MODELS.get(model, model))
