
// Counting without atomics, for quantiles of magnitudes: the order of a float's bits is that of its value.
#ifndef UNIO_STATISTICS
#define UNIO_STATISTICS
// Bins of a level of the search: the exponent, then the top bits of the mantissa.
#define UNIO_BINS 256
// Bins of both levels that lie about the last answer, and how many of them below it: an average that forgets a tenth a step falls by
// 39, and those below are what costs.
#define UNIO_WINDOW 128
#define UNIO_WINDOW_BELOW 44
// Rows that a part of a union has room for: no launch has more blocks. Each row tells how many there are.
#define UNIO_ROWS 512
// Elements of a part for each of them.
#define UNIO_ROW_ELEMENTS 1024
// The most blocks where a rank is looked for anew: each of them joins the rows of all.
#define UNIO_REFINED_ROWS 128

// The first bin of both levels that is not finite.
#define UNIO_NOT_FINITE 0xff00

// Adds one to each lane's bin in the warp's own row; lanes that share a bin elect one of them. Other bins count nothing.
template <int BINS> UNIO_DEVICE void unio_count(int* row, int bin, int lane) {
    // Matching takes as long as there are different values, so that what counts nothing is all the same.
    const bool counts = unsigned(bin) < unsigned(BINS);
    const unsigned peers = __match_any_sync(UNIO_WARP, counts ? bin : -1);
    if (counts && lane == __ffs(peers) - 1) {
        row[bin] = row[bin] + __popc(peers);
    }
    __syncwarp();
}

// Values from a window's first bin on wait in the warp's own list until there is one for each lane: matching is what costs. What
// waits is the bin of both levels. The list has room for less than one for each lane, and for the values of one turn.
UNIO_DEVICE int unio_hold_those(unsigned short* list, int held, bool waits, unsigned bits, int lane) {
    const unsigned lanes = __ballot_sync(UNIO_WARP, waits);
    if (waits) {
        list[held + __popc(lanes & ((1u << lane) - 1u))] = (unsigned short)(bits >> 15);
    }
    return held + __popc(lanes);
}
template <int TURN> UNIO_DEVICE int unio_hold(unsigned short* list, int held, const float (&values)[TURN], int window, int lane) {
    const unsigned bottom = unsigned(window) << 15;
    UNIO_UNROLL() for (int first = 0; first < TURN; first += 4) {
        unsigned bits[4], last = 0u;
        int own = 0;
        UNIO_UNROLL() for (int k = 0; k < 4; ++k) {
            bits[k] = __float_as_uint(values[first + k]) & 0x7fffffffu;
            own += bits[k] >= bottom ? 1 : 0;
            last = bits[k] >= bottom ? bits[k] : last;
        }
        // Where a window is far up, no lane of most warps has more than one.
        if (__any_sync(UNIO_WARP, own > 1)) {
            for (int k = 0; k < 4; ++k) held = unio_hold_those(list, held, bits[k] >= bottom, bits[k], lane);
        } else {
            held = unio_hold_those(list, held, own > 0, last, lane);
        }
    }
    return held;
}
// Counts up to a warp's worth of what waits, what of it lies beyond the window and what is not finite; so many stay.
UNIO_DEVICE int unio_tally(int* row, const unsigned short* list, int held, int window, int lane, int* beyond, int* not_finite) {
    const int left = held > 32 ? held - 32 : 0;
    __syncwarp();
    const int bin = left + lane < held ? int(list[left + lane]) - window : -1;
    *beyond += bin >= UNIO_WINDOW ? 1 : 0;
    *not_finite += bin >= UNIO_NOT_FINITE - window ? 1 : 0;
    unio_count<UNIO_WINDOW>(row, bin, lane);
    return left;
}

// The exponent of a value that is finite; else no bin.
UNIO_DEVICE int unio_exponent(float value) {
    return unio_isfinite(value) ? int(__float_as_uint(value) >> 23 & 255u) : UNIO_BINS;
}
// The top bits of the mantissa of a value that is finite and has this exponent; else no bin.
UNIO_DEVICE int unio_mantissa(float value, int exponent) {
    return unio_exponent(value) == exponent ? int(__float_as_uint(value) >> 15 & 255u) : UNIO_BINS;
}

