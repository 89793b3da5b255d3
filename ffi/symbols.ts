// The C prototypes of the mlx-c functions that mlx-serve calls. ffi/prototype.ts derives bun:ffi declarations from
// them, and test/ffi/symbols.test.ts compares them with the pinned headers. Operations are grouped by whether the
// result shares memory with an input (test/mlx/sharing.test.ts).
import { declared } from "./prototype.ts";

/** Elementwise operations: the output may reuse the memory of an input of equal size that nothing else reads. */
const elementwise = [
  "int mlx_erf(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_erfinv(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_exp(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_expm1(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_log(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_negative(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_round(mlx_array*, mlx_array, int, mlx_stream)",
  "int mlx_sigmoid(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_tanh(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_add(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_subtract(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_multiply(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_divide(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_floor_divide(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_power(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_maximum(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_minimum(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_less(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_logaddexp(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_less_equal(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_greater(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_greater_equal(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_logical_and(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_where(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_stream)",
  "int mlx_clip(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_stream)",
  "int mlx_astype(mlx_array*, mlx_array, mlx_dtype, mlx_stream)",
] as const;

/** Other operations that may reuse an input's memory. */
const overwriting = [
  "int mlx_closure_apply(mlx_vector_array*, mlx_closure, mlx_vector_array)",
  "int mlx_softmax_axes(mlx_array*, mlx_array, const int*, size_t, bool, mlx_stream)",
  "int mlx_fast_layer_norm(mlx_array*, mlx_array, mlx_array, mlx_array, float, mlx_stream)",
  "int mlx_fast_rms_norm(mlx_array*, mlx_array, mlx_array, float, mlx_stream)",
  "int mlx_fast_rope_dynamic(mlx_array*, mlx_array, int, bool, mlx_optional_float, float, mlx_array, mlx_array, mlx_stream)",
] as const;

/** Operations that return views of their input. */
const views = [
  "int mlx_swapaxes(mlx_array*, mlx_array, int, int, mlx_stream)",
  "int mlx_expand_dims_axes(mlx_array*, mlx_array, const int*, size_t, mlx_stream)",
  "int mlx_squeeze_axes(mlx_array*, mlx_array, const int*, size_t, mlx_stream)",
  "int mlx_slice(mlx_array*, mlx_array, const int*, size_t, const int*, size_t, const int*, size_t, mlx_stream)",
  "int mlx_split(mlx_vector_array*, mlx_array, int, int, mlx_stream)",
  "int mlx_split_sections(mlx_vector_array*, mlx_array, const int*, size_t, int, mlx_stream)",
] as const;

/** Operations that return a view of an input without gaps, and a copy of any other input. */
const regroupings = [
  "int mlx_reshape(mlx_array*, mlx_array, const int*, size_t, mlx_stream)",
  "int mlx_flatten(mlx_array*, mlx_array, int, int, mlx_stream)",
] as const;

