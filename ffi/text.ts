// Reads mlx-c's strings and vectors of strings, and frees them.
import { check } from "./error.ts";
import { mlxc } from "./lib.ts";
import { type Pointer, readText } from "./memory.ts";
import { out } from "./slot.ts";

export function takeText(text: Pointer): string {
  const copy = readText(mlxc.mlx_string_data(text)!);
  mlxc.mlx_string_free(text);
  return copy;
}

export function takeTexts(vector: Pointer): string[] {
  const count = mlxc.mlx_vector_string_size(vector);
  const texts = Array.from({ length: count }, (_, i) => {
    check("mlx_vector_string_get", mlxc.mlx_vector_string_get(out.view, vector, i));
    return readText(out.takePointer());
  });
  mlxc.mlx_vector_string_free(vector);
  return texts;
}
