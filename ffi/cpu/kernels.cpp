// The kernels of kernels.h, compiled once for each kind of processor: as namespace VARIANT, with the processor's
// flags. Nothing of the standard library is used here: the linker keeps one copy of an inline function, and that
// might be one compiled for another processor.
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
