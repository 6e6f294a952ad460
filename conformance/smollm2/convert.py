"""Write the GGUF file of SmolLM2 as a model that mlx-lm loads.

python -m conformance.smollm2.convert FILE.gguf INTO [--4bit]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from conformance.arguments import parser

# llama.cpp's names for the parts of a layer and of a model, and those of mlx-lm.
PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
EMBEDDING = "model.embed_tokens"
OTHERS = {"token_embd": EMBEDDING, "output_norm": "model.norm"}
GROUP, BITS, EMBEDDING_BITS = 32, 4, 8
# The type of tokens such as <|im_end|>.
CONTROL = 3


def converted(arrays: dict[str, mx.array], keep_4bit: bool, scales_type: mx.Dtype) -> dict[str, mx.array]:
    """The weights by mlx-lm's names: in 4 bits as they are, or as bfloat16."""
    found = {}
    for name in sorted({name.rpartition(".")[0] for name in arrays}):
        # Such as blk.7.attn_q, or token_embd.
        *_, layer, part = ["", *name.split(".")]
        module = f"model.layers.{layer}.{PARTS[part]}" if layer else OTHERS[part]
        weight, scales = arrays[f"{name}.weight"], arrays.get(f"{name}.scales")
        if scales is None:
            found[f"{module}.weight"] = weight.astype(scales_type if keep_4bit else mx.bfloat16)
        elif keep_4bit:
            found[f"{module}.weight"] = weight
            found |= {f"{module}.{part}": arrays[f"{name}.{part}"].astype(scales_type) for part in ("scales", "biases")}
        else:
            exact = [x.astype(mx.float32) for x in (scales, arrays[f"{name}.biases"])]
            whole = mx.dequantize(weight, *exact, GROUP, EMBEDDING_BITS if module == EMBEDDING else BITS)
            found[f"{module}.weight"] = whole.astype(mx.bfloat16)
    return found


# The names of numbers in config.json, and in the GGUF file.
NUMBERS = {
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_hidden_layers": "llama.block_count",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "max_position_embeddings": "llama.context_length",
    "rope_theta": "llama.rope.freq_base",
    "vocab_size": "llama.vocab_size",
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
}


def config(about: dict[str, Any], keep_4bit: bool) -> dict[str, Any]:
    """The config.json of the model, from what the GGUF file says of it."""
    made = {
        "model_type": "llama",
        **{name: about[key].item() for name, key in NUMBERS.items()},
        "rms_norm_eps": round(about["llama.attention.layer_norm_rms_epsilon"].item(), 9),
        # The rows of queries and keys are in the order of llama.cpp.
        "rope_traditional": True,
        "tie_word_embeddings": True,
    }
    if keep_4bit:
        embedding = {"group_size": GROUP, "bits": EMBEDDING_BITS}
        made["quantization"] = {"group_size": GROUP, "bits": BITS, EMBEDDING: embedding}
    return made


def write_tokenizer(about: dict[str, Any], into: Path) -> None:
    """Byte pairs, with each digit a token of its own before they are merged."""
    tokens, merges = about["tokenizer.ggml.tokens"], about["tokenizer.ggml.merges"]
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    types = about["tokenizer.ggml.token_type"].tolist()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.save(str(into / "tokenizer.json"))
    named = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[about["tokenizer.ggml.bos_token_id"].item()],
        "eos_token": tokens[about["tokenizer.ggml.eos_token_id"].item()],
        "clean_up_tokenization_spaces": False,
    }
    (into / "tokenizer_config.json").write_text(json.dumps(named, indent=2) + "\n")
    (into / "chat_template.jinja").write_text(about["tokenizer.chat_template"])


def main() -> int:
    options = parser(__doc__)
    options.add_argument("gguf", metavar="FILE.gguf", type=Path)
    options.add_argument("into", metavar="INTO", type=Path, help="an empty folder")
    options.add_argument("--4bit", dest="keep_4bit", action="store_true", help="leave the weights in 4 bits")
    args = options.parse_args()
    arrays, about = mx.load(str(args.gguf), return_metadata=True)
    # The type in which 4-bit weights compute: a CPU takes float16 thirty times as long.
    scales_type = mx.float32 if mx.default_device() == mx.cpu else mx.float16
    weights = converted(arrays, args.keep_4bit, scales_type)
    mx.save_safetensors(str(args.into / "model.safetensors"), weights, metadata={"format": "mlx"})
    write_tokenizer(about, args.into)
    (args.into / "config.json").write_text(json.dumps(config(about, args.keep_4bit), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