// A window begins where the last answer says, but never at bin 0: what holds no element looks like a zero and lies below.
UNIO_DEVICE int unio_window(int told) { return told < 1 ? 1 : told; }

// Over a warp's lanes, in a fixed tree.
template <bool LARGEST, class T> UNIO_DEVICE T unio_warp_join(T value) {
    if constexpr (LARGEST) {
        return unio_lanes_max<32>(UNIO_WARP, value);
    } else {
        return unio_lanes_sum<32>(UNIO_WARP, value);
    }
}
// Several sums, or maxima, over the block's threads, each in a fixed tree, and all at the same barriers: every thread has the
// results. `partial` has room for 32 of each.
template <bool LARGEST, int COUNT, class T> UNIO_DEVICE void unio_block_join(T (&values)[COUNT], T* partial) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = int(blockDim.x) / 32;
    UNIO_UNROLL() for (int n = 0; n < COUNT; ++n) {
        const T joined = unio_warp_join<LARGEST>(values[n]);
        if (lane == 0) {
            partial[n * 32 + warp] = joined;
        }
    }
    __syncthreads();
    for (int n = warp; n < COUNT; n += warps) {
        const T joined = unio_warp_join<LARGEST>(lane < warps ? partial[n * 32 + lane] : LARGEST ? T(-unio_inf()) : T(0));
        if (lane == 0) {
            partial[n * 32] = joined;
        }
    }
    __syncthreads();
    UNIO_UNROLL() for (int n = 0; n < COUNT; ++n) values[n] = partial[n * 32];
    __syncthreads();
}
template <int COUNT, class T> UNIO_DEVICE void unio_block_sums(T (&values)[COUNT], T* partial) {
    unio_block_join<false>(values, partial);
}
template <int COUNT> UNIO_DEVICE void unio_block_maxima(double (&values)[COUNT], double* partial) {
    unio_block_join<true>(values, partial);
}

// How many lie in the thread's bin, over the rows of all warps.
template <int BINS> UNIO_DEVICE int unio_total(const int* rows) {
    int total = 0;
    for (int warp = 0; threadIdx.x < BINS && warp < int(blockDim.x) / 32; ++warp) {
        total += rows[warp * BINS + threadIdx.x];
    }
    return total;
}

// counted[b] = sum of the totals that threads 0 to b bring. Behind the bins there is room for one number a warp.
template <int BINS> UNIO_DEVICE void unio_prefix(int total, int* counted) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int step = 1; step < 32; step *= 2) {
        const int below = __shfl_up_sync(UNIO_WARP, total, step);
        total += lane >= step ? below : 0;
    }
    if (lane == 31) {
        counted[BINS + warp] = total;
    }
    __syncthreads();
    total += unio_lanes_sum<32>(UNIO_WARP, lane < warp ? counted[BINS + lane] : 0);
    if (threadIdx.x < BINS) {
        counted[threadIdx.x] = total;
    }
    __syncthreads();
}

// counted[b] = how many lie in bins 0 to b, over the rows of all warps.
UNIO_DEVICE void unio_scan(const int* rows, int* counted) { unio_prefix<UNIO_BINS>(unio_total<UNIO_BINS>(rows), counted); }

// Elements of all parts.
UNIO_DEVICE int unio_elements(const int* rows, int width, int parts) {
    int total = 0;
    for (int part = 0; part < parts; ++part) {
        total += rows[size_t(part) * UNIO_ROWS * width];
    }
    return total;
}

// Rows of a part: those that are known, where the number of elements is, else what the first row tells (one read more to wait for).
UNIO_DEVICE int unio_active(const int* rows, int width, int part, int known) {
    return known >= 0 ? known : rows[size_t(part) * UNIO_ROWS * width + 1];
}
// Rows of a single part of so many elements, of which there are no more than MOST.
template <int MOST> UNIO_DEVICE int unio_rows_of(int n) {
    const int rows = n / UNIO_ROW_ELEMENTS + (n % UNIO_ROW_ELEMENTS > 0 ? 1 : 0);
    return rows < MOST ? rows : MOST;
}

