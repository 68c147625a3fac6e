/* What `mpicomp bench --algorithm native` is to agree with: the same measurement without Python and without us, on the
   same memory (one input, one output, again and again) and with the thread level that mpi4py asks for. With
   MPI_THREAD_SINGLE, as OSU's programs have it, MPI takes no locks: another measurement.
   plain_allreduce ROUNDS STEPS BYTES...   medians over rounds of the slowest rank's mean of STEPS calls, in us, as JSON */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int given, rank, rounds = atoi(argv[1]), steps = atoi(argv[2]);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    double *local = malloc(rounds * sizeof(double)), *slowest = malloc(rounds * sizeof(double));
    if (rank == 0) printf("[");
    for (int i = 3; i < argc; i++) {
        size_t nbytes = strtoull(argv[i], NULL, 10);
        float *send = malloc(nbytes), *receive = malloc(nbytes);
        memset(send, 0, nbytes);
        memset(receive, 0, nbytes);
        for (int round = -rounds / 10 - 5; round < rounds; round++) { /* the negative ones warm up */
            MPI_Barrier(MPI_COMM_WORLD);
            double start = MPI_Wtime();
            for (int step = 0; step < steps; step++)
                MPI_Allreduce(send, receive, (int)(nbytes / sizeof(float)), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            if (round >= 0) local[round] = (MPI_Wtime() - start) / steps;
        }
        MPI_Reduce(local, slowest, rounds, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            qsort(slowest, rounds, sizeof(double), ascending);
            printf("%s%.4f", i > 3 ? ", " : "", 1e6 * slowest[rounds / 2]);
        }
        free(send);
        free(receive);
    }
    if (rank == 0) printf("]\n");
    MPI_Finalize();
    return 0;
}
