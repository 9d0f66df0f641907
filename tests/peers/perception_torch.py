"""The perception model in PyTorch, against a trace of it.

    trainer trace specs/runs/sp500.toml --real f64 --out TRACE
    python3 tests/peers/perception_torch.py TRACE [--device cpu|cuda] [--json FILE]

The model is written from the papers' equations with PyTorch's own layers; gradients are autograd's and steps are
torch.optim.AdamW's. Nothing here was generated. From the trace come the start, the data, the order of rows, and of the
control plane the learning rate, the decay rate and the bound of the weights; the norm's smoothing and the clip scale are
computed anew. Exit status 1: a difference beyond the limits below.

Slots and states are f32 in an f64 trace too, and 1 - 0.999^t is then 1e-5 off at first; training makes any difference ten
times larger in about forty steps. `--corrections trace` takes Adam's corrections from the states instead: what remains
in f64 is rounding.

Needs PyTorch 1.13 or later and numpy.
"""

import argparse
import json
import math
import pathlib
import sys

import numpy as np
import torch
import torch.nn.functional as F

# Of a gradient, relative to max(1, its largest element); of the loss at any step, relative.
GRADIENT_LIMIT = {torch.float32: 1e-4, torch.float64: 1e-9}
LOSS_LIMIT = 1e-4

DAYS = 8
NORM_EPS = 1e-5
WIDE_GAIN = 10.0
UP_LOSS, VOLATILE_LOSS, RISK_LOSS = 0.1, 1.0, 1.0
BETAS, ADAM_EPS = (0.9, 0.999), 1e-8
CLIP_FACTOR, CLIP_FLOOR = 2.0, 1.0
ALPHA_META, EPS_DIV, LEAST_BOUND = 1e-3, 1e-8, 1.0
# Softplus turns linear in PyTorch beyond a threshold; the usual 20 is 2e-9 off.
SOFTPLUS_THRESHOLD = 40.0

GROUPS = {
    "select": ("select",),
    "trunk": ("mamba", "cfc", "refine", "pool", "join"),
    "heads": ("direction", "volatility", "risk"),
}


# ---------------------------------------------------------------------------------------------------------------- files

DTYPES = {"F32": np.float32, "F64": np.float64, "I32": np.int32}


def read_safetensors(path):
    """Tensors by name: eight bytes with the header's length, the header as JSON, the numbers."""
    raw = pathlib.Path(path).read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    tensors = {}
    for name, about in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            first, end = about["data_offsets"]
            values = np.frombuffer(raw[start + first : start + end], DTYPES[about["dtype"]])
            tensors[name] = torch.from_numpy(values.reshape(about["shape"]).copy())
    return tensors


class Trace:
    """A folder that `trainer trace` left."""

    def __init__(self, folder, device):
        self.folder, self.device = pathlib.Path(folder), device
        self.steps = [json.loads(line) for line in (self.folder / "steps.jsonl").read_text().splitlines()]

    def tensors(self, name):
        tensors = read_safetensors(self.folder / f"{name}.safetensors").items()
        return {key.removeprefix("buffer/"): value.to(self.device) for key, value in tensors}

    def order(self, epoch):
        return self.tensors("data" if epoch == 1 else f"order-{epoch}")["order"].long()

    def counts(self):
        """After how many steps the trace has the parameters: powers of ten, and the last step."""
        last = len(self.steps)
        return {10**n for n in range(len(str(last)))} | {last}


# ---------------------------------------------------------------------------------------------------------------- model