// The thread's column of a table, from `column` on, summed over the rows of all parts, of which the first table tells how many there
// are, up to so many. Threads beyond the columns help; `joined` has room for one number a thread.
template <int COLUMNS, int MOST>
UNIO_DEVICE int unio_columns(
    const int* rows, int width, const int* table, int table_width, int column, int parts, int known, int* joined) {
    const int groups = blockDim.x / COLUMNS;
    int total = 0;
    for (int part = 0; part < parts; ++part) {
        const int all = unio_active(rows, width, part, known);
        const int active = all < MOST ? all : MOST;
        const int* const first = table + size_t(part) * UNIO_ROWS * table_width + column + threadIdx.x % COLUMNS;
        int row = threadIdx.x / COLUMNS;
        // Eight rows are on their way at a time.
        for (; row + 7 * groups < active; row += 8 * groups) {
            int held[8];
            UNIO_UNROLL() for (int k = 0; k < 8; ++k) held[k] = first[size_t(row + k * groups) * table_width];
            UNIO_UNROLL() for (int k = 0; k < 8; ++k) total += held[k];
        }
        for (; row < active; row += groups) {
            total += first[size_t(row) * table_width];
        }
    }
    joined[threadIdx.x] = total;
    __syncthreads();
    total = 0;
    for (int group = 0; threadIdx.x < COLUMNS && group < groups; ++group) {
        total += joined[group * COLUMNS + threadIdx.x];
    }
    __syncthreads();
    return total;
}

// The thread's first row of the first part: read for all statistics before the first is summed, so that these reads overlap.
UNIO_DEVICE double unio_first_row(
    const int* rows, int width, const double* sums, int sum_width, int place, int known, double none) {
    const bool there = int(threadIdx.x) < unio_active(rows, width, 0, known) && (known > 0 || rows[0] > 0);
    return there ? sums[size_t(threadIdx.x) * sum_width + place] : none;
}

// The thread's share of a sum over all rows, in a fixed order, from its first row on.
UNIO_DEVICE double unio_sum_rows(
    double first, const int* rows, int width, const double* sums, int sum_width, int place, int parts, int known) {
    double total = first;
    for (int part = 0; part < parts; ++part) {
        const int active = unio_active(rows, width, part, known);
        for (int row = part == 0 ? threadIdx.x + blockDim.x : threadIdx.x; row < active; row += blockDim.x) {
            total += sums[(size_t(part) * UNIO_ROWS + row) * sum_width + place];
        }
    }
    return total;
}

// The same for a maximum; a part without elements has none.
UNIO_DEVICE double unio_max_rows(
    double first, const int* rows, int width, const double* sums, int sum_width, int place, int parts, int known) {
    double top = first;
    for (int part = 0; part < parts; ++part) {
        const bool holds = known > 0 || rows[size_t(part) * UNIO_ROWS * width] > 0;
        const int active = holds ? unio_active(rows, width, part, known) : 0;
        for (int row = part == 0 ? threadIdx.x + blockDim.x : threadIdx.x; row < active; row += blockDim.x) {
            top = unio_max(top, sums[(size_t(part) * UNIO_ROWS + row) * sum_width + place]);
        }
    }
    return top;
}

// The thread's share of a count over all rows; of the first row, which is read before.
UNIO_DEVICE int unio_count_of_row(const int* rows, int width, int place, int known) {
    return int(threadIdx.x) < unio_active(rows, width, 0, known) ? rows[size_t(threadIdx.x) * width + place] : 0;
}
UNIO_DEVICE int unio_count_rows(int first, const int* rows, int width, int place, int parts, int known) {
    int total = first;
    for (int part = 0; part < parts; ++part) {
        const int active = unio_active(rows, width, part, known);
        for (int row = part == 0 ? threadIdx.x + blockDim.x : threadIdx.x; row < active; row += blockDim.x) {
            total += rows[(size_t(part) * UNIO_ROWS + row) * width + place];
        }
    }
    return total;
}

// found = bin that holds the rank, how many lie below it, how many lie in it.
template <int BINS> UNIO_DEVICE void unio_find(const int* counted, int rank, int* found) {
    if (threadIdx.x < 3) {
        found[threadIdx.x] = 0;
    }
    __syncthreads();
    if (threadIdx.x < BINS) {
        const int bin = threadIdx.x;
        const int below = bin > 0 ? counted[bin - 1] : 0;
        if (below < rank && rank <= counted[bin]) {
            found[0] = bin;
            found[1] = below;
            found[2] = counted[bin] - below;
        }
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