export const prototypes = [
  ...elementwise,
  ...overwriting,
  ...views,
  ...regroupings,

  // ---- Errors
  "void mlx_set_error_handler(mlx_error_handler_func, void*, void (*)(void*))",

  // ---- Strings and string lists
  "const char* mlx_string_data(mlx_string)",
  "int mlx_string_free(mlx_string)",
  "mlx_vector_string mlx_vector_string_new_data(const char**, size_t)",
  "size_t mlx_vector_string_size(mlx_vector_string)",
  "int mlx_vector_string_get(char**, mlx_vector_string, size_t)",
  "int mlx_vector_string_free(mlx_vector_string)",

  // ---- Arrays
  "mlx_array mlx_array_new_data(const void*, const int*, int, mlx_dtype)",
  "int mlx_array_free(mlx_array)",
  "size_t mlx_array_size(mlx_array)",
  "size_t mlx_array_nbytes(mlx_array)",
  "size_t mlx_array_ndim(mlx_array)",
  "const int* mlx_array_shape(mlx_array)",
  "mlx_dtype mlx_array_dtype(mlx_array)",
  "int mlx_array_eval(mlx_array)",
  "const uint8_t* mlx_array_data_uint8(mlx_array)",
  "int _mlx_array_is_row_contiguous(bool*, mlx_array)",

  // ---- Lists of arrays
  "mlx_vector_array mlx_vector_array_new_data(const mlx_array*, size_t)",
  "size_t mlx_vector_array_size(mlx_vector_array)",
  "int mlx_vector_array_get(mlx_array*, mlx_vector_array, size_t)",
  "int mlx_vector_array_free(mlx_vector_array)",

  // ---- Groups of processes
  "int mlx_distributed_init(mlx_distributed_group*, bool, const char*)",
  "int mlx_distributed_group_rank(mlx_distributed_group)",
  "int mlx_distributed_group_size(mlx_distributed_group)",
  "int mlx_distributed_group_free(mlx_distributed_group)",
  "int mlx_distributed_all_sum(mlx_array*, mlx_array, mlx_distributed_group, mlx_stream)",
  "int mlx_distributed_send(mlx_array*, mlx_array, int, mlx_distributed_group, mlx_stream)",
  "int mlx_distributed_recv(mlx_array*, const int*, size_t, mlx_dtype, int, mlx_distributed_group, mlx_stream)",
  "int mlx_distributed_all_gather(mlx_array*, mlx_array, mlx_distributed_group, mlx_stream)",

  // ---- Devices and streams
  "int mlx_version(mlx_string*)",
  "mlx_device mlx_device_new_type(mlx_device_type, int)",
  "int mlx_device_free(mlx_device)",
  "int mlx_set_default_device(mlx_device)",
  "int mlx_device_info_get(mlx_device_info*, mlx_device)",
  "int mlx_device_info_free(mlx_device_info)",
  "int mlx_device_info_get_keys(mlx_vector_string*, mlx_device_info)",
  "int mlx_device_info_is_string(bool*, mlx_device_info, const char*)",
  "int mlx_device_info_get_string(const char**, mlx_device_info, const char*)",
  "int mlx_device_info_get_size(size_t*, mlx_device_info, const char*)",
  "int mlx_metal_is_available(bool*)",
  "int mlx_cuda_is_available(bool*)",
  "mlx_stream mlx_stream_new_device(mlx_device)",
  "int mlx_stream_free(mlx_stream)",
  "int mlx_set_default_stream(mlx_stream)",
  "int mlx_synchronize(mlx_stream)",

  // ---- Memory
  "int mlx_get_active_memory(size_t*)",
  "int mlx_get_memory_limit(size_t*)",
  "int mlx_get_cache_memory(size_t*)",
  "int mlx_get_peak_memory(size_t*)",
  "int mlx_reset_peak_memory(void)",
  "int mlx_set_cache_limit(size_t*, size_t)",
  "int mlx_set_wired_limit(size_t*, size_t)",
  "int mlx_clear_cache(void)",

  // ---- Evaluation and compiled closures
  "int mlx_eval(mlx_vector_array)",
  "int mlx_async_eval(mlx_vector_array)",
  "mlx_closure mlx_closure_new_func(int (*)(mlx_vector_array*, const mlx_vector_array))",
  "int mlx_closure_free(mlx_closure)",
  "int mlx_compile(mlx_closure*, mlx_closure, bool)",
  "int mlx_disable_compile(void)",

  // ---- Making arrays
  "int mlx_zeros(mlx_array*, const int*, size_t, mlx_dtype, mlx_stream)",
  "int mlx_arange(mlx_array*, double, double, double, mlx_dtype, mlx_stream)",

  // ---- Reductions, scans and order
  "int mlx_sum_axes(mlx_array*, mlx_array, const int*, size_t, bool, mlx_stream)",
  "int mlx_max_axes(mlx_array*, mlx_array, const int*, size_t, bool, mlx_stream)",
  "int mlx_logsumexp_axes(mlx_array*, mlx_array, const int*, size_t, bool, mlx_stream)",
  "int mlx_argmax_axis(mlx_array*, mlx_array, int, bool, mlx_stream)",
  "int mlx_cumsum_axis(mlx_array*, mlx_array, int, bool, bool, mlx_optional_dtype, mlx_stream)",
  "int mlx_argsort_axis(mlx_array*, mlx_array, int, mlx_stream)",
  "int mlx_argpartition_axis(mlx_array*, mlx_array, int, int, mlx_stream)",

  // ---- Shape and indexing
  "int mlx_contiguous(mlx_array*, mlx_array, bool, mlx_stream)",
  "int mlx_concatenate_axis(mlx_array*, mlx_vector_array, int, mlx_stream)",
  "int mlx_take_axis(mlx_array*, mlx_array, mlx_array, int, mlx_stream)",
  "int mlx_take_along_axis(mlx_array*, mlx_array, mlx_array, int, mlx_stream)",
  "int mlx_put_along_axis(mlx_array*, mlx_array, mlx_array, mlx_array, int, mlx_stream)",
  "int mlx_scatter_add_axis(mlx_array*, mlx_array, mlx_array, mlx_array, int, mlx_stream)",

  // ---- Products
  "int mlx_matmul(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_addmm(mlx_array*, mlx_array, mlx_array, mlx_array, float, float, mlx_stream)",
  "int mlx_gather_mm(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, bool, mlx_stream)",

  // ---- Quantization
  "int mlx_quantize(mlx_vector_array*, mlx_array, mlx_optional_int, mlx_optional_int, const char*, mlx_array, mlx_stream)",
  "int mlx_dequantize(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_optional_int, mlx_optional_int, const char*, mlx_array, mlx_optional_dtype, mlx_stream)",
  "int mlx_quantized_matmul(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, bool, mlx_optional_int, mlx_optional_int, const char*, mlx_stream)",
  "int mlx_gather_qmm(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, bool, mlx_optional_int, mlx_optional_int, const char*, bool, mlx_stream)",

  // ---- Random numbers
  "int mlx_random_key(mlx_array*, uint64_t)",
  "int mlx_random_normal(mlx_array*, const int*, size_t, mlx_dtype, float, float, mlx_array, mlx_stream)",

  // ---- Fused operations
  "int mlx_fast_scaled_dot_product_attention(mlx_array*, mlx_array, mlx_array, mlx_array, float, const char*, mlx_array, mlx_array, bool, mlx_stream)",

  // ---- Custom kernels
  "mlx_fast_cuda_kernel mlx_fast_cuda_kernel_new(const char*, mlx_vector_string, mlx_vector_string, const char*, const char*, bool, int)",
  "void mlx_fast_cuda_kernel_free(mlx_fast_cuda_kernel)",
  "int mlx_fast_cuda_kernel_apply(mlx_vector_array*, mlx_fast_cuda_kernel, mlx_vector_array, mlx_fast_cuda_kernel_config, mlx_stream)",
  "mlx_fast_cuda_kernel_config mlx_fast_cuda_kernel_config_new(void)",
  "void mlx_fast_cuda_kernel_config_free(mlx_fast_cuda_kernel_config)",
  "int mlx_fast_cuda_kernel_config_add_output_arg(mlx_fast_cuda_kernel_config, const int*, size_t, mlx_dtype)",
  "int mlx_fast_cuda_kernel_config_set_grid(mlx_fast_cuda_kernel_config, int, int, int)",
  "int mlx_fast_cuda_kernel_config_set_thread_group(mlx_fast_cuda_kernel_config, int, int, int)",
  "int mlx_fast_cuda_kernel_config_set_init_value(mlx_fast_cuda_kernel_config, float)",
  "int mlx_fast_cuda_kernel_config_add_template_arg_dtype(mlx_fast_cuda_kernel_config, const char*, mlx_dtype)",
  "int mlx_fast_cuda_kernel_config_add_template_arg_int(mlx_fast_cuda_kernel_config, const char*, int)",
  "int mlx_fast_cuda_kernel_config_add_template_arg_bool(mlx_fast_cuda_kernel_config, const char*, bool)",
  "mlx_fast_metal_kernel mlx_fast_metal_kernel_new(const char*, mlx_vector_string, mlx_vector_string, const char*, const char*, bool, bool)",
  "void mlx_fast_metal_kernel_free(mlx_fast_metal_kernel)",
  "int mlx_fast_metal_kernel_apply(mlx_vector_array*, mlx_fast_metal_kernel, mlx_vector_array, mlx_fast_metal_kernel_config, mlx_stream)",
  "mlx_fast_metal_kernel_config mlx_fast_metal_kernel_config_new(void)",
  "void mlx_fast_metal_kernel_config_free(mlx_fast_metal_kernel_config)",
  "int mlx_fast_metal_kernel_config_add_output_arg(mlx_fast_metal_kernel_config, const int*, size_t, mlx_dtype)",
  "int mlx_fast_metal_kernel_config_set_grid(mlx_fast_metal_kernel_config, int, int, int)",
  "int mlx_fast_metal_kernel_config_set_thread_group(mlx_fast_metal_kernel_config, int, int, int)",
  "int mlx_fast_metal_kernel_config_set_init_value(mlx_fast_metal_kernel_config, float)",
  "int mlx_fast_metal_kernel_config_add_template_arg_dtype(mlx_fast_metal_kernel_config, const char*, mlx_dtype)",
  "int mlx_fast_metal_kernel_config_add_template_arg_int(mlx_fast_metal_kernel_config, const char*, int)",
  "int mlx_fast_metal_kernel_config_add_template_arg_bool(mlx_fast_metal_kernel_config, const char*, bool)",
] as const;

