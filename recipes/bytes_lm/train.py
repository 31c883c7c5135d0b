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


def rotate(x: Tensor, turn: Tensor) -> Tensor:
    """Turn each pair of features by an angle that grows with the position (RoPE, arXiv 2104.09864)."""
    return torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2))) * turn).flatten(-2)


class Block(nn.Module):
    """Attention, then a feed-forward network; each adds to what came in, and at first adds nothing."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:  # (b, t, d), (t, d/h/2)
        q, k, v = self.qkv(norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (b, h, t, d/h)
        # Normed queries and keys keep attention from saturating at so high a learning rate.
        seen = F.scaled_dot_product_attention(rotate(norm(q), turn), rotate(norm(k), turn), v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(norm(x))).square())


class GPT(nn.Module):
    """Predicts each next byte of a window; returns the mean cross-entropy, in nats a byte."""

    def __init__(self, d: int, layers: int, heads: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, d)  # what a byte means, and what predicts it
        nn.init.normal_(self.byte.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        self.pairs = d // heads // 2

    def forward(self, batch: Tensor) -> Tensor:  # (b, t + 1) uint8
        given, wanted = batch[:, :-1].long(), batch[:, 1:].long()
        speed = 1000.0 ** -(torch.arange(self.pairs, device=batch.device) / self.pairs)
        angle = torch.outer(torch.arange(given.shape[1], device=batch.device), speed)
        x = norm(self.byte(given))
        for block in self.blocks:
            x = block(x, torch.polar(torch.ones_like(angle), angle))
        return F.cross_entropy(F.linear(norm(x), self.byte.weight).flatten(0, 1), wanted.flatten())


def baselines(text: Tensor) -> dict[str, float]:
    """Return what simpler models of the text need: its own byte and byte-pair statistics, and packers."""
    singles, pairs = torch.bincount(text), torch.bincount(text[:-1].int() * 256 + text[1:])
    order0, both = (torch.special.entr(n / n.sum()).sum().item() / math.log(2) for n in (singles, pairs))
    gzipped, xzipped = (8 * len(pack(text.numpy())) / len(text) for pack in (gzip.compress, lzma.compress))
    names = ("baseline/order0", "baseline/order1", "baseline/gzip", "baseline/xz")
    return dict(zip(names, (order0, both - order0, gzipped, xzipped), strict=True))


@torch.no_grad()
def bits_per_byte(data: DataLoader) -> float:
    """Return what the model needs for the held-out windows, over all workers."""
    losses, counts = [], []
    for batch in run.eval_batches(data):
        losses.append(model(batch))
        counts.append(len(batch))
    return run.reduce(losses, weights=counts) / math.log(2)


# Run alone, these are the values; launched, job.yaml's and those of `--set config.lr=...` stand in their place.
sizes = {"d_model": 128, "layers": 4, "heads": 4, "context": 128, "batch_size": 32, "max_bytes": None}
run = gscalar.init(project="recipes", config=sizes | {"steps": 400, "lr": 3e-3, "eval_every": 100})
config = run.config
text, held_out = read_text(config.max_bytes)
# A tensor is a data set: a window starts at every byte to learn, and each held-out byte is predicted once.
data = DataLoader(text.unfold(0, config.context + 1, 1), batch_size=config.batch_size, shuffle=True)
val_windows = held_out.unfold(0, config.context + 1, config.context)
model = GPT(config.d_model, config.layers, config.heads)
optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.99), weight_decay=0.1)
model, optimizer, data = run.prepare(model, optimizer, data)

for batch in run.batches(data, steps=config.steps):
    if run.step(model(batch), tokens=batch[:, 1:].numel()) and run.state.step % config.eval_every == 0:
        run.log({"val/bits_per_byte": bits_per_byte(DataLoader(val_windows[::16], batch_size=32))})

results = {"val/bits_per_byte": bits_per_byte(DataLoader(val_windows, batch_size=32))}
if run.rank == 0:
    run.log(results := baselines(held_out) | results)
    print(f"bits per byte of {len(held_out):,} held-out bytes")
    print("\n".join(f"  {name:<18} {bits:.3f}" for name, bits in results.items()))
