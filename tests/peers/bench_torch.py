"""Times what users would call instead, and joins it with Unio's own figures to one table.

    bench_torch.py --ours timing.jsonl --kernels kernels.json --json peers.jsonl --out table.md --commit C --date D

Needs PyTorch and a card. Each section runs in a process of its own, so that a fault in one leaves the others alone; what
fails becomes a row that says so. `--join` only joins what was measured before, and needs neither.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys

CAPTURED, REPLAYS = 20, 50
SECTION_LIMIT_S = 240
BANDWIDTH = 4.3e12


class Recorder:
    """Appends a line of JSON a figure."""

    def __init__(self, path):
        self.path = path

    def put(self, **row):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    def peer(self, work, size, peer, make, calls=CAPTURED, replays=REPLAYS):
        """Times `make()`; whatever goes wrong is the figure's error."""
        try:
            us, how = microseconds(make(), calls, replays)
            self.put(work=work, size=size, peer=peer, us=us, how=how)
        except Exception as error:
            self.put(work=work, size=size, peer=peer, error=f"{type(error).__name__}: {error}"[:300])
        finally:
            free()


def free():
    import gc

    import torch

    gc.collect()
    try:
        torch.cuda.empty_cache()
    except Exception as error:
        print(f"the card is lost: {error}", file=sys.stderr)


def spans(run, replays, calls):
    """Microseconds a call by the card's events, over several runs of so many calls."""
    import torch

    times = []
    for _ in range(replays):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1e3 / calls)
    return statistics.median(times)


