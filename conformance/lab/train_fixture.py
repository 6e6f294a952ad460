"""Train the fixture: a llama of one million parameters that copies, edits and quotes.

    pip install torch==2.13.0 numpy tokenizers safetensors
    python -m conformance.lab.train_fixture --out conformance/fixture

Only this command needs PyTorch. It uses one thread, because more are slower at this size.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn

from conformance.arguments import parser
from conformance.lab.texts.workloads import KINDS, Corpus, draw
from conformance.subjects.prompts import Message

SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]
TEMPLATE = (
    "{%- for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor -%}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif -%}"
)
VOCAB, DIM, LAYERS, HEADS, HIDDEN, THETA, EPS = 1024, 128, 4, 4, 384, 100_000.0, 1e-5
# The model first learns to copy from short edits, then to change a word, then to do both in longer rows. Texts that
# repeat nothing are left out: a model of this size has no capacity for them.
SHORT = ("rename", "rename", "echo", "json", "chat")
CHANGES = ("rename", "rename", "rename", "rename", "echo", "json", "lookup")
LONG = (*SHORT, "rename", "rename", "lookup", "quote", "json", "chat", "delete", "replace", "agent", "tool")
# (length of a row, rows in each step, steps, kinds)
PHASES: list[tuple[int, int, int, Sequence[str]]] = [
    (128, 8, 1500, SHORT),
    (128, 8, 2500, CHANGES),
    (256, 8, 1600, LONG),
    (512, 4, 1200, LONG),
    (1024, 2, 1000, LONG),
]
# Words, digits, line starts with their indentation, and the characters in between. A word has the same tokens in every
# place, so a name has the same tokens in a request and in a text.
PIECES = r"[A-Za-z]+|[0-9]|\n *|[^A-Za-z0-9\n]+"
SEED = 20


def train_tokenizer(corpus: Corpus) -> Tokenizer:
    """Byte-level BPE (Sennrich et al., 2016) on code, prose and records."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    rng = random.Random(SEED)
    texts = [m["content"] for _ in range(6000) for m in draw(rng, corpus, rng.choice(KINDS), 800)]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, messages: list[Message]) -> tuple[list[int], list[bool]]:
    """The token ids of a conversation, and for each whether the assistant writes it."""
    ids: list[int] = []
    answer: list[bool] = []
    for message in messages:
        head = [SPECIAL.index(f"<|{message['role']}|>")]
        body = [*tokenizer.encode(message["content"]).ids, 0]
        ids += head + body
        answer += [False] * len(head) + [message["role"] == "assistant"] * len(body)
    return ids, answer


class Rows:
    """Training rows: conversations packed end to end."""

    def __init__(self, tokenizer: Tokenizer, corpus: Corpus, seed: int) -> None:
        self.tokenizer, self.corpus, self.rng = tokenizer, corpus, random.Random(seed)

    def conversation(self, length: int, kinds: Sequence[str]) -> tuple[list[int], list[bool]]:
        while True:
            chars = int(length * math.exp(self.rng.uniform(math.log(0.12), math.log(1.2))))
            messages = draw(self.rng, self.corpus, self.rng.choice(kinds), max(80, chars))
            if messages:
                ids, answer = encode(self.tokenizer, messages)
                if len(ids) <= length:
                    return ids, answer

    def row(self, length: int, kinds: Sequence[str]) -> tuple[list[int], list[bool]]:
        ids: list[int] = []
        answer: list[bool] = []
        while len(ids) < length + 1:
            more = self.conversation(length, kinds)
            ids += more[0]
            answer += more[1]
        return ids[: length + 1], answer[: length + 1]

    def batch(self, length: int, rows: int, kinds: Sequence[str]) -> tuple[Tensor, Tensor]:
        drawn = [self.row(length, kinds) for _ in range(rows)]
        return torch.tensor([ids for ids, _ in drawn]), torch.tensor([answer for _, answer in drawn])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(DIM, EPS)
        self.post_attention_layernorm = nn.RMSNorm(DIM, EPS)
        self.self_attn = nn.ModuleDict({f"{n}_proj": nn.Linear(DIM, DIM, bias=False) for n in "qkvo"})
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(DIM, HIDDEN, bias=False),
                "up_proj": nn.Linear(DIM, HIDDEN, bias=False),
                "down_proj": nn.Linear(HIDDEN, DIM, bias=False),
            }
        )

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.input_layernorm(x)
        q, k, v = (self.self_attn[f"{n}_proj"](h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for n in "qkv")
        h = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.self_attn["o_proj"](h.transpose(1, 2).flatten(-2))
        h = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](h)) * self.mlp["up_proj"](h))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al., 2021), halves paired as llama does."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(DIM, EPS)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        half = DIM // HEADS // 2
        angles = torch.arange(ids.shape[1])[:, None] * THETA ** (-torch.arange(half) / half)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, angles.cos(), angles.sin())
        return self.norm(x) @ self.embed_tokens.weight.T


