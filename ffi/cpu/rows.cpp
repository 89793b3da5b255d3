// Row-wise operations: gates, norms, argmax, softmax, token masks.
#include "ops.h"

#include "operation.h"

namespace mlx_serve {
namespace {

mx::array room(const int* shape, size_t axes, mx::Dtype type, mx::Stream stream) {
  const mx::Shape sizes(shape, shape + axes);
  for (const int size : sizes) require(size >= 0, "a size is below 0");
  const auto make = [](const Arrays&, Arrays&) -> Task { return [] {}; };
  return operation(stream, "mlx_serve_room", sizes, {}, make, type);
}

mx::array gate(const mx::array& gates, const mx::array& ups, bool gelu, mx::Stream stream) {
  check_rows(gates);
  check_rows(ups);
  require(gates.shape() == ups.shape(), "gates and ups differ in shape");
  const Gate kind = gelu ? Gate::gelu : Gate::silu;
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]), others(in[1]);
    float* to = out[0].data<float>();
    return [=] {
      const long width = rows.width();
      each_row(rows.count(), static_cast<int>(4 * width), [&](long row, auto& copies) {
        const float* own = rows.at(row, copies[0]);
        kernels().gate(kind, own, others.at(row, copies[1]), rows.width(), to + row * width);
      });
    };
  };
  return operation(stream, "mlx_serve_gate", gates.shape(), {gates, ups}, make);
}

mx::array rms_norm(const mx::array& x, const mx::array* weight, float eps, mx::Stream stream) {
  check_rows(x);
  if (weight) {
    const bool fits = weight->ndim() == 1 && weight->shape(0) == x.shape(-1);
    require(weight->dtype() == mx::float32 && fits, "the weight does not fit the last axis");
  }
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]);
    const float* weights = in.size() > 1 ? memory<float>(in[1]) : nullptr;
    float* to = out[0].data<float>();
    return [=] {
      const long width = rows.width();
      each_row(rows.count(), rows.width(), [&](long row, auto& copies) {
        kernels().norm(rows.at(row, copies[0]), weights, rows.width(), eps, to + row * width);
      });
    };
  };
  const Arrays inputs = weight ? Arrays{x, *weight} : Arrays{x};
  return operation(stream, "mlx_serve_rms_norm", x.shape(), inputs, make);
}

Arrays best(const mx::array& x, mx::Stream stream) {
  check_rows(x);
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]);
    auto* indices = out[0].data<uint32_t>();
    float* highest = out[1].data<float>();
    return [=] {
      each_row(rows.count(), rows.width(), [&](long row, auto& copies) {
        kernels().best(rows.at(row, copies[0]), rows.width(), indices + row, highest + row);
      });
    };
  };
  auto primitive = std::make_shared<Operation>(stream, "mlx_serve_best", make);
  const auto shape = leading(x);
  return mx::array::make_arrays({shape, shape}, {mx::uint32, mx::float32}, primitive, {x});
}

mx::array log_sum_exp(const mx::array& x, mx::Stream stream) {
  check_rows(x);
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]);
    float* to = out[0].data<float>();
    return [=] {
      each_row(rows.count(), rows.width(), [&](long row, auto& copies) {
        to[row] = kernels().log_sum_exp(rows.at(row, copies[0]), rows.width());
      });
    };
  };
  auto shape = leading(x);
  shape.push_back(1);
  return operation(stream, "mlx_serve_log_sum_exp", shape, {x}, make);
}

mx::array softmax(const mx::array& x, mx::Stream stream) {
  check_rows(x);
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]);
    float* to = out[0].data<float>();
    return [=] {
      const long width = rows.width();
      each_row(rows.count(), static_cast<int>(4 * width), [&](long row, auto& copies) {
        kernels().softmax(rows.at(row, copies[0]), rows.width(), to + row * width);
      });
    };
  };
  return operation(stream, "mlx_serve_softmax", x.shape(), {x}, make);
}

mx::array mask(const mx::array& x, const mx::array& words, mx::Stream stream) {
  check_rows(x);
  require(words.dtype() == mx::uint32, "the words are not uint32");
  const bool fits = x.ndim() == 2 && words.ndim() == 2 && words.shape(0) == x.shape(0) &&
      words.shape(1) == (x.shape(1) + 31) / 32;
  require(fits, "there is not a bit for each number");
  const auto make = [=](const Arrays& in, Arrays& out) -> Task {
    const Rows rows(in[0]);
    const auto* bits = memory<uint32_t>(in[1]);
    float* to = out[0].data<float>();
    return [=] {
      const long width = rows.width(), each = (width + 31) / 32;
      each_row(rows.count(), rows.width(), [&](long row, auto& copies) {
        kernels().mask(rows.at(row, copies[0]), bits + row * each, rows.width(), to + row * width);
      });
    };
  };
  return operation(stream, "mlx_serve_mask", x.shape(), {x, words}, make);
}

} // namespace
} // namespace mlx_serve

using mlx_serve::result;

extern "C" int mlx_serve_room(
    mlx_array* res, const int* shape, size_t shape_num, mlx_dtype dtype, const mlx_stream s) {
  return result(res, [&] { return mlx_serve::room(shape, shape_num, mlx_dtype_to_cpp(dtype), mlx_stream_get_(s)); });
}

extern "C" int mlx_serve_gate(
    mlx_array* res, const mlx_array gates, const mlx_array ups, bool gelu, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::gate(mlx_array_get_(gates), mlx_array_get_(ups), gelu, mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_rms_norm(
    mlx_array* res, const mlx_array x, const mlx_array weight, float eps, const mlx_stream s) {
  return result(res, [&] {
    const mx::array* scales = weight.ctx ? &mlx_array_get_(weight) : nullptr;
    return mlx_serve::rms_norm(mlx_array_get_(x), scales, eps, mlx_stream_get_(s));
  });
}

extern "C" int mlx_serve_best(mlx_vector_array* res, const mlx_array x, const mlx_stream s) {
  return mlx_serve::attempt([&] {
    mlx_vector_array_set_(*res, mlx_serve::best(mlx_array_get_(x), mlx_stream_get_(s)));
  });
}

extern "C" int mlx_serve_log_sum_exp(mlx_array* res, const mlx_array x, const mlx_stream s) {
  return result(
      res, [&] { return mlx_serve::log_sum_exp(mlx_array_get_(x), mlx_stream_get_(s)); });
}

extern "C" int mlx_serve_softmax(mlx_array* res, const mlx_array x, const mlx_stream s) {
  return result(res, [&] { return mlx_serve::softmax(mlx_array_get_(x), mlx_stream_get_(s)); });
}

extern "C" int mlx_serve_mask(
    mlx_array* res, const mlx_array x, const mlx_array words, const mlx_stream s) {
  return result(res, [&] {
    return mlx_serve::mask(mlx_array_get_(x), mlx_array_get_(words), mlx_stream_get_(s));
  });
}
