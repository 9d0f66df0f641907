"""Gradients of every block of `unio:common` against PyTorch's autograd.

    UNIO_PEER_OUT=DIR cargo test -p unio-tests --test kernels -- --ignored for_pytorch
    python3 tests/peers/blocks_torch.py DIR

Each block is written here from its paper's equations, not from generated text. Exit status 1 where a gradient differs by more
than 1e-9 (f64) or 1e-4 (f32), relative to the larger of 1 and the tensor's largest gradient.
"""
import json
import pathlib
import sys

import torch
import torch.nn.functional as F

LIMITS = {"double": 1e-9, "float": 1e-4}
EPS = 1e-5


class Params:
    """Parameters below a prefix."""

    def __init__(self, all_, prefix):
        self.all, self.prefix = all_, prefix

    def __getattr__(self, name):
        found = self.all.get(f"{self.prefix}.{name}")
        return found if found is not None else Params(self.all, f"{self.prefix}.{name}")


def glu(p, x):
    return torch.sigmoid(x @ p.w_gate.T + p.b_gate) * (x @ p.w.T + p.b)


def layer_norm(p, x):
    return F.layer_norm(x, x.shape[-1:], p.gamma, p.beta, EPS)


def grn(p, a, c=None, dense=False):
    pre = a @ p.w_2.T + p.b_2
    if c is not None:
        pre = pre + c @ p.w_3.T
    eta_1 = F.elu(pre) @ p.w_1.T + p.b_1
    skip = a @ p.w_skip.T + p.b_skip if dense else a
    return layer_norm(p.norm, skip + glu(p.gated, eta_1))


def member(p, index):
    """The parameters of one of several blocks that lie in one tensor."""
    below = {k: v[index] for k, v in p.all.items() if k.startswith(p.prefix + ".")}
    return Params(below, p.prefix)


def vsn(p, x, c=None):
    weights = torch.softmax(grn(p.choice, x.flatten(-2), c, dense=True), -1)
    each = [grn(member(p.variable, m), x[..., m, :], dense=True) for m in range(x.shape[-2])]
    return sum(weights[..., m, None] * y for m, y in enumerate(each))


def cfc(kind):
    def run(p, x, dt):
        h = x.new_zeros(x.shape[0], p.w_h.shape[1])
        states = []
        for k in range(x.shape[1]):
            u = 1.7159 * torch.tanh(0.666 * (x[:, k] @ p.w_x.T + h @ p.w_h.T + p.b))
            t = dt[:, k, None]
            if kind == "pure":
                f = u @ p.w_1.T + p.b_1
                h = p.a - p.a * torch.exp(-t * (p.w_tau.abs() + f.abs())) * f
            else:
                f1, f2 = torch.tanh(u @ p.w_1.T + p.b_1), torch.tanh(u @ p.w_2.T + p.b_2)
                s = torch.sigmoid((u @ p.w_a.T + p.b_a) * t + u @ p.w_t.T + p.b_t)
                h = f1 + s * f2 if kind == "no_gate" else f1 * (1 - s) + s * f2
            states.append(h)
        return torch.stack(states, 1)

    return run


def mamba_head(p, x, bx, cx, dt, h):
    delta = F.softplus(dt + p.dt_bias)
    decay = torch.exp(-delta * torch.exp(p.a_log))
    h = decay[:, None, None] * h + delta[:, None, None] * bx[:, :, None] * x[:, None, :]
    return torch.einsum("bn,bnp->bp", cx, h) + p.d_skip * x, h


def mamba_head_scan(p, x, bx, cx, dt):
    h = x.new_zeros(x.shape[0], bx.shape[-1], x.shape[-1])
    ys = []
    for k in range(x.shape[1]):
        y, h = mamba_head(p, x[:, k], bx[:, k], cx[:, k], dt[:, k], h)
        ys.append(y)
    return torch.stack(ys, 1)