class Model:
    """Forward pass. `seen` has every value by the name of the trace's buffer, `read` every value by who reads it, so that the
    gradient by `read` is one reader's share."""

    def __init__(self, params):
        self.params = params
        self.seen, self.read = {}, {}

    def param(self, path):
        return self.params[path]

    def layer(self, prefix):
        """Parameters below a prefix, by what follows it."""
        return {path[len(prefix) + 1 :]: p for path, p in self.params.items() if path.startswith(prefix + ".")}

    def see(self, stage, **values):
        for name, value in values.items():
            self.seen[f"{stage}.{name}"] = value

    def reader(self, name, value):
        own = value.clone()
        own.retain_grad()
        self.read[name] = own
        return own

    def forward(self, data, rows, weight):
        window = self.window(data, rows)
        selected = self.select(window["x"])
        mixed = self.mamba(self.reader("mamba.d_x", selected))
        cell = self.cfc(self.reader("cfc.d_x", mixed), window["dt"])
        refined = self.refine(self.reader("refine.d_a", cell))
        pooled = self.pool(self.reader("pool.d_h", refined))
        joined = self.join(self.reader("join.d_today", selected), self.reader("join.d_past", pooled))
        up = self.binary_head("direction", joined, window["today"], window["is_up"])
        volatile = self.binary_head("volatility", joined, window["today"], window["is_volatile"])
        risk = self.huber_head("risk", joined, window["today"], window["how_volatile"])
        up, volatile, risk = (self.reader(f"loss.d_{n}", x) for n, x in (("up", up), ("volatile", volatile), ("risk", risk)))
        total = weight * (UP_LOSS * up + VOLATILE_LOSS * volatile + RISK_LOSS * risk)
        self.see("loss", total=total)
        self.see("pick_batch", weight=weight, row=rows)
        return total.mean()

    def window(self, data, rows):
        """The days up to each row, and what came after it. A row too early has the first day again."""
        at = (rows[:, None] + torch.arange(1 - DAYS, 1, device=rows.device)).clamp(min=0)
        found = {
            "x": data["feature"][at],
            "dt": data["gap"][at],
            "today": data["feature"][rows],
            "is_up": data["direction_label"][rows],
            "is_volatile": data["volatility_label"][rows],
            "how_volatile": data["log_volatility"][rows],
        }
        self.see("window", **found)
        return found

    # Lim et al. 2021, equations 2 to 5, without context.
    def grn(self, layer, a, note=None):
        eta_2 = F.elu(F.linear(a, layer["w_2"], layer["b_2"]))
        eta_1 = F.linear(eta_2, layer["w_1"], layer["b_1"])
        gate = torch.sigmoid(F.linear(eta_1, layer["gated.w_gate"], layer["gated.b_gate"]))
        skip = F.linear(a, layer["w_skip"], layer["b_skip"]) if "w_skip" in layer else a
        s = skip + gate * F.linear(eta_1, layer["gated.w"], layer["gated.b"])
        if note is not None:
            note["gated.gate"] = gate
            note["norm.r"] = torch.rsqrt(s.var(-1, unbiased=False) + NORM_EPS)
        return F.layer_norm(s, s.shape[-1:], layer["norm.gamma"], layer["norm.beta"], NORM_EPS)

    # The same paper, equations 6 to 8.
    def select(self, x):
        flat, choice, notes = x.flatten(-2), {}, []
        mask = torch.softmax(self.grn(self.layer("select.choice"), flat, choice), -1)
        shared, each = self.layer("select.variable"), []
        for m in range(x.shape[-2]):
            notes.append({})
            each.append(self.grn({name: p[m] for name, p in shared.items()}, x[..., m, :], notes[m]))
        y = (mask[..., None] * torch.stack(each, -2)).sum(-2)
        self.see("select", y=y, mask=mask)
        self.see("select.saved", all=flat)
        self.see("select.saved.choice", **choice)
        self.see("select.saved.variable", **{n: torch.stack([note[n] for note in notes], 2) for n in notes[0]})
        return y

    # Dao & Gu 2024: a scalar decay a head, B and C shared by the heads; the gate comes before the norm.
    def mamba(self, x):
        p = self.layer("mamba")
        z = torch.einsum("gpi,bki->bkgp", p["w_z"], x)
        v = torch.einsum("gpi,bki->bkgp", p["w_v"], x)
        b, c, dt = F.linear(x, p["w_b"]), F.linear(x, p["w_c"]), F.linear(x, p["w_dt"])
        delta = F.softplus(dt + p["head.dt_bias"], threshold=SOFTPLUS_THRESHOLD)
        decay = torch.exp(delta * -torch.exp(p["head.a_log"]))
        state = x.new_zeros(x.shape[0], z.shape[2], b.shape[-1], z.shape[3])
        before, states, outs = [], [], []
        for k in range(x.shape[1]):
            before.append(state)
            taken = delta[:, k, :, None, None] * b[:, k, None, :, None] * v[:, k, :, None, :]
            state = decay[:, k, :, None, None] * state + taken
            states.append(state)
            outs.append(torch.matmul(c[:, k, None, None, :], state).squeeze(-2) + p["head.d_skip"][:, None] * v[:, k])
        s = torch.stack(outs, 1) * F.silu(z)
        r = torch.rsqrt(s.square().mean((-2, -1)) + NORM_EPS)
        q = p["gamma"] * s * r[..., None, None]
        y = x + torch.einsum("igp,bkgp->bki", p["w_out"], q)
        self.see("mamba", y=y, state_next=torch.stack(states, 1))
        self.see("mamba.saved", state=torch.stack(before, 1), z=z, v=v, bx=b, cx=c, dt=dt, s=s, r=r, q=q)
        self.see("mamba.saved.head", delta=delta, decay=decay)
        return y

    # Hasani et al. 2022, as in the package `ncps`: one backbone layer with LeCun's tanh, four heads.
    def cfc(self, x, gap):
        p = self.layer("cfc")
        backbone = torch.cat([p["w_x"], p["w_h"]], 1)
        h = x.new_zeros(x.shape[0], p["w_1"].shape[0])
        notes = {name: [] for name in ("h_next", "h", "u", "f_1", "f_2", "s")}
        for k in range(x.shape[1]):
            u = 1.7159 * torch.tanh(0.666 * F.linear(torch.cat([x[:, k], h], 1), backbone, p["b"]))
            f_1, f_2 = torch.tanh(F.linear(u, p["w_1"], p["b_1"])), torch.tanh(F.linear(u, p["w_2"], p["b_2"]))
            t_a, t_b = F.linear(u, p["w_a"], p["b_a"]), F.linear(u, p["w_t"], p["b_t"])
            s = torch.sigmoid(t_a * gap[:, k, None] + t_b)
            h_next = f_1 * (1.0 - s) + s * f_2
            for name, value in (("h_next", h_next), ("h", h), ("u", u), ("f_1", f_1), ("f_2", f_2), ("s", s)):
                notes[name].append(value)
            h = h_next
        stacked = {name: torch.stack(values, 1) for name, values in notes.items()}
        y = stacked.pop("h_next")
        self.see("cfc", h_next=y)
        self.see("cfc.saved", **stacked)
        return y

    def refine(self, a):
        note = {}
        y = self.grn(self.layer("refine"), a, note)
        self.see("refine", y=y)
        self.see("refine.saved", **note)
        return y

    # Bahdanau et al. 2015, additive, without a query.
    def pool(self, h):
        p = self.layer("pool")
        t = torch.tanh(F.linear(h, p["w"], p["b"]))
        alpha = torch.softmax(t @ p["v"], -1)
        z = torch.bmm(alpha[:, None], h).squeeze(1)
        self.see("pool", z=z)
        self.see("pool.saved", t=t, alpha=alpha)
        return z

    def join(self, today, past):
        z = today[:, -1] + self.param("join.gain") * past
        self.see("join", z=z)
        return z

    # Cheng et al. 2016: wide and deep.
    def head(self, name, z, x):
        wide = WIDE_GAIN * F.linear(x.flatten(1), self.param(f"{name}.wide.v").reshape(1, -1)).squeeze(1)
        return self.reader(f"{name}.d_z", z) @ self.param(f"{name}.w") + wide + self.param(f"{name}.b")

    def binary_head(self, name, z, x, label):
        logit = self.head(name, z, x)
        loss = F.binary_cross_entropy_with_logits(logit, label, reduction="none")
        self.see(name, p=torch.sigmoid(logit), loss=loss)
        return loss

    def huber_head(self, name, z, x, target):
        y = self.head(name, z, x)
        loss = F.huber_loss(y, target, reduction="none", delta=1.0)
        self.see(name, y=y, loss=loss)
        return loss