/** Our own CPU operations (ffi/cpu/ops.h). A libmlxc that was built elsewhere lacks them. */
export const ownPrototypes = [
  "int mlx_serve_room(mlx_array*, const int*, size_t, mlx_dtype, mlx_stream)",
  "int mlx_serve_panel_rows(void)",
  "int mlx_serve_panels(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_serve_decode(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, bool, bool, bool, int, int, int, bool, bool, bool, mlx_stream)",
  "int mlx_serve_prepare(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, bool, bool, bool, int, int, bool, mlx_stream)",
  "int mlx_serve_attend(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, int, int, bool, bool, bool, mlx_stream)",
  "int mlx_serve_attend_latent(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, int, bool, mlx_stream)",
  "int mlx_serve_copy_blocks(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_serve_packed_product(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, int, int, float, bool, mlx_stream)",
  "int mlx_serve_expert_product(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, int, int, bool, mlx_stream)",
  "int mlx_serve_gate(mlx_array*, mlx_array, mlx_array, bool, mlx_stream)",
  "int mlx_serve_rms_norm(mlx_array*, mlx_array, mlx_array, float, mlx_stream)",
  "int mlx_serve_best(mlx_vector_array*, mlx_array, mlx_stream)",
  "int mlx_serve_log_sum_exp(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_serve_softmax(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_serve_lookup(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, int, int, mlx_stream)",
  "int mlx_serve_are_own(bool*, mlx_vector_array)",
  "int mlx_serve_sequence_new(mlx_serve_sequence*, mlx_vector_array, mlx_vector_array)",
  "int mlx_serve_sequence_run(mlx_vector_array*, mlx_serve_sequence, mlx_vector_array, mlx_stream)",
  "int mlx_serve_sequence_free(mlx_serve_sequence)",
  "int mlx_serve_convolve(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, bool, mlx_stream)",
  "int mlx_serve_scan(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, int, int, int, int, int, int, float, float, float, bool, mlx_stream)",
  "int mlx_serve_mask(mlx_array*, mlx_array, mlx_array, mlx_stream)",
  "int mlx_serve_shared_group(mlx_distributed_group*, const char*, int, int)",
] as const;