def microseconds(call, calls, replays):
    """In a CUDA graph; launched one by one where it cannot be captured."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                call()
        graph.replay()
        torch.cuda.synchronize()
        return spans(graph.replay, replays, calls), "graph"
    except Exception as error:
        print(f"not captured, launched one by one: {error}", file=sys.stderr)
        torch.cuda.synchronize()
        return spans(call, replays, 1), "eager"


def p99(record):
    import torch

    for n in (4096, 1 << 16, 1 << 20, 1 << 24, 1 << 26):
        work, size, rank = "p99", str(n), max(1, n // 100)
        x = torch.randn(n, device="cuda")
        slow = n >= 1 << 24
        calls = 5 if slow else CAPTURED
        record.peer(work, size, "topk(n/100) of abs", lambda: lambda: torch.topk(x.abs(), rank).values[-1], calls)
        record.peer(work, size, "vector_norm(inf): no quantile", lambda: lambda: torch.linalg.vector_norm(x, float("inf")), calls)
        if n <= 1 << 24:
            record.peer(work, size, "quantile of abs", lambda: lambda: torch.quantile(x.abs(), 0.99), calls)
        record.peer(
            work, size, "kthvalue of abs", lambda: lambda: torch.kthvalue(x.abs(), n - rank + 1).values,
            1 if n >= 1 << 20 else calls, 3 if slow else 10,
        )


def group_oracle(record):
    import torch

    for n in (1 << 20, 1 << 24):
        w, g, m, v = (torch.randn(n, device="cuda") for _ in range(4))
        rank = max(1, n // 100)

        def call():
            tops = [torch.topk(x.abs(), rank).values[-1] for x in (w, m, v)]
            rate = (w * g).sum().abs() / (w * w).sum().clamp_min(1e-8)
            return tops, rate, g.abs().mean(), w.abs().mean()

        record.peer("group oracle", str(n), "PyTorch: 3 topk, 2 sums, 2 means", lambda: call, 5)


def adamw(record):
    import torch

    def optimizer(n):
        w = torch.nn.Parameter(torch.randn(n, device="cuda"))
        w.grad = torch.randn(n, device="cuda")
        return w, torch.optim.AdamW([w], lr=1e-3, fused=True, capturable=True)

    def plain(n):
        _, opt = optimizer(n)
        return opt.step

    def clamped(n):
        w, opt = optimizer(n)
        bound, engaged = torch.full((), 2.0, device="cuda"), torch.zeros((), dtype=torch.int64, device="cuda")

        @torch.no_grad()
        def call():
            opt.step()
            engaged.copy_((w.abs() > bound).sum())
            w.clamp_(min=-bound, max=bound)

        return call

    for n in (1 << 20, 1 << 24, 1 << 27):
        calls = 5 if n > 1 << 24 else CAPTURED
        record.peer("adamw", str(n), "AdamW fused, clamp, count", lambda: clamped(n), calls)
        record.peer("adamw", str(n), "AdamW fused alone", lambda: plain(n), calls)


def reduce_axis0(record):
    import torch

    for batch, columns in ((32, 90_000), (32, 1_000_000), (256, 90_000)):
        x = torch.randn(batch, columns, device="cuda")
        record.peer("reduce_axis0", f"{batch} x {columns}", "sum(0)", lambda: lambda: x.sum(0))


def cfc_parameters(inputs, hidden):
    import torch

    def draw(*shape, scale):
        return (torch.randn(*shape, device="cuda") * scale).requires_grad_()

    width = inputs + hidden
    return {
        "wb": draw(hidden, width, scale=width**-0.5), "bb": draw(hidden, scale=0.1),
        "wh": draw(4, hidden, hidden, scale=hidden**-0.5), "bh": draw(4, hidden, scale=0.1),
    }


def cfc_states(p, x, dt):
    import torch

    h = torch.zeros(x.shape[0], p["wb"].shape[0], device="cuda")
    states = []
    for k in range(x.shape[1]):
        u = 1.7159 * torch.tanh(0.666 * torch.nn.functional.linear(torch.cat([x[:, k], h], 1), p["wb"], p["bb"]))
        f1, f2, ta, tb = (torch.nn.functional.linear(u, p["wh"][i], p["bh"][i]) for i in range(4))
        s = torch.sigmoid(ta * dt[:, k : k + 1] + tb)
        h = torch.tanh(f1) * (1 - s) + s * torch.tanh(f2)
        states.append(h)
    return torch.stack(states, 1)


def cfc(record):
    import torch

    steps, inputs, hidden = 32, 40, 128

    def data(batch):
        x = torch.randn(batch, steps, inputs, device="cuda", requires_grad=True)
        return x, torch.rand(batch, steps, device="cuda"), torch.randn(batch, steps, hidden, device="cuda")

    def eager(batch):
        p, (x, dt, out) = cfc_parameters(inputs, hidden), data(batch)
        return lambda: torch.autograd.grad(cfc_states(p, x, dt), [x, *p.values()], out)

    def cudnn(kind, batch, tf32):
        torch.backends.cudnn.allow_tf32 = tf32
        model, (x, _, out) = kind(inputs, hidden, batch_first=True).to("cuda"), data(batch)
        return lambda: torch.autograd.grad(model(x)[0], [x, *model.parameters()], out)

    for batch in (1, 32, 256):
        size = f"B={batch}"
        record.peer("cfc", size, "PyTorch eager CfC", lambda: eager(batch), 1, 20)
        for kind in (torch.nn.GRU, torch.nn.LSTM):
            for tf32 in (False, True):
                name = f"cuDNN {kind.__name__}, TF32 {'on' if tf32 else 'off'}"
                record.peer("cfc", size, name, lambda: cudnn(kind, batch, tf32))


def perception_model(hidden):
    """The step of the anchors: variable selection over 6 groups of 4, CfC, GRN, attention pool, two logits."""
    import torch
    from torch import nn

    class Grn(nn.Module):
        def __init__(self, inputs, width, outputs):
            super().__init__()
            self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, width)
            self.glu, self.norm = nn.Linear(width, 2 * outputs), nn.LayerNorm(outputs)
            self.skip = nn.Identity() if inputs == outputs else nn.Linear(inputs, outputs)

        def forward(self, a):
            eta = self.second(nn.functional.elu(self.first(a)))
            return self.norm(self.skip(a) + nn.functional.glu(self.glu(eta), -1))

    class Perception(nn.Module):
        def __init__(self):
            super().__init__()
            self.choice = Grn(24, hidden, 6)
            self.variables = nn.ModuleList(Grn(4, hidden, hidden) for _ in range(6))
            self.cell = nn.ParameterDict(cfc_parameters(hidden, hidden))
            self.refine = Grn(hidden, hidden, hidden)
            self.score, self.pick = nn.Linear(hidden, hidden), nn.Linear(hidden, 1, bias=False)
            self.heads = nn.Linear(hidden, 2)

        def forward(self, x, dt):
            mask = torch.softmax(self.choice(x.flatten(2)), -1)
            each = torch.stack([v(x[:, :, m]) for m, v in enumerate(self.variables)], 2)
            states = cfc_states(self.cell, (mask[..., None] * each).sum(2), dt)
            refined = self.refine(states)
            alpha = torch.softmax(self.pick(torch.tanh(self.score(refined))), 1)
            return self.heads((alpha * refined).sum(1))

    return Perception().to("cuda")


def perception(record):
    import torch

    def step(hidden, batch):
        model = perception_model(hidden)
        x, dt = torch.randn(batch, 32, 6, 4, device="cuda"), torch.rand(batch, 32, device="cuda")
        label = torch.randint(0, 2, (batch, 2), device="cuda").float()
        opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=True)

        def call():
            opt.zero_grad(set_to_none=True)
            torch.nn.functional.binary_cross_entropy_with_logits(model(x, dt), label).backward()
            opt.step()

        return call

    for hidden, batch in ((64, 32), (64, 256), (128, 32)):
        size = f"H={hidden} B={batch} K=32"
        record.peer("perception step", size, "PyTorch, the anchors' model", lambda: step(hidden, batch), 1, 20)


SECTIONS = {f.__name__: f for f in (p99, group_oracle, adamw, reduce_axis0, cfc, perception)}


def measure(path):
    """Every section in a process of its own."""
    open(path, "w", encoding="utf-8").close()
    for section in SECTIONS:
        command = [sys.executable, os.path.abspath(__file__), "--section", section, "--json", path]
        try:
            code = subprocess.run(command, timeout=SECTION_LIMIT_S, check=False).returncode
            problem = f"ended with {code}" if code else None
        except subprocess.TimeoutExpired:
            problem = f"stopped after {SECTION_LIMIT_S} s"
        if problem:
            Recorder(path).put(work=section, size="", peer="PyTorch", error=f"the section {problem}")


def lines(path):
    if not path or not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def number(value):
    return "–" if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def rows(ours, peers):
    """A row a pair; what has no other side stands alone."""
    def base(row):
        return row["work"].split(",")[0].removesuffix(" with smoothing"), row.get("size", "")

    for row in ours:
        others = [peer for peer in peers if base(peer) == base(row)] if "eager" not in row["work"] else []
        floor = row["bytes"] / BANDWIDTH * 1e6 if row.get("bytes") else None
        own = [row["work"], row.get("size", ""), number(row["us"]), number(row.get("cold_us")), number(floor)]
        for peer in others or [None]:
            yield own + other_side(row, peer)
            own = ["", "", "", "", ""]
    matched = {base(row) for row in ours}
    for peer in peers:
        if base(peer) not in matched:
            yield [peer["work"], peer.get("size", ""), "–", "–", "–", *other_side(None, peer)]


def other_side(row, peer):
    if peer is None:
        return ["–", "–", "–"]
    if "error" in peer:
        return [peer["peer"], "failed: " + peer["error"].replace("|", "/").replace("\n", " ")[:120], "–"]
    ratio = f"{row['us'] / peer['us']:.2f}" if row and peer["us"] else "–"
    eager = ", eager" if peer.get("how") == "eager" else ""
    return [peer["peer"] + eager, number(peer["us"]), ratio]


def card():
    """The card's name and its driver, as the driver tells them."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
        name, driver = text.splitlines()[0].split(", ")
        return name, driver
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return "unknown card", "unknown"


