/* A model file that is truncated while it is mapped: reading a lost page raises SIGBUS, which would end the
 * program in the middle of all answers. The handler maps an empty page instead and sets a flag; the engine then
 * discards its results, and every client gets an error. */
#include "serve/batch/batch.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

static atomic_bool lost;
static uintptr_t page_size;

static void on_lost_page(int signal_number, siginfo_t *info, void *context) {
    (void)context;
    void *page = (void *)((uintptr_t)info->si_addr & ~(page_size - 1)); /* NOLINT(performance-no-int-to-ptr) */
    if (info->si_code == BUS_ADRERR &&
        mmap(page, page_size, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED) {
        atomic_store(&lost, true);
        return;
    }
    signal(signal_number,
           SIG_DFL); /* another kind of fault: the default action ends the program when the access is repeated */
}

void lost_file_watch(void) {
    struct sigaction action = {.sa_sigaction = on_lost_page, .sa_flags = SA_SIGINFO};
    page_size = (uintptr_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

bool file_is_lost(void) { return atomic_load(&lost); }

void fail_all_jobs(struct engine *e, const char *why) {
    struct served *served = e->served;
    for (int i = 0; i < e->n_slots; i++)
        if (e->slots[i].job) output_end_slot(e, &e->slots[i], FINISH_ERROR, "", 0, why, false);
    pthread_mutex_lock(&served->lock);
    struct job *job = served->queue;
    served->queue = NULL;
    served->queue_end = &served->queue;
    served->n_queued = served->n_embed_queued = 0;
    pthread_mutex_unlock(&served->lock);
    while (job) {
        struct job *next = job->next;
        output_end_job(served, job, FINISH_ERROR, NULL, "", 0, why, NULL, 0);
        job = next;
    }
    output_wake(served, true);
}
