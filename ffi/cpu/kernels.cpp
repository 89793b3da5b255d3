// Compiles the kernels of kernels.h once per instruction set, as namespace VARIANT. Uses no standard library: the
// linker would keep one copy of each inline function, perhaps with instructions that this processor lacks.
#include "kernels.h"

#include "kernels/attention.h"
#include "kernels/latent.h"
#include "kernels/product.h"
#include "kernels/quantized-product.h"
#include "kernels/recurrence.h"
#include "kernels/rows.h"
#if defined(__AMX_INT8__)
#include "kernels/amx-product.h"
#endif

namespace mlx_serve {
namespace VARIANT {

extern const Kernels table = {
    product,
#if defined(__AMX_INT8__)
    arrange_tiles,
    TILED,
    tiled_product,
#else
    arrange,
    GROUP,
    quantized_product,
#endif
    TAKES_PANELS,
    dequantize,
    prepare,
    attend,
    prepare_latent,
    attend_latent,
    gate,
    norm,
    best,
    log_sum_exp,
    softmax,
    convolve,
    scan,
    mask};

} // namespace VARIANT
} // namespace mlx_serve