/** Our functions for CUDA only (ffi/cuda), in the libmlxc that we build for Linux. */
export const cudaPrototypes = [
  "int mlx_serve_compile_kernel(mlx_array)",
  "int mlx_serve_pinned(mlx_array*, const void*, const int*, size_t, mlx_dtype)",
  "int mlx_serve_fetch(mlx_array*, mlx_array, mlx_stream)",
  "int mlx_serve_recording_new(mlx_serve_recording*, mlx_vector_array, mlx_vector_array, int, mlx_stream)",
  "int mlx_serve_play(mlx_vector_array*, mlx_serve_recording, mlx_vector_array, mlx_stream)",
  "int mlx_serve_recording_free(mlx_serve_recording)",
] as const;

export const symbols = declared(prototypes);
export const ownSymbols = declared(ownPrototypes);
export const cudaSymbols = declared(cudaPrototypes);

type Prototype = (typeof prototypes | typeof ownPrototypes | typeof cudaPrototypes)[number];
type OperationOf<
  P,
  Result extends string,
> = P extends `int ${infer Name}(${Result}, ${string}mlx_stream)` ? Name : never;

export type ArrayOperation = OperationOf<Prototype, "mlx_array*">;
export type ListOperation = OperationOf<Prototype, "mlx_vector_array*">;

const namesOf = (list: readonly string[]): ReadonlySet<string> =>
  new Set(Object.keys(declared(list)));

/** Operations by their kind of result. The result of an unlisted operation has its own memory. */
export const operations = {
  /** Operations that return a list of arrays. */
  lists: namesOf(
    [...prototypes, ...ownPrototypes, ...cudaPrototypes].filter((each) =>
      /\(mlx_vector_array\*.*, mlx_stream\)$/.test(each),
    ),
  ),
  elementwise: namesOf(elementwise),
  overwriting: namesOf([...elementwise, ...overwriting]),
  regroupings: namesOf(regroupings),
  views: namesOf([...views, ...regroupings]),
};