def of_kernels(path):
    """What `trainer bench` says of whole steps, and what it found."""
    if not path or not os.path.exists(path):
        return []
    try:
        with open(path, encoding="utf-8") as file:
            report = json.load(file)
    except ValueError:
        return ["", "The kernels' own figures cannot be read."]
    text = ["", f"- Unio ran on {report.get('device', '?')}; times by {report.get('clock', '?')}."]
    for step in report.get("whole_steps", []):
        text.append(
            f"- A step of {step['set']}: {step['nodes']} nodes, {step['edges']} edges; {number(step['eager_us'])} µs eager, "
            f"{number(step['graph_us'])} µs as a graph, {number(step['together_us'])} µs where steps share one; control plane alone "
            f"{number(step['control_us'])} µs, added to a step {number(step['control_added_us'])} µs, where steps share a graph "
            f"{number(step['control_added_together_us'])} µs."
        )
    return text + [f"- {finding}" for finding in report.get("findings", [])]


def table(args):
    name, driver = (args.card, args.driver) if args.card and args.driver else card()
    head = ["work", "size", "Unio, hot µs", "cold µs", "floor µs", "peer", "peer µs", "Unio ÷ peer"]
    text = [
        f"{args.card or name}, driver {args.driver or driver}, {args.date}, commit {args.commit}. Medians of graph replays; "
        "peers are hot too. Floor: bytes at 4.3 TB/s.",
        "",
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
    ]
    text += ["| " + " | ".join(row) + " |" for row in rows(lines(args.ours), lines(args.json))]
    return "\n".join(text + of_kernels(args.kernels)) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ours", help="lines of JSON of the timing tests (UNIO_BENCH_OUT)")
    parser.add_argument("--kernels", help="JSON of `trainer bench --format json`")
    parser.add_argument("--json", default="peers.jsonl", help="lines of JSON of the peers")
    parser.add_argument("--out", help="the table; printed if left out")
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--date", default=datetime.date.today().isoformat())
    parser.add_argument("--card")
    parser.add_argument("--driver")
    parser.add_argument("--join", action="store_true", help="measure nothing")
    parser.add_argument("--section", choices=list(SECTIONS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.section:
        SECTIONS[args.section](Recorder(args.json))
        return
    if not args.join:
        measure(args.json)
    text = table(args)
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(text)
    print(text)


if __name__ == "__main__":
    main()