# ------------------------------------------------------------------------------------------------------------- training


class PearlAD:
    """The smoothing that the first observation starts and later ones move at a rate that their differences set."""

    def __init__(self):
        self.mean = self.sample_var = self.diff_var = self.lag = 0.0

    def __call__(self, x):
        if x == 0.0:
            return self.mean
        if self.mean == 0.0 and self.lag == 0.0:
            self.mean = self.lag = x
            return x
        self.sample_var += ALPHA_META * ((x - self.mean) ** 2 - self.sample_var)
        self.diff_var += ALPHA_META * ((x - self.lag) ** 2 - self.diff_var)
        self.mean += self.diff_var / (self.diff_var + self.sample_var + EPS_DIV) * (x - self.mean)
        self.lag = x
        return self.mean


class Training:
    """The steps of the trace, taken again."""

    def __init__(self, trace, corrections):
        self.trace, self.corrections = trace, corrections
        self.data = trace.tensors("data")
        self.params = {name: p.requires_grad_() for name, p in trace.tensors("start").items()}
        groups = [{"params": [p for _, p in self.members(g)], "name": g} for g in GROUPS]
        self.optimizer = torch.optim.AdamW(groups, lr=0.0, betas=BETAS, eps=ADAM_EPS)
        self.norm, self.decay = PearlAD(), {g: PearlAD() for g in GROUPS}
        self.epoch, self.order = 0, None

    def members(self, group):
        return [(n, p) for n, p in self.params.items() if n.split(".")[0] in GROUPS[group]]

    def batch(self, line, size):
        """The step's rows, and their weights: those that only fill the last batch weigh nothing."""
        if line["epoch"] != self.epoch:
            self.epoch, self.order = line["epoch"], self.trace.order(line["epoch"])
        at = line["cursor"] + torch.arange(size, device=self.order.device)
        live = at < line["rows"]
        rows = self.order[torch.where(live, at, torch.zeros_like(at))]
        return rows, live.to(self.data["gap"].dtype) * (size / int(live.sum()))

    def gradients(self, line, size):
        model = Model(self.params)
        self.optimizer.zero_grad(set_to_none=True)
        loss = model.forward(self.data, *self.batch(line, size))
        loss.backward()
        return model, loss.item()

    def update(self, line):
        """Clips, steps, clamps; gives what the control plane is expected to have said."""
        grads = {name: p.grad.clone() for name, p in self.params.items()}
        norm = math.sqrt(sum(g.double().square().sum().item() for g in grads.values()))
        usual = self.norm(norm)
        scale = min(1.0, max(CLIP_FACTOR * usual, CLIP_FLOOR) / max(norm, EPS_DIV))
        for p in self.params.values():
            p.grad.mul_(scale)
        told = {group["name"]: line["read"][f"adamw[{group['name']}]"] for group in self.optimizer.param_groups}
        for group in self.optimizer.param_groups:
            group.update(self.rates(told[group["name"]], line["step"]))
        self.optimizer.step()
        with torch.no_grad():
            for group in GROUPS:
                bound = max(told[group]["prev_effective_bound"], LEAST_BOUND)
                for _, p in self.members(group):
                    p.clamp_(-bound, bound)
        expected = {"grad_norm": usual, "clip_scale": scale}
        expected.update({f"wd_rate[{g}]": self.decay[g](self.agreement(g, grads)) for g in GROUPS})
        return expected

    def rates(self, told, step):
        """What PyTorch's optimizer is given. It corrects by its own powers of the betas; where those of the trace are wanted,
        the quotients of both go into the other numbers."""
        first = second = 1.0
        if self.corrections == "trace":
            first = (1 - BETAS[0] ** step) / told["now_bias_1"]
            second = math.sqrt(told["now_bias_2"] / (1 - BETAS[1] ** step))
        rate = told["prev_learning_rate"] * first * second
        return {"lr": rate, "weight_decay": told["prev_wd_rate"] / (first * second), "eps": ADAM_EPS * second}

    def agreement(self, group, grads):
        pairs = [(p.detach().double(), grads[name].double()) for name, p in self.members(group)]
        product = sum((w * g).sum().item() for w, g in pairs)
        return abs(product) / max(sum(w.square().sum().item() for w, _ in pairs), EPS_DIV)


