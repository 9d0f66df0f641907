
// Counting without atomics, for quantiles of magnitudes: the order of a float's bits is that of its value.
#ifndef UNIO_STATISTICS
#define UNIO_STATISTICS
#define UNIO_BINS 256

// Adds one to each lane's bin in the warp's own row; lanes that share a bin elect one of them. Other bins count nothing.
UNIO_DEVICE void unio_count(int* row, int bin, int lane) {
    const unsigned peers = __match_any_sync(0xffffffffu, bin);
    if (bin < UNIO_BINS && lane == __ffs(peers) - 1) {
        row[bin] = row[bin] + __popc(peers);
    }
    __syncwarp();
}

// Sum over the block's threads, in a fixed tree; `partial` has room for one number a thread. Every thread has the result.
UNIO_DEVICE double unio_block_sum(double value, double* partial) {
    partial[threadIdx.x] = value;
    __syncthreads();
    for (int half = UNIO_BINS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            partial[threadIdx.x] = partial[threadIdx.x] + partial[threadIdx.x + half];
        }
        __syncthreads();
    }
    const double total = partial[0];
    __syncthreads();
    return total;
}

// The largest over the block's threads.
UNIO_DEVICE double unio_block_max(double value, double* partial) {
    partial[threadIdx.x] = value;
    __syncthreads();
    for (int half = UNIO_BINS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            partial[threadIdx.x] = unio_max(partial[threadIdx.x], partial[threadIdx.x + half]);
        }
        __syncthreads();
    }
    const double top = partial[0];
    __syncthreads();
    return top;
}

// How many lie in the thread's bin, over the rows of all warps. Takes a block of UNIO_BINS threads.
UNIO_DEVICE int unio_total(const int* rows) {
    int total = 0;
    for (int warp = 0; warp < UNIO_BINS / 32; ++warp) {
        total += rows[warp * UNIO_BINS + threadIdx.x];
    }
    return total;
}

// counted[b] = sum of the totals that threads 0 to b bring.
UNIO_DEVICE void unio_prefix(int total, int* counted) {
    const int bin = threadIdx.x;
    counted[bin] = total;
    __syncthreads();
    for (int step = 1; step < UNIO_BINS; step *= 2) {
        const int below = bin >= step ? counted[bin - step] : 0;
        __syncthreads();
        counted[bin] += below;
        __syncthreads();
    }
}

// counted[b] = how many lie in bins 0 to b, over the rows of all warps.
UNIO_DEVICE void unio_scan(const int* rows, int* counted) { unio_prefix(unio_total(rows), counted); }

// Rows that a part of a union has room for: the most blocks of its launch. The first row tells how many there are.
#define UNIO_ROWS 264

// The thread's column, from `column` on, summed over the rows of all parts.
UNIO_DEVICE int unio_column(const int* rows, int width, int column, int parts) {
    int total = 0;
    for (int part = 0; part < parts; ++part) {
        const int* first = rows + size_t(part) * UNIO_ROWS * width;
        for (int row = 0; row < first[1]; ++row) {
            total += first[size_t(row) * width + column + threadIdx.x];
        }
    }
    return total;
}

// The same over the second table, whose rows the first one counts.
UNIO_DEVICE int unio_refined(const int* rows, int width, const int* refined, int refined_width, int column, int parts) {
    int total = 0;
    for (int part = 0; part < parts; ++part) {
        const int active = rows[size_t(part) * UNIO_ROWS * width + 1];
        const int* first = refined + size_t(part) * UNIO_ROWS * refined_width;
        for (int row = 0; row < active; ++row) {
            total += first[size_t(row) * refined_width + column + threadIdx.x];
        }
    }
    return total;
}

// The thread's share of a sum over all rows, in a fixed order.
UNIO_DEVICE double unio_sum_rows(const int* rows, int width, const double* sums, int sum_width, int place, int parts) {
    double total = 0.0;
    for (int part = 0; part < parts; ++part) {
        const int active = rows[size_t(part) * UNIO_ROWS * width + 1];
        for (int row = threadIdx.x; row < active; row += UNIO_BINS) {
            total += sums[(size_t(part) * UNIO_ROWS + row) * sum_width + place];
        }
    }
    return total;
}

// The thread's share of one count of all rows.
UNIO_DEVICE double unio_count_rows(const int* rows, int width, int place, int parts) {
    double total = 0.0;
    for (int part = 0; part < parts; ++part) {
        const int* first = rows + size_t(part) * UNIO_ROWS * width;
        for (int row = threadIdx.x; row < first[1]; row += UNIO_BINS) {
            total += double(first[size_t(row) * width + place]);
        }
    }
    return total;
}

// The same for a maximum.
UNIO_DEVICE double unio_max_rows(const int* rows, int width, const double* sums, int sum_width, int place, int parts) {
    double top = -double(unio_inf());
    for (int part = 0; part < parts; ++part) {
        const int active = rows[size_t(part) * UNIO_ROWS * width + 1];
        for (int row = threadIdx.x; row < active; row += UNIO_BINS) {
            // A row that saw nothing has no largest.
            if (rows[(size_t(part) * UNIO_ROWS + row) * width] > 0) {
                top = unio_max(top, sums[(size_t(part) * UNIO_ROWS + row) * sum_width + place]);
            }
        }
    }
    return top;
}

// found = bin that holds the rank, how many lie below it, how many lie in it.
UNIO_DEVICE void unio_find(const int* counted, int rank, int* found) {
    if (threadIdx.x < 3) {
        found[threadIdx.x] = 0;
    }
    __syncthreads();
    const int bin = threadIdx.x;
    const int below = bin > 0 ? counted[bin - 1] : 0;
    if (below < rank && rank <= counted[bin]) {
        found[0] = bin;
        found[1] = below;
        found[2] = counted[bin] - below;
    }
    __syncthreads();
}

// The smallest rank, from 1, at which a share of so many elements lies at or below.
UNIO_DEVICE int unio_rank(double share, int count) {
    const double exact = share * count;
    const int whole = int(exact);
    const int rank = double(whole) < exact ? whole + 1 : whole;
    return rank < 1 ? 1 : rank;
}

// The value at a rank within the bin of 8 exponent and 8 mantissa bits, interpolated. The lowest bin is 0.
UNIO_DEVICE float unio_bin_value(int exponent, int mantissa, int rank, int count) {
    const unsigned low = unsigned(exponent) << 23 | unsigned(mantissa) << 15;
    if (low == 0u) {
        return 0.0f;
    }
    const float bottom = __uint_as_float(low);
    const float top = __uint_as_float(low | 0x7fffu);
    return unio_fma(top - bottom, (float(rank) - 0.5f) / float(count), bottom);
}

#endif
