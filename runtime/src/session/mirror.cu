// Copies slots and states to memory that the host sees, between two stamps: begin, end, words.
UNIO_KERNEL(256) unio_mirror(UNIO_INOUT(int, isv), UNIO_INOUT(int, state), UNIO_INOUT(unsigned long long, steps),
                             UNIO_INOUT(unsigned long long, mirror), int isv_len, int state_len) {
    int* words = reinterpret_cast<int*>(mirror + 2);
    if (threadIdx.x == 0) {
        steps[0] += 1;
        mirror[0] = steps[0];
        __threadfence_system();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < isv_len; i += blockDim.x) words[i] = isv[i];
    for (int i = threadIdx.x; i < state_len; i += blockDim.x) words[isv_len + i] = state[i];
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) mirror[1] = steps[0];
}
