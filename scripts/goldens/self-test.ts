// Writes src/self-test/models.json: the goldens of tiny models that the self-test includes, one or two per kind of
// state.
//
//   bun scripts/goldens/self-test.ts && node_modules/.bin/biome check --write src/self-test/models.json
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { modelNames, type TinyModel } from "../../src/self-test/tiny-models.ts";

const root = join(import.meta.dir, "../..");

type Case = Pick<TinyModel, "name" | "config" | "gains" | "quantization"> & { extends?: string };
type Golden = Pick<TinyModel, "seed" | "tensors" | "prompt" | "last" | "greedy">;

/** The goldens of these models in test/golden. */
export function chosenModels(): TinyModel[] {
  const read = (name: string) => JSON.parse(readFileSync(join(root, "test/golden", name), "utf8"));
  const cases: Case[] = read("models/configs.json");
  const goldens: Record<string, Golden> = {
    ...read("models/goldens.json"),
    ...read("authors/tiny-models.json"),
  };
  const named = (name: string | undefined) => cases.find((each) => each.name === name);
  return modelNames.map((name) => {
    const own = named(name)!;
    const { config, gains, quantization } = { ...named(own.extends), ...own };
    const { seed, prompt, last, greedy } = goldens[name]!;
    const { tensors } = goldens[own.extends ?? name]!;
    return { name, config, gains, quantization, seed, tensors, prompt, last, greedy };
  });
}

if (import.meta.main) {
  // One model per line.
  const lines = chosenModels().map((model) => JSON.stringify(model));
  writeFileSync(join(root, "src/self-test/models.json"), `[\n${lines.join(",\n")}\n]\n`);
}
