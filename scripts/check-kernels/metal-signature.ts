// Expands a kernel as MLX does for Metal's compiler (its backend/common/metal_kernel.cpp), except that template
// arguments are declared in the function: clang's OpenCL accepts no template kernels.
import type { Dtype } from "../../src/mlx/dtype.ts";
import type { Launch } from "./launches.ts";

const types: Partial<Record<Dtype, string>> = {
  float32: "float",
  float16: "float16_t",
  bfloat16: "bfloat16_t",
  int32: "int32_t",
  uint32: "uint32_t",
};

/** MLX adds those whose names occur in the source as arguments. */
const attributes = {
  uint: [
    "dispatch_quadgroups_per_threadgroup",
    "dispatch_simdgroups_per_threadgroup",
    "quadgroup_index_in_threadgroup",
    "quadgroups_per_threadgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "thread_execution_width",
    "thread_index_in_quadgroup",
    "thread_index_in_simdgroup",
    "thread_index_in_threadgroup",
    "threads_per_simdgroup",
  ],
  uint3: [
    "dispatch_threads_per_threadgroup",
    "grid_origin",
    "grid_size",
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threadgroups_per_grid",
    "threads_per_grid",
    "threads_per_threadgroup",
  ],
};

/** MLX passes inputs with fewer elements in constant memory. */
const CONSTANT_ELEMENTS = 8;

export function renderKernel(launch: Launch): string {
  const { name, source } = launch.kernel;
  const template = templateOf(launch);
  const constants = template.map(([constant, value]) => {
    if (typeof value === "string") return `using ${constant} = ${value};`;
    return `constexpr ${typeof value === "number" ? "int" : "bool"} ${constant} = ${value};`;
  });
  const head = `kernel void ${uniqueName(launch)}(${argumentsOf(launch).join(", ")}) { ${constants.join(" ")}`;
  // The location in clang's errors.
  const label = `${name}<${template.map((pair) => pair.join(" = ")).join(", ")}>`;
  return `${head}\n#line 1 "${label}"\n${source}\n}\n`;
}

/** The function's name. */
export function uniqueName(launch: Launch): string {
  const passed = launch.inputs.map((input) => `${spaceOf(input)[0]}_${typeOf(input.dtype)}`);
  return [launch.kernel.name, ...templateOf(launch).map(([, value]) => value), ...passed].join("_");
}

/** Arguments that MLX appends after the arrays. */
export function attributesOf(source: string): { type: string; name: string }[] {
  return Object.entries(attributes).flatMap(([type, names]) =>
    names.filter((name) => source.includes(name)).map((name) => ({ type, name })),
  );
}

function templateOf({ launch }: Launch) {
  return Object.entries(launch.template ?? {}).map(([constant, value]) => {
    return [constant, typeof value === "string" ? typeOf(value) : value] as const;
  });
}

/** No kernel uses the shapes of inputs, which MLX also passes by name. */
function argumentsOf({ kernel, launch, inputs }: Launch): string[] {
  const passed = inputs.map((input, index) => {
    return `const ${spaceOf(input)} ${typeOf(input.dtype)}* ${kernel.inputs[index]}`;
  });
  const made = launch.outputs.map(({ dtype }, index) => {
    return `device ${typeOf(dtype)}* ${kernel.outputs[index]}`;
  });
  const found = attributesOf(kernel.source).map(({ type, name }) => `${type} ${name}`);
  return [...passed, ...made, ...found];
}

function spaceOf({ shape }: Launch["inputs"][number]): string {
  const size = shape.reduce((product, length) => product * length, 1);
  return size < CONSTANT_ELEMENTS ? "constant" : "device";
}

function typeOf(dtype: Dtype): string {
  const type = types[dtype];
  if (!type) throw new Error(`unknown type ${dtype}: add Metal's name for it`);
  return type;
}
