/* Records which basic blocks of the library a test runs: one byte per byte of code, in a file that child processes
 * share and that survives a crash. Linked by reach.py with objects that call __sanitizer_cov_trace_pc in every block.
 */
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned char *seen;
static uintptr_t base, size;

static int find_library(struct dl_phdr_info *info, size_t bytes, void *unused) {
    (void)bytes, (void)unused;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        const uintptr_t begin = info->dlpi_addr + part->p_vaddr, here = (uintptr_t)&find_library;
        if (part->p_type != PT_LOAD || here < begin || here - begin >= part->p_memsz) continue;
        base = info->dlpi_addr;
        size = part->p_vaddr + part->p_memsz;
        return 1;
    }
    return 0;
}

__attribute__((constructor)) static void open_map(void) {
    const char *path = getenv("MUTATE_REACH");
    if (!path || !dl_iterate_phdr(find_library, NULL)) return;
    const int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0 || ftruncate(file, (off_t)size)) return;
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED) seen = map;
}

__attribute__((visibility("default"))) void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
    const uintptr_t at = (uintptr_t)__builtin_return_address(0) - base;
    if (seen && at < size) seen[at] = 1;
}
