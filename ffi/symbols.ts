// The mlx-c functions that mlx-serve calls, as data. The comment above each entry is its C prototype;
// test/ffi/symbols.test.ts compares both with the pinned headers.
//
// How a C type is passed:
//   a handle (a struct of one pointer)      "ptr"     null where the header says "may be null"
//   T* that the call writes, data, text     "buffer"  the view itself, never its address
//   mlx_optional_int, _float, _dtype        "u64"     value in the low 32 bits, has_value in bit 32
//   size_t returned                         size      a number: all sizes are below 2^53
import { FFIType } from "bun:ffi";

const size = FFIType.u64_fast;

export const symbols = {
  // ---- Errors
  // void mlx_set_error_handler(mlx_error_handler_func, void*, void (*)(void*))
  mlx_set_error_handler: { args: ["ptr", "ptr", "ptr"], returns: "void" },

  // ---- Strings and string lists
  // const char* mlx_string_data(mlx_string)
  mlx_string_data: { args: ["ptr"], returns: "ptr" },
  // int mlx_string_free(mlx_string)
  mlx_string_free: { args: ["ptr"], returns: "i32" },
  // mlx_vector_string mlx_vector_string_new_data(const char**, size_t)
  mlx_vector_string_new_data: { args: ["buffer", "u64"], returns: "ptr" },
  // size_t mlx_vector_string_size(mlx_vector_string)
  mlx_vector_string_size: { args: ["ptr"], returns: size },
  // int mlx_vector_string_get(char**, mlx_vector_string, size_t)
  mlx_vector_string_get: { args: ["buffer", "ptr", "u64"], returns: "i32" },
  // int mlx_vector_string_free(mlx_vector_string)
  mlx_vector_string_free: { args: ["ptr"], returns: "i32" },

  // ---- Arrays
  // mlx_array mlx_array_new_data(const void*, const int*, int, mlx_dtype)
  mlx_array_new_data: { args: ["buffer", "buffer", "i32", "i32"], returns: "ptr" },
  // int mlx_array_free(mlx_array)
  mlx_array_free: { args: ["ptr"], returns: "i32" },
  // size_t mlx_array_size(mlx_array)
  mlx_array_size: { args: ["ptr"], returns: size },
  // size_t mlx_array_nbytes(mlx_array)
  mlx_array_nbytes: { args: ["ptr"], returns: size },
  // size_t mlx_array_ndim(mlx_array)
  mlx_array_ndim: { args: ["ptr"], returns: size },
  // const int* mlx_array_shape(mlx_array)
  mlx_array_shape: { args: ["ptr"], returns: "ptr" },
  // mlx_dtype mlx_array_dtype(mlx_array)
  mlx_array_dtype: { args: ["ptr"], returns: "i32" },
  // int mlx_array_eval(mlx_array)
  mlx_array_eval: { args: ["ptr"], returns: "i32" },
  // const uint8_t* mlx_array_data_uint8(mlx_array)
  mlx_array_data_uint8: { args: ["ptr"], returns: "ptr" },
  // int _mlx_array_is_row_contiguous(bool*, mlx_array)
  _mlx_array_is_row_contiguous: { args: ["buffer", "ptr"], returns: "i32" },

  // ---- Lists of arrays
  // mlx_vector_array mlx_vector_array_new_data(const mlx_array*, size_t)
  mlx_vector_array_new_data: { args: ["buffer", "u64"], returns: "ptr" },
  // size_t mlx_vector_array_size(mlx_vector_array)
  mlx_vector_array_size: { args: ["ptr"], returns: size },
  // int mlx_vector_array_get(mlx_array*, mlx_vector_array, size_t)
  mlx_vector_array_get: { args: ["buffer", "ptr", "u64"], returns: "i32" },
  // int mlx_vector_array_free(mlx_vector_array)
  mlx_vector_array_free: { args: ["ptr"], returns: "i32" },

  // ---- Groups of processes
  // int mlx_distributed_init(mlx_distributed_group*, bool, const char*)
  mlx_distributed_init: { args: ["buffer", "bool", "buffer"], returns: "i32" },
  // int mlx_distributed_group_rank(mlx_distributed_group)
  mlx_distributed_group_rank: { args: ["ptr"], returns: "i32" },
  // int mlx_distributed_group_size(mlx_distributed_group)
  mlx_distributed_group_size: { args: ["ptr"], returns: "i32" },
  // int mlx_distributed_group_free(mlx_distributed_group)
  mlx_distributed_group_free: { args: ["ptr"], returns: "i32" },
  // int mlx_distributed_all_sum(mlx_array*, mlx_array, mlx_distributed_group, mlx_stream)
  mlx_distributed_all_sum: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_distributed_send(mlx_array*, mlx_array, int, mlx_distributed_group, mlx_stream)
  mlx_distributed_send: { args: ["buffer", "ptr", "i32", "ptr", "ptr"], returns: "i32" },
  // int mlx_distributed_recv(mlx_array*, const int*, size_t, mlx_dtype, int, mlx_distributed_group, mlx_stream)
  mlx_distributed_recv: {
    args: ["buffer", "buffer", "u64", "i32", "i32", "ptr", "ptr"],
    returns: "i32",
  },
  // int mlx_distributed_all_gather(mlx_array*, mlx_array, mlx_distributed_group, mlx_stream)
  mlx_distributed_all_gather: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },

  // ---- Devices and streams
  // int mlx_version(mlx_string*)
  mlx_version: { args: ["buffer"], returns: "i32" },
  // mlx_device mlx_device_new_type(mlx_device_type, int)
  mlx_device_new_type: { args: ["i32", "i32"], returns: "ptr" },
  // int mlx_device_free(mlx_device)
  mlx_device_free: { args: ["ptr"], returns: "i32" },
  // int mlx_set_default_device(mlx_device)
  mlx_set_default_device: { args: ["ptr"], returns: "i32" },
  // int mlx_device_info_get(mlx_device_info*, mlx_device)
  mlx_device_info_get: { args: ["buffer", "ptr"], returns: "i32" },
  // int mlx_device_info_free(mlx_device_info)
  mlx_device_info_free: { args: ["ptr"], returns: "i32" },
  // int mlx_device_info_get_keys(mlx_vector_string*, mlx_device_info)
  mlx_device_info_get_keys: { args: ["buffer", "ptr"], returns: "i32" },
  // int mlx_device_info_is_string(bool*, mlx_device_info, const char*)
  mlx_device_info_is_string: { args: ["buffer", "ptr", "buffer"], returns: "i32" },
  // int mlx_device_info_get_string(const char**, mlx_device_info, const char*)
  mlx_device_info_get_string: { args: ["buffer", "ptr", "buffer"], returns: "i32" },
  // int mlx_device_info_get_size(size_t*, mlx_device_info, const char*)
  mlx_device_info_get_size: { args: ["buffer", "ptr", "buffer"], returns: "i32" },
  // int mlx_metal_is_available(bool*)
  mlx_metal_is_available: { args: ["buffer"], returns: "i32" },
  // int mlx_cuda_is_available(bool*)
  mlx_cuda_is_available: { args: ["buffer"], returns: "i32" },
  // mlx_stream mlx_stream_new_device(mlx_device)
  mlx_stream_new_device: { args: ["ptr"], returns: "ptr" },
  // int mlx_stream_free(mlx_stream)
  mlx_stream_free: { args: ["ptr"], returns: "i32" },
  // int mlx_set_default_stream(mlx_stream)
  mlx_set_default_stream: { args: ["ptr"], returns: "i32" },
  // int mlx_synchronize(mlx_stream)
  mlx_synchronize: { args: ["ptr"], returns: "i32" },

  // ---- Memory
  // int mlx_get_active_memory(size_t*)
  mlx_get_active_memory: { args: ["buffer"], returns: "i32" },
  // int mlx_get_memory_limit(size_t*)
  mlx_get_memory_limit: { args: ["buffer"], returns: "i32" },
  // int mlx_get_cache_memory(size_t*)
  mlx_get_cache_memory: { args: ["buffer"], returns: "i32" },
  // int mlx_get_peak_memory(size_t*)
  mlx_get_peak_memory: { args: ["buffer"], returns: "i32" },
  // int mlx_reset_peak_memory(void)
  mlx_reset_peak_memory: { args: [], returns: "i32" },
  // int mlx_set_cache_limit(size_t*, size_t)
  mlx_set_cache_limit: { args: ["buffer", "u64"], returns: "i32" },
  // int mlx_set_wired_limit(size_t*, size_t)
  mlx_set_wired_limit: { args: ["buffer", "u64"], returns: "i32" },
  // int mlx_clear_cache(void)
  mlx_clear_cache: { args: [], returns: "i32" },

  // ---- Evaluation and compiled closures
  // int mlx_eval(mlx_vector_array)
  mlx_eval: { args: ["ptr"], returns: "i32" },
  // int mlx_async_eval(mlx_vector_array)
  mlx_async_eval: { args: ["ptr"], returns: "i32" },
  // mlx_closure mlx_closure_new_func(int (*)(mlx_vector_array*, const mlx_vector_array))
  mlx_closure_new_func: { args: ["ptr"], returns: "ptr" },
  // int mlx_closure_apply(mlx_vector_array*, mlx_closure, mlx_vector_array)
  mlx_closure_apply: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_closure_free(mlx_closure)
  mlx_closure_free: { args: ["ptr"], returns: "i32" },
  // int mlx_compile(mlx_closure*, mlx_closure, bool)
  mlx_compile: { args: ["buffer", "ptr", "bool"], returns: "i32" },
  // int mlx_disable_compile(void)
  mlx_disable_compile: { args: [], returns: "i32" },

  // ---- Making arrays
  // int mlx_zeros(mlx_array*, const int*, size_t, mlx_dtype, mlx_stream)
  mlx_zeros: { args: ["buffer", "buffer", "u64", "i32", "ptr"], returns: "i32" },
  // int mlx_arange(mlx_array*, double, double, double, mlx_dtype, mlx_stream)
  mlx_arange: { args: ["buffer", "f64", "f64", "f64", "i32", "ptr"], returns: "i32" },

  // ---- One array, element by element
  // int mlx_erf(mlx_array*, mlx_array, mlx_stream)
  mlx_erf: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_erfinv(mlx_array*, mlx_array, mlx_stream)
  mlx_erfinv: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_exp(mlx_array*, mlx_array, mlx_stream)
  mlx_exp: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_expm1(mlx_array*, mlx_array, mlx_stream)
  mlx_expm1: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_log(mlx_array*, mlx_array, mlx_stream)
  mlx_log: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_negative(mlx_array*, mlx_array, mlx_stream)
  mlx_negative: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_round(mlx_array*, mlx_array, int, mlx_stream)
  mlx_round: { args: ["buffer", "ptr", "i32", "ptr"], returns: "i32" },
  // int mlx_sigmoid(mlx_array*, mlx_array, mlx_stream)
  mlx_sigmoid: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_tanh(mlx_array*, mlx_array, mlx_stream)
  mlx_tanh: { args: ["buffer", "ptr", "ptr"], returns: "i32" },

  // ---- Two arrays, element by element
  // int mlx_add(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_add: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_subtract(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_subtract: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_multiply(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_multiply: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_divide(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_divide: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_floor_divide(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_floor_divide: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_power(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_power: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_maximum(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_maximum: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_minimum(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_minimum: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_less(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_less: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_logaddexp(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_logaddexp: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_less_equal(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_less_equal: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_greater(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_greater: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_greater_equal(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_greater_equal: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_logical_and(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_logical_and: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_where(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_stream)
  mlx_where: { args: ["buffer", "ptr", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_clip(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_stream)
  mlx_clip: { args: ["buffer", "ptr", "ptr", "ptr", "ptr"], returns: "i32" },

  // ---- Reductions, scans and order
  // int mlx_sum_axes(mlx_array*, mlx_array, const int*, size_t, bool, mlx_stream)
  mlx_sum_axes: { args: ["buffer", "ptr", "buffer", "u64", "bool", "ptr"], returns: "i32" },
  // int mlx_max_axes(mlx_array*, mlx_array, const int*, size_t, bool, mlx_stream)
  mlx_max_axes: { args: ["buffer", "ptr", "buffer", "u64", "bool", "ptr"], returns: "i32" },
  // int mlx_logsumexp_axes(mlx_array*, mlx_array, const int*, size_t, bool, mlx_stream)
  mlx_logsumexp_axes: { args: ["buffer", "ptr", "buffer", "u64", "bool", "ptr"], returns: "i32" },
  // int mlx_softmax_axes(mlx_array*, mlx_array, const int*, size_t, bool, mlx_stream)
  mlx_softmax_axes: { args: ["buffer", "ptr", "buffer", "u64", "bool", "ptr"], returns: "i32" },
  // int mlx_argmax_axis(mlx_array*, mlx_array, int, bool, mlx_stream)
  mlx_argmax_axis: { args: ["buffer", "ptr", "i32", "bool", "ptr"], returns: "i32" },
  // int mlx_cumsum_axis(mlx_array*, mlx_array, int, bool, bool, mlx_optional_dtype, mlx_stream)
  mlx_cumsum_axis: { args: ["buffer", "ptr", "i32", "bool", "bool", "u64", "ptr"], returns: "i32" },
  // int mlx_argsort_axis(mlx_array*, mlx_array, int, mlx_stream)
  mlx_argsort_axis: { args: ["buffer", "ptr", "i32", "ptr"], returns: "i32" },
  // int mlx_argpartition_axis(mlx_array*, mlx_array, int, int, mlx_stream)
  mlx_argpartition_axis: { args: ["buffer", "ptr", "i32", "i32", "ptr"], returns: "i32" },

  // ---- Shape
  // int mlx_astype(mlx_array*, mlx_array, mlx_dtype, mlx_stream)
  mlx_astype: { args: ["buffer", "ptr", "i32", "ptr"], returns: "i32" },
  // int mlx_contiguous(mlx_array*, mlx_array, bool, mlx_stream)
  mlx_contiguous: { args: ["buffer", "ptr", "bool", "ptr"], returns: "i32" },
  // int mlx_reshape(mlx_array*, mlx_array, const int*, size_t, mlx_stream)
  mlx_reshape: { args: ["buffer", "ptr", "buffer", "u64", "ptr"], returns: "i32" },
  // int mlx_flatten(mlx_array*, mlx_array, int, int, mlx_stream)
  mlx_flatten: { args: ["buffer", "ptr", "i32", "i32", "ptr"], returns: "i32" },
  // int mlx_swapaxes(mlx_array*, mlx_array, int, int, mlx_stream)
  mlx_swapaxes: { args: ["buffer", "ptr", "i32", "i32", "ptr"], returns: "i32" },
  // int mlx_expand_dims_axes(mlx_array*, mlx_array, const int*, size_t, mlx_stream)
  mlx_expand_dims_axes: { args: ["buffer", "ptr", "buffer", "u64", "ptr"], returns: "i32" },
  // int mlx_squeeze_axes(mlx_array*, mlx_array, const int*, size_t, mlx_stream)
  mlx_squeeze_axes: { args: ["buffer", "ptr", "buffer", "u64", "ptr"], returns: "i32" },
  // int mlx_concatenate_axis(mlx_array*, mlx_vector_array, int, mlx_stream)
  mlx_concatenate_axis: { args: ["buffer", "ptr", "i32", "ptr"], returns: "i32" },
  // int mlx_split(mlx_vector_array*, mlx_array, int, int, mlx_stream)
  mlx_split: { args: ["buffer", "ptr", "i32", "i32", "ptr"], returns: "i32" },
  // int mlx_split_sections(mlx_vector_array*, mlx_array, const int*, size_t, int, mlx_stream)
  mlx_split_sections: { args: ["buffer", "ptr", "buffer", "u64", "i32", "ptr"], returns: "i32" },
  // int mlx_slice(mlx_array*, mlx_array, const int*, size_t, const int*, size_t, const int*, size_t, mlx_stream)
  mlx_slice: {
    args: ["buffer", "ptr", "buffer", "u64", "buffer", "u64", "buffer", "u64", "ptr"],
    returns: "i32",
  },

  // ---- Indexing
  // int mlx_take_axis(mlx_array*, mlx_array, mlx_array, int, mlx_stream)
  mlx_take_axis: { args: ["buffer", "ptr", "ptr", "i32", "ptr"], returns: "i32" },
  // int mlx_take_along_axis(mlx_array*, mlx_array, mlx_array, int, mlx_stream)
  mlx_take_along_axis: { args: ["buffer", "ptr", "ptr", "i32", "ptr"], returns: "i32" },
  // int mlx_put_along_axis(mlx_array*, mlx_array, mlx_array, mlx_array, int, mlx_stream)
  mlx_put_along_axis: { args: ["buffer", "ptr", "ptr", "ptr", "i32", "ptr"], returns: "i32" },
  // int mlx_scatter_add_axis(mlx_array*, mlx_array, mlx_array, mlx_array, int, mlx_stream)
  mlx_scatter_add_axis: { args: ["buffer", "ptr", "ptr", "ptr", "i32", "ptr"], returns: "i32" },

  // ---- Products
  // int mlx_matmul(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_matmul: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_addmm(mlx_array*, mlx_array, mlx_array, mlx_array, float, float, mlx_stream)
  mlx_addmm: { args: ["buffer", "ptr", "ptr", "ptr", "f32", "f32", "ptr"], returns: "i32" },
  // int mlx_gather_mm(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, bool, mlx_stream)
  mlx_gather_mm: { args: ["buffer", "ptr", "ptr", "ptr", "ptr", "bool", "ptr"], returns: "i32" },

  // ---- Quantization
  // int mlx_quantize(mlx_vector_array*, mlx_array, mlx_optional_int, mlx_optional_int, const char*, mlx_array, mlx_stream)
  mlx_quantize: { args: ["buffer", "ptr", "u64", "u64", "buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_dequantize(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_optional_int, mlx_optional_int, const char*, mlx_array, mlx_optional_dtype, mlx_stream)
  mlx_dequantize: {
    args: ["buffer", "ptr", "ptr", "ptr", "u64", "u64", "buffer", "ptr", "u64", "ptr"],
    returns: "i32",
  },
  // int mlx_quantized_matmul(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, bool, mlx_optional_int, mlx_optional_int, const char*, mlx_stream)
  mlx_quantized_matmul: {
    args: ["buffer", "ptr", "ptr", "ptr", "ptr", "bool", "u64", "u64", "buffer", "ptr"],
    returns: "i32",
  },
  // int mlx_gather_qmm(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, bool, mlx_optional_int, mlx_optional_int, const char*, bool, mlx_stream)
  mlx_gather_qmm: {
    args: [
      "buffer",
      "ptr",
      "ptr",
      "ptr",
      "ptr",
      "ptr",
      "ptr",
      "bool",
      "u64",
      "u64",
      "buffer",
      "bool",
      "ptr",
    ],
    returns: "i32",
  },

  // ---- Random numbers
  // int mlx_random_key(mlx_array*, uint64_t)
  mlx_random_key: { args: ["buffer", "u64"], returns: "i32" },
  // int mlx_random_normal(mlx_array*, const int*, size_t, mlx_dtype, float, float, mlx_array, mlx_stream)
  mlx_random_normal: {
    args: ["buffer", "buffer", "u64", "i32", "f32", "f32", "ptr", "ptr"],
    returns: "i32",
  },

  // ---- Fused operations
  // int mlx_fast_layer_norm(mlx_array*, mlx_array, mlx_array, mlx_array, float, mlx_stream)
  mlx_fast_layer_norm: { args: ["buffer", "ptr", "ptr", "ptr", "f32", "ptr"], returns: "i32" },
  // int mlx_fast_rms_norm(mlx_array*, mlx_array, mlx_array, float, mlx_stream)
  mlx_fast_rms_norm: { args: ["buffer", "ptr", "ptr", "f32", "ptr"], returns: "i32" },
  // int mlx_fast_rope_dynamic(mlx_array*, mlx_array, int, bool, mlx_optional_float, float, mlx_array, mlx_array, mlx_stream)
  mlx_fast_rope_dynamic: {
    args: ["buffer", "ptr", "i32", "bool", "u64", "f32", "ptr", "ptr", "ptr"],
    returns: "i32",
  },
  // int mlx_fast_scaled_dot_product_attention(mlx_array*, mlx_array, mlx_array, mlx_array, float, const char*, mlx_array, mlx_array, bool, mlx_stream)
  mlx_fast_scaled_dot_product_attention: {
    args: ["buffer", "ptr", "ptr", "ptr", "f32", "buffer", "ptr", "ptr", "bool", "ptr"],
    returns: "i32",
  },

  // ---- Custom kernels
  // mlx_fast_cuda_kernel mlx_fast_cuda_kernel_new(const char*, mlx_vector_string, mlx_vector_string, const char*, const char*, bool, int)
  mlx_fast_cuda_kernel_new: {
    args: ["buffer", "ptr", "ptr", "buffer", "buffer", "bool", "i32"],
    returns: "ptr",
  },
  // void mlx_fast_cuda_kernel_free(mlx_fast_cuda_kernel)
  mlx_fast_cuda_kernel_free: { args: ["ptr"], returns: "void" },
  // int mlx_fast_cuda_kernel_apply(mlx_vector_array*, mlx_fast_cuda_kernel, mlx_vector_array, mlx_fast_cuda_kernel_config, mlx_stream)
  mlx_fast_cuda_kernel_apply: { args: ["buffer", "ptr", "ptr", "ptr", "ptr"], returns: "i32" },
  // mlx_fast_cuda_kernel_config mlx_fast_cuda_kernel_config_new(void)
  mlx_fast_cuda_kernel_config_new: { args: [], returns: "ptr" },
  // void mlx_fast_cuda_kernel_config_free(mlx_fast_cuda_kernel_config)
  mlx_fast_cuda_kernel_config_free: { args: ["ptr"], returns: "void" },
  // int mlx_fast_cuda_kernel_config_add_output_arg(mlx_fast_cuda_kernel_config, const int*, size_t, mlx_dtype)
  mlx_fast_cuda_kernel_config_add_output_arg: {
    args: ["ptr", "buffer", "u64", "i32"],
    returns: "i32",
  },
  // int mlx_fast_cuda_kernel_config_set_grid(mlx_fast_cuda_kernel_config, int, int, int)
  mlx_fast_cuda_kernel_config_set_grid: { args: ["ptr", "i32", "i32", "i32"], returns: "i32" },
  // int mlx_fast_cuda_kernel_config_set_thread_group(mlx_fast_cuda_kernel_config, int, int, int)
  mlx_fast_cuda_kernel_config_set_thread_group: {
    args: ["ptr", "i32", "i32", "i32"],
    returns: "i32",
  },
  // int mlx_fast_cuda_kernel_config_set_init_value(mlx_fast_cuda_kernel_config, float)
  mlx_fast_cuda_kernel_config_set_init_value: { args: ["ptr", "f32"], returns: "i32" },
  // int mlx_fast_cuda_kernel_config_add_template_arg_dtype(mlx_fast_cuda_kernel_config, const char*, mlx_dtype)
  mlx_fast_cuda_kernel_config_add_template_arg_dtype: {
    args: ["ptr", "buffer", "i32"],
    returns: "i32",
  },
  // int mlx_fast_cuda_kernel_config_add_template_arg_int(mlx_fast_cuda_kernel_config, const char*, int)
  mlx_fast_cuda_kernel_config_add_template_arg_int: {
    args: ["ptr", "buffer", "i32"],
    returns: "i32",
  },
  // int mlx_fast_cuda_kernel_config_add_template_arg_bool(mlx_fast_cuda_kernel_config, const char*, bool)
  mlx_fast_cuda_kernel_config_add_template_arg_bool: {
    args: ["ptr", "buffer", "bool"],
    returns: "i32",
  },
  // mlx_fast_metal_kernel mlx_fast_metal_kernel_new(const char*, mlx_vector_string, mlx_vector_string, const char*, const char*, bool, bool)
  mlx_fast_metal_kernel_new: {
    args: ["buffer", "ptr", "ptr", "buffer", "buffer", "bool", "bool"],
    returns: "ptr",
  },
  // void mlx_fast_metal_kernel_free(mlx_fast_metal_kernel)
  mlx_fast_metal_kernel_free: { args: ["ptr"], returns: "void" },
  // int mlx_fast_metal_kernel_apply(mlx_vector_array*, mlx_fast_metal_kernel, mlx_vector_array, mlx_fast_metal_kernel_config, mlx_stream)
  mlx_fast_metal_kernel_apply: { args: ["buffer", "ptr", "ptr", "ptr", "ptr"], returns: "i32" },
  // mlx_fast_metal_kernel_config mlx_fast_metal_kernel_config_new(void)
  mlx_fast_metal_kernel_config_new: { args: [], returns: "ptr" },
  // void mlx_fast_metal_kernel_config_free(mlx_fast_metal_kernel_config)
  mlx_fast_metal_kernel_config_free: { args: ["ptr"], returns: "void" },
  // int mlx_fast_metal_kernel_config_add_output_arg(mlx_fast_metal_kernel_config, const int*, size_t, mlx_dtype)
  mlx_fast_metal_kernel_config_add_output_arg: {
    args: ["ptr", "buffer", "u64", "i32"],
    returns: "i32",
  },
  // int mlx_fast_metal_kernel_config_set_grid(mlx_fast_metal_kernel_config, int, int, int)
  mlx_fast_metal_kernel_config_set_grid: { args: ["ptr", "i32", "i32", "i32"], returns: "i32" },
  // int mlx_fast_metal_kernel_config_set_thread_group(mlx_fast_metal_kernel_config, int, int, int)
  mlx_fast_metal_kernel_config_set_thread_group: {
    args: ["ptr", "i32", "i32", "i32"],
    returns: "i32",
  },
  // int mlx_fast_metal_kernel_config_set_init_value(mlx_fast_metal_kernel_config, float)
  mlx_fast_metal_kernel_config_set_init_value: { args: ["ptr", "f32"], returns: "i32" },
  // int mlx_fast_metal_kernel_config_add_template_arg_dtype(mlx_fast_metal_kernel_config, const char*, mlx_dtype)
  mlx_fast_metal_kernel_config_add_template_arg_dtype: {
    args: ["ptr", "buffer", "i32"],
    returns: "i32",
  },
  // int mlx_fast_metal_kernel_config_add_template_arg_int(mlx_fast_metal_kernel_config, const char*, int)
  mlx_fast_metal_kernel_config_add_template_arg_int: {
    args: ["ptr", "buffer", "i32"],
    returns: "i32",
  },
  // int mlx_fast_metal_kernel_config_add_template_arg_bool(mlx_fast_metal_kernel_config, const char*, bool)
  mlx_fast_metal_kernel_config_add_template_arg_bool: {
    args: ["ptr", "buffer", "bool"],
    returns: "i32",
  },
} as const;

/** Our own CPU operations (ffi/cpu/ops.h). A libmlxc built elsewhere lacks them. */
export const ownSymbols = {
  // int mlx_serve_room(mlx_array*, const int*, size_t, mlx_dtype, mlx_stream)
  mlx_serve_room: { args: ["buffer", "buffer", "u64", "i32", "ptr"], returns: "i32" },
  // int mlx_serve_panel_rows(void)
  mlx_serve_panel_rows: { args: [], returns: "i32" },
  // int mlx_serve_panels(mlx_array*, mlx_array, mlx_stream)
  mlx_serve_panels: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_serve_decode(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, bool, bool, bool, int, int, bool, bool, bool, mlx_stream)
  mlx_serve_decode: {
    args: [
      "buffer",
      "ptr",
      "ptr",
      "ptr",
      "ptr",
      "ptr",
      "bool",
      "bool",
      "bool",
      "i32",
      "i32",
      "bool",
      "bool",
      "bool",
      "ptr",
    ],
    returns: "i32",
  },
  // int mlx_serve_prepare(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, bool, bool, bool, int, mlx_stream)
  mlx_serve_prepare: {
    args: ["buffer", "ptr", "ptr", "ptr", "ptr", "ptr", "bool", "bool", "bool", "i32", "ptr"],
    returns: "i32",
  },
  // int mlx_serve_attend(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, int, int, bool, bool, bool, mlx_stream)
  mlx_serve_attend: {
    args: [
      "buffer",
      "ptr",
      "ptr",
      "ptr",
      "ptr",
      "ptr",
      "ptr",
      "i32",
      "i32",
      "bool",
      "bool",
      "bool",
      "ptr",
    ],
    returns: "i32",
  },
  // int mlx_serve_attend_latent(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, int, bool, mlx_stream)
  mlx_serve_attend_latent: {
    args: ["buffer", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "i32", "bool", "ptr"],
    returns: "i32",
  },
  // int mlx_serve_copy_blocks(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_serve_copy_blocks: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_serve_packed_product(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, int, int, float, bool, mlx_stream)
  mlx_serve_packed_product: {
    args: ["buffer", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "i32", "i32", "f32", "bool", "ptr"],
    returns: "i32",
  },
  // int mlx_serve_expert_product(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, int, int, bool, mlx_stream)
  mlx_serve_expert_product: {
    args: ["buffer", "ptr", "ptr", "ptr", "ptr", "ptr", "ptr", "i32", "i32", "bool", "ptr"],
    returns: "i32",
  },
  // int mlx_serve_gate(mlx_array*, mlx_array, mlx_array, bool, mlx_stream)
  mlx_serve_gate: { args: ["buffer", "ptr", "ptr", "bool", "ptr"], returns: "i32" },
  // int mlx_serve_rms_norm(mlx_array*, mlx_array, mlx_array, float, mlx_stream)
  mlx_serve_rms_norm: { args: ["buffer", "ptr", "ptr", "f32", "ptr"], returns: "i32" },
  // int mlx_serve_best(mlx_vector_array*, mlx_array, mlx_stream)
  mlx_serve_best: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_serve_log_sum_exp(mlx_array*, mlx_array, mlx_stream)
  mlx_serve_log_sum_exp: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_serve_softmax(mlx_array*, mlx_array, mlx_stream)
  mlx_serve_softmax: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_serve_lookup(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, int, int, mlx_stream)
  mlx_serve_lookup: {
    args: ["buffer", "ptr", "ptr", "ptr", "ptr", "i32", "i32", "ptr"],
    returns: "i32",
  },
  // int mlx_serve_are_own(bool*, mlx_vector_array)
  mlx_serve_are_own: { args: ["buffer", "ptr"], returns: "i32" },
  // int mlx_serve_sequence_new(mlx_serve_sequence*, mlx_vector_array, mlx_vector_array)
  mlx_serve_sequence_new: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_serve_sequence_run(mlx_vector_array*, mlx_serve_sequence, mlx_vector_array, mlx_stream)
  mlx_serve_sequence_run: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_serve_sequence_free(mlx_serve_sequence)
  mlx_serve_sequence_free: { args: ["ptr"], returns: "i32" },
  // int mlx_serve_convolve(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, bool, mlx_stream)
  mlx_serve_convolve: {
    args: ["buffer", "ptr", "ptr", "ptr", "ptr", "ptr", "bool", "ptr"],
    returns: "i32",
  },
  // int mlx_serve_scan(mlx_array*, mlx_array, mlx_array, mlx_array, mlx_array, mlx_array, int, int, int, int, int, int, float, float, float, bool, mlx_stream)
  mlx_serve_scan: {
    args: [
      "buffer",
      "ptr",
      "ptr",
      "ptr",
      "ptr",
      "ptr",
      "i32",
      "i32",
      "i32",
      "i32",
      "i32",
      "i32",
      "f32",
      "f32",
      "f32",
      "bool",
      "ptr",
    ],
    returns: "i32",
  },
  // int mlx_serve_mask(mlx_array*, mlx_array, mlx_array, mlx_stream)
  mlx_serve_mask: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_serve_shared_group(mlx_distributed_group*, const char*, int, int)
  mlx_serve_shared_group: { args: ["buffer", "buffer", "i32", "i32"], returns: "i32" },
} as const;

/** For CUDA only (ffi/cuda): in the libmlxc that we build for Linux. */
export const cudaSymbols = {
  // int mlx_serve_compile_kernel(mlx_array)
  mlx_serve_compile_kernel: { args: ["ptr"], returns: "i32" },
  // int mlx_serve_pinned(mlx_array*, const void*, const int*, size_t, mlx_dtype)
  mlx_serve_pinned: { args: ["buffer", "buffer", "buffer", "u64", "i32"], returns: "i32" },
  // int mlx_serve_fetch(mlx_array*, mlx_array, mlx_stream)
  mlx_serve_fetch: { args: ["buffer", "ptr", "ptr"], returns: "i32" },
  // int mlx_serve_recording_new(mlx_serve_recording*, mlx_vector_array, mlx_vector_array, int, mlx_stream)
  mlx_serve_recording_new: { args: ["buffer", "ptr", "ptr", "i32", "ptr"], returns: "i32" },
  // int mlx_serve_play(mlx_vector_array*, mlx_serve_recording, mlx_vector_array, mlx_stream)
  mlx_serve_play: { args: ["buffer", "ptr", "ptr", "ptr"], returns: "i32" },
  // int mlx_serve_recording_free(mlx_serve_recording)
  mlx_serve_recording_free: { args: ["ptr"], returns: "i32" },
} as const;