def mamba(p, x):
    heads, channels, _ = p.w_z.shape
    states = [x.new_zeros(x.shape[0], p.w_b.shape[0], channels) for _ in range(heads)]
    out = []
    for k in range(x.shape[1]):
        now = x[:, k]
        z, v = torch.einsum("gpi,bi->bgp", p.w_z, now), torch.einsum("gpi,bi->bgp", p.w_v, now)
        bx, cx, dt = now @ p.w_b.T, now @ p.w_c.T, now @ p.w_dt.T
        ys = []
        for g in range(heads):
            y, states[g] = mamba_head(member(p.head, g), v[:, g], bx, cx, dt[:, g], states[g])
            ys.append(y)
        s = torch.stack(ys, 1) * F.silu(z)
        q = p.gamma * s / torch.sqrt(s.square().mean((1, 2), keepdim=True) + EPS)
        out.append(now + torch.einsum("igp,bgp->bi", p.w_out, q))
    return torch.stack(out, 1)


def pool(p, h, mask=None):
    e = torch.tanh(h @ p.w.T + p.b) @ p.v
    if mask is None:
        alpha = torch.softmax(e, 1)
    else:
        live = mask > 0
        weight = torch.where(live, torch.exp(torch.where(live, e, 0.0)), 0.0)
        alpha = weight / weight.sum(1, keepdim=True).clamp(min=1e-300 if e.dtype == torch.float64 else 1e-30)
    return (alpha[..., None] * h).sum(1)


def rms_norm(p, x):
    return p.gamma * x / torch.sqrt(x.square().mean(-1, keepdim=True) + EPS)


def probe(x, weight):
    return (weight * (x + x.square())).flatten(1).sum(1)


def loss(block, p, d):
    """The objective of a fixture, one number a sample."""
    source = lambda name="source", scale="scale": p[f"{name}.p"] * d[scale]  # noqa: E731
    of = lambda name: Params(p, name)  # noqa: E731
    if block in ("head", "squared_head", "huber_head"):
        y = source() @ p["head.w"] + p["head.b"]
        if block == "head":
            return F.binary_cross_entropy_with_logits(y, d["label"], reduction="none")
        return (F.mse_loss(y, d["target"], reduction="none") / 2 if block == "squared_head"
                else F.huber_loss(y, d["target"], reduction="none"))
    if block.startswith("cfc"):
        kind = {"cfc": "gated", "cfc_no_gate": "no_gate", "cfc_pure": "pure"}[block]
        return probe(cfc(kind)(of("cfc"), source(), d["gap"]), d["weight"])
    if block.startswith("grn"):
        context = source("about", "context") if "context" in block else None
        return probe(grn(of("grn"), source(), context, "dense" in block), d["weight"])
    if block == "vsn":
        return probe(vsn(of("vsn"), source()), d["weight"])
    if block == "vsn_each":
        context = source("about", "context")[:, None].expand(-1, d["scale"].shape[1], -1)
        return probe(vsn(of("vsn"), source(), context), d["weight"])
    if block == "mamba2_head":
        xs = [source(n, f"scale_{n[0]}") for n in ("xs", "bs", "cs")]
        return probe(mamba_head_scan(of("head"), *xs, d["gap"]), d["weight"])
    if block == "mamba2":
        return probe(mamba(of("mamba"), source()), d["weight"])
    if block in ("pool", "masked_pool"):
        return probe(pool(of("pool"), source(), d.get("mask")), d["weight"])
    norm = layer_norm if block == "layer_norm" else rms_norm
    return probe(norm(of("norm"), source()), d["weight"])


def worst(told):
    kind = torch.float64 if told["real"] == "double" else torch.float32
    tensor = lambda t, key="values": torch.tensor(t[key], dtype=kind).reshape(t["shape"])  # noqa: E731
    params = {name: tensor(t).requires_grad_() for name, t in told["params"].items()}
    data = {name: tensor(t) for name, t in told["data"].items()}
    loss(told["block"], params, data).mean().backward()
    off = {}
    for name, t in told["params"].items():
        ours, theirs = tensor(t, "gradient"), params[name].grad
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        off[name] = ((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1)).item()
    return max(off.items(), key=lambda item: item[1])


def main():
    files = sorted(pathlib.Path(sys.argv[1]).glob("*.json"))
    if not files:
        sys.exit(f"{sys.argv[1]}: nothing written by the test `for_pytorch`")
    failed = False
    for path in files:
        told = json.loads(path.read_text())
        name, off = worst(told)
        bad = not off <= LIMITS[told["real"]]
        failed |= bad
        print(f"{path.stem:<28} {told['real']:<7} {off:.2e}  {name}{'   TOO FAR' if bad else ''}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
