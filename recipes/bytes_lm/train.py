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
from collections import Counter
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset

import gscalar


def read_text(max_bytes: int | None) -> tuple[bytes, bytes]:
    """Return the text to learn, and the held-out text: one file in twenty, by a hash of its path."""
    library, texts = Path(sysconfig.get_path("stdlib")), ([], [])
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library)
        if not {"test", "tests", "site-packages", "dist-packages"} & set(name.parts):
            texts[zlib.crc32(name.as_posix().encode()) % 20 == 0].append(path.read_bytes())
    learnt, held_out = (b"".join(files)[:max_bytes] for files in texts)
    return learnt, held_out


def windows(text: bytes, length: int, stride: int) -> Tensor:
    """Return the windows of the text, (windows, length) uint8, as a view: a data set is what has items."""
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).unfold(0, length, stride)


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of features by an angle that grows with the position (RoPE, arXiv 2104.09864)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Block(nn.Module):
    """Attention, then a feed-forward network; each adds to what came in, and at first adds nothing."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.up, self.down = nn.Linear(d, 4 * d, bias=False), nn.Linear(4 * d, d, bias=False)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:  # (b, t, d)
        q, k, v = self.qkv(norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # (b, h, t, d/h)
        # Normed queries and keys keep attention from saturating at this learning rate.
        q, k = rotate(norm(q), cos, sin), rotate(norm(k), cos, sin)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(norm(x))).square())


class GPT(nn.Module):
    """Predicts each next byte of a window; returns the mean cross-entropy, in nats a byte."""

    def __init__(self, d: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, d)
        nn.init.normal_(self.byte.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(d, heads) for _ in range(layers))
        speed = 1000.0 ** -torch.arange(0, 1, 2 * heads / d)
        angle = torch.outer(torch.arange(context), speed)  # (t, d/h/2)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, batch: Tensor) -> Tensor:  # (b, t + 1) uint8
        batch = batch.long()
        x = norm(self.byte(batch[:, :-1]))
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        scores = F.linear(norm(x), self.byte.weight)  # the same vectors in and out: half the parameters
        return F.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())


def baselines(text: bytes) -> dict[str, float]:
    """Return bits per byte of this text: of its own byte and byte-pair statistics, and compressed."""

    def bits(counts: Counter) -> float:
        return -sum(n * math.log2(n / counts.total()) for n in counts.values()) / counts.total()

    return {
        "baseline/order0": bits(Counter(text)),
        "baseline/order1": bits(Counter(zip(text, text[1:]))) - bits(Counter(text[:-1])),  # H(ab) - H(a)
        "baseline/gzip": 8 * len(gzip.compress(text)) / len(text),
        "baseline/xz": 8 * len(lzma.compress(text)) / len(text),
    }


@torch.no_grad()
def bits_per_byte(data: DataLoader) -> float:
    """Return what the model needs for the held-out windows, over all workers."""
    batches = [(model(batch), len(batch)) for batch in run.eval_batches(data)]
    losses, counts = [loss for loss, _ in batches], [n for _, n in batches]
    return run.reduce(losses, weights=counts) / math.log(2)


run = gscalar.init(project="recipes")
