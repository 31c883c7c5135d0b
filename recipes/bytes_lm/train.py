"""A byte-level GPT on text that every machine has: the source of Python's standard library.

Whole files are held out. At the end, the model's bits per byte on them stand beside what simpler
models of the same bytes need: the fewer bits, the better the model knows what comes next.
Shapes: b windows, t positions, h heads, d the model's width.
"""

import gzip
import lzma
import math
import sysconfig
import zlib
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import gscalar


def read_text(max_bytes: int | None) -> list[Tensor]:
    """Return the bytes to learn, and the held-out ones: one file in twenty, by a hash of its path."""
    library, texts = Path(sysconfig.get_path("stdlib")), ([], [])
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if not {"test", "tests", "site-packages", "dist-packages"} & set(name.parts):
            texts[zlib.crc32(name.as_posix().encode()) % 20 == 0].append(path.read_bytes())
    return [torch.frombuffer(bytearray(b"".join(files)[:max_bytes]), dtype=torch.uint8) for files in texts]


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


class Block(nn.Module):
    """Attention, then a feed-forward network; each adds to what came in, and at first adds nothing."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        shapes = (d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)
        self.qkv, self.out, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in shapes)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:  # (b, t, d), (t, d/h/2)
        q, k, v = self.qkv(norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (b, h, t, d/h)
        # Pairs of features turn with the position, so that attention sees distances (RoPE, arXiv 2104.09864).
        pairs = (torch.view_as_complex(norm(z).float().unflatten(-1, (-1, 2))) for z in (q, k))
        q, k = (torch.view_as_real(pair * turn).flatten(-2) for pair in pairs)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(norm(x))).square())


class GPT(nn.Module):
    """Predicts each next byte of a window; returns the mean cross-entropy, in nats a byte."""

    def __init__(self, d: int, layers: int, heads: int, rows: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, d)  # what a byte means, and what predicts it
        # Bytes say little: the 2, 3 and 4 bytes up to here share a hashed table (BLT, arXiv 2412.09871).
        self.grams = nn.Embedding(rows, d)
        nn.init.normal_(self.byte.weight, std=0.02)
        nn.init.zeros_(self.grams.weight)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.pairs = d // heads // 2

    def forward(self, batch: Tensor) -> Tensor:  # (b, t + 1) uint8
        given, wanted = batch[:, :-1].long(), batch[:, 1:].long()
        x, gram = self.byte(given), given
        for n in (1, 2, 3):
            gram = gram + 45**n * F.pad(given, (n, -n))
            x = x + self.grams(gram % self.grams.num_embeddings)
        angle = torch.outer(torch.arange(x.shape[1]), 1000.0 ** -torch.linspace(0, 1, self.pairs)).to(x.device)
        x, turn = norm(x), torch.polar(torch.ones_like(angle), angle)
        for block in self.blocks:
            x = block(x, turn)
        return F.cross_entropy(F.linear(norm(x), self.byte.weight).flatten(0, 1), wanted.flatten())


def baselines(text: Tensor) -> dict[str, float]:
    """Return bits per byte: by how often bytes and pairs of bytes occur in this very text, and packed."""
    counts = torch.bincount(text), torch.bincount(text[:-1].int() * 256 + text[1:])
    single, pair = (torch.special.entr(n / n.sum()).sum().item() / math.log(2) for n in counts)
    gz, xz = (8 * len(pack(text.numpy())) / len(text) for pack in (gzip.compress, lzma.compress))
    return {"baseline/order0": single, "baseline/order1": pair - single, "baseline/gzip": gz, "baseline/xz": xz}


@torch.no_grad()
def bits_per_byte(windows: Tensor) -> float:
    """Return what the model needs for the held-out windows, over all workers."""
    found = [(model(batch), len(batch)) for batch in run.eval_batches(DataLoader(windows, batch_size=32))]
    return run.reduce([loss for loss, _ in found], weights=[size for _, size in found]) / math.log(2)


# Alone, these are the values; launched, those of job.yaml and of `--set config.lr=1e-3` stand in their place.
sizes = {"d_model": 128, "layers": 2, "heads": 4, "table": 3061, "context": 128, "max_bytes": None}
run = gscalar.init(project="recipes", config=sizes | {"batch_size": 16, "steps": 800, "lr": 6e-3, "eval_every": 200})
config = run.config
text, held_out = read_text(config.max_bytes)
# A tensor is a data set. To learn from, a window starts at every byte; held out, each byte is predicted once.
data = DataLoader(text.unfold(0, config.context + 1, 1), batch_size=config.batch_size, shuffle=True)
val_windows = held_out.unfold(0, config.context + 1, config.context)
model = GPT(config.d_model, config.layers, config.heads, config.table)
optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.99), weight_decay=0.1)
model, optimizer, data = run.prepare(model, optimizer, data)

for batch in run.batches(data, steps=config.steps):
    if run.step(model(batch), tokens=batch[:, 1:].numel()) and run.state.step % config.eval_every == 0:
        run.log({"val/bits_per_byte": bits_per_byte(val_windows[::16])})

results = {"val/bits_per_byte": bits_per_byte(val_windows)}
if run.rank == 0:
    run.log(results := baselines(held_out) | results)
    print(f"{len(held_out):,} held-out bytes, in bits per byte:")
    print("\n".join(f"  {name:<18} {bits:.3f}" for name, bits in results.items()))