def said(line):
    """What the control plane said in a step, by the names of `Training.update`."""
    slots, names = line["slots"], sorted(GROUPS)
    found = {"grad_norm": slots["grad_norm"][0], "clip_scale": line["read"]["adamw[heads]"]["now_clip_scale"]}
    found.update({f"wd_rate[{g}]": value for g, value in zip(names, slots["wd_rate"])})
    return found


# ------------------------------------------------------------------------------------------------------------ comparing


def difference(ours, theirs):
    """Largest absolute difference; that over the largest magnitude; that over max(1, the largest magnitude)."""
    ours, theirs = ours.detach().double(), theirs.detach().double()
    if ours.numel() != theirs.numel():
        raise SystemExit(f"error: shapes {tuple(ours.shape)} and {tuple(theirs.shape)} differ: is the trace of this model?")
    apart, size = (ours.reshape(-1) - theirs.reshape(-1)).abs().max().item(), theirs.abs().max().item()
    apart = math.inf if math.isnan(apart) else apart
    return {"absolute": apart, "relative": apart / size if size else apart, "scaled": apart / max(1.0, size)}


def first_step(model, params, traced):
    """Activations, cotangents and gradients of step 1; and the trace's buffers that have no counterpart."""
    found = {
        "activation": {n: difference(v, traced[n]) for n, v in model.seen.items() if n in traced},
        "cotangent": {n: difference(v.grad, traced[n]) for n, v in model.read.items() if n in traced},
        "gradient": {n: difference(p.grad, traced[f"grads/{n}"]) for n, p in params.items()},
    }
    known = set(found["activation"]) | set(found["cotangent"])
    left = [n for n in traced if n not in known and not n.startswith("grads/")]
    return found, left


