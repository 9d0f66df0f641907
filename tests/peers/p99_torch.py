"""What users would call instead of a p99 producer, timed as the kernels are: eager launches, one wait at the end."""

import time

import torch


def microseconds(call, repeats):
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e6 / repeats


for n in [4096, 65536, 1 << 20, 1 << 24, 1 << 26]:
    x = torch.randn(n, device="cuda")
    rank = max(1, n // 100)
    print(f"topk n={n} us={microseconds(lambda: torch.topk(x.abs(), rank).values[-1], 20):.1f}")
    if n <= 1 << 20:
        print(f"kthvalue n={n} us={microseconds(lambda: torch.kthvalue(x.abs(), n - rank + 1).values, 10):.1f}")
        print(f"quantile n={n} us={microseconds(lambda: torch.quantile(x.abs(), 0.99), 20):.1f}")
    print(f"norm_inf n={n} us={microseconds(lambda: torch.linalg.vector_norm(x, float('inf')), 50):.1f}")