def train(model: Llama, rows: Rows, held_out: Rows) -> None:
    total, done, start = sum(phase[2] for phase in PHASES), 0, time.time()
    optim = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    for length, count, steps, kinds in PHASES:
        for _ in range(steps):
            optim.param_groups[0]["lr"] = 2e-3 * min(1.0, (done + 1) / 100, 2.0 * (1.01 - done / total))
            ids, answer = rows.batch(length, count, kinds)
            logits, wanted, answers = model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), answer[:, 1:].flatten()
            losses = F.cross_entropy(logits, wanted, reduction="none")
            weights = torch.where(answers, 1.0, 0.1)
            optim.zero_grad()
            ((losses * weights).sum() / weights.sum()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optim.step()
            done += 1
            if done % 100 == 0:
                right = (logits.argmax(-1) == wanted)[answers].float().mean()
                seconds = time.time() - start
                print(f"step {done}/{total} length {length} accuracy {right:.3f} {seconds:.0f} s", flush=True)
        print(accuracy(model, held_out, length, sorted(set(kinds)), 20), flush=True)


@torch.no_grad()
def accuracy(model: Llama, rows: Rows, length: int, kinds: Sequence[str], samples: int) -> dict[str, list[float]]:
    """The shares of right tokens and of fully right answers, by kind. An answer is the one of greedy decoding."""
    result = {}
    for kind in kinds:
        right: list[Tensor] = []
        for _ in range(samples):
            ids, answer = (torch.tensor(part) for part in rows.conversation(length, [kind]))
            right.append((model(ids[None, :-1])[0].argmax(-1) == ids[1:])[answer[1:]])
        whole = sum(bool(part.all()) for part in right) / samples
        result[kind] = [round(float(torch.cat(right).float().mean()), 4), round(whole, 4)]
    return result


def export(model: Llama, tokenizer: Tokenizer, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    state = {f"model.{name}": p.detach().half().contiguous() for name, p in model.state_dict().items()}
    save_file(state, str(out / "model.safetensors"), metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": DIM,
        "num_hidden_layers": LAYERS,
        "intermediate_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "rms_norm_eps": EPS,
        "rope_theta": THETA,
        "vocab_size": VOCAB,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
        "torch_dtype": "float16",
        "eos_token_id": 0,
    }
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tokenizer.save(str(out / "tokenizer.json"))
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0], "model_max_length": 8192}
    (out / "tokenizer_config.json").write_text(json.dumps(special, indent=2) + "\n")
    (out / "chat_template.jinja").write_text(TEMPLATE)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--out", type=Path, required=True, help="directory to write the model to")
    args = options.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    corpus = Corpus.load()
    tokenizer = train_tokenizer(corpus)
    model = Llama()
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)
    held_out = Rows(tokenizer, Corpus.load(held_out=True), SEED + 1)
    train(model, Rows(tokenizer, corpus, SEED), held_out)
    export(model, tokenizer, args.out)
    report = {str(length): accuracy(model, held_out, length, KINDS, 40) for length in (256, 512, 1024, 2048)}
    (args.out / "accuracy.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
