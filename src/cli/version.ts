// mlx-serve version
import { parseArgs } from "node:util";
import { version as number } from "../../package.json";

export async function version(args: string[]): Promise<void> {
  const { values } = parseArgs({ args, options: { licenses: { type: "boolean" } } });
  if (values.licenses) console.log(await (await import("./licenses.ts")).licenses());
  else console.log(`mlx-serve ${number}`);
}