def compare(trace, corrections):
    training = Training(trace, corrections)
    traced, counts = trace.tensors("step-1"), trace.counts()
    size = traced["pick_batch.row"].numel()
    losses, control, weights = [], {}, {}
    for line in trace.steps:
        model, loss = training.gradients(line, size)
        losses.append({"step": line["step"], "torch": loss, "trace": line["loss"]})
        if line["step"] == 1:
            found, left = first_step(model, training.params, traced)
        expected = training.update(line)
        for name, value in said(line).items():
            apart = abs(value - expected[name]) / max(abs(expected[name]), EPS_DIV)
            control[name] = max(control.get(name, 0.0), apart)
        if line["step"] in counts:
            after = trace.tensors(f"params-{line['step']}")
            weights[line["step"]] = {n: difference(p, after[n]) for n, p in training.params.items()}
    apart = [abs(x["torch"] - x["trace"]) / max(abs(x["torch"]), EPS_DIV) for x in losses]
    return {**found, "weights": weights, "loss": losses, "loss_relative": apart, "control": control, "not_compared": left}


def verdict(report, dtype):
    """What is beyond its limit, in words."""
    limit = GRADIENT_LIMIT[dtype]
    over = [f"gradient of {n}: {d['scaled']:.2e}" for n, d in report["gradient"].items() if not d["scaled"] <= limit]
    worst = max(report["loss_relative"])
    if not all(x <= LOSS_LIMIT for x in report["loss_relative"]):
        over.append(f"loss curve: {worst:.2e}")
    return over


def table(report):
    sections = [(kind, report[kind]) for kind in ("activation", "cotangent", "gradient")]
    sections += [(f"weights after {n}", rows) for n, rows in report["weights"].items()]
    for title, rows in sections:
        print(f"\n{title:<44} {'absolute':>10} {'relative':>10}")
        for name, d in rows.items():
            print(f"  {name:<42} {d['absolute']:>10.2e} {d['relative']:>10.2e}")
    print(f"\n{'largest of':<44} {'absolute':>10} {'relative':>10}")
    for title, rows in sections:
        largest = [max(d[key] for d in rows.values()) for key in ("absolute", "relative")]
        print(f"  {f'{title} ({len(rows)})':<42} {largest[0]:>10.2e} {largest[1]:>10.2e}")
    print(f"  {'loss over ' + str(len(report['loss'])) + ' steps':<42} {'':>10} {max(report['loss_relative']):>10.2e}")
    for name, apart in report["control"].items():
        print(f"  {name:<42} {'':>10} {apart:>10.2e}")
    print(f"\n{len(report['not_compared'])} buffers of the trace hold the generator's own intermediate results and have no counterpart here.")


def main():
    parser = argparse.ArgumentParser(description="Compares a trace with the same model in PyTorch.")
    parser.add_argument("trace", help="folder that `trainer trace` left")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--corrections", default="own", choices=["own", "trace"], help="Adam's bias corrections")
    parser.add_argument("--json", help="write all figures to this file")
    args = parser.parse_args()
    # TF32 would make f32 products coarser than what is compared.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    trace = Trace(args.trace, torch.device(args.device))
    report = compare(trace, args.corrections)
    dtype = trace.tensors("start")["join.gain"].dtype
    over = verdict(report, dtype)
    report.update({"real": str(dtype), "torch": torch.__version__, "device": args.device, "corrections": args.corrections, "over": over})
    table(report)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1))
    print(f"{dtype}: " + ("; ".join(over) if over else "all within the limits"))
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
