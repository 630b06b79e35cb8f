/* Cards that can be simulated by name: memory and rates of public data sheets. */
#include "tenon/backend.h"

/* Memory in whole GiB, as drivers report it. Rates are peaks without sparsity: GB/s, and 10¹² operations/s with f32
 * and f16 summed in f32. Link: nominal rate of the PCIe slot in one direction; unified memory has no link. Data
 * sheets give no time per launch. */
#define GIB(n) ((size_t)(n) << 30)
#define CARD(name, title, gib, read, f32, f16, i8, link)                                                             \
    {                                                                                                                \
        name, title, GIB(gib), 0, false, { (read) * 1e9, (f32)*1e12, (f16)*1e12, (i8)*1e12, (link)*1e9, 0 }          \
    }
#define UNIFIED(name, title, gib, limit, read, f32, f16, i8)                                                         \
    {                                                                                                                \
        name, title, GIB(gib), GIB(limit), true, { (read) * 1e9, (f32)*1e12, (f16)*1e12, (i8)*1e12, 0, 0 }           \
    }

static const tn_device_preset presets[] = {
    /* NVIDIA T4 data sheet (70 W card, PCIe 3.0) */
    CARD("t4", "T4", 15, 320, 8.1, 65, 130, 15.75),
    /* NVIDIA Ampere GA102 whitepaper, table of the GeForce RTX 3090 */
    CARD("rtx3090", "GeForce RTX 3090", 24, 936, 35.6, 71, 284, 31.5),
    /* NVIDIA Ada whitepaper, table of the GeForce RTX 4090 */
    CARD("rtx4090", "GeForce RTX 4090", 24, 1008, 82.6, 165.2, 660.6, 31.5),
    /* NVIDIA RTX Blackwell whitepaper, table of the GeForce RTX 5090 */
    CARD("rtx5090", "GeForce RTX 5090", 32, 1792, 104.8, 209.5, 838, 63),
    /* NVIDIA L4 data sheet; matrix rates there are with sparsity, here halved */
    CARD("l4", "L4", 22, 300, 30.3, 121, 242.5, 31.5),
    /* NVIDIA L40S data sheet */
    CARD("l40s", "L40S", 44, 864, 91.6, 362, 733, 31.5),
    /* NVIDIA A100 data sheet, 80 GB SXM */
    CARD("a100", "A100 80GB", 80, 2039, 19.5, 312, 624, 31.5),
    /* NVIDIA H100 data sheet, SXM; matrix rates there are with sparsity, here halved */
    CARD("h100", "H100 80GB", 79, 3350, 67, 989.5, 1979, 63),
    /* NVIDIA H200 data sheet, SXM; the same. The driver reports 143,771 MiB. */
    CARD("h200", "H200", 140, 4800, 67, 989.5, 1979, 63),
    /* NVIDIA HGX B200 data sheet, an eighth of the board's figures; matrix rates halved. The driver reports
       183,359 MiB. */
    CARD("b200", "B200", 179, 8000, 75, 2250, 4500, 63),
    /* AMD Instinct MI300X data sheet */
    CARD("mi300x", "Instinct MI300X", 192, 5300, 163.4, 1307.4, 2614.9, 63),
    /* AMD specifications of the Radeon RX 7900 XTX; i8: the RDNA 3 matrix instructions run at the rate of f16 */
    CARD("rx7900xtx", "Radeon RX 7900 XTX", 24, 960, 61.4, 122.8, 122.8, 31.5),
    /* Apple's technical specifications of the M3 Max with 40 GPU cores: memory and read rate. Apple gives no rates of
       operations: 40 cores × 128 lanes × 2 × 1.38 GHz, the same for all types. Metal recommends 96 of 128 GiB for the
       GPU. */
    UNIFIED("m3-max", "M3 Max", 128, 96, 400, 14.1, 14.1, 14.1),
    /* NVIDIA DGX Spark data sheet: memory, read rate, 10¹⁵ operations/s of f4 with sparsity. Halved for dense and
       again for each wider type; f32: 6144 cores × 2 × 2.5 GHz. 128 GB are 119 GiB. */
    UNIFIED("dgx-spark", "DGX Spark", 119, 0, 273, 30.7, 125, 250),
};

const tn_device_preset *tn_device_presets(size_t *n) {
    if (n) *n = sizeof presets / sizeof *presets;
    return presets;
}
